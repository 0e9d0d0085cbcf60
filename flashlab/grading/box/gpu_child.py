"""Launches a student's kernel where kernels run on their machine, on a GPU if there is one: the extra that check() shows.

No sandbox and no tracer: it is the student's own code on the student's own machine, and it is never worth a mark.
"""

import numpy as np

from .child import Line, fault
from .kernel_child import load_cell, tensor_of


def launch(kernel, request, arrays):
    """(header, arrays) of one launch, its floating-point tensors in the dtype that `cast` names."""
    import torch

    from flashlab import runtime

    dtype, tensors = request["cast"], {}
    for name, array in arrays.items():
        tensor = tensor_of(array, request["strides"].get(name))
        if dtype and tensor.is_floating_point() and name not in request["exact"]:
            moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=getattr(torch, dtype))
            tensor = moved.copy_(tensor)
        place = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=runtime.device())
        tensors[name] = place.copy_(tensor)
    kernel[tuple(request["grid"])](**tensors, **request["options"])
    out = {name: tensors[name].cpu() for name in request["stores"]}
    return {"result": True}, {name: np.ascontiguousarray((x.float() if x.is_floating_point() else x).numpy()) for name, x in out.items()}


def main():
    line = Line()
    setup, _ = line.receive()
    from flashlab import runtime

    runtime.patch_interpreter()
    try:
        scope, path = load_cell(setup["cells"][0])
    except BaseException as problem:  # noqa: BLE001
        scope, path = problem, ""
    line.send({"ready": True})
    while True:
        request, arrays = line.receive()
        try:
            if isinstance(scope, BaseException):
                raise scope
            line.send(*launch(scope[request["call"]], request, arrays))
        except BaseException as problem:  # noqa: BLE001
            line.send({"error": fault(problem, {path})})
