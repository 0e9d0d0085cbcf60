"""The extra runs on a GPU: every kernel exercise's solution passes there in fp16 and bf16. Needs neither bwrap nor nbgrader.

On a machine with a GPU: python3 -m pytest -m gpu tests/exercises
"""

import pytest

from exercise_cells import mutated, solution_of

from flashlab import runtime
from flashlab.grading import gpu_extra, marks
from flashlab.grading.checking import Checked
from flashlab.grading.exercise import find, names

WITH_KERNELS = [name for name in names() if find(name).on_gpu]


@pytest.mark.parametrize("name", [name for name in names() if any(test.kernel for test in find(name).tests)])
def test_every_exercise_with_kernels_says_what_runs_on_a_gpu(name):
    exercise = find(name)
    assert {extra.function for extra in exercise.on_gpu} == {test.function for test in exercise.tests if test.kernel}


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_solutions_are_within_the_error_budget_on_a_gpu(name):
    exercise = find(name)
    ran = gpu_extra.run(exercise, solution_of(name))
    for each in ran:
        print(each)
    assert not [str(each) for each in ran if each.wrong]
    wanted = [(extra.function, dtype) for extra in exercise.on_gpu for dtype in extra.dtypes]
    assert [(each.function, each.dtype) for each in ran] == list(dict.fromkeys(wanted))


@pytest.mark.gpu
def test_a_check_on_a_gpu_adds_lines_and_changes_no_mark():
    exercise, cells = find("e06"), solution_of("e06")
    result = marks.Result(exercise, [marks.Outcome(test) for test in exercise.tests])
    text = repr(Checked(result, cells))
    assert "extra, worth no points" in text and text.count("✓ flash_tokens_kernel in") == 2
    assert result.points == exercise.points


@pytest.mark.gpu
def test_a_kernel_that_loses_digits_is_told_on_a_gpu():
    cells = mutated("e06", [('acc, input_precision="ieee")', 'acc, input_precision="ieee").to(q_tile.dtype).to(tl.float32)')])
    assert any("plain PyTorch in bfloat16" in each.wrong for each in gpu_extra.run(find("e06"), cells))




@pytest.mark.skipif(runtime.device() == "cuda", reason="the interpreter's turn")
def test_the_child_works_in_the_interpreter_too():
    ran = gpu_extra.run(find("e05"), solution_of("e05"), device="cpu", dtypes=("float16",))
    assert [(each.function, each.dtype, each.wrong) for each in ran] == [("softmax_keys_kernel", "float16", ""), ("scores_by_key_kernel", "float16", "")]
    assert all(0 < each.times <= 2 for each in ran)


@pytest.mark.skipif(runtime.device() == "cuda", reason="the interpreter's turn")
def test_a_wrong_kernel_is_told_with_its_input():
    cells = mutated("e05", [("scale * tl.dot", "tl.dot")])
    right, wrong = gpu_extra.run(find("e05"), cells, device="cpu", dtypes=("float16",))
    assert not right.wrong and "scores is wrong by up to" in wrong.wrong and "head_dim=64" in str(wrong)


def test_no_line_is_added_without_a_gpu(monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    assert gpu_extra.lines(find("e06"), solution_of("e06")) == []


def test_a_cell_that_breaks_a_rule_is_not_run():
    (ran,) = gpu_extra.run(find("e06"), {"flash_tokens_kernel": "import os\n"}, device="cpu")
    assert "import os" in ran.wrong
