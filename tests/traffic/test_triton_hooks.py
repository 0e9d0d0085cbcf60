"""What touches Triton's private names: everything is put back, in a process that interprets and in one that compiles."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

from flashlab import runtime  # before triton

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import AutotunerError
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

import flashlab
from flashlab.traffic import triton_hooks
from flashlab.traffic.interpreter import trace

DEVICE = runtime.device()
ROOT = Path(__file__).parents[2]


@triton.jit
def twice(x):
    doubled = x * 2
    return doubled


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = twice(tl.load(x_ptr + lanes, mask=lanes < n, other=0.0))
    tl.store(out_ptr + tl.program_id(0), tl.sum(x, 0))


def run():
    x, out = torch.arange(8.0, device=DEVICE), torch.zeros(2, device=DEVICE)
    return trace(kernel, 2, x, out, 8, BLOCK=4), out


def state():
    """Everything that a trace replaces, or that Triton's interpreter does."""
    owners = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base, JITFunction)
    owners += (interpreter, interpreter.InterpretedFunction, interpreter.interpreter_builder, interpreter.ReduceScanOpInterface, sys.modules[__name__])
    passing = ("grid_dim", "grid_idx", "__annotations__")
    return {(str(owner), name): id(inspect.getattr_static(owner, name)) for owner in owners for name in dir(owner) if name not in passing}


def test_everything_is_put_back():
    before = state()
    _, out = run()
    assert out.tolist() == [12, 44] and state() == before


def test_everything_is_put_back_after_an_error():
    before = state()
    with pytest.raises(IndexError):
        trace(kernel, 3, torch.zeros(8, device=DEVICE), torch.zeros(2, device=DEVICE), 8, BLOCK=4)
    assert state() == before


def test_a_kernel_launches_as_before_after_a_trace():
    _, out = run()
    kernel[(2,)](torch.ones(8, device=DEVICE), out, 8, BLOCK=4)
    assert out.tolist() == [8, 8]
    assert run()[1].tolist() == [12, 44]


CUDA_PROCESS = """
import torch, triton, triton.language as tl
from flashlab import runtime
assert runtime.mode() == "cuda"
from triton.compiler import ASTSource
from triton.backends.compiler import GPUTarget
from flashlab.traffic.interpreter import trace
from case import kernel

assert type(kernel).__name__ == type(tl.sum).__name__ == "JITFunction"
def compiled():
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(kernel, signature, {(3,): 4})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"]

recorded = trace(kernel, 2, torch.arange(8.0), out := torch.zeros(2), 8, BLOCK=4, watch="doubled")
assert out.tolist() == [12, 44] and recorded.bytes_moved == 40, recorded
assert recorded.values[1]["doubled"].tolist() == [0, 2, 4, 6]
assert "tt.reduce" in compiled()
trace(kernel, 2, torch.arange(8.0), out, 8, BLOCK=4)
try:
    kernel(1)
except RuntimeError as fault:
    print(fault)
"""


def test_a_process_that_compiles_for_cuda_traces_and_compiles_afterwards(tmp_path):
    source = Path(__file__).read_text()
    functions = re.findall(r"^@triton\.jit\ndef \w+.*?\n\n\n", source, re.MULTILINE | re.DOTALL)
    (tmp_path / "case.py").write_text("import triton\nimport triton.language as tl\n\n\n" + "".join(functions))
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": f"{ROOT}:{tmp_path}", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    shown = subprocess.run([sys.executable, "-c", CUDA_PROCESS], env=environment, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.strip() == "Cannot call @triton.jit'd outside of the scope of a kernel"


def test_private_names_of_triton_are_in_this_file_only():
    private = re.compile(r"triton\.runtime\.interpreter|runtime import interpreter|interpreter_builder|InterpretedFunction|_patch_lang|_implicit_cvt")
    package = Path(flashlab.__file__).parent
    users = {str(path.relative_to(package)) for path in package.rglob("*.py") if private.search(path.read_text())}
    assert users == {"traffic/triton_hooks.py", "runtime.py"}  # runtime mends Triton 3.6 for ordinary launches


# -- frames and loops ---------------------------------------------------------------------------------------------------------------
class Recorder(triton_hooks.Listener):
    """Writes down what it is told; addresses are real."""

    def __init__(self):
        self.told, self.run = [], None

    def address(self, name, tensor):
        return tensor.data_ptr()

    def program(self, number):
        self.told.append(number)

    def access(self, op, address, mask, width, value):
        self.told.append((op, [frame.f_code.co_name for frame in self.run.frames()]))
        return address

    def pass_ended(self):
        self.told.append("pass")

    def returned(self, frame):
        self.told.append(("returned", frame.f_code.co_name, sorted(frame.f_locals)))

    def finished(self):
        self.told.append("finished")


@triton.jit
def load_at(pointer, i):
    value = tl.load(pointer + i)
    return value


@triton.jit
def loops_kernel(x_ptr, n):
    for i in range(n):
        load_at(x_ptr, i)
    for i in tl.static_range(1):
        for j in tl.range(0, 1):
            tl.store(x_ptr + j, 1.0)
    left = 1
    while left > 0:
        left -= 1
    return


def told(function, arguments, grid=(1, 1, 1)):
    recorder = Recorder()
    recorder.run = triton_hooks.Run(function, recorder)
    recorder.run(arguments, grid)
    return recorder


def test_a_listener_hears_of_programs_loops_accesses_and_returns():
    recorder = told(loops_kernel.fn, {"x_ptr": torch.zeros(4), "n": 2})
    load = [("load", ["load_at", "loops_kernel"]), ("returned", "load_at", ["i", "pointer", "value"]), "pass"]
    store = [("store", ["loops_kernel"]), "pass", "pass"]
    end = ["pass", "pass", ("returned", "loops_kernel", ["i", "j", "left", "n", "x_ptr"]), "finished"]  # while: before each test
    assert recorder.told == [0, *load, *load, *store, *end]
    assert recorder.run.names() == {"x_ptr", "n", "i", "j", "left", "pointer", "value"}


def test_loops_of_triton_s_own_functions_are_not_the_kernel_s():
    recorder = told(sort_kernel.fn, {"x_ptr": (x := torch.tensor([3.0, 1, 2, 0]))})
    assert x.tolist() == [0, 1, 2, 3] and "pass" not in recorder.told


@triton.jit
def sort_kernel(x_ptr):
    lanes = x_ptr + tl.arange(0, 4)
    tl.store(lanes, tl.sort(tl.load(lanes)))


# -- kernels made in a function -----------------------------------------------------------------------------------------------------
def made(act, factor):
    block, add, SCALE = 4, 1.0, tl.constexpr(factor)

    @triton.jit
    def scaled(x, more=add):
        return act(x) * SCALE + more

    @triton.jit
    def made_kernel(x_ptr, *, BLOCK: tl.constexpr = block):
        lanes = x_ptr + tl.arange(0, BLOCK)
        tl.store(lanes, scaled(tl.load(lanes)))

    return made_kernel


def test_a_kernel_and_its_helpers_see_the_variables_of_the_function_that_made_them():
    x, before = torch.arange(4.0, device=DEVICE), state()
    for factor in (3.0, 5.0):  # two kernels of one source
        trace(made(twice, factor), 1, x)
    assert x.tolist() == [(i * 2 * 3 + 1) * 2 * 5 + 1 for i in range(4)] and state() == before


MAKER = """
import triton

def maker():
    import triton.language as tl

    @triton.jit
    def one_kernel(x_ptr):
        tl.store(x_ptr, 1.0)

    return one_kernel
"""


def test_a_kernel_sees_triton_language_where_only_its_maker_imported_it(tmp_path):
    (tmp_path / "case.py").write_text(MAKER)
    trace(runpy.run_path(str(tmp_path / "case.py"))["maker"](), 1, x := torch.zeros(1, device=DEVICE))
    assert x.item() == 1


# -- launches -----------------------------------------------------------------------------------------------------------------------
@triton.autotune(configs=[triton.Config({"BLOCK": 4}, num_warps=2), triton.Config({"BLOCK": 8})], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.load(x_ptr + lanes, mask=lanes < n, other=0.0) + 1, mask=lanes < n)


def test_launches_are_seen_and_go_on_only_where_wanted():
    seen, before = [], state()
    x, out = torch.ones(8, device=DEVICE), torch.zeros(2, device=DEVICE)
    with triton_hooks.launches(seen.append):
        kernel[(2,)](x, out, 8, BLOCK=4)
    (launch,) = seen
    assert launch.kernel is kernel and (launch.grid, len(launch.args), launch.meta) == ((2,), 3, {"BLOCK": 4})
    assert out.tolist() == [0, 0] and state() == before
    with triton_hooks.launches(triton_hooks.Launch.__call__):
        kernel[(2,)](x, out, 8, BLOCK=4)
    assert out.tolist() == [8, 8]


def test_compiling_ahead_is_no_launch():
    seen = []
    with triton_hooks.launches(seen.append):
        compiled = kernel.run(torch.ones(8, device=DEVICE), torch.zeros(2, device=DEVICE), 8, BLOCK=4, grid=(2,), warmup=True)
    assert seen == [] and (compiled is None) == (runtime.mode() == "interpreter")


def test_an_autotuned_kernel_is_launched_with_its_first_configuration():
    seen = []
    x, out = torch.ones(4, device=DEVICE), torch.zeros(4, device=DEVICE)
    with triton_hooks.launches(lambda launch: (seen.append(launch.meta), launch())):
        tuned_kernel[(1,)](x, out, 4)
    assert out.tolist() == [2] * 4 and seen[0]["BLOCK"] == 4


def set_block(arguments):
    arguments["x_desc"].block_shape = [arguments["BLOCK"]]


def holds_all(configs, named, **meta):
    return [config for config in configs if config.kwargs["BLOCK"] >= named["n"]]


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, pre_hook=set_block) for block in (4, 8)], key=["n"], prune_configs_by={"early_config_prune": holds_all}
)
@triton.jit
def hooked_kernel(x_desc, out_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), x_desc.load([0]))


def test_an_autotuned_kernel_s_hooks_are_called():
    traced = []
    x, out = torch.arange(8.0, device=DEVICE), torch.zeros(8, device=DEVICE)
    with triton_hooks.launches(lambda launch: traced.append(trace(launch.kernel, launch.grid, *launch.args, **launch.meta))):
        hooked_kernel[(1,)](TensorDescriptor.from_tensor(x, [1]), out, 6)  # BLOCK=4 is pruned; a block of 1 would not load
        with pytest.raises(AutotunerError, match="early_config_prune"):
            hooked_kernel[(1,)](TensorDescriptor.from_tensor(x, [1]), out, 9)
    assert torch.equal(out, x) and [recorded.bytes_loaded for recorded in traced] == [32]


@pytest.mark.parametrize("value, shape", [(3, ()), (2.5, ()), (True, ()), (tl.constexpr(4), ()), ("text", None), (None, None), ((1, 2), None)])
def test_what_counts_as_a_number(value, shape):
    array = triton_hooks.number(value)
    assert array is None if shape is None else array.shape == shape and array == getattr(value, "value", value)
