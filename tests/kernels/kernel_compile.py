"""Compile a kernel for a GPU that is not here, and read what the compiler says of it. Run as a script: interpreter off.

    TRITON_INTERPRET=0 python tests/kernels/kernel_compile.py 90 forward 128 bfloat16 causal

Without arguments it takes a JSON list of compile_for's arguments on standard input and prints one of their resources.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WARP = 32
POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32"}
SHORT = {"float16": "fp16", "bfloat16": "bf16"}
MAX_SHARED = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}  # bytes a program may have (CUDA C programming guide)


def compile_kernel(kernel, arguments: dict, arch: int, warps: int, stages: int, **more):
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
    return triton.compile(source, target=GPUTarget("cuda", arch, WARP), options={"num_warps": warps, "num_stages": stages, **more})


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


NUMBERS = {"window": (1024, 0), "softcap": (30.0,), "causal": (), "prefix": (64,), "alibi": ("*fp32",)}  # a tensor by its type


def arguments(kernel, head_dim, dtype, names, tile, descriptors, ragged=False, **more):
    """The arguments of one of our kernels as the library would pass them, for contiguous tensors and the masks of `names`."""
    import torch
    import triton
    import triton.language as tl

    from flashlab.kernels import masks
    from flashlab.kernels.primitives import Layout

    whole = masks.Mask()
    for name in filter(None, names.split("&")):
        whole = whole & getattr(masks, name)(*(torch.empty(1) if isinstance(x, str) else x for x in NUMBERS[name]))
    functions, params = masks.decode(*whole.encode())
    params = tuple(tuple({int: "i32", float: "fp32"}.get(type(x), "*fp32") for x in p) for p in params)
    padded = max(triton.next_power_of_2(head_dim), 16)
    blocks = {"q": tile.block_q, "do": tile.block_q, "k": tile.block_k, "v": tile.block_k}
    given = {"lse": "*fp32", "delta": "*fp32", "sink": None, "all_heads": "i32:16", "heads": "i32:16", "at_once": "i32:16", "n_q": "i32:16", "n_k": "i32:16", "scale": "fp32"}
    given |= {"mask_params": params, "GROUP": 1, "FOLD": not any(functions.rescores), "LIMITED": any(functions.limits), "MASKS": functions, "BLOCK_Q": tile.block_q, "BLOCK_K": tile.block_k, "OVERLAP": tile.overlap}
    given |= {"LAYOUT": Layout(head_dim, padded, tl.int32, getattr(tl, dtype), ragged, descriptors), **more}
    for name in kernel.arg_names:
        if name.endswith("_strides"):
            given[name] = ("i32:16", "i32:16", "i32:16", 1)
        elif name in blocks and descriptors:
            given[name] = f"tensordesc<{SHORT[dtype]}[1, 1, {blocks[name]}, {padded}]>"
        elif name not in given:
            given[name] = POINTERS[dtype]
    return {name: given[name] for name in kernel.arg_names}


def compile_for(kernel_name, arch, head_dim, dtype, names="", tile=None, descriptors=None, ragged=False, sink=None):
    """(the compiled kernel, its resources): forward, keys, dk, dv, queries, fused or delta, by default with the library's own tile."""
    from flashlab.kernels import backward, forward
    from flashlab.kernels.tiles import DESCRIPTORS, Tile, backward_tiles_for, forward_tile_for

    tile = Tile(*tile) if tile else None
    float32 = dtype == "float32"
    descriptors = arch in DESCRIPTORS and not float32 if descriptors is None else descriptors
    if kernel_name == "forward":
        kernel, more, tile = forward.forward_kernel, {"sink": sink}, tile or forward_tile_for(arch, head_dim, float32, MAX_SHARED[arch])
    elif kernel_name == "delta":
        kernel, more, descriptors = backward.delta_kernel, {"dlse": "*fp32"}, False
        tile = tile or backward_tiles_for(arch, head_dim, float32, MAX_SHARED[arch]).delta
    else:
        kernel = backward.queries_kernel if kernel_name == "queries" else backward.keys_kernel
        tiles = backward_tiles_for(arch, head_dim, float32, MAX_SHARED[arch])
        tile = tile or {"keys": tiles.keys[0], "dk": tiles.keys[0], "dv": tiles.keys[-1], "queries": tiles.queries, "fused": tiles.fused}[kernel_name]
        more = {} if kernel_name == "queries" else {"FUSED": kernel_name == "fused", "DK": kernel_name != "dv", "DV": kernel_name != "dk"}
        more["dq"] = {"fused": "*fp32", "queries": POINTERS[dtype]}.get(kernel_name)
    compiled = compile_kernel(kernel, arguments(kernel, head_dim, dtype, names, tile, descriptors, ragged, **more), arch, tile.warps, tile.stages, maxnreg=tile.registers)
    return compiled, resources(compiled, arch)


def launched(arch, head_dim):
    """The names of the kernels that the library launches for 16-bit tensors on sm_`arch`: dk and dv apart, or together."""
    from flashlab.kernels.tiles import backward_tiles_for

    keys = backward_tiles_for(arch, head_dim, False, MAX_SHARED[arch]).keys
    return ["forward", *(["keys"] if len(keys) == 1 else ["dk", "dv"]), "queries", "fused"]


def of_one(one):
    """The resources of one kernel, with a causal mask unless others are named."""
    return compile_for(**{"names": "causal"} | one)[1]


def compile_all(wanted):
    """The resources of each, compiled by one process for each core, which are forked once Triton is imported."""
    from flashlab.kernels import backward, forward  # noqa: F401

    with multiprocessing.get_context("fork").Pool(min(len(os.sched_getaffinity(0)), len(wanted))) as pool:
        return pool.map(of_one, wanted, chunksize=1)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(json.dumps(compile_all(json.load(sys.stdin))))
    else:
        arch, kernel_name, head_dim, dtype, names = (*sys.argv[1:], "")[:5]
        print(compile_for(kernel_name, int(arch), int(head_dim), dtype, names)[1])
