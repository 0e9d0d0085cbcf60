"""Adds one to eight numbers with Triton, where this machine runs kernels: the doctor's proof that they do.

    python -m flashlab.smoke     prints "interpreter" or "cuda", or ends with what went wrong

The only file that runs a kernel for no lesson: it finds a missing compiler, header or driver, which only a launch does.
"""

from __future__ import annotations

from flashlab import runtime  # before triton

import torch
import triton
import triton.language as tl


@triton.jit
def add_one_kernel(x_pointer, n, block: tl.constexpr):
    index = tl.arange(0, block)
    mask = index < n
    tl.store(x_pointer + index, tl.load(x_pointer + index, mask=mask) + 1, mask=mask)


def smoke() -> str:
    """The mode the kernel ran in. Raises RuntimeError if its numbers are wrong, and whatever Triton raises."""
    runtime.patch_interpreter()
    x = torch.arange(8, dtype=torch.float32, device=runtime.device())
    add_one_kernel[(1,)](x, 8, block=8)
    if x.tolist() != [1, 2, 3, 4, 5, 6, 7, 8]:
        raise RuntimeError(f"a Triton kernel that adds 1 to 0..7 gave {x.tolist()}")
    return runtime.mode()


if __name__ == "__main__":
    print(smoke())
