"""The error budget: against float64, a kernel may have twice the error that plain PyTorch has in the same dtype.

Source: Dao-AILab/flash-attention's tests. A judge for kernels in the sandbox, and for the extra calls on
a reader's GPU: in bfloat16 too, which the sandbox's interpreter gets wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flashlab.grading.exercise import Answer, Call, Finding, Judge
from flashlab.grading.judge import number

Plain = Callable[[Mapping, Mapping], Mapping]  # plain PyTorch, in the dtype of the tensors: {output: tensor}
FLOOR = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}  # a rounding or two of a number near 1, where plain PyTorch is exact by luck
HINT = "Keep scores, row_sum and acc in float32; round only what is stored."


def over(name: str, got: np.ndarray, plain: np.ndarray, exact: np.ndarray, dtype: str, times: float) -> str:
    """What is wrong with `got`, or "". Where the truth is infinite, so must it be.

    >>> over("o", np.array([1.0]), np.array([1.5]), np.array([1.25]), "float32", 2.0)
    ''
    """
    got, plain, exact = (np.asarray(array, np.float64) for array in (got, plain, exact))
    finite = np.isfinite(exact)
    if got.shape != exact.shape:
        return f"{name} has shape {got.shape}; it must be {exact.shape}"
    if not np.array_equal(got[~finite], exact[~finite]) or not np.isfinite(got[finite]).all():
        return f"{name} has a nan or an inf where there must be none"
    ours, theirs = (float(np.abs(array[finite] - exact[finite]).max(initial=0)) for array in (got, plain))
    allowed = times * theirs + FLOOR[dtype] * max(1.0, float(np.abs(exact[finite]).max(initial=0)))
    what = f"{name} is wrong by up to {number(ours)}; plain PyTorch in {dtype} by {number(theirs)}, so {number(allowed)} is allowed"
    return "" if ours <= allowed else what


def within_budget(plain: Plain, *, times: float = 2.0, symptom: Callable[[Call, Mapping], str | None] | None = None) -> Judge:
    """A judge: what `plain(tensors, options)` gives in float64 is the truth, what it gives in the inputs' dtype sets the budget."""

    def judge(call: Call, answer: Answer) -> Finding | None:
        import torch  # only where kernels are marked

        inputs = {name: torch.from_numpy(np.array(array)) for name, array in call.arrays.items() if name not in call.stores}
        inputs = {name: tensor.to(getattr(torch, call.cast)) if call.cast and tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
        rough = plain(inputs, call.options)
        exact = plain({name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}, call.options)
        for name, right in exact.items():
            got, kept = answer.arrays.get(name), call.arrays[name].dtype.name
            dtype = call.cast if call.cast and name not in call.exact else kept
            what = over(name, got, rough[name].double().numpy(), right.numpy(), dtype, times) if got is not None else f"no {name} came back"
            if what:
                return Finding(what, symptom(call, answer.arrays) if symptom else None, HINT, input=f"{call}, in {call.cast}" if call.cast else str(call))
        return None

    return judge
