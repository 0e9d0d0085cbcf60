"""Runs a Triton kernel in the interpreter and tells a listener what it does: the one place for Triton's private names.

Works in a process that interprets kernels and in one that compiles them for CUDA: while a kernel runs here, a call of a
@triton.jit function (a helper, tl.sum) runs its Python body, and all that was replaced is put back afterwards (leave_unfilled, below, is meant to last). Loads and
stores by pointer, block pointer and descriptor all pass the builder's masked load and store; atomics pass elsewhere.

Pointers are not real addresses: the listener gives each tensor a place of its own, and turns addresses into real ones
access by access. Two views of one storage stay two tensors, and a stray address never lands in a neighbour unseen.

Unlike Triton's own loop over the grid: axis 0 runs fastest, the order in which a GPU starts programs.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, FunctionType
from typing import NamedTuple

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, KernelInterface, TensorWrapper, mangle_type
from triton.tools.tensor_descriptor import TensorDescriptor

from flashlab.runtime import ARITHMETIC, WRONG, round_to_bfloat16

round_to_bfloat16(interpreter)  # also where other kernels are compiled

INTERPRETED = (JITFunction, interpreter.InterpretedFunction)
_BITS = {  # what NumPy has no dtype for and the interpreter keeps as whole numbers: torch's dtype of the same bits
    "bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e4b8": torch.float8_e4m3fnuz, "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
}  # fmt: skip
_HOOK = "__flashlab__"  # what a rewritten kernel calls; in its module only while it runs


class Listener:
    """What a Run tells and asks; whoever listens overrides what it needs."""

    def address(self, name: str, tensor: object) -> int:
        """The address that the kernel shall see for this tensor argument."""
        raise NotImplementedError

    def program(self, number: int) -> None:
        """The program with this linear number (axis 0 fastest) begins."""

    def access(self, op: str, address: np.ndarray, mask: np.ndarray, width: int, value: interpreter.TensorHandle | None) -> np.ndarray:
        """A load, store or atomic of `width` bytes a lane, before it happens; returns the real addresses (uint64)."""
        raise NotImplementedError

    def dot(self, rows: int, cols: int) -> None:
        """A tl.dot whose result has this shape is about to run."""

    def narrow(self, dtype: str) -> None:
        """Arithmetic that the interpreter gets wrong is about to happen; raise."""
        raise NotImplementedError

    def pass_ended(self) -> None:
        """A loop of the kernel, or of a helper, has ended one pass; also called before the first pass of a while."""

    def returned(self, frame: FrameType) -> None:
        """The kernel or a helper returns; its locals are still there."""

    def finished(self) -> None:
        """The program has ended."""


def unwrap(kernel: object) -> tuple[FunctionType | None, bool]:
    """(the Python function under @triton.jit, or None; whether @triton.autotune or heuristics lie around it)."""
    inner = kernel
    while isinstance(inner, KernelInterface) and not isinstance(inner, INTERPRETED):
        inner = inner.fn
    if not isinstance(inner, INTERPRETED) or getattr(inner, "is_gluon", bool)():
        return None, False
    return inner.fn, inner is not kernel


def constexprs(function: FunctionType, names: list[str]) -> list[str]:
    """Which of the parameters are declared tl.constexpr."""
    return interpreter.GridExecutor(function, names, ()).constexprs


def takes(value: object) -> bool:
    """Whether a parameter that is no tl.constexpr can have this value; for a tuple, ask of each item."""
    if value is None or isinstance(value, (int, float, *INTERPRETED)):
        return True
    try:
        kind = mangle_type(value)
        return not kind.startswith("*") or tl.str_to_ty(kind, None).is_ptr()
    except (TypeError, KeyError):  # no such type; no such type of what a pointer points to
        return False


def fields(name: str, value: tuple) -> list[str]:
    """What each item is called: name.field or name[0]."""
    return [f"{name}.{field}" for field in getattr(value, "_fields", ())] or [f"{name}[{i}]" for i in range(len(value))]


def alike(value: tuple, items: list) -> tuple:
    """A tuple of the same kind with these items."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def tensors_in(name: str, value: object) -> Iterator[tuple[str, object]]:
    """(name, tensor) of a kernel argument: a tensor, a descriptor's base, or those in a tuple as name.field or name[0]."""
    if isinstance(value, tuple):
        for field, item in zip(fields(name, value), value):
            yield from tensors_in(field, item)
    elif isinstance(value, TensorDescriptor):
        yield name, value.base
    elif hasattr(value, "data_ptr"):
        yield name, value


def number(value: object) -> np.ndarray | None:
    """A kernel's local as an array (a scalar has no dimensions), or None where it is a pointer or no number."""
    if isinstance(value, tl.tensor):
        if value.dtype.is_ptr():
            return None
        return values(value.handle) if value.type.is_block() else values(value.handle).reshape(())
    value = value.value if isinstance(value, tl.constexpr) else value
    return np.asarray(value) if isinstance(value, (bool, int, float, np.number)) else None


def values(handle: interpreter.TensorHandle) -> np.ndarray:
    """What a handle holds, bfloat16 and float8 as float32. (The interpreter's own cast of float8 gets infinity and NaN wrong.)"""
    dtype = _BITS.get(handle.dtype.scalar.name)
    return handle.data if dtype is None else torch.from_numpy(handle.data.copy()).view(dtype).float().numpy()


class Launch(NamedTuple):
    """One `kernel[grid](*args, **meta)`; calling it goes on with the launch."""

    kernel: object
    grid: object
    args: tuple
    meta: dict[str, object]
    go: Callable

    def __call__(self) -> object:
        return self.go(self.kernel, *self.args, grid=self.grid, warmup=False, **self.meta)


@contextmanager
def launches(seen: Callable[[Launch], object]) -> Iterator[None]:
    """While open, a launch of any kernel calls seen(launch) instead, and returns what that returns.

    An autotuned kernel takes its first configuration, of those that its early_config_prune leaves, since timing them needs a
    GPU; the configuration's pre_hook is called.
    """

    def seen_by(go):
        return lambda kernel, /, *args, grid, warmup, **meta: (
            go(kernel, *args, grid=grid, warmup=warmup, **meta) if warmup else seen(Launch(kernel, grid, args, meta, go))
        )

    def tuned(kernel, /, *args, **meta):
        kernel.nargs, configs = dict(zip(kernel.arg_names, args)), kernel.configs  # nargs: what Triton's own run sets, for hooks to read
        if len(configs) > 1 and kernel.early_config_prune:
            configs = kernel.early_config_prune(configs, kernel.nargs, **meta) or kernel.prune_configs(meta)  # which raises for none
        if configs[0].pre_hook:
            configs[0].pre_hook({**kernel.nargs, **meta, **configs[0].all_kwargs()})
        return kernel.fn.run(*args, **meta, **configs[0].all_kwargs())

    with ExitStack() as undo:
        for kind in INTERPRETED:
            _replace(undo, kind, "run", seen_by(kind.run))
        _replace(undo, Autotuner, "run", tuned)
        yield


class Run:
    """One run of a kernel: `Run(function, listener)(arguments, grid)`."""

    def __init__(self, function: FunctionType, listener: Listener) -> None:
        self.function, self.listener = function, listener
        self._rewritten: dict[FunctionType, FunctionType] = {}
        self._modules: set[int] = set()  # by the id of their globals

    def __call__(self, arguments: dict[str, object], grid: tuple[int, int, int]) -> None:
        """Run every program of `grid`; `arguments` are the parameters by name, their tensors on the host."""
        with ExitStack() as self._undo:
            self._patch()
            kernel = self._prepared(self.function)
            fixed = constexprs(self.function, list(arguments))
            converted = {name: value if name in fixed else self._converted(name, value) for name, value in arguments.items()}
            builder = interpreter.interpreter_builder
            builder.set_grid_dim(*grid)
            for count, (z, y, x) in enumerate(np.ndindex(grid[::-1])):
                builder.set_grid_idx(x, y, z)
                self.listener.program(count)
                kernel(**converted)
                self.listener.finished()

    def names(self) -> set[str]:
        """Every local of the kernel and of the helpers that ran, Triton's own left out."""
        return {name for function in self._rewritten.values() if _is_ours(function) for name in function.__code__.co_varnames}

    def frames(self) -> Iterator[FrameType]:
        """The frames of the kernel and its helpers that run now, innermost first, Triton's own left out."""
        codes = {function.__code__ for function in self._rewritten.values() if _is_ours(function)}
        kernel = self._rewritten[self.function].__code__
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code in codes:
                yield frame
            frame = None if frame.f_code is kernel else frame.f_back

    # -- what a rewritten function calls ------------------------------------------------------------------------------
    def passes(self, iterable):
        for item in iterable:
            yield item
            self.listener.pass_ended()

    def test(self, value):
        self.listener.pass_ended()
        return value

    def returned(self, value=None):
        self.listener.returned(sys._getframe(1))
        return value

    # -- running ------------------------------------------------------------------------------------------------------
    def _prepared(self, function: FunctionType) -> FunctionType:
        """The function rewritten for the interpreter, with our hooks in it; its module is as before when the run ends."""
        if function not in self._rewritten:
            opened = _opened(function)
            names = opened.__globals__
            if id(names) not in self._modules:
                self._modules.add(id(names))
                scope = interpreter._patch_lang(opened)
                # Triton 3.6 fails here with NumPy 2.4 or later; this is what later Tritons do.
                scope.set_attr(tl.tensor, "__index__", lambda tensor: int(tensor.handle.data.squeeze()))
                self._undo.callback(scope.restore)
                before = set(names)
                self._undo.callback(lambda: [names.pop(name, None) for name in set(names) - before])
                names[_HOOK] = self
            rewriter = interpreter.FunctionRewriter(opened)
            if _is_ours(function):
                rewriter.ast_transformer = _Rewrite()
            rewritten = self._rewritten[function] = rewriter.rewrite_ast()
            rewritten.__defaults__, rewritten.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        return self._rewritten[function]

    def _converted(self, name: str, value: object):
        """The argument as the interpreter wants it, with the listener's addresses for pointers."""
        if isinstance(value, tuple):
            return alike(value, [self._converted(field, item) for field, item in zip(fields(name, value), value)])
        converted = interpreter._implicit_cvt(value)
        for path, tensor in tensors_in(name, value):
            handle = converted.handle.base if isinstance(value, TensorDescriptor) else converted.handle
            handle.data = np.array([self.listener.address(path, tensor)], np.uint64)
        return converted

    def _patch(self) -> None:
        """Let calls of @triton.jit functions run their body, and every access and product pass the listener."""
        for kind in INTERPRETED:
            _replace(self._undo, kind, "__call__", lambda helper, *args, **kwargs: self._prepared(helper.fn)(*args, **kwargs))
        builder, listener = interpreter.interpreter_builder, self.listener
        load, store = builder.create_masked_load, builder.create_masked_store
        modify, swap, dot = builder.create_atomic_rmw, builder.create_atomic_cas, builder.create_dot
        check = interpreter.ReduceScanOpInterface.check_tensor

        def real(op, pointers, mask, value=None):
            width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
            lanes = np.broadcast_to(True if mask is None else np.asarray(mask.data), pointers.data.shape)
            data = listener.access(op, pointers.data, lanes, width, value)
            return dataclasses.replace(pointers, data=data)

        def right(handle):
            if handle.dtype.scalar.name in WRONG:
                listener.narrow(handle.dtype.scalar.name)
            return handle

        def product(left, other, *rest, **named):
            listener.dot(left.data.shape[-2], other.data.shape[-1])
            return dot(right(left), right(other), *rest, **named)

        def guarded(operation):  # Triton has made the operands one dtype
            return lambda handle, *rest: operation(right(handle), *rest)

        def reduced(operation, inputs):  # NumPy stands in for Triton's own functions (tl.sum); a kernel's own run as they are
            check(operation, inputs)
            if not _is_ours(operation.combine_fn.fn):
                for tensor in inputs:
                    right(tensor.handle)

        # rest, named: caching arguments, of which Triton 3.9 has one less.
        for name, method in {
            **{name: guarded(getattr(builder, name)) for name in ARITHMETIC},
            "create_masked_load": lambda pointers, mask, *rest, **named: load(real("load", pointers, mask), mask, *rest, **named),
            "create_masked_store": lambda pointers, value, mask, *rest, **named: store(
                real("store", pointers, mask, value), value, mask, *rest, **named
            ),
            "create_atomic_rmw": lambda kind, pointers, value, mask, *rest: modify(
                kind, real("atomic", pointers, mask, right(value)), value, mask, *rest
            ),
            "create_atomic_cas": lambda pointers, old, new, *rest: swap(real("atomic", pointers, None, new), old, new, *rest),
            "create_dot": product,
        }.items():
            _replace(self._undo, builder, name, method)
        _replace(self._undo, interpreter.ReduceScanOpInterface, "check_tensor", reduced)


def leave_unfilled(filled: bool = False) -> None:
    """From now on the masked lanes of a float load without other= hold NaN, as a GPU may leave anything there; `filled`: 0 again, as Triton has it."""
    builder = interpreter.interpreter_builder
    vars(builder).pop("create_masked_load", None)  # what an earlier call put there
    load = builder.create_masked_load

    def unfilled(pointers, mask, other, *rest, **named):
        result = load(pointers, mask, other, *rest, **named)
        if other is None and mask is not None and result.data.dtype.kind == "f":
            result.data = np.where(mask.data, result.data, np.array(np.nan, result.data.dtype))
        return result

    if not filled:
        builder.create_masked_load = unfilled


class _Rewrite(interpreter.ASTTransformer):
    """Triton's own rewriting, and a call of ours around what a loop runs over, a while's test and what is returned."""

    def visit_arguments(self, node):  # defaults may name what is gone by now, and are set on the rewritten function
        node.defaults = [ast.Constant(None) for _ in node.defaults]
        node.kw_defaults = [default and ast.Constant(None) for default in node.kw_defaults]
        return node

    def visit_For(self, node):
        node = self.generic_visit(node)
        node.iter = _call("passes", node.iter)
        return node

    def visit_While(self, node):
        node = self.generic_visit(node)
        node.test = _call("test", node.test)
        return node

    def visit_Return(self, node):
        node = self.generic_visit(node)
        node.value = _call("returned", *filter(None, [node.value]))
        return node


def _is_ours(function: FunctionType) -> bool:
    """Whether it is the kernel or a helper of its author, not one of Triton's own such as tl.sum."""
    return not function.__globals__.get("__name__", "").startswith("triton.")


def _opened(function: FunctionType) -> FunctionType:
    """The function with the enclosing functions' variables among its globals, where its rewritten source looks for them."""
    if not function.__closure__:
        return function
    names = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__)))
    return FunctionType(function.__code__, function.__globals__ | names, function.__name__, function.__defaults__, function.__closure__)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    hook = ast.Name(id=_HOOK, ctx=ast.Load())
    return ast.Call(func=ast.Attribute(value=hook, attr=name, ctx=ast.Load()), args=list(arguments), keywords=[])


def _replace(undo: ExitStack, owner: object, name: str, new: object) -> None:
    """Set an attribute until `undo` closes; one that the owner only inherits is deleted again then."""
    if name in vars(owner):
        undo.callback(setattr, owner, name, vars(owner)[name])
    else:
        undo.callback(delattr, owner, name)
    setattr(owner, name, new)
