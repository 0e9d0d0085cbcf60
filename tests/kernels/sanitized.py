"""What compute-sanitizer watches: every kernel on tiny, ragged problems. test_sanitizer.py runs it as a script of its own.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 python tests/kernels/sanitized.py

Without the cache of PyTorch's allocator each tensor is an allocation of its own, so that a read past its end is seen.
`outside` as an argument reads past an end on purpose: it shows that the tool would notice.
"""

from __future__ import annotations

import sys

from flashlab import runtime  # before triton

import torch
import triton
import triton.language as tl

from flashlab.kernels import masks
from flashlab.kernels.api import attention
from flashlab.problem import AttentionProblem

DEVICE = runtime.device()
TWO_TILES = (130, 150) if DEVICE == "cuda" else (18, 20)
FAULTED = (202, 153) if DEVICE == "cuda" else (20, 18)  # the call that test_attention.test_any_call holds as its example
PROBLEMS = [  # (problem, mask, causal, strided): through descriptors where the GPU has them, through pointers, float32, wide heads; no key for some
    (AttentionProblem(33, 70, 64, heads=2, kv_heads=1, dtype="float16"), None, True, False),
    (AttentionProblem(70, 33, 20, batch=2, dtype="bfloat16"), masks.window(9, 3), False, False),
    (AttentionProblem(17, 39, 5, heads=2, dtype="float32"), masks.softcap(2.0), True, False),
    (AttentionProblem(*TWO_TILES, 128, dtype="float16"), None, True, False),
    (AttentionProblem(*TWO_TILES, 256, dtype="bfloat16"), masks.window(100, 3), False, False),
    (AttentionProblem(*FAULTED, 20, heads=4, kv_heads=2, scale=-(20**-0.5), dtype="bfloat16"), masks.prefix(2), True, True),
]


def run(problem: AttentionProblem, mask, causal: bool, strided: bool) -> None:
    """The forward pass and both backward passes, with lse and a sink; mask and one that reads a tensor. Strided: gaps in q and k, one row of v for all, mask alone."""
    q, k, v = leaves = tuple(x.requires_grad_() for x in problem.tensors(device=DEVICE))
    if strided:
        q, k = (torch.stack([x, x + torch.nan], -1).flatten(-2)[..., ::2] for x in (q, k))
        v = v[:, :, :1].expand_as(v)
    sink = torch.zeros(problem.heads, device=DEVICE, requires_grad=True)
    mask = mask if strided else masks.alibi(torch.ones(problem.heads, device=DEVICE)) & (mask or masks.Mask())
    for deterministic in (True, False):
        options = {"causal": causal, "scale": problem.scale, "sink": sink, "return_lse": True, "deterministic": deterministic}
        o, lse = attention(q, k, v, mask=mask, **options)
        gradients = torch.autograd.grad((o, lse), (*leaves, sink), (torch.ones_like(o), torch.ones_like(lse)))
        assert all(x.isfinite().all() for x in (o, lse, *gradients))


@triton.jit
def outside_kernel(x, n):
    tl.store(x + n, tl.load(x + n) + 1)


if __name__ == "__main__":
    if "outside" in sys.argv:
        outside_kernel[(1,)](torch.zeros(1024, device=DEVICE), 1024 * 1024 * 1024)
    for given in PROBLEMS:
        run(*given)
    torch.cuda.synchronize()
