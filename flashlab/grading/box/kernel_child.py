"""Runs in the sandbox: a student's Triton kernel under our tracer, in Triton's interpreter, one launch at a time.

The cell has passed grading/kernel_rules.py, so it holds kernels and nothing else. Arrays come in, the arrays that the
kernel writes and the events of the trace go out. Beside this folder it imports flashlab.traffic, torch and triton.
"""

import os
import sys

import numpy as np

from . import limits
from .child import Line, fault


def load_cell(source):
    """({name: kernel}, the file they are in): Triton reads a kernel's source again, so it must be in a file."""
    import triton
    import triton.language as tl

    path = os.path.abspath("your_cell.py")
    with open(path, "w") as file:
        file.write(source)
    scope = {"__name__": "your_cell", "triton": triton, "tl": tl}
    scope |= {"INF": tl.constexpr(float("inf")), "LOG2_E": tl.constexpr(1.4426950408889634)}
    sys.modules["your_cell"] = type(sys)("your_cell")
    exec(compile(source, path, "exec"), scope)
    return scope, path


def tensor_of(array, strides):
    """A torch tensor with these numbers; `strides` in elements, None for row by row. What lies between is NaN."""
    import torch

    if strides is None:
        return torch.from_numpy(np.array(array))
    size = 1 + sum((n - 1) * stride for n, stride in zip(array.shape, strides)) if array.size else 0
    fill = float("nan") if array.dtype.kind == "f" else -1
    tensor = torch.full((size,), fill, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype).as_strided(array.shape, strides)
    tensor.copy_(torch.from_numpy(np.array(array)))
    return tensor


def launch(kernel, request, arrays):
    """(header, arrays) of one traced launch."""
    from flashlab.traffic.interpreter import trace
    from flashlab.traffic.triton_hooks import leave_unfilled

    tensors = {name: tensor_of(array, request["strides"].get(name)) for name, array in arrays.items()}
    leave_unfilled(request.get("filled", False))
    traced = trace(kernel, tuple(request["grid"]), **tensors, **request["options"])
    out = {name: np.ascontiguousarray(tensors[name].numpy()) for name in request["stores"]}
    out["trace events"] = np.frombuffer(traced.columns.tobytes(), np.uint8)
    return {"result": True, "tensors": traced.tensors, "names": traced.tensor_names}, out


def main():
    line = Line()
    setup, _ = line.receive()
    import torch

    from flashlab import runtime
    import flashlab.traffic.interpreter  # noqa: F401  all that is slow to import, before time is limited

    torch.set_num_threads(1)
    runtime.patch_interpreter()
    limits.limit(**setup["limits"])
    fenced = limits.forbid_processes()
    scope, names, broken = {}, set(), {}
    try:
        scope, path = load_cell(setup["cells"][0])
        names = {path}
    except BaseException as problem:  # noqa: BLE001
        broken = fault(problem, {os.path.abspath("your_cell.py")})
    line.send({"ready": True, "fenced": fenced})
    while True:
        request, arrays = line.receive()
        try:
            if broken:
                line.send({"error": broken})
                continue
            line.send(*launch(scope[request["call"]], request, arrays))
        except BaseException as problem:  # noqa: BLE001
            cause = problem.__cause__ if type(problem).__name__ == "InterpreterError" and problem.__cause__ else problem
            line.send({"error": fault(cause, names)})
