"""e05_first_kernels: each misconception is a mutant of a kernel, caught at a named test with a message that names it."""

import numpy as np
import pytest

from exercise_cells import KernelMutants, mutated

from flashlab.grading import marks
from flashlab.grading.exercises import e05_first_kernels as e05

# {misconception: (the test it fails first, the edits that make it)}; a second mutant of one has a number behind it
MUTANTS = {
    "no running max": ("softmax large", [("tl.exp(scores - tl.max(scores, 0)[None, :])", "tl.exp(scores)")]),
    "softmax over the wrong axis": (
        "softmax",
        [("tl.max(scores, 0)[None, :]", "tl.max(scores, 1)[:, None]"), ("tl.sum(weights, 0)[None, :]", "tl.sum(weights, 1)[:, None]")],
    ),
    "softmax over the wrong axis, the maximum": ("softmax", [("tl.max(scores, 0)[None, :]", "tl.max(scores, 1)[:, None]")]),
    "softmax over the wrong axis, the sum": ("softmax", [("tl.sum(weights, 0)[None, :]", "tl.sum(weights, 1)[:, None]")]),
    "softmax over the wrong axis, the sum along the keys": ("softmax", [("tl.sum(weights, 0)", "tl.sum(weights, 1)")]),
    "masked load without other": ("softmax ragged", [(', other=-float("inf")', "")]),
    "masked load without other, of columns": ("scores ragged", [(", other=0.0", "")]),
    "out-of-bounds store": ("softmax ragged", [("weights, mask=inside", "weights, mask=queries < n_q")]),
    "out-of-bounds store, of the scores": ("scores ragged", [("tile, mask=(keys < n_k) & (queries[None, :] < n_q)", "tile, mask=keys < n_k")]),
    "n_q taken for n_k": ("scores", [("mask=(keys < n_k) & (cols", "mask=(keys < n_q) & (cols")]),
    "n_q taken for n_k, in the softmax": ("softmax", [("inside = (keys < n_k)", "inside = (keys < n_q)")]),
    "n_q taken for n_k, in the store": ("scores", [("tile, mask=(keys < n_k)", "tile, mask=(keys < n_q)")]),
    "n_k taken for n_q": ("scores", [("exists = (queries[:, None] < n_q)", "exists = (queries[:, None] < n_k)")]),
    "never written": ("scores", [("tl.store(scores", "if start == 0:\n            tl.store(scores")]),
    "padded keys not masked": ("softmax ragged", [('other=-float("inf")', "other=0.0")]),
    "mask with a finite number": ("softmax large", [('other=-float("inf")', "other=-1e4")]),
    "stride assumed contiguous": ("softmax", [("keys * x_row + queries * x_col", "keys * n_q + queries")]),
    "stride assumed contiguous, of the output": ("softmax", [("keys * y_row + queries * y_col", "keys * n_q + queries")]),
    "out-of-bounds load": ("softmax ragged", [("mask=inside, other", "mask=queries < n_q, other")]),
    "not fused": ("softmax bytes", [("weights = tl.exp(", 'again = tl.load(x + keys * x_row + queries * x_col, mask=inside, other=-float("inf")).to(tl.float32)\n    weights = tl.exp('), ("exp(scores", "exp(again")]),
    "rows and columns swapped": (
        "scores",
        [("scores + keys * scores_row + queries[None, :], tile", "scores + queries[None, :] * scores_row + keys, tile")],
    ),
    "scale forgotten": ("scores", [("scale * tl.dot", "tl.dot")]),
    "scale applied twice": ("scores", [("scale * tl.dot", "scale * scale * tl.dot")]),
    "last ragged tile dropped": ("scores ragged", [("range(0, n_q, BLOCK_Q)", "range(0, n_q // BLOCK_Q * BLOCK_Q, BLOCK_Q)")]),
    "out-of-bounds load, of a query": ("scores ragged", [("exists = (queries[:, None] < n_q) & (cols < head_dim)", "exists = cols < head_dim")]),
    "out-of-bounds load, of a column": ("scores ragged", [("(keys < n_k) & (cols < head_dim)", "keys < n_k"), ("(queries[:, None] < n_q) & (cols < head_dim)", "queries[:, None] < n_q")]),
    "stride assumed contiguous, of rows": ("scores ragged", [("k + keys * k_row", "k + keys * head_dim")]),
    "tile loaded again in every step": (
        "scores bytes",
        [("        q_tile =", "        k_tile = tl.load(k + keys * k_row + cols, mask=(keys < n_k) & (cols < head_dim), other=0.0)\n        q_tile =")],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def mutants():
    every = KernelMutants("e05", MUTANTS)
    yield every
    every.close()


@pytest.mark.parametrize("misconception", MUTANTS)
def test_each_misconception_is_caught_and_named(misconception, mutants):
    mutants.assert_caught(misconception)


def test_tiles_that_do_not_fit_have_advice():
    result = marks.mark(e05.EXERCISE, mutated("e05", [("tl.max(scores, 0)[None, :]", "tl.max(scores, 1)[None, :]")]), stop=True)
    assert "incompatible dimensions" in result.first_failure.finding.what and "which axis is left" in result.first_failure.finding.hint


def test_what_was_never_written_is_said_so(mutants):
    what = mutants.mark("never written").first_failure.finding.what
    assert what.startswith("scores[0, 16] is 7; it must be") and "were never written: they still hold the 7 from before" in what


def test_both_kernels_after_one_another_are_attention_weights_transposed():
    scores = e05.scores_call(e05.scores(5, 7, 16, 16, 16, 1))
    weights = e05.weights_of(e05.Call(arrays={"x": e05.scores_of(scores)["scores"]}))["y"]
    exact = np.exp(0.25 * scores.arrays["q"].astype(float) @ scores.arrays["k"].astype(float).T)
    np.testing.assert_allclose(weights.T, exact / exact.sum(axis=1, keepdims=True))
