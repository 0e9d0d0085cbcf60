"""e04_flash_forward: each misconception is a mutant of the solution, caught at a named test with a message that names it."""

import pytest

from exercise_cells import assert_caught

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
