"""The forward kernel: forward_cases.py, and what only this one does: IEEE float32, the sink, 128k keys, offsets past 2³¹."""

import math
from types import SimpleNamespace

import pytest
import torch

from flashlab import runtime
from flashlab.kernels import masks
from flashlab.kernels.forward import forward
from flashlab.kernels.masks import Mask, decode
from forward_cases import *  # noqa: F403, the tests
from kernel_oracle import check, standard, tensors

DEVICE = runtime.device()


def ours(q, k, v, *, causal=False, scale=None, sink=None, tile=None):
    mask = masks.causal() if causal else Mask()
    return forward(q, k, v, *decode(*mask.encode()), q.shape[3] ** -0.5 if scale is None else float(scale), sink, tile=tile)


@pytest.fixture(scope="module")
def run():
    return ours


def test_float32_is_ieee(run):
    q, k, v = tensors(32, 32, 64)
    o, _ = run(q, k, v)
    exact, _ = standard(q.double().cpu(), k.double().cpu(), v.double().cpu(), scale=1 / 8)
    assert (o.double().cpu() - exact).abs().max() < 5e-6  # TF32 would be near 1e-3


@pytest.mark.parametrize("n_k", [0, 9])
def test_sink(run, n_k):
    q, k, v = tensors(7, n_k, 8)
    check(run, q, k, v, sink=torch.tensor([0.3, -2.0], device=DEVICE), causal=True)


@pytest.mark.parametrize("scale", [0.55, 1.1, 1.26, 1.75])
def test_the_same_maximum_in_every_tile_leaves_the_row_as_it_is(run, scale):
    """A GPU that took a rounded product from one that is not once rescaled by a little less or more than 1 in each such step."""
    n = 4096 if DEVICE == "cuda" else 256
    q, k, v = (torch.ones(1, 1, rows, 16, device=DEVICE) for rows in (16, n, n))
    q[..., 11:] = 0  # scores of 11, whose product with unit is not exact
    o, lse = run(q, k, v, scale=scale, tile=Tile(16, 16, 4, 1))
    exact = 11 * torch.tensor(scale, dtype=torch.float32).item() + math.log(n)
    unit = torch.tensor(scale, dtype=torch.float32) * torch.tensor(1.4426950408889634)
    left = abs(11 * unit.double() - (11 * unit).double()).item()  # of the exponent, in each step
    assert left * math.log(2) * 4096 / 16 / 2 > 6e-7 * exact  # half of the sum that it would be on a GPU: more than what is allowed
    torch.testing.assert_close(o, torch.ones_like(o), rtol=0, atol=1e-6)
    assert ((lse.double().cpu() - exact).abs() < 3e-7 * exact).all()


@pytest.mark.parametrize("scale", [2.0**-126, 1e-38, 2.5e38, 3e38])
def test_scales_at_the_ends_of_float32(run, scale):
    q, k, v = tensors(9, 20, 8)
    check(run, q * 1e-19, k * (1e-19 if scale > 1 else 1e19), v, scale=scale, causal=True)


@pytest.mark.parametrize("scale, folded", [(2.0**-127, False), (2.0**-126, True), (2.0**126, True), (2.0**127, False), (-1.0, False)])
def test_a_scale_is_folded_only_where_its_product_stays_in_float32(monkeypatch, scale, folded):
    """The interpreter multiplies the scale in float64, so only this tells."""
    given = []
    monkeypatch.setattr("flashlab.kernels.forward.plan_forward", lambda *arguments: given.append(arguments[-2]) or SimpleNamespace(launch=lambda *_: None))
    ours(*tensors(4, 4, 8), scale=scale)
    assert given == [folded]


@pytest.mark.parametrize("sink", [3e38, -3e38])
def test_a_sink_may_lie_anywhere_in_float32(run, sink):
    for causal in (False, True):
        check(run, *tensors(20, 7, 8), sink=torch.full((2,), sink, device=DEVICE), causal=causal)


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.9, 1.3])
def test_a_sink_of_minus_infinity_is_no_sink(run, scale):
    """Also in the 13 rows that see no key, whose maximum is float32's least number."""
    given = tensors(20, 7, 8)
    o, lse = run(*given, sink=torch.full((2,), -torch.inf, device=DEVICE), causal=True, scale=scale)
    without, without_lse = run(*given, causal=True, scale=scale)
    torch.testing.assert_close(o, without, rtol=0, atol=1e-6)
    torch.testing.assert_close(lse, without_lse, rtol=1e-6, atol=1e-6)
    assert (o[:, :, :13] == 0).all() and (lse[:, :, :13] == -torch.inf).all()


@pytest.mark.gpu
def test_128k_keys_allocate_nothing_quadratic(run):
    q, k, v = tensors(131072, 131072, 128, heads=1, dtype="bfloat16")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o, lse = run(q, k, v, causal=True)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 2 * (o.nbytes + lse.nbytes) and o.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["batch", "n", "head_dim"])
def test_offsets_past_two_to_the_31(run, place):
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
    check(run, q, k, v)


@pytest.mark.gpu
def test_more_heads_than_65535(run):
    q, k, v = tensors(3, 3, 16, heads=1, batch=70000, dtype="float16")
    assert torch.equal(run(q, k, v)[0][-1], run(q[-1:], k[-1:], v[-1:])[0][0])
