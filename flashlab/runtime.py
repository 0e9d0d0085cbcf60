"""Where kernels run: compiled on a CUDA GPU, or in Triton's interpreter on the CPU, decided before triton is imported.

Triton reads TRITON_INTERPRET when it is imported and when a kernel is decorated, so `import flashlab` calls `prepare()`,
which asks the driver (flashlab.driver) and loads neither torch nor triton. GPUs older than compute capability 8.0, and
those that the installed torch cannot use, leave the kernels to the interpreter, said aloud.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from flashlab.assembler import prefer_newest
from flashlab.driver import GpuFound, ask_driver, judge, login_node, torch_build
from flashlab.errors import error, is_known

NOT_LINUX = (
    "Triton has no wheel for {system}: lessons 00 to 04 work, later ones can be read. To run them use a Linux machine,"
    " WSL, or a Linux container (python:3.12 with this folder mounted)"
)

# What the interpreter computes wrongly: NumPy has no such dtypes, so it holds their bits as whole numbers and adds and multiplies those.
WRONG = {"bf16": "bfloat16"} | {name: name for name in ("fp8e4nv", "fp8e4b8", "fp8e4b15", "fp8e5", "fp8e5b16")}
ARITHMETIC = ("binary_op", "unary_op", "create_fma", "create_clampf", "create_dot")  # of the interpreter's builder
_REFUSED = threading.local()  # .here: whether narrow_refused is open in this thread

@cache
def gpu_found() -> GpuFound:
    """The GPU that Triton kernels run on, or a false GpuFound whose `reason` says why there is none."""
    return judge(ask_driver(), torch_build())


def mode() -> str:
    """Where Triton kernels run in this process: "cuda" or "interpreter". Triton itself reads the same variable."""
    value = os.environ.get("TRITON_INTERPRET", "0" if gpu_found() else "1")
    return "interpreter" if value.strip().lower() in ("1", "true", "yes", "on", "y") else "cuda"


def device() -> str:
    """The torch device for tensors that kernels take: "cuda" or "cpu"."""
    return "cuda" if gpu_found() and mode() == "cuda" else "cpu"


def has_triton() -> bool:
    """Whether triton is installed, found without importing it."""
    return importlib.util.find_spec("triton") is not None


def describe() -> str:
    """One sentence: where Triton kernels run here, and why there."""
    found = gpu_found()
    if not has_triton():
        system = platform.system()
        return (NOT_LINUX.format(system=system) if system != "Linux" else "Triton is not installed; run make lab") + "."
    if found and mode() == "cuda":
        return f"GPU: Triton kernels run on the {found.name}."
    if found:
        return f"TRITON_INTERPRET is set: Triton kernels run in its interpreter on the CPU, not on the {found.name}."
    why = f"No usable GPU: {found.reason}" if found.name else f"No GPU: {found.reason}"
    if mode() == "cuda":
        return f"{why}; TRITON_INTERPRET={os.environ['TRITON_INTERPRET']} forbids the interpreter, so unset it."
    return f"{why}; Triton kernels run in its interpreter on the CPU."


@cache
def announce() -> None:
    """Print `describe()`, the first time in a process only."""
    print(describe())


def need_gpu(what: str) -> None:
    """Return if kernels run on a GPU. Raises RuntimeError, which names `what` and says why, if they do not."""
    if device() == "cpu":
        raise error("no_gpu", what=what, why=describe().rstrip("."), hint=login_node() or "Run it where there is a GPU")


def prepare() -> None:
    """Choose the mode for this process and, on Hopper, the assembler, once, on `import flashlab`.

    Warns if triton was imported in the other mode.
    """
    if not gpu_found():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    prefer_newest(gpu_found())
    standard = sys.modules.get("triton.language.standard")
    if standard is None:
        return
    loaded = "interpreter" if type(standard.cdiv).__name__ == "InterpretedFunction" else "cuda"
    if loaded != mode():
        warnings.warn(error("triton_first", given=loaded, needed=mode()), stacklevel=2)


# -- what Triton's interpreter gets wrong ------------------------------------------------------------------------------
def patch_interpreter() -> bool:
    """Mend Triton's interpreter where kernels run in it, and say whether that was Triton 3.6 under NumPy 2.4 or later.

    There a loop bound read from a tensor is an array of one element, and NumPy no longer turns that into an int; later
    Tritons squeeze it first. In every Triton casts to and from bfloat16 are made a GPU's, and narrow_refused can refuse
    arithmetic. Call it after `import triton` and before the first launch.
    """
    if mode() != "interpreter":
        return False
    import numpy as np
    from triton.runtime import interpreter

    round_to_bfloat16(interpreter)
    _guard(interpreter)
    original, index = interpreter._patch_lang_tensor, {}
    probe = type("Scope", (), {"set_attr": lambda _, owner, name, value: index.update({name: value})})()
    one = type("Tensor", (), {"handle": type("Handle", (), {"data": np.array([3])})})()
    original(one, probe)
    try:
        return index["__index__"](one) != 3
    except TypeError:
        pass

    def mended(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = mended
    return True


def round_to_bfloat16(interpreter: ModuleType) -> None:
    """Let Triton's interpreter cast to and from bfloat16 as a GPU and torch do.

    Its own cast of float32 cuts, and gets infinity, NaN and the smallest wrong; of a whole number it writes the number as the bits.
    """
    own = interpreter._convert_float
    if own.__module__ == __name__:  # mended already
        return

    def convert(values, source, target, rounding):
        import torch

        nearest = rounding is None or rounding == interpreter._ir.ROUNDING_MODE.RTNE
        if (source.name, target.name) == ("fp32", "bf16") and nearest:
            return torch.tensor(values).bfloat16().view(torch.int16).numpy().view("u2")
        if (source.name, target.name) == ("bf16", "fp32"):
            return torch.tensor(values.view("i2")).view(torch.bfloat16).float().numpy().view("u4")
        return own(values, source, target, rounding)

    def by_float32(source, target):
        import triton.language as tl

        through = target.scalar.name == "bf16" and not source.dtype.scalar.is_fp32()
        return cast(cast(source, tl.float32) if through else source, target)

    cast = interpreter.interpreter_builder.cast_impl
    interpreter._convert_float, interpreter.interpreter_builder.cast_impl = convert, by_float32


@contextmanager
def narrow_refused() -> Iterator[None]:
    """While open, and in this thread, arithmetic in bfloat16 or float8 in the interpreter raises TypeError, which names function and line.

    Reductions (tl.sum) are arithmetic; loads, stores and casts in these dtypes pass. Our kernels compute in float32 there
    (tiles.layout), and a mask's tensors arrive in float32 (masks.decode); but a mask's body may cast to bfloat16 itself. While
    the tracer runs a kernel it refuses the same by itself (traffic/triton_hooks.py).
    """
    from triton.runtime.errors import InterpreterError

    before = getattr(_REFUSED, "here", False)
    _REFUSED.here = True
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
        _REFUSED.here = before


def _guard(interpreter: ModuleType) -> None:
    """Let the interpreter's arithmetic and reductions ask, each time, whether narrow_refused is open. Once, for good."""
    builder, reduction = interpreter.interpreter_builder, interpreter.ReduceScanOpInterface
    check = reduction.check_tensor
    if check.__module__ == __name__:
        return

    def guarded(operation: Callable) -> Callable:  # Triton has made the operands one dtype
        def checked(handle, *rest, **named):
            _refuse(handle)
            return operation(handle, *rest, **named)

        return checked

    def reduced(operation, inputs):  # NumPy stands in for Triton's own functions (tl.sum); an author's own run as they are
        check(operation, inputs)
        if operation.combine_fn.fn.__module__.startswith("triton."):
            for tensor in inputs:
                _refuse(tensor.handle)

    for name in ARITHMETIC:
        setattr(builder, name, guarded(getattr(builder, name)))
    reduction.check_tensor = reduced


def _refuse(handle: object) -> None:
    dtype = handle.dtype.scalar.name
    if dtype in WRONG and getattr(_REFUSED, "here", False):
        frame = sys._getframe(1)  # up to the innermost function that is neither Triton's nor of this file
        while frame.f_globals["__name__"] == __name__ or frame.f_globals["__name__"].startswith("triton."):
            frame = frame.f_back
        line = f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
        raise error("mask_narrow", function=frame.f_code.co_name, line=line, given=WRONG[dtype])
