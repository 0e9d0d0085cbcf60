"""Masks over several of the tiles that the tables give: o, lse and both backward variants against float64.

On a GPU a tile has 64 or 128 rows, so nothing smaller than this meets tiles that a mask hides whole, shows whole and cuts; in
the interpreter, whose tiles have 16, all places are a fifteenth, and head_dim a quarter. A kernel is compiled for each mask, head_dim and dtype.
"""

from __future__ import annotations

from flashlab import runtime  # before triton

import pytest
import torch
import triton
import triton.language as tl

from flashlab.kernels import masks
from flashlab.kernels.api import attention
from flashlab.kernels.masks import register
from kernel_oracle import check_gradients, standard, tensors

DEVICE = runtime.device()
SHRINK = 1 if DEVICE == "cuda" else 15
SIZES = [(333, 517), (517, 333)] if DEVICE == "cuda" else [(333 // SHRINK, 517 // SHRINK)]
SLOPES = torch.tensor([0.5, 0.1, 0.02, 0.01])


@register
class in_step:
    """By hand, without ranges: a query sees the keys whose beat, read from a tensor, is at most its own; scores are bent by x · |x|."""

    @triton.jit
    def visible(batch, head, i, j, beats, weight):
        return tl.load(beats + j) <= tl.load(beats + i, mask=i >= 0, other=0)

    @triton.jit
    def score(score, batch, head, i, j, beats, weight):
        return score + weight * score * tl.abs(score)

    @triton.jit
    def dscore(score, batch, head, i, j, beats, weight):
        return 1 + 2 * weight * tl.abs(score)


BEATS = (torch.arange(517) * 7 % 11).to(torch.int32)


def window(left, right):
    left, right = left // SHRINK, right // SHRINK
    return masks.window(left, right), {"see": lambda i, j: (j >= i - left) & (j <= i + right)}


def prefix(length):
    length = length // SHRINK
    return masks.prefix(length), {"see": lambda i, j: (j < length) | (j <= i)}


def alibi(heads):
    return masks.alibi(SLOPES[:heads].to(DEVICE)), {"rescore": lambda s, i, j: s - SLOPES[:heads].to(s).view(1, -1, 1, 1) * (i - j).abs()}


def softcap(cap):
    return masks.softcap(cap), {"rescore": lambda s, i, j: cap * torch.tanh(s / cap)}


def by_hand():
    def sees(i, j):
        beats = BEATS.to(i.device)
        return beats[j] <= torch.where(i >= 0, beats[i.clamp(min=0)], 0)

    return in_step(BEATS.to(DEVICE), 0.1), {"see": sees, "rescore": lambda s, i, j: s + 0.1 * s * s.abs()}


def joined(*several):
    mask, see, rescore = masks.Mask(), [], []
    for one, oracle in several:
        mask = mask & one
        see += [oracle["see"]] if "see" in oracle else []
        rescore += [oracle["rescore"]] if "rescore" in oracle else []

    def all_rescore(s, i, j):
        for change in rescore:
            s = change(s, i, j)
        return s

    return mask, {"see": lambda i, j: torch.stack([f(i, j) for f in see]).all(0), "rescore": all_rescore}


CASES = {  # (mask, what it does in PyTorch), (heads, kv_heads), head_dim, dtype, causal, sink
    "window, hides most tiles 64": (window(40, 17), (2, 2), 64, "float16", False, False),
    "window, shows some tiles whole 64": (window(203, 151), (2, 2), 64, "float16", False, False),
    "window, hides most tiles 128": (window(40, 17), (2, 2), 128, "bfloat16", False, False),
    "window, shows some tiles whole 128": (window(203, 151), (2, 2), 128, "bfloat16", False, False),
    "window, hides most tiles 256": (window(40, 17), (2, 2), 256, "bfloat16", False, False),
    "window, shows some tiles whole 256": (window(203, 151), (2, 2), 256, "bfloat16", False, False),
    "prefix 128": (prefix(301), (2, 2), 128, "float16", False, False),
    "prefix 256": (prefix(301), (2, 2), 256, "float16", False, False),
    "alibi 64": (alibi(2), (2, 2), 64, "float16", False, False),
    "softcap 256": (softcap(1.5), (2, 2), 256, "float16", False, False),
    "by hand 64": (by_hand(), (2, 2), 64, "float16", False, False),
    "causal & window & alibi, sink 256": (joined(window(203, 17), alibi(2)), (2, 2), 256, "bfloat16", True, True),
    "softcap & alibi & prefix, sink, grouped 128": (joined(softcap(1.5), alibi(4), prefix(301)), (4, 2), 128, "bfloat16", False, True),
}


@pytest.mark.parametrize("name", CASES)
def test_masks(name):
    (mask, oracle), heads, head_dim, dtype, causal, sinks = CASES[name]
    dtype, head_dim = (dtype, head_dim) if DEVICE == "cuda" else ("float32", head_dim // 4)
    scale = 2 * head_dim**-0.5  # few keys have most of a row's weight, so that one too many or too few is no rounding
    for n_q, n_k in SIZES:
        given = tensors(n_q, n_k, head_dim, *heads, dtype)
        sink = (torch.linspace(0, 2, heads[0], device=DEVICE).to(given[0].dtype),) if sinks else ()
        torch.manual_seed(1)
        do, dlse = torch.randn_like(given[0]), torch.randn(given[0].shape[:3], device=DEVICE)

        def theirs(q, k, v, sink=None):
            return standard(q, k, v, scale=scale, causal=causal, sink=sink, **oracle)

        for deterministic in (True, False):

            def ours(q, k, v, sink=None):
                return attention(q, k, v, mask=mask, causal=causal, scale=scale, sink=sink, return_lse=True, deterministic=deterministic)

            check_gradients(ours, theirs, (*given, *sink), do, dlse)
