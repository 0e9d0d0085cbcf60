"""judge.py: what differs is said with its place, and a misconception is named only where it shows."""

import numpy as np
import pytest

from flashlab.grading import judge
from flashlab.grading.exercise import Answer, Call, Finding
from flashlab.traffic.trace import Trace

CALL = Call(arrays={"x": np.arange(3.0)}, options={"n": 3})


@pytest.mark.parametrize(
    "got, needed, said",
    [
        (None, 1.0, "no y came back"),
        (np.zeros(3), np.zeros(2), "y has shape (3,); it must be (2,)"),
        (np.array([1.0, 2.5]), np.array([1.0, 2.0]), "y[1] is 2.5; it must be 2; 1 of 2 numbers differ"),
        (np.array(7), np.array(1_000_000), "y is 7; it must be 1,000,000"),
        (np.array("memory"), np.array("compute"), "y is memory; it must be compute"),
        (np.array("3"), np.array(3), "y is 3; it must be 3"),
        (np.array([np.nan]), np.array([1.0]), "y[0] is nan; it must be 1"),
        (np.array([np.inf]), np.array([1.0]), "y[0] is inf; it must be 1"),
        (np.array([True]), np.array([1.0]), "y[0] is True; it must be 1"),
        (np.array([-np.inf, np.nan]), np.array([-np.inf, np.nan]), ""),
        (np.float16([1.0]), np.array([1.0]), ""),
        (np.array([1 + 1e-7]), np.array([1.0]), ""),
        (np.zeros((0, 3)), np.zeros((0, 3)), ""),
    ],
)
def test_differences_are_said(got, needed, said):
    assert judge.differs("y", got, np.asarray(needed), 1e-5, 1e-5) == said


def test_a_dtype_can_be_asked_for():
    assert judge.differs("y", np.float32([1]), np.array([1.0]), 0, 0, "float16") == "y has dtype float32; it must be float16"


def test_an_imitation_is_named_only_where_it_shows():
    right, doubled = (lambda call: {"y": call.arrays["x"]}), (lambda call: {"y": 2 * call.arrays["x"]})
    values = judge.values(right, imitations={"shows nothing": right, "scale applied twice": doubled})
    assert values(CALL, Answer({"y": np.arange(3.0)})) is None
    assert values(CALL, Answer({"y": 2 * np.arange(3.0)})).misconception == "scale applied twice"
    assert values(CALL, Answer({"y": 3 * np.arange(3.0)})).misconception is None


def test_a_symptom_that_raises_is_none():
    values = judge.values(lambda call: {"y": np.zeros(2)}, symptom=lambda call, arrays: arrays["z"])
    assert values(CALL, Answer({"y": np.ones(2)})).misconception is None


def test_expected_is_computed_once_for_a_call():
    made = []
    values = judge.values(lambda call: made.append(1) or {"y": np.zeros(2)})
    for _ in range(3):
        assert values(CALL, Answer({"y": np.zeros(2)})) is None
    assert made == [1]


def answer_that_loaded(size):
    trace = Trace("t", tensors={"q": (4, 4, 4)})
    trace.append("load", "q", rows=4, cols=4, bytes=size)
    return Answer(trace=trace)


@pytest.mark.parametrize("size", [32, 128])
def test_fewer_bytes_are_as_wrong_as_more(size):
    traffic = judge.traffic(lambda call: {("q", "load"): 64, ("o", "store"): 0}, lambda call, trace: "K/V read once per row")
    assert traffic(CALL, answer_that_loaded(64)) is None
    found = traffic(CALL, answer_that_loaded(size))
    assert found.what == f"{size} bytes of q were loaded; the closed form is 64"
    assert found.misconception == "K/V read once per row" and found.theirs == f"load q: {size} bytes"


def test_no_trace_is_no_bytes():
    assert judge.traffic(lambda call: {("q", "load"): 64})(CALL, Answer()).what.startswith("0 bytes of q were loaded")


def test_a_tile_may_not_be_larger_than_given():
    most = judge.tiles_at_most(lambda call: {"q": 16})
    assert most(CALL, answer_that_loaded(64)) is None
    assert most(CALL, answer_that_loaded(68)).what == "one access of q asks for 17 elements; a tile of the given sizes has 16"


def test_meaning_is_the_misconceptions_or_the_hint():
    assert judge.meaning(Finding("x", "lse in base 2", hint="no")).startswith("lse is off by the factor log2(e)")
    assert judge.meaning(Finding("x", hint="look")) == "look"


def test_large_arrays_are_shown_in_part():
    assert len(judge.shown({"x": np.zeros((1000, 1000))})) < 1000
    assert judge.shown({"x": None}) == "x: nothing"


@pytest.mark.parametrize("got, right", [(-np.inf, True), (np.inf, False), (5.0, False), (-1e300, False), (np.nan, False)])
def test_only_infinity_is_near_infinity(got, right):
    assert (judge.differs("lse", np.array([got]), np.array([-np.inf]), 1e-5, 1e-5) == "") is right


def test_a_long_text_is_cut_and_made_plain():
    told = judge.differs("bound", np.array("a\x1b[31m\u202e\n" + "b" * 1_000_000), np.array("memory"), 0, 0)
    assert len(told) < 300 and "a\\x1b[31m\\u202e\\x0ab" in told
    assert len(judge.shown({"bound": np.array("b" * 1_000_000)})) < 200


def test_inputs_are_shown_without_the_room_for_answers():
    call = Call(served={"q": np.zeros(2), "o": np.full(2, 7.0)}, stores=("o",))
    found = judge.values(lambda call: {"o": np.zeros(2)})(call, Answer({"o": np.ones(2)}))
    assert "q =" in found.input and "o =" not in found.input


def test_of_several_heads_the_one_that_the_sentence_names_is_shown():
    needed = np.full((3, 2, 2), 0.5)
    got = needed + np.array([1e-5, 1.0, 1.0])[:, None, None]  # head 0 is near enough for this judge, not for np.allclose
    found = judge.values(lambda call: {"o": needed}, atol=2e-5, rtol=2e-5)(CALL, Answer({"o": got}))
    assert found.what.startswith("o[1, 0, 0] is 1.5; it must be 0.5")
    assert found.theirs == "o[1] =\n[[1.5 1.5]\n [1.5 1.5]]" and found.expected.startswith("o[1] =\n[[0.5 0.5]")


def test_right_arrays_in_another_order_are_named_where_no_imitation_gives_them():
    call = Call(arrays={"x": np.arange(3.0)}, returns=("a", "b", "c"))
    right = {"a": np.zeros(2), "b": np.ones(2), "c": np.full(2, 2.0)}
    values = judge.values(lambda call: right, imitations={"lse in base 2": lambda call: {"a": np.full(2, 2.0)}})
    assert values(call, Answer({"a": right["b"], "b": right["c"], "c": right["a"]})).misconception == "returned in another order"
    assert values(call, Answer({"a": right["b"], "b": right["a"], "c": right["a"]})).misconception is None
    assert values(call, Answer({"a": right["b"]})).misconception is None
    assert values(call, Answer({"a": right["c"], "b": right["b"], "c": right["a"]})).misconception == "lse in base 2"
