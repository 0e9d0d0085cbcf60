"""Compile the steps of lesson 09's ladder for sm_90 and print {step: {head_dim: resources}}. Run as a script: interpreter off.

    TRITON_INTERPRET=0 python tests/kernels/step_compile.py [STEP ...]
"""

from __future__ import annotations

import json
import re
import sys

from kernel_compile import arguments, compile_for, compile_kernel, resources

INSTRUCTIONS = ("ex2", "mul", "fma", "sub", "setp", "selp", "max")  # of PTX, on float32 or for choosing


def compile_step(name, head_dim):
    """(compiled, resources), causal, bfloat16, on sm_90."""
    import triton.language as tl

    from flashlab.kernels import flash1
    from flashlab.kernels.steps import STEPS, step_kernel

    step = STEPS[name]
    if step.kernel == "forward_kernel":
        return compile_for("forward", 90, head_dim, "bfloat16", "causal", step.tile(head_dim))
    if step.kernel == "flash1_kernel":
        tile = flash1.TILES[head_dim]
        given = arguments(flash1.flash1_kernel, head_dim, "bfloat16", "", tile, False, O_LAYOUT=None, o="*fp32", row_max="*fp32", row_sum="*fp32", CAUSAL=True)
        given["O_LAYOUT"] = given["LAYOUT"]._replace(dot=tl.float32)
        compiled = compile_kernel(flash1.flash1_kernel, given, 90, tile.warps, tile.stages)
        return compiled, resources(compiled, 90)
    tile = step.tile(head_dim)
    given = {"lse": "*fp32", "all_heads": "i32:16", "at_once": "i32:16", "n_q": "i32:16", "n_k": "i32:16", "scale": "fp32"}
    given |= {"SKIP": step.skip, "WHOLE": step.whole, "EXP2": step.exp2, "FOLD": step.fold, "DIVIDE": step.divide, "MIXED": step.mixed, "LONGEST": step.longest}
    given |= {"GROUP": 1, "CAUSAL": True, "HEAD_DIM": head_dim, "BLOCK_Q": tile.block_q, "BLOCK_K": tile.block_k}
    given = {parameter: given.get(parameter, "*bf16") for parameter in step_kernel.arg_names}
    compiled = compile_kernel(step_kernel, given, 90, tile.warps, tile.stages, maxnreg=tile.registers)
    return compiled, resources(compiled, 90)


def instructions(compiled):
    """How often each of INSTRUCTIONS stands in the PTX."""
    ptx = compiled.asm["ptx"]
    counted = {name: len(re.findall(rf"^\s*(?:@\S+ )?{name}\.", ptx, re.M)) for name in INSTRUCTIONS}
    return counted | {"ex2.ftz": ptx.count("ex2.approx.ftz.f32")}


if __name__ == "__main__":
    from flashlab.kernels.steps import STEPS

    found = {}
    for name in sys.argv[1:] or STEPS:
        for head_dim in (64, 128):
            compiled, used = compile_step(name, head_dim)
            products = {"wgmma": "wgmma" in compiled.asm["ptx"]}
            found.setdefault(name, {})[head_dim] = used | products | {"ptx": instructions(compiled)}
    print(json.dumps(found))
