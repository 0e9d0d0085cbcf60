"""The extra calls on a GPU: every kernel exercise's solution passes there in float16 and bfloat16 too. No bwrap, no nbgrader.

On a machine with a GPU: python3 -m pytest -m gpu tests/exercises
"""

from dataclasses import replace

import pytest
from exercise_cells import mutated, solution_of

from flashlab import runtime
from flashlab.grading import marks
from flashlab.grading.exercise import find, names

WITH_KERNELS = [name for name in names() if any(test.gpu_cases for test in find(name).tests)]


def said(outcomes):
    return "\n".join(f"{outcome.test.function}, {outcome.test.name}: {outcome.finding.what if outcome.finding else 'passed'}" for outcome in outcomes)


def small(name, **case):
    """The exercise with one small case of each kernel as its extra, which the interpreter can run."""
    exercise = find(name)
    tests = (replace(test, gpu_cases=tuple({**each, "cast": "float16", **case} for each in test.cases[1:2]) if test.gpu_cases else ()) for test in exercise.tests)
    return replace(exercise, tests=tuple(tests))


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_each_kernel_has_calls_for_a_gpu_in_both_types(name):
    tests = find(name).tests
    for function in {test.function for test in tests if test.kernel}:
        calls = [test.call(case) for test in tests for case in test.gpu_cases if test.function == function]
        assert {call.cast for call in calls} >= {"float16", "bfloat16"}, function


def test_the_kernel_exercises_are_among_them():
    assert {"e05_first_kernels", "e06_triton_forward", "e08_triton_backward"} <= set(WITH_KERNELS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_solutions_are_within_the_budget_on_a_gpu(name):
    outcomes = marks.on_gpu(find(name), solution_of(name))
    assert outcomes and all(outcome.passed for outcome in outcomes), said(outcomes)


@pytest.mark.gpu
def test_a_wrong_kernel_is_told_on_a_gpu():
    (outcome,) = marks.on_gpu(find("e06"), mutated("e06", [("scores, -INF)", "scores, -2.0)")]))
    assert not outcome.passed and "plain PyTorch in float16" in outcome.finding.what


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["e05", "e06"])
def test_tf32_is_told_on_a_gpu(name):
    outcomes = marks.on_gpu(find(name), mutated(name, [(', input_precision="ieee"', "")]))
    assert "plain PyTorch in float32" in outcomes[-1].finding.what, said(outcomes)


@pytest.mark.skipif(runtime.device() == "cuda", reason="the interpreter's turn")
@pytest.mark.parametrize("name", ["e05", "e06", "e08"])
def test_the_extra_runs_in_the_interpreter_too(name):
    outcomes = marks.on_gpu(small(name), solution_of(name))
    assert outcomes and all(outcome.passed for outcome in outcomes), said(outcomes)


@pytest.mark.skipif(runtime.device() == "cuda", reason="the interpreter's turn")
def test_the_extra_tells_a_wrong_kernel_and_its_type():
    right, wrong = marks.on_gpu(small("e05"), mutated("e05", [("scale * tl.dot", "tl.dot")]))
    assert right.passed and not wrong.passed
    assert "plain PyTorch in float16" in wrong.finding.what and "in float16" in wrong.finding.input
