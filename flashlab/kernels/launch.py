"""Launch a kernel without asking Triton twice what its arguments are.

Each launch, Triton looks at every argument to find the compiled kernel that fits: about 60 µs for the attention kernels,
more than some of them run. `launch` keeps what it found under a key of the same facts: dtype and alignment of a tensor;
whether an int is 1, a multiple of 16, or needs 64 bits; the values of constants.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from flashlab import runtime

ALIGNMENT = 16  # what Triton specialises on, of addresses in bytes and of ints
INT32_END = 2**31
COMPILED: dict[tuple, Any] = {}


def launch(kernel, programs: int, arguments: tuple, constants: dict, options: dict) -> None:
    """Run `programs` programs of `kernel`; `arguments` and then `constants` are its parameters, in order."""
    if runtime.mode() == "interpreter":
        kernel[(programs,)](*arguments, **constants, **options)
        return
    key = (id(kernel), torch.cuda.current_device(), *map(fact, arguments), *constants.values(), *options.values())
    compiled = COMPILED.get(key)
    if compiled is None:
        COMPILED[key] = kernel[(programs,)](*arguments, **constants, **options)
    else:
        compiled[(programs, 1, 1)](*arguments, *constants.values())


def fact(x: Any) -> Any:
    """What Triton compiles for, of one argument that is not a constant."""
    kind = type(x)
    if kind is int:
        return x == 1, x % ALIGNMENT == 0, x < INT32_END
    if kind is tuple:
        return tuple(map(fact, x))
    if isinstance(x, torch.Tensor):
        return x.dtype, x.data_ptr() % ALIGNMENT == 0
    if kind is TensorDescriptor:
        return x.base.dtype, *x.block_shape
    return kind
