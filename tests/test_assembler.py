"""assembler.py: which ptxas Triton takes on Hopper, on machines that are played and with the Triton that is installed."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashlab import assembler, runtime
from flashlab.assembler import VARIABLE, Assembler
from flashlab.driver import GpuFound

H200 = GpuFound(True, name="NVIDIA H200", capability=(9, 0), cuda_version=(13, 0))
SAYS = "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release {0}\nBuild cuda_{0}.compiler.1_0\n"


@pytest.fixture
def triton(tmp_path, monkeypatch):
    """`triton("12.8.93", "12.9.86")`: a Triton with these assemblers, for Hopper and for Blackwell; returns their folder. None: no such file."""
    monkeypatch.setenv(VARIABLE, "")  # so that monkeypatch takes away what prefer_newest sets
    monkeypatch.delenv(VARIABLE)

    def bring(*versions):
        folder = tmp_path / "triton" / "backends" / "nvidia" / "bin"
        folder.mkdir(parents=True)
        for name, version in zip(assembler.BROUGHT, versions):
            if version:
                write(folder / name, SAYS.format(f"{version.rpartition('.')[0]}, V{version}"))
        spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "triton")])
        monkeypatch.setattr(assembler.importlib.util, "find_spec", lambda name: spec)
        return folder

    return bring


def write(path, says):
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}END\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "versions, cuda, taken",
    [
        (("12.8.93", "12.9.86"), (13, 0), "ptxas-blackwell"),  # Triton 3.6.0
        (("12.8.93", "12.9.86"), (12, 4), "ptxas-blackwell"),
        (("12.8.93", "13.1.80"), (13, 0), "ptxas-blackwell"),  # Triton 3.7.1
        (("12.8.93", "13.1.80"), (12, 8), "ptxas"),  # the driver may not load code of CUDA 13
        (("12.8.93", "13.1.80"), None, "ptxas-blackwell"),
        (("12.9.86", "13.3.33"), (13, 0), "ptxas-blackwell"),  # Triton 3.8.0
        (("12.10.1", "12.9.86"), (13, 0), "ptxas"),  # numbers, not text
        (("13.5.1", None), (13, 0), "ptxas"),
        ((None, "12.9.86"), (13, 0), "ptxas-blackwell"),
    ],
)
def test_hopper_takes_the_newest_that_its_driver_can_load(triton, versions, cuda, taken):
    folder = triton(*versions)
    assembler.prefer_newest(replace(H200, cuda_version=cuda))
    assert os.environ[VARIABLE] == str(folder / taken)
    assert assembler.in_use() == Assembler(folder / taken, tuple(map(int, versions[assembler.BROUGHT.index(taken)].split("."))))


@pytest.mark.parametrize("gpu", [replace(H200, capability=(8, 0)), replace(H200, capability=(10, 0)), replace(H200, usable=False), GpuFound(False, "none")])
def test_elsewhere_nothing_is_chosen(triton, gpu):
    triton("12.8.93", "12.9.86")
    assembler.prefer_newest(gpu)
    assert VARIABLE not in os.environ and str(assembler.in_use()) == "12.8.93"


def test_what_the_reader_has_set_stays(triton, tmp_path, monkeypatch):
    triton("12.8.93", "12.9.86")
    own = write(tmp_path / "own", SAYS.format("12.6, V12.6.20"))
    monkeypatch.setenv(VARIABLE, str(own))
    assembler.prefer_newest(H200)
    assert os.environ[VARIABLE] == str(own) and assembler.in_use() == Assembler(own, (12, 6, 20))


def test_what_does_not_run_is_left_out(triton, tmp_path, monkeypatch):
    folder = triton("12.8.93", "12.9.86")
    (folder / "ptxas-blackwell").chmod(0o644)
    assert [str(one) for one in assembler.brought()] == ["12.8.93"]
    write(folder / "ptxas-blackwell", "no version here\n")
    assert [str(one) for one in assembler.brought()] == ["12.8.93"]
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    assert str(assembler.in_use()) == "12.8.93"  # as Triton does


def test_without_triton_or_its_assemblers_nothing_happens(triton, monkeypatch):
    triton()
    for spec in (None, SimpleNamespace(submodule_search_locations=None), SimpleNamespace(submodule_search_locations=["/absent"])):
        monkeypatch.setattr(assembler.importlib.util, "find_spec", lambda name: spec)
        assembler.prefer_newest(H200)
        assert VARIABLE not in os.environ and assembler.in_use() is None


def test_prepare_chooses_before_triton_is_imported(triton, monkeypatch):
    folder = triton("12.8.93", "12.9.86")
    monkeypatch.setattr(runtime, "gpu_found", lambda: H200)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.delitem(sys.modules, "triton.language.standard", raising=False)
    runtime.prepare()
    assert os.environ[VARIABLE] == str(folder / "ptxas-blackwell")


def test_the_installed_triton_takes_what_was_chosen():
    """In a process of its own: Triton keeps what it has asked."""
    pytest.importorskip("triton")
    code = """
from flashlab import assembler
from flashlab.driver import GpuFound
assembler.prefer_newest(GpuFound(True, capability=(9, 0), cuda_version=(99, 0)))
import triton.backends.nvidia.compiler as compiler
print(compiler.get_ptxas(90).path, compiler.get_ptxas(90).version, max(one.version for one in assembler.brought()))
"""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[1], check=True)
    path, version, newest = done.stdout.split(" ", 2)
    assert Path(path).name == "ptxas-blackwell" and tuple(map(int, version.split("."))) == eval(newest)[:2] >= assembler.RIGHT


@pytest.mark.skipif(not assembler.on_hopper(runtime.gpu_found()), reason="needs a Hopper GPU")
def test_on_hopper_this_process_has_a_right_one():
    assert assembler.in_use().version >= assembler.RIGHT
