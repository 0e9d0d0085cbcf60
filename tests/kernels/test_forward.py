"""The forward kernel: forward_cases.py, and what only this one does: IEEE float32, the sink, 128k keys, offsets past 2³¹."""

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
def lowest_kernel(units, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, lowest(tl.load(units + lanes)))


def test_what_stands_for_a_row_s_maximum_without_a_key_times_unit_is_exact_and_finite():
    """Rounded it would leave 2¹⁰³ where a GPU fuses a product with a subtraction: a row of nan."""
    units = torch.cat([torch.logspace(-37, 38, 250), torch.tensor([1.4426950408889634, 1.0, 2.0, 1.9999999, 0.99999994, 3.4e38])])
    found = torch.empty_like(units, device=DEVICE)
    lowest_kernel[(1,)](units.to(DEVICE), found, BLOCK=256)
    found = found.cpu()
    product = found * units
    assert product.isfinite().all() and (product.double() == found.double() * units.double()).all()
    assert (found[units <= 1] == -(2.0**127)).all() and (product[units > 1] <= -(2.0**126)).all()


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
