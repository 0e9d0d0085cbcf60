"""e03_online_softmax: each misconception is a mutant of the solution, caught at a named test; the cases hold what they promise."""

from functools import reduce

import numpy as np
import pytest

from exercise_cells import ROOT, assert_caught, mutated
from flashlab.grading import marks
from flashlab.grading.exercise import Call, find
from flashlab.grading.exercises.e03_online_softmax import SIDES, STATE, entropies, merged, state_of, updated

SHIFT = "shift = np.where(np.isneginf(new_max), 0, new_max)"
MERGE_SHIFT = "shift = np.where(np.isneginf(row_max), 0, row_max)"
FACTORS = "from_left, from_right = np.exp(left_max - shift), np.exp(right_max - shift)"
# {misconception: (the test it fails first, the edits that make it)}
MUTANTS = {
    "no running max": ("update", [(SHIFT, "shift = np.zeros(len(scores))"), ("np.exp(row_max - shift)\n", "1\n")]),
    "row_sum not rescaled": ("update", [("row_sum * rescale", "row_sum")]),
    "score_sum not rescaled": ("update", [("score_sum * rescale", "score_sum")]),
    "rescale by the wrong factor": ("update", [("rescale = np.exp(row_max - shift)", "rescale = np.where(np.isneginf(row_max), 0, np.exp(shift - row_max))")]),
    "state before replaced": ("update", [("row_sum * rescale + ", ""), ("score_sum * rescale + ", "")]),
    "divided inside the loop": ("update", [("(weights * finite).sum(axis=1)", "(weights * finite).sum(axis=1)\n    score_sum = score_sum / row_sum")]),
    "-inf times 0": ("masked", [("np.where(np.isneginf(scores), 0, scores)", "scores")]),
    "fully masked row gives NaN": ("masked", [(SHIFT, "shift = new_max")]),
    "maxima added": ("merge", [("row_max = np.maximum(left_max, right_max)", "row_max = left_max + right_max")]),
    "merged without a common maximum": ("merge", [(FACTORS, "from_left = from_right = 1")]),
    "empty split gives NaN": ("merge", [(MERGE_SHIFT, "shift = row_max")]),
    "lse in base 2": ("one pass", [("row_max + np.log(row_sum)", "(row_max + np.log(row_sum)) / np.log(2)")]),
    "lse without the max": ("one pass", [("row_max + np.log(row_sum)", "np.log(row_sum)")]),
    "last ragged tile dropped": ("one pass", [("tiles(n_k, block_k)", "tiles(n_k // block_k * block_k, block_k)")]),
    "score_sum not divided": ("one pass", [("score_sum / np.where(blind, 1, row_sum)", "score_sum")]),
    "scores read twice": ("one pass", [("    blind = row_sum == 0\n", "    blind = row_sum == 0\n    for cols in tiles(n_k, block_k):\n        scores.load(rows, cols)\n")]),
}
AGAIN = {  # the same misconception in another of the three functions
    "score_sum not rescaled": ("merge", [("left_score_sum * from_left + right_score_sum * from_right", "left_score_sum + right_score_sum")]),
    "rescale by the wrong factor": ("merge", [(FACTORS, "from_left, from_right = np.exp(row_max - left_max), np.exp(row_max - right_max)")]),
    "fully masked row gives NaN": ("one pass", [("np.where(blind, 0, lse_rows - mean_score)", "lse_rows - mean_score")]),
}  # fmt: skip


@pytest.mark.parametrize("misconception", MUTANTS)
def test_each_misconception_is_caught_and_named(misconception):
    assert_caught("e03", misconception, *MUTANTS[misconception])


@pytest.mark.parametrize("misconception", AGAIN)
def test_it_is_caught_in_the_other_functions_too(misconception):
    assert_caught("e03", misconception, *AGAIN[misconception])


def test_a_whole_row_at_once_does_not_fit_into_sram():
    result = marks.mark(find("e03"), mutated("e03", [("tiles(n_k, block_k)", "tiles(n_k, n_k)")]), stop=True)
    assert result.first_failure.test.name == "one pass" and "SRAM" in result.first_failure.finding.what
    said = "\n".join(marks.lines(result))
    assert "block_q" not in said and "sram_bytes" not in said, "the student has neither"
    assert "usually means: All rows fit with block_k scores of each, not with all n_k. Go over tiles(n_k, block_k)" in said


@pytest.mark.parametrize(
    "test, edit",
    [
        ("update", ("return new_max, row_sum, score_sum", "return row_sum, score_sum, new_max")),
        ("merge", ("    return row_max, row_sum, score_sum", "    return row_sum, row_max, score_sum")),
    ],
)
def test_sums_in_another_order_are_told_so(test, edit):
    assert_caught("e03", "returned in another order", test, [edit])


def test_merging_is_associative_in_the_judge_and_the_same_as_updating():
    tiles = [np.random.default_rng(seed).standard_normal((4, 3)) * 1e3 for seed in range(5)]
    tiles[2][1] = -np.inf
    states, merge = [state_of(tile) for tile in tiles], merged()

    def both(left, right):
        return merge(Call(arrays={f"{side}_{name.removeprefix('row_')}": state[name] for side, state in zip(SIDES, (left, right)) for name in STATE}))

    whole = state_of(np.concatenate(tiles, axis=1))
    orders = reduce(both, states), reduce(lambda after, before: both(before, after), states[::-1])
    online = reduce(lambda state, tile: updated()(Call(arrays={**state, "scores": tile})), tiles, state_of(np.empty((4, 0))))
    for found in (*orders, online):
        for name in STATE:
            np.testing.assert_allclose(found[name], whole[name], rtol=1e-12)


def test_equal_scores_have_the_entropy_of_n_and_one_key_has_none():
    equal = Call(served={"scores": np.full((1, 8), 5.0)}, options={"block_k": 4})
    np.testing.assert_allclose(entropies()(equal)["entropy"], np.log(8))
    assert entropies()(Call(served={"scores": np.full((1, 1), -1e4)}, options={"block_k": 4}))["entropy"] == 0


def test_the_cases_hold_what_their_tests_are_named_for():
    calls = {test.name: test.calls for test in find("e03").with_hidden(ROOT / "solutions").tests}
    assert any(np.abs(call.arrays["scores"]).max() >= 1e4 for call in calls["large scores"])
    assert any(np.isneginf(call.arrays["scores"]).all(axis=1).any() for call in calls["masked"])
    assert any((call.arrays["left_sum"] == 0).all() and (call.arrays["right_sum"] == 0).all() for call in calls["merge"])
    assert any(call.sram_bytes < call.served["scores"].nbytes for call in calls["one pass"])
