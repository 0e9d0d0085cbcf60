"""Launch a kernel without working out again what the call before has worked out.

Two things take longer than some of the kernels run. Which tile, layout, sizes and constants a call needs follows from
shapes, strides, dtype, device and alignment, so a Plan holds them and `planned` finds it again by those. And Triton looks
at every argument to find the compiled kernel that fits, about 60 µs for the attention kernels; `compiled_for` keeps what
it found under fewer facts, dtype and alignment of a tensor and whether an int is 1, a multiple of 16, or needs 64 bits,
so that a new n need not ask Triton again.

Where something stands before Triton's own launch (its interpreter; traffic/triton_hooks.py while its hooks are open) that
one is called each time, and no compiled kernel is kept.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from flashlab.runtime import narrow_refused

ALIGNMENT = 16  # what Triton specialises on, of addresses in bytes and of ints
INT32_END = 2**31
MOST_PLANS = 1024  # of one kind; then all are forgotten, since sizes that change with each call would fill the memory
NO_STRIDES = ()  # a kernel that gets descriptors asks for none
COMPILED: dict[tuple, Any] = {}


class Plan:
    """All of a launch but its tensors and what varies freely: `plan.launch(tensors, scale, mask_params)`.

    `described` are the attributes of a tensor descriptor for each of the first tensors, where they travel as such;
    `numbers` are strides and sizes; `constants` the kernel's constexprs, its last parameters.
    """

    def __init__(self, kernel, programs: int, numbers: tuple, constants: dict, options: dict, described: tuple = ()) -> None:
        self.kernel, self.grid, self.numbers, self.described = kernel, (programs, 1, 1), numbers, described
        self.constants, self.options, self.values = constants, options, tuple(constants.values())
        self.run = None  # the compiled kernel on this grid, from the first launch on

    def launch(self, tensors: tuple, *free) -> None:
        """Run the kernel on the current device; its parameters are the tensors, the numbers, `free`, the constants."""
        if self.described:
            tensors = (*map(described_by, self.described, tensors), *tensors[len(self.described) :])
        arguments = (*tensors, *self.numbers, *free)
        if not by_triton(self.kernel):
            with narrow_refused(), np.errstate(over="ignore"):  # a GPU goes to infinity without a word
                self.kernel[self.grid](*arguments, **self.constants, **self.options)
        elif self.run is None:
            self.run = compiled_for(self, arguments)[self.grid]
        else:
            self.run(*arguments, *self.values)


def by_triton(kernel) -> bool:
    """Whether Triton's own compiled launch is what `kernel[grid](...)` comes to: no interpreter, no hook that wants to see it."""
    return kernel.run.__module__ == "triton.runtime.jit"


def compiled_for(plan: Plan, arguments: tuple):
    """Run the plan and return the compiled kernel: one that an earlier plan found, or the one that Triton finds."""
    key = (id(plan.kernel), torch.cuda.current_device(), *map(fact, arguments), *plan.values, *plan.options.values())
    if key in COMPILED:
        COMPILED[key][plan.grid](*arguments, *plan.values)
    else:
        COMPILED[key] = plan.kernel[plan.grid](*arguments, **plan.constants, **plan.options)
    return COMPILED[key]


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


def described_by(attributes: dict, x: torch.Tensor) -> TensorDescriptor:
    """x as a tensor descriptor. Its constructor would check again what can_be_described (tiles.py) has."""
    descriptor = object.__new__(TensorDescriptor)
    descriptor.__dict__.update(attributes, base=x)
    return descriptor


def planned(make):
    """Call `make` once for all tensors of the same shape, strides, dtype, device and alignment; other arguments count as they are.

    In a tuple (the parameters of masks) numbers count only by what Triton compiles for, since they travel with each launch.
    """
    plans = {}

    @wraps(make)
    def plan(*arguments):
        key = tuple([_seen(x) if isinstance(x, torch.Tensor) else fact(x) if type(x) is tuple else x for x in arguments])
        found = plans.get(key)
        if found is None:
            if len(plans) == MOST_PLANS:
                plans.clear()
            found = plans[key] = make(*arguments)
        return found

    return plan


def _seen(x: torch.Tensor) -> tuple:
    return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % ALIGNMENT == 0
