"""e04_flash_forward: each misconception is a mutant of the solution, caught at a named test with a message that names it."""

import numpy as np
import pytest

from exercise_cells import assert_caught, mutated, solution_of, stub_of

from flashlab.grading import marks
from flashlab.grading.exercise import find

# {misconception: (the test it fails first, the edits that make it)}
MUTANTS = {
    "no running max": (
        "masked",
        [
            ("shift = np.where(np.isneginf(new_max), 0, new_max)", "shift = np.zeros(len(q_tile), exact)"),
            ("np.exp(row_max - shift)", "np.ones(len(q_tile), exact)"),
            ("row_max + np.log", "np.log"),
            ("1 / whole))", "np.exp(row_max) / whole))"),
        ],
    ),
    "row_sum not rescaled": (
        "small",
        [
            ("row_sum * rescale", "row_sum"),
        ],
    ),
    "acc not rescaled": (
        "small",
        [
            ("acc * rescale[:, None]", "acc"),
        ],
    ),
    "rescale by the wrong factor": (
        "small",
        [
            ("np.exp(row_max - shift)", "np.where(np.isneginf(row_max), 0, np.exp(shift - row_max))"),
        ],
    ),
    "divided inside the loop": (
        "small",
        [
            ("weights @ v_tile\n", "weights @ v_tile\n            acc = acc / np.where(row_sum == 0, 1, row_sum)[:, None]\n"),
            ("acc / whole[:, None]", "acc"),
        ],
    ),
    "scale forgotten": (
        "small",
        [
            ("scale * (q_tile", "(q_tile"),
        ],
    ),
    "scale applied twice": (
        "small",
        [
            ("scale * (q_tile", "scale * scale * (q_tile"),
        ],
    ),
    "causal mask off by one": (
        "masked",
        [
            ("cols.stop) <= last", "cols.stop) < last"),
        ],
    ),
    "causal mask missing": (
        "masked",
        [
            ("if causal and cols.start > last_key[-1]", "if False"),
            ("            if causal:\n", "            if False:\n"),
        ],
    ),
    "mask with a finite number": (
        "masked",
        [
            ("scores, -np.inf)", "scores, -1e4)"),
        ],
    ),
    "last ragged tile dropped": (
        "ragged",
        [
            ("in tiles(n_keys, block_k)", "in tiles(n_keys // block_k * block_k, block_k)"),
        ],
    ),
    "padded keys not masked": (
        "ragged",
        [
            ("in tiles(n_keys, block_k)", "in tiles(min(len(k), -(-n_keys // block_k) * block_k), block_k)"),
        ],
    ),
    "top-left causal alignment": (
        "masked",
        [
            (" + n_keys - n_q", ""),
        ],
    ),
    "fully masked row gives NaN": (
        "masked",
        [
            ("shift = np.where(np.isneginf(new_max), 0, new_max)", "shift = new_max"),
        ],
    ),
    "full n×n matrix built": (
        "bytes",
        [
            ("    for rows in", "    everything = np.zeros((n_q, n_keys), np.float16)\n    for rows in"),
        ],
    ),
    "K/V read once per row": (
        "bytes",
        [
            ("k_tile, v_tile = k.load(cols).astype(exact), v.load(cols).astype(exact)", "k_tile, v_tile = [(k.load(cols).astype(exact), v.load(cols).astype(exact)) for _ in q_tile][0]"),
        ],
    ),
    "tiles above the diagonal visited": (
        "bytes",
        [
            ("if causal and cols.start > last_key[-1]", "if False"),
        ],
    ),
    "low-precision accumulator": (
        "large scores",
        [
            ("row_sum * rescale + weights.sum(axis=1)", "(row_sum * rescale + weights.sum(axis=1)).astype(q.dtype)"),
            ("acc * rescale[:, None] + weights @ v_tile", "(acc * rescale[:, None] + weights @ v_tile).astype(q.dtype)"),
        ],
    ),
    "lse in base 2": (
        "small",
        [
            ("row_max + np.log(row_sum)", "(row_max + np.log(row_sum)) / np.log(2)"),
        ],
    ),
    "lse without the max": (
        "small",
        [
            ("row_max + np.log(row_sum)", "np.log(row_sum)"),
        ],
    ),
}


@pytest.mark.parametrize("misconception", MUTANTS)
def test_each_misconception_is_caught_and_named(misconception):
    test, edits = MUTANTS[misconception]
    assert_caught("e04", misconception, test, edits)


RESCALE, SHIFT, PEAK = "np.exp(row_max - shift)", "shift = np.where(np.isneginf(new_max), 0, new_max)", "np.where(row_sum == 0, 0, 1 / whole)"
SKIP, SEEN, NEW_MAX = "cols.start > last_key[-1]", "<= last_key[:, None]", "np.maximum(row_max, scores.max(axis=1))"
WHOLE = [("k.load(cols)", "k_all[cols]"), ("v.load(cols)", "v_all[cols]")]
# The same misconceptions as students write them: {what: (misconception, test, edits)}
AS_WRITTEN = {
    "new and old swapped, as it is": ("rescale by the wrong factor", "small", [(RESCALE, "np.exp(shift - row_max)")]),
    "no maximum in the weights": ("no running max", "small", [("np.exp(scores - shift[:, None])", "np.exp(scores)")]),
    "no maximum in the weights, no rescale": ("no running max", "small", [("np.exp(scores - shift[:, None])", "np.exp(scores)"), (RESCALE, "np.ones(len(q_tile), exact)")]),
    "shift is 0": ("no running max", "small", [(SHIFT, "shift = np.zeros(len(q_tile), exact)")]),
    "the tile's maximum, no rescale": ("no running max", "small", [(NEW_MAX, "scores.max(axis=1)"), (RESCALE, "np.ones(len(q_tile), exact)")]),
    "one key too many": ("causal mask off by one", "masked", [(SEEN, SEEN + " + 1")]),
    "one key too many, no tile skipped": ("causal mask off by one", "masked", [(SEEN, SEEN + " + 1"), (SKIP, "False")]),
    "tiles skipped, but no mask in them": ("causal mask missing", "masked", [("            if causal:\n", "            if False:\n")]),
    "one key too few": ("causal mask off by one", "masked", [(SEEN, "< last_key[:, None]")]),
    "all of it in the inputs' dtype": ("low-precision accumulator", "large scores", [("exact = np.result_type(q.dtype, np.float32)", "exact = q.dtype")]),
    "tiles left in the inputs' dtype": ("low-precision accumulator", "large scores", [("q.load(rows).astype(exact)", "q.load(rows)"), ("k.load(cols).astype(exact), v.load(cols).astype(exact)", "k.load(cols), v.load(cols)")]),
    "scores in float16": ("low-precision accumulator", "small", [("scale * (q_tile @ k_tile.T)", "(scale * (q_tile @ k_tile.T)).astype(np.float16)")]),
    "acc in float16": ("low-precision accumulator", "small", [("acc * rescale[:, None] + weights @ v_tile", "(acc * rescale[:, None] + weights @ v_tile).astype(np.float16)")]),
    "row_sum in float16": ("low-precision accumulator", "small", [("row_sum * rescale + weights.sum(axis=1)", "(row_sum * rescale + weights.sum(axis=1)).astype(np.float16)")]),
    "v loaded twice": ("K/V read once per row", "bytes", [("            acc = acc *", "            v_tile = v.load(cols).astype(exact)\n            acc = acc *")]),
    "whole before the loop": ("k and v kept whole", "bytes", [*WHOLE, ("    for rows in", "    k_all, v_all = k.load(slice(0, n_keys)), v.load(slice(0, n_keys))\n    for rows in")]),
    "whole for each tile of queries": ("tiles above the diagonal visited", "bytes", [*WHOLE, ("        last_key =", "        k_all, v_all = k.load(slice(0, n_keys)), v.load(slice(0, n_keys))\n        last_key =")]),
    "one tile too many": ("tiles above the diagonal visited", "bytes", [(SKIP, SKIP + " + 1")]),
    "one tile too few": ("visible tile skipped", "masked", [(SKIP, "cols.start >= last_key[-1]")]),
    "one tile too few, by its end": ("visible tile skipped", "masked", [(SKIP, "cols.stop > last_key[-1]")]),
    "one tile too few, by the first query": ("visible tile skipped", "masked", [(SKIP, "cols.start > last_key[0]")]),
}  # fmt: skip


@pytest.mark.parametrize("what", AS_WRITTEN)
def test_misconceptions_as_students_write_them_are_named_too(what):
    assert_caught("e04", *AS_WRITTEN[what])


@pytest.mark.parametrize("peak", ["weights.max(axis=1)", "weights.max(axis=1) / whole", "row_max", "np.exp(row_max) / whole", "1 / whole"])
def test_a_wrong_peak_is_told_what_peak_is(peak):
    result = marks.mark(find("e04"), mutated("e04", [(PEAK, peak)]), stop=True)
    assert "usually means: o and lse are right. peak is exp(row_max - lse)" in "\n".join(marks.lines(result))


STRIPE = '''
        last_key = np.arange(rows.start, rows.stop) + n_keys - n_q
        loaded = [(cols, k.load(cols), v.load(cols)) for cols in tiles(n_keys, block_k) if not causal or cols.start <= last_key[-1]]
        if not loaded:
            o.store(rows, acc), lse.store(rows, row_max), peak.store(rows, row_sum)
            continue
        keys, all_k, all_v = (np.concatenate(parts) for parts in zip(*((np.arange(cols.start, cols.stop), *pair) for cols, *pair in loaded)))
        scores = scale * (q_tile @ all_k.astype(exact).T)
        if causal:
            scores = np.where(keys <= last_key[:, None], scores, -np.inf)
        row_max = scores.max(axis=1)
        weights = np.exp(scores - np.where(np.isneginf(row_max), 0, row_max)[:, None])
        row_sum = weights.sum(axis=1)
        whole = np.where(row_sum == 0, 1, row_sum)
        o.store(rows, weights @ all_v.astype(exact) / whole[:, None])
        with np.errstate(divide="ignore"):
            lse.store(rows, np.where(np.isneginf(row_max), 0, row_max) + np.log(row_sum))
        peak.store(rows, np.where(row_sum == 0, 0, 1 / whole))
        memory.release()
'''


def test_all_keys_of_a_tile_of_queries_at_once_is_the_matrix_again():
    """It loads tile by tile, so its bytes are right: only the memory that the kernel keeps from it tells."""
    (source,) = solution_of("e04").values()
    start = source.index("\n        last_key")
    result = marks.mark(find("e04"), {"flash_forward": source[:start] + STRIPE})
    assert [outcome.passed for outcome in result.outcomes] == [True, True, True, True, False], "\n".join(marks.lines(result))
    assert result.first_failure.finding.misconception == "full n×n matrix built"


SCALE = "scale = head_dim**-0.5"


def test_the_scale_that_is_given_leaves_the_dtype_of_the_scores_alone():
    """A np.float64 would make them float64, twice the bytes of SRAM, and hide what was summed in float16."""
    (source,) = stub_of("e04").values()
    assert SCALE in source and (2**-0.5 * np.ones(1, np.float16)).dtype == np.float16
    assert all(SCALE in source for source in (solution_of("e04")["flash_forward"], stub_of("e07")["backward"], solution_of("e07")["backward"]))


@pytest.mark.parametrize("scale", ["scale = 1 / np.sqrt(head_dim)", "scale = 1 / math.sqrt(head_dim)"])
def test_another_way_to_write_the_scale_is_as_right(scale):
    result = marks.mark(find("e04"), mutated("e04", [(SCALE, scale)]))
    assert result, "\n".join(marks.lines(result))


@pytest.mark.parametrize(
    "edit, said",
    [
        (("k.load(cols)", "k[cols]"), "k lies in HBM and is no array: to read a tile use k.load(...)"),
        (("        peak.store(rows, np.where(row_sum == 0, 0, 1 / whole))", "        peak[rows] = 1 / whole"), "peak lies in HBM and is no array: to write a tile use peak.store(..., tile)"),
        (("            lse.store(rows, row_max + np.log(row_sum))\n", ""), "usually means: never written. Here is still what the room for answers was filled with before: nothing was stored. See whether every tile is stored"),
    ],
)
def test_who_forgets_load_or_store_is_told_about_it(edit, said):
    assert said in "\n".join(marks.lines(marks.mark(find("e04"), mutated("e04", [edit]), stop=True)))


def test_a_long_text_that_is_printed_is_not_taken_for_the_matrix():
    result = marks.mark(find("e04"), mutated("e04", [("    for rows in", "    print('x' * 50_000_000)\n    for rows in")]))
    assert [outcome.passed for outcome in result.outcomes] == [True, True, True, True, False]
    assert result.first_failure.finding.misconception is None and "usually means: Memory is limited here, and a text to print takes it too." in "\n".join(marks.lines(result))
