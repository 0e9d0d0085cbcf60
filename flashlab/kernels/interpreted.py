"""A launch in Triton's interpreter that refuses what the interpreter computes wrongly: arithmetic in bfloat16 and float8.

NumPy has no such dtypes, so the interpreter holds their bits as whole numbers and adds and multiplies those. The kernels here
compute in float32 there (tiles.layout), and a mask's tensors arrive in float32 (masks.decode); but a mask's body may cast to
bfloat16 itself. Loads, stores and casts in these dtypes pass.

Unlike traffic/triton_hooks.py, which refuses the same while it traces: for as long as a launch takes, and without a trace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triton.runtime.errors import InterpreterError

from flashlab.errors import error, is_known

WRONG = {"bf16": "bfloat16"} | {name: name for name in ("fp8e4nv", "fp8e4b8", "fp8e4b15", "fp8e5", "fp8e5b16")}
ARITHMETIC = ("binary_op", "unary_op", "create_fma", "create_clampf", "create_dot")  # of the interpreter's builder


@contextmanager
def narrow_refused() -> Iterator[None]:
    """While open, arithmetic in WRONG raises TypeError, which names the function and its line."""
    from triton.runtime import interpreter  # here, since a process that compiles has no use for it

    builder = interpreter.interpreter_builder
    usual = {name: getattr(builder, name) for name in ARITHMETIC}
    for name, operation in usual.items():
        setattr(builder, name, guarded(operation))
    try:
        yield
    except InterpreterError as fault:
        inner: BaseException = fault
        while isinstance(inner, InterpreterError) and inner.__cause__:  # one around each function that was being called
            inner = inner.__cause__
        if is_known(inner):
            raise inner from None
        raise
    finally:
        for name, operation in usual.items():
            setattr(builder, name, operation)


def guarded(operation):
    """The operation, which looks at its first operand's dtype first: Triton has made the operands one dtype."""

    def checked(handle, *rest, **named):
        if handle.dtype.scalar.name in WRONG:
            function, line = place()
            raise error("mask_narrow", function=function, line=line, given=WRONG[handle.dtype.scalar.name])
        return operation(handle, *rest, **named)

    return checked


def place() -> tuple[str, str]:
    """(the innermost function that is neither Triton's nor of this file, "FILE, line N")."""
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] == __name__ or frame.f_globals["__name__"].startswith("triton."):
        frame = frame.f_back
    return frame.f_code.co_name, f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
