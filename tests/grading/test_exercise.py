"""exercise.py: exercises are found by what a person types, and hidden cases come from a file that is never imported."""

import numpy as np
import pytest

from flashlab.grading.exercise import Call, Exercise, Fault, Test, find, names


def test_every_exercise_is_found_by_its_id_and_by_its_name():
    for name in names():
        assert find(name).name == name == find(find(name).id).name


@pytest.mark.parametrize("typed", ["4", "04", "e04", 4])
def test_a_number_alone_will_do(typed):
    assert find(typed).id == "e04"


def test_a_number_that_is_no_exercise_is_named_as_it_was_typed():
    with pytest.raises(LookupError, match="^no exercise is called '99'; there are: e01, "):
        find("99")


def test_an_unknown_exercise_lists_those_there_are():
    with pytest.raises(LookupError) as caught:
        find("e99")
    ids = ", ".join(name.split("_")[0] for name in names())
    assert str(caught.value) == f"no exercise is called 'e99'; there are: {ids}."


def test_hidden_cases_are_added_to_the_test_of_their_name(tmp_path):
    exercise = Exercise("e77_x", "x", "01", (Test("small", 1, "f", (1,), Call, ()), Test("large", 1, "f", (2,), Call, ())))
    (tmp_path / "e77_x").mkdir()
    assert exercise.with_hidden(tmp_path) is exercise
    (tmp_path / "e77_x/hidden.py").write_text("CASES = {'large': [3, 4]}")
    assert [test.cases for test in exercise.with_hidden(tmp_path).tests] == [(1,), (2, 3, 4)]
    assert (exercise.points, exercise.functions, exercise.id) == (2, ("f",), "e77")


def test_calls_are_made_once():
    made = []
    test = Test("small", 1, "f", (1, 2), lambda case: made.append(case) or Call(), ())
    assert test.calls is test.calls and made == [1, 2]


def test_a_call_and_a_fault_read_as_text():
    assert str(Call(arrays={"x": np.zeros((2, 3), np.float32)}, options={"n": 3})) == "x (2, 3) float32, n=3"
    assert str(Fault("ValueError", "no", 3, "f(x)")) == "ValueError: no in line 3: f(x)"
    assert str(Fault("SystemExit", "")) == "SystemExit"
