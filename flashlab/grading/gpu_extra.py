"""After every test has passed, and where there is a GPU: the reader's kernels on it in float16 and bfloat16. No marks.

Not everyone has a GPU, so this adds lines to what `flashlab check` says and changes no result; `flashlab grade` never
comes here. The cells have passed kernel_rules.py and run in a child process with a time limit. That child is not
sandboxed, since bwrap hides the GPU; so it is for the reader's own kernels, on the reader's own machine.

In the child, every OnGpu of the exercise: its cases in each dtype, held to the error budget of grading/budget.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flashlab import runtime
from flashlab.grading import kernel_rules
from flashlab.grading.exercise import Call, Exercise, OnGpu, find

WALL_S = 180  # a dozen compilations, some seconds each at worst
ROOM = 1 << 20  # characters of what the child says that are read


@dataclass(frozen=True)
class Ran:
    """One kernel in one dtype: its error as a multiple of plain PyTorch's at its worst, or what is wrong."""

    function: str
    dtype: str
    times: float = 0.0
    allowed: float = 2.0
    wrong: str = ""
    input: str = ""

    def __str__(self) -> str:
        if self.wrong:
            return f"✗ {self.function} in {self.dtype}: {self.wrong}" + (f"\n    input: {self.input}" if self.input else "")
        return f"✓ {self.function} in {self.dtype}: at most {self.times:.2f} × the error of plain PyTorch; {self.allowed:g} × is allowed"


def lines(exercise: Exercise, cells: dict[str, str]) -> list[str]:
    """What `flashlab check` adds below the marks; nothing without a GPU or for an exercise without kernels."""
    if not exercise.on_gpu or runtime.device() != "cuda":
        return []
    return ["", f"on your {runtime.gpu_found().name}, extra, worth no points:", *(f"  {ran}" for ran in run(exercise, cells))]


def run(exercise: Exercise, cells: dict[str, str], device: str = "cuda", dtypes: tuple[str, ...] | None = None) -> list[Ran]:
    """Each kernel in each dtype, in a child. With device "cpu" in Triton's interpreter, which is wrong in bfloat16."""
    functions = list(dict.fromkeys(extra.function for extra in exercise.on_gpu))
    for function in functions:
        rule = kernel_rules.broken_rule(cells[function])
        if rule:
            return [Ran(function, "any dtype", wrong=rule)]
    request = {"exercise": exercise.name, "cells": {name: kernel_rules.kernels_of(cells[name]) for name in functions}, "device": device, "dtypes": dtypes}
    environment = {**os.environ, "TRITON_INTERPRET": "0" if device == "cuda" else "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="flashlab-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=folder, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            out, problem = process.communicate(json.dumps(request), timeout=WALL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, problem = process.communicate()
            problem = f"it ran longer than {WALL_S} s and was stopped"
    found = [Ran(**json.loads(line)) for line in out[:ROOM].splitlines() if line.startswith("{")]
    if process.returncode:
        last = (problem.strip().splitlines() or [f"the process ended with status {process.returncode}"])[-1]
        found.append(Ran(functions[min(len({ran.function for ran in found}), len(functions) - 1)], "the next dtype", wrong=last[:500]))
    return found


def main() -> None:
    """The child: a request on stdin, a Ran a line on stdout."""
    request = json.loads(sys.stdin.read())
    runtime.patch_interpreter()
    exercise = find(request["exercise"])
    for function in request["cells"]:
        from flashlab.grading.box.kernel_child import load_cell

        scope, _ = load_cell(request["cells"][function])
        chosen = [extra for extra in exercise.on_gpu if extra.function == function]
        for dtype in request["dtypes"] or dict.fromkeys(dtype for extra in chosen for dtype in extra.dtypes):
            for ran in _in_dtype(chosen, scope[function], dtype, request["device"]):
                print(json.dumps(vars(ran)), flush=True)


def _in_dtype(chosen: list[OnGpu], kernel, dtype: str, device: str) -> Iterator[Ran]:
    """One Ran: the worst of all cases, or the first that is wrong."""
    worst = 0.0
    for extra in chosen:
        for case in extra.cases:
            call = extra.call(case)
            try:
                times, wrong = _launched(extra, kernel, call, dtype, device)
            except Exception as problem:  # the kernel does not compile, or asks for more than the GPU has
                times, wrong = 0.0, f"{type(problem).__name__}: {str(problem).strip().splitlines()[0] if str(problem).strip() else ''}"
            if wrong:
                yield Ran(extra.function, dtype, times, extra.times, wrong[:500], str(call))
                return
            worst = max(worst, times)
    yield Ran(chosen[0].function, dtype, worst, chosen[0].times)


def _launched(extra: OnGpu, kernel, call: Call, dtype: str, device: str) -> tuple[float, str]:
    """(largest error over plain PyTorch's, what is wrong or "") of one launch."""
    import torch

    from flashlab.grading.budget import over

    def put(name: str) -> torch.Tensor:
        array = torch.from_numpy(call.arrays[name])
        kind = getattr(torch, dtype) if array.is_floating_point() and name not in extra.statistics else array.dtype
        strides = call.strides.get(name, array.stride())
        size = 1 + sum((n - 1) * stride for n, stride in zip(array.shape, strides))
        room = torch.full((size,), float("nan") if kind.is_floating_point else -1, dtype=kind, device=device)
        tensor = room.as_strided(array.shape, strides)
        tensor.copy_(array)
        return tensor

    tensors = {name: put(name) for name in call.arrays}
    inputs = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in call.stores}
    exact = extra.plain({name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}, call.options)
    plain = extra.plain(inputs, call.options)
    kernel[call.grid](**tensors, **call.options)
    if device == "cuda":
        torch.cuda.synchronize()
    most = 0.0
    for name, truth in exact.items():
        got, rough = tensors[name], plain[name]
        kept = "float32" if name in extra.statistics else dtype
        what, ours, theirs = over(name, *(tensor.double().cpu().numpy() for tensor in (got, rough, truth)), kept, extra.times)
        if what:
            return 0.0, what
        most = max(most, ours / theirs if theirs else 0.0)
    return most, ""


if __name__ == "__main__":
    main()
