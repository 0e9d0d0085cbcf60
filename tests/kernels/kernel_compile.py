"""Compile a kernel for a GPU that is not here, and read what the compiler says of it. Run as a script: interpreter off.

    TRITON_INTERPRET=0 python tests/kernels/kernel_compile.py 90 forward 128 bfloat16 causal
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WARP = 32
POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32"}
SHORT = {"float16": "fp16", "bfloat16": "bf16"}
MAX_SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes a program may have (CUDA C programming guide)


def compile_kernel(kernel, arguments: dict, arch: int, warps: int, stages: int):
    """Compile `kernel` for sm_`arch`. `arguments` maps names to a type such as "*bf16", to a Python constant, or to a tuple of them."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}

    def visit(value, path):
        if isinstance(value, str):
            if value.startswith("*") or value.endswith(":16"):
                attributes[path] = [["tt.divisibility", 16]]
            return value.removesuffix(":16")
        if type(value) is tuple and len(path) < 2 + 1 and kernel.arg_names[path[0]] not in CONSTANT:
            return tuple(visit(item, (*path, n)) for n, item in enumerate(value))
        constants[path] = value
        return "constexpr"

    CONSTANT = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    for name, value in arguments.items():
        signature[name] = visit(value, (kernel.arg_names.index(name),))
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, WARP), options={"num_warps": warps, "num_stages": stages})


def resources(compiled, arch: int) -> dict[str, int]:
    """Registers a thread, bytes spilled, and bytes of shared memory."""
    from triton.backends.nvidia.compiler import get_ptxas

    try:
        ptxas = get_ptxas(arch)
    except TypeError:
        ptxas = get_ptxas()
    ptxas = getattr(ptxas, "path", ptxas)
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(compiled.asm["ptx"])
        name = f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"
        said = subprocess.run([ptxas, "-v", f"--gpu-name={name}", str(ptx), "-o", os.devnull], capture_output=True, text=True, check=True).stderr
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", said))
    return {"registers": int(re.search(r"Used (\d+) registers", said)[1]), "spilled": spilled, "shared": compiled.metadata.shared}


def forward_arguments(head_dim, dtype, masks, params, tile, descriptors, fold=True, group=1):
    import triton
    import triton.language as tl
    from flashlab.kernels.primitives import Layout

    padded = max(triton.next_power_of_2(head_dim), 16)
    strides = ("i32:16", "i32:16", "i32:16", 1)
    given = {}
    for name in "qkv":
        block = tile.block_q if name == "q" else tile.block_k
        given[name] = f"tensordesc<{SHORT[dtype]}[1, 1, {block}, {padded}]>" if descriptors else POINTERS[dtype]
    given |= {"o": POINTERS[dtype], "lse": "*fp32", "sink": None}
    given |= {f"{name}_strides": strides for name in "qkvo"}
    given |= {"heads": "i32:16", "n_q": "i32:16", "n_k": "i32:16", "scale": "fp32", "params": params, "GROUP": group, "FOLD": fold, "MASKS": masks}
    given |= {"LAYOUT": Layout(head_dim, padded, tl.int32, getattr(tl, dtype), descriptors), "BLOCK_Q": tile.block_q, "BLOCK_K": tile.block_k}
    return given


def forward(arch, head_dim, dtype, names, tile=None, descriptors=None):
    """Compile forward_kernel as the library would run it."""
    from flashlab.kernels import masks
    from flashlab.kernels.forward import forward_kernel
    from flashlab.kernels.tiles import forward_tile_for

    whole = masks.Mask()
    for name in filter(None, names.split("&")):
        whole = whole & getattr(masks, name)(*{"window": (1024, 0), "softcap": (30.0,), "causal": ()}[name])
    functions, params = masks.decode(*whole.encode())
    params = tuple(tuple("i32" if isinstance(x, int) else "fp32" for x in p) for p in params)
    tile = tile or forward_tile_for(arch, head_dim, dtype == "float32")
    descriptors = (arch >= 90 and dtype != "float32") if descriptors is None else descriptors
    arguments = forward_arguments(head_dim, dtype, functions, params, tile, descriptors, fold=not any(functions.rescores))
    compiled = compile_kernel(forward_kernel, arguments, arch, tile.warps, tile.stages)
    return compiled, resources(compiled, arch)


if __name__ == "__main__":
    arch, _, head_dim, dtype, names = (*sys.argv[1:], "")[:5]
    print(forward(int(arch), int(head_dim), dtype, names)[1])
