"""The forward kernel against float64: sizes, strides, dtypes, head ratios, scales, masks, rows that see nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab import runtime
from flashlab.kernels import masks
from flashlab.kernels.forward import forward
from flashlab.kernels.masks import Mask, decode
from flashlab.kernels.tiles import Tile
from flashlab.problem import AttentionProblem
from kernel_oracle import standard, within_budget

DEVICE = runtime.device()
DTYPES = ["float32", "float16", "bfloat16"]


def run(q, k, v, *, mask=None, causal=False, scale=None, sink=None, tile=None):
    mask = (masks.causal() if causal else Mask()) & (mask or Mask())
    return forward(q, k, v, *decode(*mask.encode()), q.shape[3] ** -0.5 if scale is None else scale, sink, tile=tile)


def check(q, k, v, *, mask=None, scale=None, tile=None, **oracle):
    """Run the kernel and hold o and lse to the budget."""
    scale = q.shape[3] ** -0.5 if scale is None else scale
    o, lse = run(q, k, v, mask=mask, causal=oracle.get("causal", False), scale=scale, sink=oracle.get("sink"), tile=tile)
    exact_o, exact_lse = standard(*(x.double().cpu() for x in (q, k, v)), scale=scale, **{n: x.cpu() if torch.is_tensor(x) else x for n, x in oracle.items()})
    plain_o, plain_lse = standard(q, k, v, scale=scale, **oracle)
    assert o.shape == q.shape and o.dtype == q.dtype and lse.shape == q.shape[:3] and lse.dtype == torch.float32
    within_budget("o", o, plain_o, exact_o)
    blind = exact_lse == -torch.inf
    assert torch.equal(lse.cpu() == -torch.inf, blind) and (o.cpu()[blind] == 0).all()
    within_budget("lse", lse.cpu()[~blind], plain_lse.cpu()[~blind], exact_lse[~blind])
    return o, lse


def tensors(n_q, n_k, head_dim, heads=2, kv_heads=None, dtype="float32", batch=1, seed=0):
    return AttentionProblem(n_q, n_k, head_dim, batch=batch, heads=heads, kv_heads=kv_heads, dtype=dtype).tensors(seed, DEVICE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (16, 16), (17, 39), (39, 17), (3, 50), (50, 3)])
def test_sizes(n_q, n_k, dtype, causal):
    check(*tensors(n_q, n_k, 16, dtype=dtype), causal=causal)


@pytest.mark.parametrize("head_dim", [1, 5, 16, 63, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_head_dims(head_dim, dtype):
    check(*tensors(18, 21, head_dim, heads=1, dtype=dtype), causal=True)


@pytest.mark.parametrize("heads, kv_heads", [(6, 2), (5, 1), (4, 4)])
def test_grouped_queries(heads, kv_heads):
    check(*tensors(9, 20, 8, heads=heads, kv_heads=kv_heads, batch=2), causal=True)


@pytest.mark.parametrize("scale", [0.0, -0.5, 2.0, 1e-30])
def test_any_scale(scale):
    check(*tensors(9, 20, 8), scale=scale, causal=True)


@pytest.mark.parametrize("n_q, n_k", [(0, 5), (0, 0), (5, 0)])
def test_nothing_to_see(n_q, n_k):
    o, lse = run(*tensors(n_q, n_k, 8))
    assert o.shape == (1, 2, n_q, 8) and (o == 0).all() and (lse == -torch.inf).all()


def test_rows_that_see_no_key_give_zero_and_minus_infinity():
    o, lse = check(*tensors(20, 4, 8), causal=True)
    assert (lse[:, :, :16] == -torch.inf).all() and (lse[:, :, 16:] > -torch.inf).all()


def _packed(x):  # (batch, heads, n, head_dim) seen inside (batch, n, 3, heads, head_dim)
    whole = torch.full((x.shape[0], x.shape[2], 3, x.shape[1], x.shape[3]), torch.nan, dtype=x.dtype, device=x.device)
    whole[:, :, 1] = x.transpose(1, 2)
    return whole[:, :, 1].transpose(1, 2)


STRIDES = {
    "packed": _packed,
    "n_first": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "last_dimension_strided": lambda x: x.mT.contiguous().mT,
    "every_second": lambda x: torch.stack([x, x + torch.nan], -1).flatten(-2)[..., ::2],
    "reversed_batch_stride": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("strides", STRIDES)
def test_strides(strides):
    q, k, v = (STRIDES[strides](x) for x in tensors(18, 21, 8, batch=2))
    check(q, k, v, causal=True)


def test_o_has_the_layout_of_q():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors(9, 9, 8))
    assert run(q, k, v)[0].stride() == q.stride()


def test_nan_past_the_end_does_not_leak():
    q, k, v = tensors(18, 40, 8)
    exact, _ = run(q, k[:, :, :21], v[:, :, :21])
    k[:, :, 21:], v[:, :, 21:], q_padded = torch.nan, torch.inf, torch.cat([q, q * torch.nan], 2)
    o, _ = run(q_padded[:, :, :18], k[:, :, :21], v[:, :, :21])
    assert torch.equal(o, exact)


def test_large_scores_do_not_overflow():
    q, k, v = tensors(9, 20, 8)
    check(100 * q, 100 * k, v)


def test_float32_is_ieee():
    q, k, v = tensors(32, 32, 64)
    o, _ = run(q, k, v)
    exact, _ = standard(q.double().cpu(), k.double().cpu(), v.double().cpu(), scale=1 / 8)
    assert (o.double().cpu() - exact).abs().max() < 5e-6  # TF32 would be near 1e-3


def test_same_bits_every_time():
    q, k, v = tensors(40, 40, 16, dtype="float16")
    first = run(q, k, v, causal=True)
    for _ in range(20 if DEVICE == "cuda" else 2):
        again = run(q, k, v, causal=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


@pytest.mark.parametrize("n_k", [0, 9])
def test_sink(n_k):
    q, k, v = tensors(7, n_k, 8)
    check(q, k, v, sink=torch.tensor([0.3, -2.0], device=DEVICE), causal=True)


@pytest.mark.parametrize("block_q, block_k", [(16, 32), (32, 16), (64, 16)])
def test_tiles_may_have_any_shape(block_q, block_k):
    check(*tensors(70, 50, 8, heads=1), causal=True, tile=Tile(block_q, block_k, 4, 1))


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.sampled_from([(1, 1), (2, 1), (3, 3)]), st.booleans(), st.floats(-1, 1))
def test_any_problem(n_q, n_k, head_dim, ratio, causal, scale):
    check(*tensors(n_q, n_k, head_dim, heads=ratio[0], kv_heads=ratio[1]), causal=causal, scale=scale)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_q, n_k", [(239, 1113), (1113, 239), (1024, 1024)])
def test_real_tiles(n_q, n_k, head_dim, dtype):
    for causal in (False, True):
        check(*tensors(n_q, n_k, head_dim, heads=4, kv_heads=2, dtype=dtype), causal=causal)


@pytest.mark.gpu
def test_128k_keys_allocate_nothing_quadratic():
    q, k, v = tensors(131072, 131072, 128, heads=1, dtype="bfloat16")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o, lse = run(q, k, v, causal=True)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 2 * (o.nbytes + lse.nbytes) and o.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["batch", "n", "head_dim"])
def test_offsets_past_two_to_the_31(place):
    shape, strides = {
        "batch": ((2, 1, 64, 64), (2**31 + 64, 64 * 64, 64, 1)),
        "n": ((1, 1, 130, 64), (1, 1, 2**31 // 128, 1)),
        "head_dim": ((1, 1, 64, 64), (1, 1, 1, 2**31 // 60)),
    }[place]
    span = sum((n - 1) * s for n, s in zip(shape, strides)) + 1
    whole = torch.empty(span, dtype=torch.float16, device=DEVICE)
    k = whole.as_strided(shape, strides)
    q, v = (torch.randn(shape, dtype=torch.float16, device=DEVICE) for _ in range(2))
    k.copy_(torch.randn(shape, device=DEVICE))
    check(q, k, v)


@pytest.mark.gpu
def test_more_heads_than_65535():
    q, k, v = tensors(3, 3, 16, heads=1, batch=70000, dtype="float16")
    assert torch.equal(run(q, k, v)[0][-1], run(q[-1:], k[-1:], v[-1:])[0][0])
