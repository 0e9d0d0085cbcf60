"""What each forward of the library must do, ours and the two it is compared with: sizes, strides, dtypes, rows that see nothing.

test_forward.py, test_flash1.py and test_unfused.py take these tests over, `from forward_cases import *`, and say with the
fixture `run` what is run: run(q, k, v, causal=, scale=, tile=) -> (o, lse or None). So each is a module of its own, which
pytest-xdist can run beside the others.
"""

from __future__ import annotations

from flashlab import runtime  # before triton

import pytest
import torch
from hypothesis import given, settings, strategies as st

from flashlab.kernels.tiles import Tile
from kernel_oracle import check, tensors

DEVICE = runtime.device()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (16, 16), (17, 39), (39, 17), (3, 50), (50, 3)])
def test_sizes(run, n_q, n_k, dtype, causal):
    check(run, *tensors(n_q, n_k, 16, dtype=dtype), causal=causal)


@pytest.mark.parametrize("head_dim", [1, 5, 16, 63, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_head_dims(run, head_dim, dtype):
    check(run, *tensors(18, 21, head_dim, heads=1, dtype=dtype), causal=True)


@pytest.mark.parametrize("heads, kv_heads", [(6, 2), (5, 1), (4, 4)])
def test_grouped_queries(run, heads, kv_heads):
    check(run, *tensors(9, 20, 8, heads=heads, kv_heads=kv_heads, batch=2), causal=True)


@pytest.mark.parametrize("scale", [0, -0.5, 1, 2.0, 1e-30])
def test_any_scale(run, scale):
    check(run, *tensors(9, 20, 8), scale=scale, causal=True)


@pytest.mark.parametrize("n_q, n_k", [(0, 5), (0, 0), (5, 0)])
def test_nothing_to_see(run, n_q, n_k):
    o, lse = run(*tensors(n_q, n_k, 8))
    assert o.shape == (1, 2, n_q, 8) and (o == 0).all() and (lse is None or (lse == -torch.inf).all())


@pytest.mark.parametrize("n_k", [4, 7])
def test_rows_that_see_no_key_give_zero_and_minus_infinity(run, n_k):
    """With 4 keys the 16 rows that see none fill a tile of their own, which is skipped; with 7 the 13 share it with three that see some."""
    dead = 20 - n_k
    o, lse = check(run, *tensors(20, n_k, 8), causal=True)
    assert (o[:, :, :dead] == 0).all() and (o[:, :, dead:] != 0).any(-1).all()
    assert lse is None or ((lse[:, :, :dead] == -torch.inf).all() and (lse[:, :, dead:] > -torch.inf).all())


def _packed(x):  # (batch, heads, n, head_dim) seen inside (batch, n, 3, heads, head_dim)
    whole = torch.full((x.shape[0], x.shape[2], 3, x.shape[1], x.shape[3]), torch.nan, dtype=x.dtype, device=x.device)
    whole[:, :, 1] = x.transpose(1, 2)
    return whole[:, :, 1].transpose(1, 2)


STRIDES = {
    "packed": _packed,
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "n_first": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "last_dimension_strided": lambda x: x.mT.contiguous().mT,
    "every_second": lambda x: torch.stack([x, x + torch.nan], -1).flatten(-2)[..., ::2],
    "reversed_batch_stride": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("strides", STRIDES)
def test_strides(run, strides):
    q, k, v = (STRIDES[strides](x) for x in tensors(18, 21, 8, batch=2))
    o, _ = check(run, q, k, v, causal=True)
    assert strides != "transposed" or o.stride() == q.stride()


def test_nan_past_the_end_does_not_leak(run):
    q, k, v = tensors(18, 40, 8)
    exact, _ = run(q, k[:, :, :21], v[:, :, :21])
    k[:, :, 21:], v[:, :, 21:] = torch.nan, torch.inf
    assert torch.equal(run(torch.cat([q, q * torch.nan], 2)[:, :, :18], k[:, :, :21], v[:, :, :21])[0], exact)


def test_large_scores_do_not_overflow(run):
    q, k, v = tensors(9, 20, 8)
    check(run, 100 * q, 100 * k, v)


def test_same_bits_every_time(run):
    q, k, v = tensors(1024, 1024, 64, heads=4, dtype="float16") if DEVICE == "cuda" else tensors(40, 40, 16, dtype="float16")
    first = run(q, k, v, causal=True)
    for _ in range(20 if DEVICE == "cuda" else 2):
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, run(q, k, v, causal=True)))


@pytest.mark.parametrize("block_q, block_k", [(16, 32), (32, 16), (64, 16)])
def test_tiles_may_have_any_shape(run, block_q, block_k):
    check(run, *tensors(70, 50, 8, heads=1), causal=True, tile=Tile(block_q, block_k, 4, 1))


# Several tiles: of 16 rows in the interpreter, of 64 or 128 on a GPU, where each head_dim is compiled anew.
SIZE = st.integers(1, 300 if DEVICE == "cuda" else 40)
HEAD_DIM = st.sampled_from([20, 64, 128]) if DEVICE == "cuda" else st.integers(1, 20)
DTYPE = st.sampled_from(["float16", "bfloat16"]) if DEVICE == "cuda" else st.just("float32")


@settings(max_examples=12, deadline=None)
@given(SIZE, SIZE, HEAD_DIM, DTYPE, st.sampled_from([(1, 1), (2, 1), (3, 3)]), st.booleans(), st.floats(-3, 3))
def test_any_problem(run, n_q, n_k, head_dim, dtype, ratio, causal, scale):
    check(run, *tensors(n_q, n_k, head_dim, *ratio, dtype), causal=causal, scale=scale * head_dim**-0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n_q, n_k", [(239, 1113), (1113, 239), (1024, 1024)])
def test_real_tiles(run, n_q, n_k, head_dim, dtype):
    for causal in (False, True):
        check(run, *tensors(n_q, n_k, head_dim, heads=4, kv_heads=2, dtype=dtype), causal=causal)
