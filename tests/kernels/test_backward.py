"""The backward kernels against float64 with torch's autograd, both variants."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab import runtime
from flashlab.kernels import masks
from flashlab.kernels.backward import backward
from flashlab.kernels.forward import forward
from flashlab.kernels.masks import Mask, decode
from flashlab.problem import AttentionProblem
from kernel_oracle import standard, within_budget

DEVICE = runtime.device()
SLOPES = torch.tensor([0.5, 0.1], device=DEVICE)
MASKS = {
    "window": (masks.window(4, 2), {"see": lambda i, j: (j >= i - 4) & (j <= i + 2)}),
    "prefix": (masks.prefix(7), {"see": lambda i, j: (j < 7) | (j <= i)}),
    "softcap & alibi": (
        masks.softcap(0.7) & masks.alibi(SLOPES),
        {"rescore": lambda s, i, j: 0.7 * torch.tanh(s / 0.7) - SLOPES.to(s).view(1, -1, 1, 1) * (i - j).abs()},
    ),
}


def tensors(n_q, n_k, head_dim, heads=2, kv_heads=None, dtype="float32", batch=1):
    return AttentionProblem(n_q, n_k, head_dim, batch=batch, heads=heads, kv_heads=kv_heads, dtype=dtype).tensors(0, DEVICE)


def ours(q, k, v, do, dlse, mask, scale, fused):
    functions, params = decode(*mask.encode())
    o, lse = forward(q, k, v, functions, params, scale)
    return backward(q, k, v, o, lse, do, dlse, functions, params, scale, fused=fused)[:3]


def theirs(q, k, v, do, dlse, scale, **oracle):
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    o, lse = standard(q, k, v, scale=scale, **oracle)
    return torch.autograd.grad((o * do).sum() + (lse.masked_fill(lse == -torch.inf, 0) * dlse).sum(), (q, k, v))


def check(q, k, v, *, mask=None, scale=None, fused=False, **oracle):
    scale = q.shape[3] ** -0.5 if scale is None else scale
    whole = (masks.causal() if oracle.get("causal") else Mask()) & (mask or Mask())
    torch.manual_seed(1)
    do, dlse = torch.randn_like(q), torch.randn(q.shape[:3], device=q.device)
    got = ours(q, k, v, do, dlse, whole, scale, fused)
    exact = theirs(*(x.double().cpu() for x in (q, k, v, do, dlse)), scale, **oracle)
    plain = theirs(q, k, v, do, dlse.to(q.dtype), scale, **oracle)
    for name, x, given, a, b in zip(("dq", "dk", "dv"), (q, k, v), got, plain, exact):
        assert given.shape == x.shape and given.dtype == x.dtype
        within_budget(name, given, a, b, times=3)


@pytest.mark.parametrize("fused", [False, True], ids=["two_kernels", "fused"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (32, 32), (17, 39), (39, 17)])
def test_sizes(n_q, n_k, causal, fused):
    check(*tensors(n_q, n_k, 8), causal=causal, fused=fused)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fused", [False, True], ids=["two_kernels", "fused"])
def test_dtypes(dtype, fused):
    check(*tensors(33, 21, 16, dtype=dtype), causal=True, fused=fused)


@pytest.mark.parametrize("head_dim", [1, 5, 63, 80, 128])
def test_head_dims(head_dim):
    check(*tensors(9, 18, head_dim, heads=1), fused=head_dim == 5)


@pytest.mark.parametrize("heads, kv_heads", [(6, 2), (5, 1)])
@pytest.mark.parametrize("fused", [False, True], ids=["two_kernels", "fused"])
def test_grouped_queries_are_summed(heads, kv_heads, fused):
    check(*tensors(9, 20, 8, heads=heads, kv_heads=kv_heads, batch=2), causal=True, fused=fused)


@pytest.mark.parametrize("scale", [0.0, -0.5, 2.0])
def test_any_scale(scale):
    check(*tensors(9, 20, 8), scale=scale, causal=True)


@pytest.mark.parametrize("scale, folded", [(-0.5, True), (2.0**-127, True), (-(2.0**126), True), (2.0**127, False), (-3e38, False)])
def test_a_scale_is_folded_only_where_its_product_stays_in_float32(monkeypatch, scale, folded):
    """The interpreter multiplies the scale in float64, so only this tells."""
    given = []
    for name, at in (("plan_keys", 10), ("plan_queries", 9)):
        monkeypatch.setattr(f"flashlab.kernels.backward.{name}", lambda *arguments, at=at: given.append(arguments[at]) or SimpleNamespace(launch=lambda *_: None))
    q, k, v = AttentionProblem(4, 4, 8, heads=2, dtype="float32").tensors(device=DEVICE)
    lse = torch.zeros(1, 2, 4, device=DEVICE)
    backward(q, k, v, q, lse, q, None, *decode(*Mask().encode()), scale)
    assert given == [folded, folded]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("fused", [False, True], ids=["two_kernels", "fused"])
def test_masks(name, fused):
    mask, oracle = MASKS[name]
    check(*tensors(19, 25, 8), mask=mask, fused=fused, **oracle)


@pytest.mark.parametrize("fused", [False, True], ids=["two_kernels", "fused"])
def test_partly_seen_tiles_lie_on_both_sides_of_whole_ones(fused):
    """The queries of places 34 to 49 see some of keys 0 to 15, all of 16 to 47, and some of 48 to 79; keys are seen likewise."""
    check(*tensors(72, 90, 8, heads=1), mask=masks.window(40, 26), fused=fused, see=lambda i, j: (j >= i - 40) & (j <= i + 26))


def test_rows_that_see_nothing_get_zero_and_give_nothing():
    q, k, v = tensors(20, 4, 8)
    dq, dk, dv = ours(q, k, v, torch.ones_like(q), torch.ones(q.shape[:3], device=DEVICE), masks.causal(), 0.3, False)
    assert (dq[:, :, :16] == 0).all() and all(x.isfinite().all() for x in (dq, dk, dv))


def test_nothing_to_see():
    for n_q, n_k in ((0, 5), (5, 0), (0, 0)):
        q, k, v = tensors(n_q, n_k, 8)
        got = ours(q, k, v, torch.ones_like(q), None, Mask(), 0.3, False)
        assert all(g.shape == x.shape and (g == 0).all() for g, x in zip(got, (q, k, v)))


def test_a_very_negative_lse_does_not_overflow_in_padding():
    """exp(0 - lse) of a padded key would be inf, and inf · 0 is nan."""
    q, k, v = tensors(17, 17, 8)
    k = k.abs() + 40  # all scores near -40 · Σ|q|
    for fused in (False, True):
        got = ours(-q.abs() - 1, k, v, torch.ones_like(q), None, Mask(), 1.0, fused)
        assert all(x.isfinite().all() for x in got)


def test_gradients_have_other_strides():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors(18, 21, 8))
    check(q, k.mT.contiguous().mT, v, causal=True)


def test_two_kernels_give_the_same_bits_every_time():
    q, k, v = tensors(1024, 1024, 64, heads=4, dtype="float16") if DEVICE == "cuda" else tensors(40, 40, 16, dtype="float16")
    do = torch.randn_like(q)
    first = ours(q, k, v, do, None, masks.causal(), 0.3, False)
    for _ in range(20 if DEVICE == "cuda" else 2):
        assert all(torch.equal(a, b) for a, b in zip(first, ours(q, k, v, do, None, masks.causal(), 0.3, False)))


# Several tiles: of 16 rows in the interpreter, of 64 or 128 on a GPU, where each head_dim is compiled anew.
SIZE = st.integers(1, 300 if DEVICE == "cuda" else 36)
HEAD_DIM = st.sampled_from([20, 64, 128]) if DEVICE == "cuda" else st.integers(1, 20)
DTYPE = st.sampled_from(["float16", "bfloat16"]) if DEVICE == "cuda" else st.just("float32")


@settings(max_examples=8, deadline=None)
@given(SIZE, SIZE, HEAD_DIM, DTYPE, st.sampled_from([(1, 1), (2, 1)]), st.booleans(), st.booleans())
def test_any_problem(n_q, n_k, head_dim, dtype, ratio, causal, fused):
    check(*tensors(n_q, n_k, head_dim, *ratio, dtype), causal=causal, fused=fused)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fused", [False, True], ids=["two_kernels", "fused"])
@pytest.mark.parametrize("n_q, n_k", [(239, 613), (613, 239), (512, 512)])
def test_real_tiles(n_q, n_k, fused, dtype, head_dim):
    for causal in (False, True):
        check(*tensors(n_q, n_k, head_dim, heads=4, kv_heads=2, dtype=dtype), causal=causal, fused=fused)
