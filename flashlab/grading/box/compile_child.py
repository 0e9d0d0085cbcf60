"""Runs in the sandbox: compiles a student's kernel for a GPU that need not be here, with Triton's interpreter off.

Python that only an interpreter would run does not compile. Nothing is launched.
"""

import numpy as np

from . import limits
from .child import Line, fault
from .kernel_child import load_cell

FILE_BYTES, MEMORY_BYTES = 64 << 20, 4 << 30  # of what the compiler writes and maps
ARCH, WARP = 80, 32  # A100: the oldest GPU that the course compiles for
TYPES = {"float16": "fp16", "float32": "fp32", "float64": "fp64", "int32": "i32", "int64": "i64", "int8": "i8", "uint8": "u8", "bool": "i1"}


def compile_kernel(kernel, request, arrays):
    """Compile it for the types of these arguments; raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants = {}, {}
    constant = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    for parameter in kernel.params:
        name = parameter.name
        value = arrays[name] if name in arrays else request["options"].get(name, parameter.default)
        if name in constant:
            signature[name], constants[(parameter.num,)] = "constexpr", value
        elif name in arrays:
            signature[name] = "*" + TYPES[np.asarray(value).dtype.name]
        else:
            signature[name] = "i1" if isinstance(value, bool) else "i32" if isinstance(value, int) else "fp32"
    source = ASTSource(kernel, signature, constexprs=constants)
    triton.compile(source, target=GPUTarget("cuda", ARCH, WARP))


def main():
    line = Line()
    setup, _ = line.receive()
    import triton  # noqa: F401  before time and memory are limited; Triton starts ptxas, so processes are not forbidden

    limits.limit(setup["limits"]["cpu_s"], FILE_BYTES, MEMORY_BYTES)
    try:
        scope, path = load_cell(setup["cells"][0])
    except BaseException as problem:  # noqa: BLE001
        line.send({"ready": True})
        line.receive()
        line.send({"error": fault(problem, set())})
        return
    line.send({"ready": True})
    while True:
        request, arrays = line.receive()
        try:
            compile_kernel(scope[request["call"]], request, arrays)
            line.send({"result": True})
        except BaseException as problem:  # noqa: BLE001
            line.send({"error": fault(problem, {path})})
