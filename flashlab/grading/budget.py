"""The error budget: against float64, a kernel may have twice the error that plain PyTorch has in the same dtype.

Source: Dao-AILab/flash-attention's tests. A judge for kernels in the sandbox, and what the extra runs on a GPU hold to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flashlab.grading.exercise import Answer, Call, Finding, Judge
from flashlab.grading.judge import number

FLOOR = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}  # a rounding or two of a number near 1, where plain PyTorch is exact by luck


def over(name: str, got: np.ndarray, plain: np.ndarray, exact: np.ndarray, dtype: str, times: float) -> tuple[str, float, float]:
    """(what is wrong or "", its largest error, plain PyTorch's). Where the truth is infinite, so must `got` be.

    >>> over("o", np.array([1.0]), np.array([1.5]), np.array([1.25]), "float32", 2.0)
    ('', 0.25, 0.25)
    """
    got, plain, exact = (np.asarray(array, np.float64) for array in (got, plain, exact))
    finite = np.isfinite(exact)
    if got.shape != exact.shape:
        return f"{name} has shape {got.shape}; it must be {exact.shape}", np.inf, 0.0
    if not np.array_equal(got[~finite], exact[~finite]) or not np.isfinite(got[finite]).all():
        return f"{name} has a nan or an inf where there must be none", np.inf, 0.0
    ours, theirs = (float(np.abs(array[finite] - exact[finite]).max(initial=0)) for array in (got, plain))
    allowed = times * theirs + FLOOR[dtype] * max(1.0, float(np.abs(exact[finite]).max(initial=0)))
    what = f"{name} is wrong by up to {number(ours)}; plain PyTorch in {dtype} by {number(theirs)}, so {number(allowed)} is allowed"
    return "" if ours <= allowed else what, ours, theirs


def within_budget(plain: Callable[[Mapping, Mapping], Mapping], *, times: float = 2.0, symptom: Callable[[Call, Mapping], str | None] | None = None) -> Judge:
    """A judge: what `plain(tensors, options)` gives in float64 is the truth, what it gives in the inputs' dtype sets the budget."""

    def judge(call: Call, answer: Answer) -> Finding | None:
        import torch  # only where kernels are marked

        tensors = {name: torch.from_numpy(np.array(array)) for name, array in call.arrays.items()}
        dtype = next(iter(call.arrays.values())).dtype.name
        exact, rough = plain({name: tensor.double() for name, tensor in tensors.items()}, call.options), plain(tensors, call.options)
        for name, right in exact.items():
            got = answer.arrays.get(name)
            what = over(name, got, rough[name].double().numpy(), right.numpy(), dtype, times)[0] if got is not None else f"no {name} came back"
            if what:
                return Finding(what, symptom(call, answer.arrays) if symptom else None, "Keep scores, row_sum and acc in float32; round only what is stored.", input=str(call))
        return None

    return judge
