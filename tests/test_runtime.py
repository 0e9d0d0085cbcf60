"""runtime.py: where kernels run, what is said about it, and the mended interpreter."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from flashlab import assembler, driver, runtime
from flashlab.driver import GpuFound

GPU = GpuFound(True, name="NVIDIA H200", capability=(9, 0), cuda_version=(13, 0))
T4 = GpuFound(False, "the Tesla T4 has compute capability 7.5, and kernels here need 8.0 or later", name="Tesla T4")
NONE = GpuFound(False, "the NVIDIA driver sees no GPU")


@pytest.fixture
def on(monkeypatch):
    """`on(found, variable)`: a machine with that GPU, where TRITON_INTERPRET is `variable` (None: not set)."""

    def play(found, variable=None):
        monkeypatch.setattr(runtime, "gpu_found", lambda: found)
        monkeypatch.setattr(runtime, "has_triton", lambda: True)
        for name in ("TRITON_INTERPRET", assembler.variable()):
            monkeypatch.setenv(name, "")  # so that monkeypatch restores what prepare() sets
            monkeypatch.delenv(name)
        if variable is not None:
            monkeypatch.setenv("TRITON_INTERPRET", variable)

    return play


@pytest.mark.parametrize(
    "found, variable, mode, device, sentence",
    [
        (GPU, None, "cuda", "cuda", "GPU: Triton kernels run on the NVIDIA H200."),
        (GPU, "0", "cuda", "cuda", "GPU: Triton kernels run on the NVIDIA H200."),
        (GPU, "1", "interpreter", "cpu", "TRITON_INTERPRET is set: Triton kernels run in its interpreter on the CPU, not on the NVIDIA H200."),
        (NONE, None, "interpreter", "cpu", "No GPU: the NVIDIA driver sees no GPU; Triton kernels run in its interpreter on the CPU."),
        (NONE, "True", "interpreter", "cpu", "No GPU: the NVIDIA driver sees no GPU; Triton kernels run in its interpreter on the CPU."),
        (NONE, "0", "cuda", "cpu", "No GPU: the NVIDIA driver sees no GPU; TRITON_INTERPRET=0 forbids the interpreter, so unset it."),
        (
            T4,
            None,
            "interpreter",
            "cpu",
            "No usable GPU: the Tesla T4 has compute capability 7.5, and kernels here need 8.0 or later; Triton kernels run in"
            " its interpreter on the CPU.",
        ),
    ],
)
def test_mode_device_and_sentence(on, found, variable, mode, device, sentence):
    on(found, variable)
    assert (runtime.mode(), runtime.device(), runtime.describe()) == (mode, device, sentence)


def test_the_gpu_is_judged_with_the_installed_torch(monkeypatch):
    monkeypatch.setattr(runtime, "ask_driver", lambda: GPU)
    monkeypatch.setattr(runtime, "torch_build", lambda: driver.TorchBuild("2.13.0+cpu", None))
    assert "CPU build" in runtime.gpu_found.__wrapped__().reason


def test_without_triton_a_mac_is_told_what_works(on, monkeypatch):
    on(NONE)
    monkeypatch.setattr(runtime, "has_triton", lambda: False)
    monkeypatch.setattr(runtime.platform, "system", lambda: "Darwin")
    assert runtime.describe() == (
        "Triton has no wheel for Darwin: lessons 00 to 04 work, later ones can be read. To run them use a Linux machine, WSL, or"
        " a Linux container (python:3.12 with this folder mounted)."
    )


def test_without_triton_on_linux_it_is_to_be_installed(on, monkeypatch):
    on(NONE)
    monkeypatch.setattr(runtime, "has_triton", lambda: False)
    monkeypatch.setattr(runtime.platform, "system", lambda: "Linux")
    assert runtime.describe() == "Triton is not installed; run make lab."


def test_it_is_said_once(on, capsys):
    on(NONE)
    runtime.announce.cache_clear()
    runtime.announce()
    runtime.announce()
    runtime.announce.cache_clear()
    assert capsys.readouterr().out == runtime.describe() + "\n"


# -- needing a GPU ------------------------------------------------------------------------------------------------------------
def test_need_gpu_lets_a_gpu_pass(on):
    on(GPU)
    assert runtime.need_gpu("Recording") is None


@pytest.mark.parametrize("login, hint", [("", "Run it where there is a GPU"), ("This looks like a login node", "This looks like a login node")])
def test_need_gpu_says_why_not(on, monkeypatch, login, hint):
    on(NONE)
    monkeypatch.setattr(runtime, "login_node", lambda: login)
    with pytest.raises(RuntimeError) as caught:
        runtime.need_gpu("Recording")
    assert str(caught.value) == (
        "Recording needs a CUDA GPU that Triton can use. No GPU: the NVIDIA driver sees no GPU; Triton kernels run in its"
        f" interpreter on the CPU. {hint}."
    )


# -- before triton is imported ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("found, variable, left", [(NONE, None, "1"), (NONE, "0", "0"), (GPU, None, None), (GPU, "1", "1")])
def test_prepare_sets_the_variable_only_where_it_must(on, monkeypatch, found, variable, left):
    on(found, variable)
    monkeypatch.delitem(sys.modules, "triton.language.standard", raising=False)
    runtime.prepare()
    assert os.environ.get("TRITON_INTERPRET") == left


def loaded(monkeypatch, kind):
    """Triton as it looks once imported: its own helpers are of class `kind`."""
    standard = ModuleType("triton.language.standard")
    standard.cdiv = type(kind, (), {})()
    monkeypatch.setitem(sys.modules, "triton.language.standard", standard)


@pytest.mark.parametrize(
    "found, kind, given, needed",
    [(NONE, "JITFunction", "cuda", "interpreter"), (GPU, "InterpretedFunction", "interpreter", "cuda")],
)
def test_triton_imported_first_in_the_wrong_mode_is_said(on, monkeypatch, found, kind, given, needed):
    on(found)
    loaded(monkeypatch, kind)
    with pytest.warns(RuntimeWarning) as caught:
        runtime.prepare()
    assert str(caught[0].message) == (
        f"triton was imported before flashlab, for {given} mode, but kernels run in {needed} mode here; Triton decides when it is"
        " imported. Restart the kernel (or Python) and import flashlab before triton."
    )


@pytest.mark.parametrize("found, kind", [(NONE, "InterpretedFunction"), (GPU, "JITFunction")])
def test_triton_imported_first_in_the_right_mode_is_fine(on, monkeypatch, found, kind):
    on(found)
    loaded(monkeypatch, kind)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runtime.prepare()
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.skipif(bool(runtime.gpu_found()), reason="with a GPU, triton imported first is in the right mode")
@pytest.mark.parametrize("order, warned", [("import triton, flashlab", True), ("import flashlab, triton", False)])
def test_the_order_of_imports_in_a_real_process(order, warned):
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", order], capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[1], check=True
    )
    assert ("triton was imported before flashlab" in done.stderr) is warned


# -- Triton 3.6 under NumPy 2.4 -----------------------------------------------------------------------------------------------
def interpreter(index):
    """Triton's interpreter module as far as patch_interpreter looks: it gives its tensor that `__index__`."""
    builder = SimpleNamespace(cast_impl=None, **dict.fromkeys(runtime.ARITHMETIC))
    reduction = type("ReduceScanOpInterface", (), {"check_tensor": lambda self, inputs: None})
    patch = lambda tensor, scope: scope.set_attr(tensor, "__index__", index)  # noqa: E731
    return SimpleNamespace(_patch_lang_tensor=patch, _convert_float=lambda *_: None, interpreter_builder=builder, ReduceScanOpInterface=reduction)


def old(self):  # Triton 3.6
    if self.handle.data.ndim:  # NumPy 2.4 and later
        raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
    return int(self.handle.data)


def new(self):  # Triton 3.7 and later
    return int(self.handle.data.squeeze())


@pytest.fixture
def play_interpreter(on, monkeypatch):
    on(NONE)

    def play(index):
        module = interpreter(index)
        monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
        monkeypatch.setitem(sys.modules, "triton.runtime", SimpleNamespace(interpreter=module))
        monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", module)
        return module

    return play


class Scope:
    def set_attr(self, owner, name, value):
        setattr(owner, name, value)


def test_an_interpreter_that_fails_is_mended_once(play_interpreter):
    module = play_interpreter(old)
    assert runtime.patch_interpreter() is True
    tensor = type("tensor", (), {"handle": SimpleNamespace(data=np.array([5]))})
    module._patch_lang_tensor(tensor, Scope())
    assert range(tensor()) == range(5)
    assert runtime.patch_interpreter() is False


def test_an_interpreter_that_works_is_left_alone(play_interpreter):
    module = play_interpreter(new)
    before = module._patch_lang_tensor
    assert runtime.patch_interpreter() is False and module._patch_lang_tensor is before


def test_on_a_gpu_nothing_is_mended(on, monkeypatch):
    on(GPU)
    monkeypatch.setitem(sys.modules, "triton.runtime", None)  # importing it would raise
    assert runtime.patch_interpreter() is False


@pytest.mark.parametrize("how", ["patch_interpreter()", "mode()"], ids=["before a launch", "by the tracer"])
def test_the_interpreter_casts_to_and_from_bfloat16_as_torch_does(how):
    """Every bfloat16 number both ways, and float32 numbers of all sizes; Triton's own cast cuts, and loses infinity and NaN."""
    code = f"""
import os
os.environ["TRITON_INTERPRET"] = "{int(how != "mode()")}"
from flashlab import runtime
import numpy as np, torch, triton.language as tl
{"from flashlab.traffic import triton_hooks" if how == "mode()" else ""}
from triton.runtime.interpreter import TensorHandle, interpreter_builder
runtime.{how}
cast = interpreter_builder.cast_impl
bits = np.arange(2**16, dtype=np.uint16)
numbers = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
wide = cast(TensorHandle(bits, tl.bfloat16), tl.float32).data
np.testing.assert_array_equal(wide, numbers.float())
given = np.concatenate([wide, np.random.default_rng(0).integers(0, 2**32, 2**17, np.uint32).view(np.float32), np.float32([1 + 2**-8, 1 + 3 * 2**-8])])
narrow = cast(TensorHandle(given, tl.float32), tl.bfloat16).data
assert narrow.dtype == np.uint16
np.testing.assert_array_equal(torch.from_numpy(narrow.view(np.int16)).view(torch.bfloat16).float(), torch.from_numpy(given).bfloat16().float())
assert cast(TensorHandle(np.float32(2.5).reshape(()), tl.float32), tl.bfloat16).data.shape == ()
for whole, dtype in ((np.int32([3, -7, 1000]), tl.int32), (np.float64([3, -7, 1000]), tl.float64), (np.float16([3, -7, 1000]), tl.float16)):
    assert (cast(TensorHandle(whole, dtype), tl.bfloat16).data.view(np.int16) == torch.tensor([3., -7, 1000]).bfloat16().view(torch.int16).numpy()).all()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
