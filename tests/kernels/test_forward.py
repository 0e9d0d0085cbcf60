"""The forward kernel: forward_cases.py, and what only this one does: IEEE float32, the sink, 128k keys, offsets past 2³¹."""

import math

import pytest
import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.kernels import masks
from flashlab.kernels.forward import forward, lowest
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


@triton.jit
def lowest_kernel(units, out, FOLD: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.zeros([BLOCK], tl.float32) + lowest(tl.load(units + lanes), FOLD))


@pytest.mark.parametrize("fold", [False, True])
def test_what_stands_for_a_row_s_maximum_without_a_key_is_finite_also_times_unit(fold):
    units = torch.cat([torch.logspace(-37, 38, 250), torch.tensor([1.4426950408889634, 1.0, 2.0, 1.9999999, 0.99999994, 3.4e38])])
    found = torch.empty_like(units, device=DEVICE)
    lowest_kernel[(1,)](units.to(DEVICE), found, FOLD=fold, BLOCK=256)
    found = found.cpu()
    least = torch.finfo(torch.float32).min
    assert (found == least).all() if not fold else (found[units <= 1] == least / 2).all() and (found * units)[units > 1].isfinite().all()
    assert not fold or ((found * units)[units > 1] < 0.49 * least).all()


def test_the_same_maximum_in_every_tile_leaves_the_row_as_it_is(run):
    """A fused product once rescaled each step by up to 1 ± 10⁻⁷ where the maximum stays: 10⁻⁵ in lse after 64 tiles, more after more."""
    q, k, v = (torch.ones(1, 1, n, 16, device=DEVICE) for n in (16, 4096 if DEVICE == "cuda" else 256, 4096 if DEVICE == "cuda" else 256))
    for scale in (0.1, 0.3, 0.7, 1.1):
        o, lse = run(q, k, v, scale=scale, tile=Tile(16, 16, 4, 1))
        exact = torch.tensor(scale, dtype=torch.float32).double() * 16 + math.log(k.shape[2])
        torch.testing.assert_close(o, torch.ones_like(o), rtol=0, atol=1e-6)
        assert ((lse.double().cpu() - exact).abs() < 1e-6 * exact).all()


@pytest.mark.parametrize("scale", [2.0**-126, 1e-38, 2.5e38, 3e38])
def test_scales_at_the_ends_of_float32(run, scale):
    q, k, v = tensors(9, 20, 8)
    check(run, q * 1e-19, k * (1e-19 if scale > 1 else 1e19), v, scale=scale, causal=True)


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
