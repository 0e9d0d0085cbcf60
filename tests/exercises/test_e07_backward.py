"""e07_backward: each misconception is a mutant of the solution, caught at a named test; and the judge is torch's autograd."""

import numpy as np
import pytest

from exercise_cells import ROOT, assert_caught, mutated
from flashlab.grading import marks
from flashlab.grading.exercise import find
from flashlab.grading.exercises.e07_backward import GRADIENTS, forward, gradients, nudged

DSCORES = "weights * (dweights - delta[:, None])"
KNOWN = "known = np.where(np.isneginf(lse), np.inf, lse)"
SCALED = "scores = scale * (q"
CAUSAL = "        if causal:\n"
# {misconception: (the test it fails first, the edits that make it)}
MUTANTS = {
    "delta of all heads": ("delta", [(".sum(axis=-1)", ".sum(axis=(1, 2))")]),
    "low-precision accumulator": ("delta", [("do.astype(np.float64) * o.astype(np.float64)", "do * o")]),
    "lse left out": ("dscores", [("np.exp(scores - known[:, None])", "np.exp(scores)")]),
    "weights divided again": ("dscores", [("np.exp(scores - known[:, None])", "np.exp(scores - known[:, None])\n    weights = weights / weights.sum(axis=1, keepdims=True)")]),
    "delta left out": ("dscores", [(DSCORES, "weights * dweights")]),
    "dS without weights factor": ("dscores", [(DSCORES, "dweights - delta[:, None]")]),
    "delta from part of a row": ("dscores", [(DSCORES, "weights * (dweights - (weights * dweights).sum(axis=1)[:, None])")]),
    "fully masked row gives NaN": ("dscores", [(KNOWN, "known = lse")]),
    "scale forgotten": ("one head", [(SCALED, "scores = (q")]),
    "scale applied twice": ("one head", [(SCALED, "scores = scale * scale * (q")]),
    "dK without scale": ("one head", [("scale * dscores.T", "dscores.T")]),
    "dbias with scale": ("one head", [("= dscores.sum", "= scale * dscores.sum")]),
    "bias forgotten": ("one head", [(" + bias[:, head]", "")]),
    "backward masks when it should not": ("one head", [(CAUSAL, "        if True:\n")]),
    "backward ignores the mask": ("masked", [(CAUSAL, "        if False:\n")]),
    "causal mask off by one": ("masked", [("<= last_key", "< last_key")]),
    "top-left causal alignment": ("masked", [(" + n_k - n_q", "")]),
    "grouped heads mapped by modulo": ("grouped", [("head // (heads // kv_heads)", "head % kv_heads")]),
    "grouped gradients not summed": ("grouped", [("dv[:, shared] +=", "dv[:, shared] ="), ("dk[:, shared] +=", "dk[:, shared] =")]),
}
AGAIN = {  # the same misconception in another line
    "causal mask off by one": ("masked", [("<= last_key", "<= last_key + 1")]),
    "dK without scale": ("one head", [("scale * dscores @", "dscores @")]),
    "grouped gradients not summed": ("grouped", [("dk[:, shared] +=", "dk[:, shared] =")]),
    "delta left out": ("one head", [("delta[:, head], dweights", "0 * delta[:, head], dweights")]),
}  # fmt: skip


@pytest.mark.parametrize("misconception", MUTANTS)
def test_each_misconception_is_caught_and_named(misconception):
    assert_caught("e07", misconception, *MUTANTS[misconception])


@pytest.mark.parametrize("misconception", AGAIN)
def test_it_is_caught_in_another_line_too(misconception):
    assert_caught("e07", misconception, *AGAIN[misconception])


def test_three_arrays_in_place_of_four_are_told_which_four():
    result = marks.mark(find("e07"), mutated("e07", [("return dq, dk, dv, dbias", "return dq, dk, dv")]), stop=True)
    assert result.first_failure.test.name == "one head" and "Return four arrays" in "\n".join(marks.lines(result)), "\n".join(marks.lines(result))


def calls():
    return [call for test in find("e07").with_hidden(ROOT / "solutions").tests if test.function == "backward" for call in test.calls]


def test_what_is_expected_equals_torchs_autograd():
    torch = pytest.importorskip("torch")
    for call in calls():
        q, k, v, bias = leaves = [torch.tensor(call.arrays[name], requires_grad=True) for name in ("q", "k", "v", "bias")]
        (n_q, heads, _), (n_k, kv_heads) = q.shape, k.shape[:2]
        mask = torch.ones(n_q, n_k).tril(n_k - n_q).bool() if call.options["causal"] else torch.ones(n_q, n_k).bool()
        keys, values = (x.repeat_interleave(heads // kv_heads, dim=1).transpose(0, 1) for x in (k, v))
        added = bias.T[:, None, :].expand(heads, n_q, n_k).masked_fill(~mask, -torch.inf)
        seeing = mask.any(dim=1)
        o = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1)[None, :, seeing], keys[None], values[None], attn_mask=added[None, :, seeing])
        o.backward(torch.tensor(call.arrays["do"]).transpose(0, 1)[None, :, seeing])
        for name, leaf in zip(GRADIENTS, leaves):
            wanted = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
            np.testing.assert_allclose(gradients()(call)[name], wanted, atol=1e-12)


def test_nudging_and_the_formula_agree_and_the_forward_is_the_librarys():
    from flashlab.reference.flash2 import flash2

    for call in find("e07").tests[-1].calls:
        for name, found in nudged(call).items():
            np.testing.assert_allclose(found, gradients()(call)[name], atol=1e-8)
    q, k, v = (call.arrays[name] for name in "qkv")
    o, lse = forward(q, k, v, np.zeros((len(k), q.shape[1])), True)
    theirs = flash2(q[:, 1], k[:, 0], v[:, 0], block_q=2, block_k=2, causal=True)
    np.testing.assert_allclose(o[:, 1], theirs[0], atol=1e-12)
    np.testing.assert_allclose(lse[:, 1], theirs[1], atol=1e-12)


def test_a_heads_dbias_sums_to_nothing():
    for call in calls():
        np.testing.assert_allclose(gradients()(call)["dbias"].sum(axis=0), 0, atol=1e-12)


def test_the_cases_hold_queries_without_a_key_and_tiles_of_longer_rows():
    tests = {test.name: test for test in find("e07").tests}
    assert any(np.isneginf(call.arrays["lse"]).any() for call in tests["masked"].calls)
    first = tests["dscores"].calls[0]
    assert np.exp(first.arrays["scores"] - first.arrays["lse"][:, None]).sum() < 1
