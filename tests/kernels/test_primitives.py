"""The shared pieces, each in a kernel of its own: the softmax update, tiles in and out, tile edges, order of programs, tanh."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.kernels.primitives import place, softmax_update, tanh, tile_edges

DEVICE = runtime.device()
WIDTH = 16
LOG2_E = 1.4426950408889634


@triton.jit
def update_kernel(scores, out, unit, n: tl.constexpr, WIDTH: tl.constexpr):
    rows, cols = tl.arange(0, WIDTH), tl.arange(0, WIDTH)
    row_max = tl.full([WIDTH], -float("inf"), tl.float32)
    row_sum = tl.zeros([WIDTH], tl.float32)
    total = tl.zeros([WIDTH], tl.float32)
    for tile in range(n):
        x = tl.load(scores + tile * WIDTH * WIDTH + rows[:, None] * WIDTH + cols[None, :])
        row_max, row_sum, weights, rescale = softmax_update(x, row_max, row_sum, unit)
        total = total * rescale + tl.sum(weights * cols[None, :], 1)  # acc, with the values 0, 1, 2 …
    tl.store(out + rows, row_max)
    tl.store(out + WIDTH + rows, row_sum)
    tl.store(out + 2 * WIDTH + rows, total)


@pytest.mark.parametrize("hidden", ["none", "first", "last", "all", "some"])
def test_softmax_update_takes_tiles_in_any_state(hidden):
    torch.manual_seed(0)
    scores = 30 * torch.randn(3, WIDTH, WIDTH, device=DEVICE)
    which = {"none": [], "first": [0], "last": [2], "all": [0, 1, 2], "some": []}[hidden]
    scores[which] = -torch.inf
    if hidden == "some":
        scores[torch.rand_like(scores) < 0.7] = -torch.inf
    out = torch.empty(3, WIDTH, device=DEVICE)
    update_kernel[(1,)](scores, out, LOG2_E, 3, WIDTH)
    row_max, row_sum, total = out.double().cpu()
    row = scores.double().cpu().permute(1, 0, 2).reshape(WIDTH, -1)  # one row's scores of all tiles
    top = row.max(1).values
    weights = torch.exp(row - top[:, None]).nan_to_num()  # nan only where a whole row is hidden
    values = torch.arange(WIDTH).repeat(3).double()
    assert torch.equal(row_max, top)
    torch.testing.assert_close(row_sum, weights.sum(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(total, weights @ values, rtol=1e-5, atol=1e-5)


@triton.jit
def rescale_kernel(scores, row_max, out, unit, FUSE: tl.constexpr, WIDTH: tl.constexpr):
    rows, cols = tl.arange(0, WIDTH), tl.arange(0, WIDTH)
    x = tl.load(scores + rows[:, None] * WIDTH + cols[None, :])
    before = tl.load(row_max + rows)
    _, _, _, rescale = softmax_update(x, before, before, unit, FUSE=FUSE)
    tl.store(out + rows, rescale)


@pytest.mark.parametrize("fuse", [False, True])
def test_no_compiler_fuses_the_subtraction_of_rescale(fuse):
    """Where only one of two equal products is rounded, their difference is not 0, and rescale not 1. The interpreter rounds both."""
    script = f"""
import test_primitives, kernel_compile
given = dict.fromkeys(("scores", "row_max", "out"), "*fp32") | {{"unit": "fp32", "FUSE": {fuse}, "WIDTH": 16}}
print(kernel_compile.compile_kernel(test_primitives.rescale_kernel, given, 90, 4, 1).asm["ptx"])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ex2.approx" in done.stdout and "sub" in done.stdout and "fma" not in done.stdout


@triton.jit
def edges_kernel(out, lo, hi, full_lo, full_hi, n, BLOCK: tl.constexpr):
    a, b, c, d = tile_edges(lo, hi, full_lo, full_hi, n, BLOCK)
    tl.store(out, a)
    tl.store(out + 1, b)
    tl.store(out + 2, c)
    tl.store(out + 3, d)


CASES = {  # (lo, hi, full_lo, full_hi, n): (lo, full_lo, full_hi, hi) for tiles of 8
    "everything": ((0, 40, 0, 40, 40), (0, 0, 40, 40)),
    "ragged": ((0, 37, 0, 37, 37), (0, 0, 32, 40)),
    "causal": ((0, 20, 0, 13, 40), (0, 0, 8, 24)),
    "window": ((5, 30, 12, 21, 40), (0, 16, 16, 32)),
    "nothing": ((0, -5, 0, -9, 40), (0, 0, 0, 0)),
    "beyond": ((60, 90, 65, 80, 40), (40, 40, 40, 40)),
    "no_full": ((3, 30, 28, 6, 40), (0, 32, 32, 32)),
    "empty": ((0, 0, 0, 0, 0), (0, 0, 0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_tile_edges(name):
    given, expected = CASES[name]
    out = torch.empty(4, dtype=torch.int32, device=DEVICE)
    edges_kernel[(1,)](out, *given, 8)
    assert tuple(out.tolist()) == expected


@triton.jit
def place_kernel(out, tiles, heads, at_once):
    tile, head = place(tl.program_id(0), tiles, heads, at_once)
    tl.store(out + 2 * tl.program_id(0), tile)
    tl.store(out + 2 * tl.program_id(0) + 1, head)


@pytest.mark.parametrize("tiles, heads, at_once", [(3, 5, 2), (1, 4, 4), (4, 1, 8), (5, 6, 1)])
def test_every_tile_has_one_program_and_long_ones_come_first(tiles, heads, at_once):
    out = torch.empty(tiles * heads, 2, dtype=torch.int32, device=DEVICE)
    place_kernel[(tiles * heads,)](out, tiles, heads, at_once)
    pairs = [tuple(row) for row in out.tolist()]
    assert sorted(pairs) == [(t, h) for t in range(tiles) for h in range(heads)]
    assert pairs == sorted(pairs, key=lambda pair: (pair[1] // at_once, *pair))


@triton.jit
def tanh_kernel(x, n: tl.constexpr):
    at = x + tl.arange(0, n)
    tl.store(at, tanh(tl.load(at)))


def test_tanh_is_right_relative_to_its_result():
    x = torch.cat([torch.logspace(-6, 2, 500), -torch.logspace(-6, 2, 500), torch.zeros(24)]).to(DEVICE)
    exact = torch.tanh(x.double())
    tanh_kernel[(1,)](x, len(x))
    assert ((x.double() - exact).abs() <= 1e-6 * exact.abs()).all()
