"""e09_bug_hunt: each kernel has one fault and no other, and every kind of wrong answer is told what is wrong with it."""

import numpy as np
import pytest
from exercise_cells import ROOT, mutated, solution_of

from flashlab.grading import marks
from flashlab.grading.exercise import Answer, find
from flashlab.grading.exercises.e09_bug_hunt import BROKEN, Hunt, fault_of, look, named, settings_of, shown_by_a_pair
from flashlab.grading.misconceptions import MEANS

KERNELS = ROOT / "solutions" / "e09_bug_hunt" / "files" / "kernels.py"
# {kernel: the edits that make it right}
FIXES = {
    1: [("        if CAUSAL:\n            scores = tl.where(keys", "        scores = tl.where(keys[None, :] < n_k, scores, -INF)\n        if CAUSAL:\n            scores = tl.where(keys")],
    2: [("tl.cdiv((tile + 1) * BLOCK_Q, BLOCK_K)", "tl.cdiv(tl.maximum((tile + 1) * BLOCK_Q + n_k - n_q, 0), BLOCK_K)"), ("rows >= keys", "rows + n_k - n_q >= keys")],
    3: [("v_tile, acc, input", "v_tile, acc * tl.exp2(top - safe)[:, None], input")],
    4: [("head % kv_heads", "head // (heads // kv_heads)")],
    5: [("tl.load(k + at)", "tl.load(k + at, mask=keys[:, None] < n_k, other=0.0)")],
    6: [("left = n_k\n", "left = n_k\n    unseen = tl.maximum(n_q - begin - BLOCK_Q, 0) if CAUSAL else 0\n"), ("while left > 0:", "while left > unseen:")],
    7: [("dk + own, dk_tile,", "dk + own, dk_tile * scale,")],
    8: [("rows[:, None] * HEAD_DIM", "rows[:, None] * q_row")],
}  # fmt: skip
# on these each fixed kernel is right, and each broken one is wrong on those that its fault touches: {input: kernels}
INPUTS = [
    ({}, {7}),
    ({"scale": 1.0}, set()),
    ({"n_q": 20}, {7}),
    ({"n_k": 32}, {3, 7}),
    ({"n_k": 41}, {1, 3, 5, 7}),
    ({"causal": True, "n_q": 32, "n_k": 32}, {3, 6, 7}),
    ({"causal": True, "n_k": 32}, {2, 3, 7}),
    ({"causal": True, "n_q": 45, "n_k": 28, "scale": 1.0}, {2, 3, 5, 6}),
    ({"causal": True, "n_q": 20, "n_k": 20}, {3, 5, 6, 7}),
    ({"heads": 4, "kv_heads": 2}, {4, 7}),
    ({"heads": 4, "kv_heads": 2, "together": True, "n_q": 17}, {4, 7, 8}),
    ({"heads": 2, "together": True, "scale": 1.0}, {8}),
]
ANSWERS = {
    1: ({"n_k": 20}, "n_k=16", "padded keys not masked"),
    2: ({"causal": True, "n_k": 32}, "n_k=16", "top-left causal alignment"),
    3: ({"n_k": 32}, "n_k=16", "acc not rescaled"),
    4: ({"heads": 4, "kv_heads": 2}, "kv_heads=1", "grouped heads mapped by modulo"),
    5: ({"n_k": 20}, "n_k=16", "out-of-bounds load"),
    6: ({"causal": True, "n_q": 32, "n_k": 32}, "causal=False", "tiles above the diagonal visited"),
    7: ({}, "scale=1.0", "dK without scale"),
    8: ({"heads": 2, "together": True}, "heads=1", "stride assumed contiguous"),
}


def answer_of(settings, right_with, misconception):
    """What comes back from the sandbox for such a dict."""
    return Answer({name: np.array(value) for name, value in {**settings, "right_with": right_with, "misconception": misconception}.items()})


def test_each_kernel_has_its_fault_and_no_other():
    source = KERNELS.read_text()
    for kernel, edits in FIXES.items():
        before, begin, after = source.partition(f"def kernel_{kernel}(")
        own, end, rest = after.partition("\n@triton.jit")
        for old, new in edits:
            assert old in own, f"kernel_{kernel} does not contain {old!r}"
            own = own.replace(old, new)
        source = before + begin + own + end + rest
    for settings, wrong in INPUTS:
        made = tuple(settings_of(settings).items())
        assert {kernel for kernel in BROKEN if fault_of(kernel, made, 3)} == wrong, settings
        assert not {kernel: fault for kernel in BROKEN if (fault := fault_of(kernel, made, 3, source))}, settings


@pytest.mark.parametrize("kernel", BROKEN)
def test_other_right_answers_than_the_solutions_pass_and_other_names_do_not(kernel):
    answer = answer_of(*ANSWERS[kernel])
    assert [judge(Hunt(kernel=kernel, seed=1), answer) for judge in (shown_by_a_pair, named)] == [None, None]
    for name in MEANS:
        assert (named(Hunt(kernel=kernel, seed=1), answer_of({}, "n_k=17", name)) is None) == (name == ANSWERS[kernel][2]), name


def test_values_bytes_and_addresses_are_told_apart():
    assert look(1, n_k=20).startswith("a wrong value: lse[0, 0] is")
    assert look(5, n_k=20).startswith("an access outside a tensor: program 0 of kernel_5 would read k at element offset 320")
    assert look(6, causal=True, n_q=32, n_k=32) == "wrong bytes: 4,096 bytes of k were loaded; it takes 3,072"
    assert look(6, n_q=32, n_k=32) == "right: values, bytes and addresses"


@pytest.mark.parametrize(
    ("settings", "right_with", "says"),
    [
        ({"n_k": 32}, "n_k=16", "kernel_1 is right on that input"),
        ({"n_k": 20}, "n_k=40", "with right_with, kernel_1 is still wrong: a wrong value: lse[0, 0]"),
        ({"n_k": 20}, "n_k=20", "right_with is 'n_k=20', which changes nothing"),
        ({"n_k": 20}, "n_k=16, n_q=32", "right_with is 'n_k=16, n_q=32': n_k is 16,n_q=32; it must be a whole number"),
        ({"n_k": 20}, "causal", "right_with is 'causal': causal is ; it must be a truth value"),
        ({"n_k": 20}, "causal=2", "right_with is 'causal=2': causal is 2; it must be a truth value"),
        ({"n_k": 4096}, "n_k=16", "n_k is 4096; it must be 1 to 48"),
        ({"n_k": 20.5}, "n_k=16", "n_k is 20.5; it must be a whole number"),
        ({"n_k": np.inf}, "n_k=16", "n_k is inf; it must be a whole number"),
        ({"n_k": "<script>"}, "n_k=16", "n_k is <script>; it must be a whole number"),
        ({"n_k": [20, 20]}, "n_k=16", "n_k is None; it must be a whole number"),
        ({"n_keys": 20}, "n_k=16", "there is no setting 'n_keys'; there are n_q, n_k, heads"),
        ({"heads": 3, "kv_heads": 2}, "n_k=16", "heads is 3 and kv_heads 2; each key head must have as many query heads"),
        ({"scale": -1}, "n_k=16", "scale is -1.0; it must be 0.05 to 2.0"),
        ({"n_k": 20}, 16, "the answer has no 'right_with'"),
    ],
)
def test_a_wrong_pair_is_told_why(settings, right_with, says):
    finding = shown_by_a_pair(Hunt(kernel=1, seed=1), answer_of(settings, right_with, "padded keys not masked"))
    assert finding.what.startswith(says)


def test_a_wrong_name_is_told_what_it_would_mean():
    finding = named(Hunt(kernel=5, seed=1), answer_of({"n_k": 20}, "n_k=16", "padded keys not masked"))
    assert finding.what == "kernel_5 does something else wrong than 'padded keys not masked'" and MEANS["padded keys not masked"] in finding.hint
    finding = named(Hunt(kernel=5, seed=1), answer_of({"n_k": 20}, "n_k=16", "it is broken"))
    assert finding.what == "'it is broken' is not one of the names" and "out-of-bounds load" in finding.hint


def test_a_pair_that_holds_by_chance_fails_on_other_numbers():
    """One key more than a tile seldom holds the largest score of the only query: acc is rescaled by 1."""
    pair = answer_of({"n_q": 1, "n_k": 17}, "n_k=16", "acc not rescaled")
    verdicts = {shown_by_a_pair(Hunt(kernel=3, seed=seed), pair) is None for seed in (1, 2, 101, 102)}
    assert False in verdicts


def test_look_says_what_it_takes():
    with pytest.raises(ValueError, match="kernel is 9; it must be 1 to 8"):
        look(9)
    with pytest.raises(ValueError, match="n_q is 100; it must be 1 to 48"):
        look(1, n_q=100)


def test_marks_go_kernel_by_kernel_and_a_check_stops_at_the_first():
    wrong = mutated("e09", [('"n_k": 20, "right_with": "n_k=16", "misconception": "out', '"n_k": 32, "right_with": "n_k=16", "misconception": "out')])
    assert marks.mark(find("e09"), wrong).points == 15
    stopped = marks.mark(find("e09"), wrong, stop=True)
    assert stopped.first_failure.test.name == "kernel 5" and stopped.points == 8
    crashing = mutated("e09", [("return", "import os; os._exit(3)\n    return")])
    assert marks.mark(find("e09"), crashing).points == 0
    assert marks.mark(find("e09"), solution_of("e09")).points == 16
