"""What a traced kernel is given: each parameter by name, with a value that Triton takes, and its tensors on the host."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable

import numpy as np
import torch

from flashlab.errors import error
from flashlab.traffic import triton_hooks

LAUNCH_OPTIONS = frozenset(
    "num_warps num_stages num_ctas maxnreg debug enable_fp_fusion sanitize_overflow launch_cooperative_grid launch_pdl".split()
)  # for the compiler: of no effect on what moves


def bound(function: Callable, args: tuple, meta: dict, tuned: bool) -> dict[str, object]:
    """The kernel's parameters by name, or the error that says which is missing, unknown or of no use to Triton."""
    parameters = inspect.signature(function).parameters
    meta = {name: value for name, value in meta.items() if name in parameters or name not in LAUNCH_OPTIONS}
    positional = [name for name, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    given = dict(zip(positional, args)) | meta
    surplus = [f"number {i + 1}" for i in range(len(positional), len(args))] + [name for name in meta if name not in parameters]
    surplus += [f"{name} twice" for name in meta if name in positional[: len(args)]]
    if surplus:
        raise error("trace_argument", kernel=function.__name__, given=surplus[0], allowed=", ".join(parameters))
    defaults = {name: parameter.default for name, parameter in parameters.items() if parameter.default is not parameter.empty}
    missing = [name for name in parameters if name not in given and name not in defaults]
    if missing:
        why = "a tracer does not tune, so choose what @triton.autotune or heuristics would" if tuned else "every parameter needs a value"
        raise error("trace_missing", kernel=function.__name__, missing=", ".join(missing), why=why, example=missing[-1])
    fixed = triton_hooks.constexprs(function, list(parameters))
    return {name: _taken(function.__name__, name, (defaults | given)[name], name in fixed) for name in parameters}


def _taken(kernel: str, name: str, value: object, fixed: bool) -> object:
    """The value with NumPy's numbers as Python's, which Triton knows; `fixed`: for a tl.constexpr."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        paths = triton_hooks.fields(name, value)
        return triton_hooks.alike(value, [_taken(kernel, path, item, fixed) for path, item in zip(paths, value)])
    unfit = _unfit(name, value, fixed)
    if unfit:
        given, needed, instead = unfit
        raise error("trace_value", kernel=kernel, argument=name, given=given, needed=needed, instead=instead)
    return value


def _unfit(name: str, value: object, fixed: bool) -> tuple[str, str, str] | None:
    """(what was given, what is needed, what to pass) where Triton does not take the value, else None."""
    kind = f"a value of type {type(value).__name__}"
    wrapped = isinstance(value, (triton_hooks.TensorDescriptor, triton_hooks.TensorWrapper))
    tensor = value.base if wrapped else value
    if isinstance(tensor, torch.Tensor):
        if fixed:
            return "a tensor", "a tl.constexpr is known when the kernel is compiled", f"{name}.item()"
        if tensor.is_meta:
            return "a tensor on meta", "that holds no numbers", f"torch.zeros_like({name}, device='cpu')"
        if tensor.layout is not torch.strided:
            return f"a tensor of layout {tensor.layout}", "a pointer needs its elements in one storage", f"{name}.to_dense()"
        if not triton_hooks.takes(value):
            instead = f"torch.view_as_real({name})" if tensor.is_complex() else f"one that it has, e.g. {name}.float()"
            return f"a tensor of {tensor.dtype}", "Triton has no such dtype", instead
    elif fixed and type(value).__hash__ is None:
        return kind, "a tl.constexpr is a number or another value that hash() takes", f"e.g. tuple({name})"
    elif not fixed and not triton_hooks.takes(value):
        array, listed = f"torch.as_tensor({name})", f"tuple({name}), or torch.as_tensor({name}) for a pointer"
        instead = {np.ndarray: array, list: listed}.get(type(value), f"one of these, or make {name} a tl.constexpr")
        return kind, "a kernel takes tensors, numbers and tuples of them", instead
    return None


def on_host(value: object, storages: dict[int, tuple]):
    """The argument with its tensors on the CPU; views of one storage stay views of one storage."""
    if isinstance(value, tuple):
        return triton_hooks.alike(value, [on_host(item, storages) for item in value])
    if isinstance(value, triton_hooks.TensorDescriptor):
        base = on_host(value.base, storages)
        return value if base is value.base else dataclasses.replace(value, base=base)
    if isinstance(value, triton_hooks.TensorWrapper):
        return triton_hooks.TensorWrapper(on_host(value.base, storages), value.dtype)
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return value
    storage = value.untyped_storage()
    _, host = storages.setdefault(storage.data_ptr(), (storage, storage.cpu()))
    return torch.empty(0, dtype=value.dtype).set_(host, value.storage_offset(), value.size(), value.stride())
