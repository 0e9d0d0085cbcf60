"""assembler.py: which ptxas Triton takes on Hopper, on machines that are played and with the Triton that is installed."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from flashlab import assembler, runtime
from flashlab.assembler import Assembler
from flashlab.driver import GpuFound

OLD, NEW = "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"  # what Triton reads before 3.9, and from then on
H200 = GpuFound(True, name="NVIDIA H200", capability=(9, 0), cuda_version=(13, 0))
SAYS = "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release {0}\nBuild cuda_{0}.compiler.1_0\n"


@pytest.fixture
def triton(tmp_path, monkeypatch):
    """`triton("12.8.93", "12.9.86")`: a Triton 3.6 with these assemblers, its own and Blackwell's; returns their folder. None: no such file."""
    for name in (OLD, NEW):
        monkeypatch.setenv(name, "")  # so that monkeypatch takes away what prefer_newest sets
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "triton.backends.nvidia.compiler", raising=False)

    def bring(*versions, release=(3, 6)):
        folder = tmp_path / "triton" / "backends" / "nvidia" / "bin"
        folder.mkdir(parents=True)
        for name, version in zip(assembler.BROUGHT, versions):
            if version:
                write(folder / name, SAYS.format(f"{version.rpartition('.')[0]}, V{version}"))
        spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "triton")])
        monkeypatch.setattr(assembler.importlib.util, "find_spec", lambda name: spec)
        monkeypatch.setattr(assembler, "triton_release", lambda: release)
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
        (("12.8.93", "13.1.80"), None, "ptxas-blackwell"),
        (("12.9.86", "13.3.33"), (13, 0), "ptxas-blackwell"),  # Triton 3.8.0
        (("12.9.86", "13.3.33"), (12, 8), "ptxas"),
        (("12.10.1", "12.9.86"), (13, 0), "ptxas"),  # numbers, not text
        (("13.5.1", None), (13, 0), "ptxas"),
        ((None, "12.9.86"), (13, 0), "ptxas-blackwell"),
    ],
)
def test_hopper_takes_the_newest_that_its_driver_can_load(triton, versions, cuda, taken):
    folder = triton(*versions)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assembler.prefer_newest(replace(H200, cuda_version=cuda))
    assert os.environ[OLD] == str(folder / taken) and NEW not in os.environ
    assert str(assembler.in_use()) == versions[assembler.BROUGHT.index(taken)] and assembler.in_use().path == folder / taken


def test_where_only_a_wrong_one_can_be_loaded_it_is_said(triton):
    folder = triton("12.8.93", "13.1.80", release=(3, 7))
    with pytest.warns(RuntimeWarning) as caught:
        assembler.prefer_newest(replace(H200, cuda_version=(12, 8)))
    assert os.environ[OLD] == str(folder / "ptxas")
    assert str(caught[0].message) == (
        "ptxas 12.8.93, with which Triton assembles kernels here, can build wrong code for Hopper, and the driver cannot load that of"
        " the newer one that Triton brings. Update the driver to one for CUDA 13, or install Triton 3.8."
    )


def test_from_3_9_on_triton_chooses_by_itself(triton, tmp_path, monkeypatch):
    triton("12.9.86", "13.4.59", release=(3, 9))
    assembler.prefer_newest(H200)
    assert OLD not in os.environ and NEW not in os.environ and str(assembler.in_use()) == "13.4.59"
    monkeypatch.setenv(OLD, str(write(tmp_path / "old", SAYS.format("12.8, V12.8.93"))))  # Triton does not look there
    assert str(assembler.in_use()) == "13.4.59"
    monkeypatch.setenv(NEW, str(tmp_path / "old"))
    assert str(assembler.in_use()) == "12.8.93"


GPUS = [replace(H200, capability=(8, 0)), replace(H200, capability=(10, 0)), replace(H200, usable=False), GpuFound(False, "none")]


@pytest.mark.parametrize("gpu", GPUS)
def test_elsewhere_nothing_is_chosen(triton, gpu):
    triton("12.8.93", "12.9.86")
    assembler.prefer_newest(gpu)
    assert OLD not in os.environ and str(assembler.in_use()) == "12.8.93"


def test_what_the_reader_has_set_stays(triton, tmp_path, monkeypatch):
    triton("12.8.93", "12.9.86")
    own = write(tmp_path / "own", SAYS.format("12.6, V12.6.20"))
    monkeypatch.setenv(OLD, str(own))
    assembler.prefer_newest(H200)
    assert os.environ[OLD] == str(own) and assembler.in_use() == Assembler(own, (12, 6, 20))


def test_what_does_not_run_is_left_out(triton, tmp_path, monkeypatch):
    folder = triton("12.8.93", "12.9.86")
    (folder / "ptxas-blackwell").chmod(0o644)
    assert list(assembler.brought()) == ["ptxas"]
    write(folder / "ptxas-blackwell", "no version here\n")
    assert list(assembler.brought()) == ["ptxas"]
    monkeypatch.setattr(assembler, "TIMEOUT_S", 0.2)
    (folder / "ptxas-blackwell").write_text("#!/bin/sh\nexec sleep 20\n")
    assert list(assembler.brought()) == ["ptxas"]
    monkeypatch.setenv(OLD, str(tmp_path / "absent"))
    assert str(assembler.in_use()) == "12.8.93"  # as Triton does


def test_without_triton_or_its_assemblers_nothing_happens(triton, monkeypatch):
    triton()
    for spec in (None, SimpleNamespace(submodule_search_locations=None), SimpleNamespace(submodule_search_locations=["/absent"])):
        monkeypatch.setattr(assembler.importlib.util, "find_spec", lambda name: spec)
        assembler.prefer_newest(H200)
        assert OLD not in os.environ and assembler.in_use() is None


def test_a_stand_in_for_triton_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))  # importlib raises ValueError: it has no spec
    assert assembler.brought() == {}


def test_the_release_is_that_of_the_installed_package(monkeypatch):
    monkeypatch.setattr(assembler.importlib.metadata, "version", lambda name: "3.10.1+git12ab")
    assert assembler.triton_release() == (3, 10) >= assembler.ITSELF and assembler.variable() == NEW

    def absent(name):
        raise assembler.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(assembler.importlib.metadata, "version", absent)
    assert assembler.triton_release() == () and assembler.variable() == OLD


def test_prepare_chooses_before_triton_is_imported(triton, monkeypatch):
    folder = triton("12.8.93", "12.9.86")
    monkeypatch.setattr(runtime, "gpu_found", lambda: H200)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.delitem(sys.modules, "triton.language.standard", raising=False)
    runtime.prepare()
    assert os.environ[OLD] == str(folder / "ptxas-blackwell")


ASK = """
import sys
from flashlab import assembler
from flashlab.driver import GpuFound
import triton.backends.nvidia.compiler as compiler
from triton.compiler.compiler import make_backend

backend = make_backend(compiler.GPUTarget("cuda", 90, 32))

def version():
    return compiler.get_ptxas_version(90).split("release ")[1].split(",")[0]

if sys.argv[1] == "late":
    version(), backend.hash()
assembler.prefer_newest(GpuFound(True, capability=(9, 0), cuda_version=(int(sys.argv[2]), 0)))
print(compiler.get_ptxas(90).path, version(), version() in backend.hash(), assembler.in_use().path, assembler.in_use())
"""


@pytest.mark.parametrize("cuda", [12, 99])
@pytest.mark.parametrize("when", ["first", "late"])
def test_the_installed_triton_takes_it(when, cuda):
    """In a process of its own: Triton keeps what it has asked. From 3.9 on nothing is set; `make test-triton-versions` asks older ones."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name not in (OLD, NEW)}
    command = [sys.executable, "-W", "ignore", "-c", ASK, when, str(cuda)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    taken, version, of_its_cache, path, ours = done.stdout.split()
    assert taken == path and ours.startswith(f"{version}.") and of_its_cache == "True"
    assert Path(path).name == "ptxas-blackwell" or cuda == 12


@pytest.mark.skipif(not assembler.on_hopper(runtime.gpu_found()), reason="needs a Hopper GPU")
def test_on_hopper_this_process_has_a_right_one():
    assert assembler.in_use().version >= assembler.RIGHT
