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
PROBLEMS = [  # (problem, mask, causal): through descriptors where the GPU has them, through pointers, float32, wide heads; no key for some
    (AttentionProblem(33, 70, 64, heads=2, kv_heads=1, dtype="float16"), None, True),
    (AttentionProblem(70, 33, 20, batch=2, dtype="bfloat16"), masks.window(9, 3), False),
    (AttentionProblem(17, 39, 5, heads=2, dtype="float32"), masks.softcap(2.0), True),
    (AttentionProblem(*TWO_TILES, 128, dtype="float16"), None, True),
    (AttentionProblem(*TWO_TILES, 256, dtype="bfloat16"), masks.window(100, 3), False),
]


def run(problem: AttentionProblem, mask, causal: bool) -> None:
    """The forward pass and both backward passes, with lse, a sink and a mask that reads a tensor."""
    q, k, v = (x.requires_grad_() for x in problem.tensors(device=DEVICE))
    sink = torch.zeros(problem.heads, device=DEVICE, requires_grad=True)
    slopes = masks.alibi(torch.ones(problem.heads, device=DEVICE))
    for deterministic in (True, False):
        o, lse = attention(q, k, v, mask=slopes & (mask or masks.Mask()), causal=causal, sink=sink, return_lse=True, deterministic=deterministic)
        gradients = torch.autograd.grad((o, lse), (q, k, v, sink), (torch.ones_like(o), torch.ones_like(lse)))
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
