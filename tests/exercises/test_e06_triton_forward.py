"""e06_triton_forward: each misconception is a mutant of the kernel, caught at a named test with a message that names it."""

import pytest

from exercise_cells import KernelMutants

from flashlab.grading import marks

SHIFT = "tl.where(new_max == -INF, 0.0, new_max)"
HEADS_FIRST = [
    *((f"{at} * {name}_row", f"{at} * HEAD_DIM") for name, at in (("q", "rows"), ("k", "keys[:, None]"), ("v", "keys[:, None]"), ("o", "rows"))),
    *((f"{head} * {name}_head", f"{head} * {n} * HEAD_DIM") for name, head, n in (("q", "head", "n_q"), ("k", "kv_head", "n_k"), ("v", "kv_head", "n_k"), ("o", "head", "n_q"))),
]
# {misconception: (the test it fails first, the edits that make it)}; what follows a comma tells two mutants of one apart
MUTANTS = {
    "no running max": (
        "plain ragged",
        [(SHIFT, "tl.zeros([BLOCK_Q], tl.float32)"), ("tl.exp2((row_max - shift) * LOG2_E)", "tl.full([BLOCK_Q], 1.0, tl.float32)"), ("row_max + tl.log", "tl.log")],
    ),
    "row_sum not rescaled": ("plain", [("row_sum * rescale +", "row_sum +")]),
    "acc not rescaled": ("plain", [("acc = acc * rescale[:, None]", "acc = acc")]),
    "rescale by the wrong factor": ("plain", [("tl.exp2((row_max - shift) * LOG2_E)", "tl.where(row_max == -INF, 0.0, tl.exp2((shift - row_max) * LOG2_E))")]),
    "divided inside the loop": ("plain", [("        row_max = new_max", "        acc = acc / row_sum[:, None]\n        row_max = new_max"), ("acc / whole[:, None]", "acc")]),
    "scale forgotten": ("plain", [("scale * tl.dot", "tl.dot")]),
    "scale applied twice": ("plain", [("scale * tl.dot", "scale * scale * tl.dot")]),
    "stride assumed contiguous": ("plain", HEADS_FIRST),
    "stride assumed contiguous, of v": ("plain bytes", [("keys[:, None] * v_row", "keys[:, None] * k_row"), ("kv_head * v_head", "kv_head * k_head")]),
    "last ragged tile dropped": ("plain ragged", [("tl.cdiv(end, BLOCK_K)", "end // BLOCK_K")]),
    "padded keys not masked": ("plain ragged", [("seen = keys[None, :] < n_k", "seen = keys[None, :] >= 0")]),
    "out-of-bounds load": ("plain ragged", [("cols, mask=here, other=0.0)  # read block_k · head_dim\n        scores", "cols)\n        scores")]),
    "out-of-bounds load, of a query": ("plain ragged", [("cols, mask=rows < n_q, other=0.0)", "cols)")]),
    "masked load without other, of v": ("plain ragged", [("cols, mask=here, other=0.0)  # read block_k · head_dim\n        acc", "cols, mask=here)\n        acc")]),
    "lse in base 2": ("plain", [("row_max + tl.log(row_sum)", "row_max * LOG2_E + tl.log2(row_sum)")]),
    "tiles above the diagonal visited, one of them": ("skipped tiles", [("(tile + 1) * BLOCK_Q + n_k - n_q", "(tile + 1) * BLOCK_Q + n_k - n_q + 1")]),
    "K/V read once per row, v twice": ("plain bytes", [("        row_max = new_max", "        again = tl.load(v + kv_head * v_head + keys[:, None] * v_row + cols, mask=here, other=0.0)\n        row_max = new_max")]),
    "no running max, in the weights": ("plain", [("(scores - shift[:, None])", "scores")]),
    "no running max, of one tile": ("plain", [("tl.maximum(row_max, tl.max(scores, 1))", "tl.max(scores, 1)"), ("row_sum * rescale", "row_sum"), ("acc * rescale[:, None]", "acc")]),
    "no running max, shift 0": ("plain", [(SHIFT, "tl.zeros([BLOCK_Q], tl.float32)")]),
    "lse half in base 2": ("plain", [("row_max + tl.log(row_sum)", "row_max + tl.log2(row_sum)")]),
    "lse half in base 2, the maximum": ("plain", [("row_max + tl.log(row_sum)", "row_max * LOG2_E + tl.log(row_sum)")]),
    "lse half in base 2, divided": ("plain", [("row_max + tl.log(row_sum)", "(row_max + tl.log2(row_sum)) / LOG2_E")]),
    "base 2 in one place": ("plain", [("tl.exp2((row_max - shift) * LOG2_E)", "tl.exp((row_max - shift) * LOG2_E)")]),
    "base 2 in one place, without LOG2_E": ("plain", [("tl.exp2((row_max - shift) * LOG2_E)", "tl.exp2(row_max - shift)")]),
    "base 2 in one place, the weights": ("plain", [("tl.exp2((scores - shift[:, None]) * LOG2_E)", "tl.exp2(scores - shift[:, None])")]),
    "base 2 in one place, both": ("plain", [("tl.exp2((scores - shift[:, None]) * LOG2_E)", "tl.exp2(scores - shift[:, None])"), ("tl.exp2((row_max - shift) * LOG2_E)", "tl.exp2(row_max - shift)")]),
    "rescale by the wrong factor, as it is": ("plain", [("tl.exp2((row_max - shift) * LOG2_E)", "tl.exp2((shift - row_max) * LOG2_E)")]),
    "causal mask off by one, one more": ("causal", [("keys[None, :] <= rows + n_k - n_q", "keys[None, :] <= rows + n_k - n_q + 1")]),
    "causal mask off by one, in every tile": ("causal", [("keys[None, :] <= rows + n_k - n_q", "keys[None, :] <= rows + n_k - n_q + 1"), ("end = tl.minimum(n_k, (tile + 1) * BLOCK_Q + n_k - n_q)", "end = n_k")]),
    "visible tile skipped": ("causal", [("(tile + 1) * BLOCK_Q + n_k", "tile * BLOCK_Q + n_k")]),
    "lse without the max": ("plain", [("row_max + tl.log(row_sum)", "tl.log(row_sum)")]),
    "K/V read once per row": ("plain bytes", [("        scores = scale", "        for again in range(0, BLOCK_Q):\n            k_tile = tl.load(k + kv_head * k_head + keys[:, None] * k_row + cols, mask=here, other=0.0)\n        scores = scale")]),
    "causal mask missing": ("causal", [("    if CAUSAL:", "    if CAUSAL and GROUP == 0:")]),
    "causal mask off by one": ("causal", [("keys[None, :] <= rows", "keys[None, :] < rows")]),
    "mask with a finite number": ("causal", [("scores, -INF)", "scores, -1e4)")]),
    "top-left causal alignment": ("causal", [("rows + n_k - n_q", "rows"), ("BLOCK_Q + n_k - n_q", "BLOCK_Q")]),
    "fully masked row gives NaN": ("causal", [(SHIFT, "new_max")]),
    "fully masked row gives NaN, at the division": ("causal", [("tl.where(row_sum == 0.0, 1.0, row_sum)", "row_sum")]),
    "tiles above the diagonal visited": ("skipped tiles", [("end = tl.minimum(n_k, (tile + 1) * BLOCK_Q + n_k - n_q)", "end = n_k")]),
    "grouped heads mapped by modulo": ("grouped", [("head // GROUP", "head % (tl.num_programs(1) // GROUP)")]),
    "grouped heads not mapped": ("grouped", [("head // GROUP", "head")]),
    "low-precision accumulator": (
        "error budget",
        [
            ("row_sum * rescale + tl.sum(weights, 1)", "(row_sum * rescale + tl.sum(weights, 1)).to(q_tile.dtype).to(tl.float32)"),
            ("acc, input_precision=\"ieee\")", "acc, input_precision=\"ieee\").to(q_tile.dtype).to(tl.float32)"),
        ],
    ),
}  # fmt: skip


# More of them, about addresses and digits: a cell holds no more characters than the mutants above have.
ADDRESSES = {
    "stride assumed contiguous, rows of q": ("plain", [("rows * q_row", "rows * HEAD_DIM")]),
    "stride assumed contiguous, rows of k": ("plain", [("keys[:, None] * k_row", "keys[:, None] * HEAD_DIM")]),
    "stride assumed contiguous, rows of v": ("plain", [("keys[:, None] * v_row", "keys[:, None] * HEAD_DIM")]),
    "stride assumed contiguous, rows of o": ("plain", [("rows * o_row", "rows * HEAD_DIM")]),
    "stride assumed contiguous, rows of q, k and v": ("plain", [("rows * q_row", "rows * HEAD_DIM"), ("keys[:, None] * k_row", "keys[:, None] * HEAD_DIM"), ("keys[:, None] * v_row", "keys[:, None] * HEAD_DIM")]),
    "out-of-bounds load, by the head of q": ("plain", [("head * q_head", "head * n_q * HEAD_DIM")]),
    "first key head for every head, by modulo": ("plain", [("head // GROUP", "head % GROUP")]),
    "first key head for every head": ("plain", [("kv_head * k_head + ", ""), ("kv_head * v_head + ", "")]),
    "low-precision accumulator, the scores": ("plain", [("scores = scale * tl.dot(q_tile, k_tile.T, input_precision=\"ieee\")", "scores = scale * tl.dot(q_tile, k_tile.T, input_precision=\"ieee\").to(tl.float16).to(tl.float32)")]),
}  # fmt: skip


@pytest.fixture(scope="module")
def addresses():
    every = KernelMutants("e06", ADDRESSES)
    yield every
    every.close()


@pytest.mark.parametrize("misconception", ADDRESSES)
def test_wrong_addresses_and_lost_digits_are_named_too(misconception, addresses):
    addresses.assert_caught(misconception)


@pytest.fixture(scope="module")
def mutants():
    every = KernelMutants("e06", MUTANTS)
    yield every
    every.close()


@pytest.mark.parametrize("misconception", MUTANTS)
def test_each_misconception_is_caught_and_named(misconception, mutants):
    mutants.assert_caught(misconception)


RIGHT = {
    "e to the power of": [("tl.exp2((row_max - shift) * LOG2_E)", "tl.exp(row_max - shift)"), ("tl.exp2((scores - shift[:, None]) * LOG2_E)", "tl.exp(scores - shift[:, None])")],
    "statistics in powers of two": [
        ("scale * tl.dot", "(scale * LOG2_E) * tl.dot"), ("(row_max - shift) * LOG2_E", "row_max - shift"),
        ("(scores - shift[:, None]) * LOG2_E", "scores - shift[:, None]"), ("row_max + tl.log(row_sum)", "(row_max + tl.log2(row_sum)) / LOG2_E"),
    ],
    "a loop that counts down": [("for step in range(0, tiles)", "for start in range((tiles - 1) * BLOCK_K, -1, -BLOCK_K)"), ("(tiles - 1 - step) * BLOCK_K", "start")],
}  # fmt: skip
IN_PART = {
    "the first step alone": [("    if CAUSAL:", "    if CAUSAL and GROUP == 0:")],
    "from the first tile on": [("(tiles - 1 - step) * BLOCK_K", "step * BLOCK_K")],
}


@pytest.fixture(scope="module")
def others():
    every = KernelMutants("e06", {name: ("", edits) for name, edits in (RIGHT | IN_PART).items()})
    yield every
    every.close()


@pytest.mark.parametrize("way", RIGHT)
def test_other_right_ways_get_full_marks(way, others):
    result = others.mark(way)
    assert result, "\n".join(marks.lines(result))


def test_the_first_step_alone_gets_half_of_the_points(others):
    result = others.mark("the first step alone")
    assert [outcome.passed for outcome in result.outcomes] == [True, True, True, False] and result.points == 5


def test_tiles_from_the_first_to_the_last_are_told(others):
    assert "begin at [0, 16]; it is to visit [16, 0]" in others.mark("from the first tile on").first_failure.finding.what


def test_an_address_outside_is_told_that_a_stride_may_be_wrong(addresses):
    assert "a wrong row or head stride reads outside too" in "\n".join(marks.lines(addresses.mark("out-of-bounds load, by the head of q")))


UNNAMED = {  # {what: (the edits, a part of what is said)}
    "another key for v": ([("keys[:, None] * v_row", "(n_k - 1 - keys[:, None]) * v_row")], "usually means: Is all of head 0 right, and another head not?"),
    "the head of k without gaps": ([("kv_head * k_head", "kv_head * n_k * HEAD_DIM")], "usually means: No mask is missing: all of this tile lies outside. Its start is wrong: which head, which stride, which tile?"),
    "half of lse": ([("lse_tile[:, None]", "0.5 * lse_tile[:, None]")], "usually means: o is right. lse is row_max + log(row_sum)"),
}


@pytest.fixture(scope="module")
def unnamed():
    every = KernelMutants("e06", {name: ("", edits) for name, (edits, _) in UNNAMED.items()})
    yield every
    every.close()


@pytest.mark.parametrize("what", UNNAMED)
def test_a_mistake_without_a_name_is_told_where_to_look(what, unnamed):
    assert UNNAMED[what][1] in "\n".join(marks.lines(unnamed.mark(what)))
