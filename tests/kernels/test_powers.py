"""Powers of two by polynomials, beside exact ones."""

from __future__ import annotations

from flashlab import runtime  # before triton

import pytest
import torch
import triton
import triton.language as tl

from flashlab.kernels.powers import mixed_powers, power_of_two

DEVICE = runtime.device()


@triton.jit
def powers(x, found, MIXED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tile = tl.load(x + at)
    tl.store(found + at, mixed_powers(tile) if MIXED else power_of_two(tile))


def run(x, *, mixed):
    found = torch.empty_like(x)
    powers[(1,)](x, found, mixed, *x.shape)
    return found.cpu()


def relative(found, x):
    exact = x.cpu().double().exp2()
    return ((found - exact) / exact).abs()


def test_within_a_ten_thousandth():
    x = torch.cat([torch.linspace(-125, 0, 4096 - 64), -torch.arange(64.0)]).reshape(64, 64).to(DEVICE)
    error = relative(run(x, mixed=False), x)
    assert 5e-5 < error.max() < 1e-4


@pytest.mark.parametrize("x", [-127.0, -1e30, -torch.inf])
def test_what_is_below_the_range_becomes_its_end(x):
    found = run(torch.full((16, 16), x, device=DEVICE), mixed=False)
    assert (found > 0).all() and (found < 2.0**-125).all()


@pytest.mark.parametrize("cols, group", [(16, 4), (32, 8), (128, 8)])
def test_mixed_every_fourth_group_is_a_polynomial_and_nothing_changes_its_place(cols, group):
    x = -torch.rand(16, cols, generator=torch.Generator().manual_seed(0)) * 20
    x = x.to(DEVICE)
    found = run(x, mixed=True)
    rough = (relative(found, x) > 2e-6).any(0)
    assert relative(found, x).max() < 1e-4
    assert rough.tolist() == [(column // group) % 4 == 3 for column in range(cols)]
