"""machine.py: each of the doctor's checks on machines that are played."""

import os
import sys
from pathlib import Path

import pytest

from flashlab import machine
from flashlab.assembler import Assembler
from flashlab.driver import GpuFound, TorchBuild
from flashlab.machine import Check

GPU = GpuFound(
    True, "", "NVIDIA H200", (9, 0), (13, 0), memory_bytes=140 * 2**30, shared_memory_bytes=227 * 1024, l2_bytes=60 * 2**20
)
OLD = GpuFound(False, "the driver is too old for this torch: it knows CUDA 12.4", "NVIDIA A10", (8, 6), (12, 4), 23 * 2**30)
NONE = GpuFound(False, "no NVIDIA driver was found (libcuda.so.1)")


def test_python():
    assert machine.check_python((3, 11, 0), "/usr/bin/python3") == Check("Python", "3.11.0, /usr/bin/python3")
    too_old = machine.check_python((3, 10, 14), "/usr/bin/python3")
    assert too_old.state == "fail" and too_old.do.startswith("flashlab needs Python 3.11 or newer")


@pytest.mark.parametrize(
    "build, found, state",
    [
        (TorchBuild("2.13.0+cpu", None), "2.13.0+cpu, CPU build", "ok"),
        (TorchBuild("2.11.0", "13.0"), "2.11.0, built for CUDA 13.0", "ok"),
        (TorchBuild("2.10.1", "12.8"), "2.10.1, built for CUDA 12.8", "fail"),
        (TorchBuild("2.14.0", None), "2.14.0, CPU build", "fail"),
        (None, "not installed", "fail"),
    ],
)
def test_torch(build, found, state):
    check = machine.check_torch(build)
    assert (check.found, check.state, bool(check.do)) == (found, state, state == "fail")


@pytest.mark.parametrize(
    "version, system, state", [("3.6.0", "Linux", "ok"), ("3.9.1", "Linux", "ok"), ("3.5.1", "Linux", "fail"), ("3.10.0", "Linux", "fail"), (None, "Linux", "fail")]
)
def test_triton(version, system, state):
    assert machine.check_triton(version, system).state == state


def test_no_triton_on_a_mac_is_no_failure_and_names_a_way():
    check = machine.check_triton(None, "Darwin")
    assert check.state == "note" and "lessons 00 to 04 work" in check.do and "Linux container" in check.do


def test_a_gpu_shows_its_sizes():
    found = "NVIDIA H200, compute capability 9.0, 140 GiB memory, 227 KiB shared memory a block, 60 MiB L2"
    assert machine.check_gpu(GPU) == Check("GPU", found)


def test_a_gpu_that_cannot_be_used_says_why():
    check = machine.check_gpu(OLD)
    assert check.found.startswith("NVIDIA A10, compute capability 8.6, 23 GiB") and check.state == "note"
    assert check.do == "Not used: the driver is too old for this torch: it knows CUDA 12.4"


def test_no_gpu_and_a_login_node_are_told_apart():
    none, login = machine.check_gpu(NONE), machine.check_gpu(NONE, "This looks like a login node: ask for a GPU")
    assert none.found == login.found == "none: no NVIDIA driver was found (libcuda.so.1)"
    assert none.do.startswith("Lessons run without one") and login.do == "This looks like a login node: ask for a GPU"


@pytest.mark.parametrize(
    "gpu, text, found",
    [
        (GPU, "NVRM version: NVIDIA UNIX Open Kernel Module  580.159.04  Release\nGCC version: 12.2.0", "580.159.04, knows CUDA up to 13.0"),
        (GPU, "", "knows CUDA up to 13.0"),  # WSL
        (NONE, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82  Thu", "470.82"),
    ],
)
def test_driver(gpu, text, found):
    assert machine.check_driver(gpu, text) == Check("NVIDIA driver", found)


def test_no_driver_is_a_note():
    assert machine.check_driver(NONE, "").state == "note"


def test_kernels_that_run():
    assert machine.check_kernels("cuda", "cuda", "") == Check("Triton kernels", "run on a CUDA GPU")
    assert machine.check_kernels("interpreter", "interpreter", "") == Check("Triton kernels", "run in Triton's interpreter on the CPU")


@pytest.mark.parametrize("result, problem, do", [("", "RuntimeError: no compiler", "RuntimeError: no compiler"), ("interpreter", "", "python -m flashlab.smoke shows the error")])
def test_kernels_that_fail(result, problem, do):
    check = machine.check_kernels("cuda", result, problem)
    assert (check.found, check.state, check.do) == ("do not run on a CUDA GPU", "fail", do)


def test_compiler_and_header(tmp_path):
    header = tmp_path / "Python.h"
    assert machine.check_compiler("/usr/bin/gcc", header, gpu=True).found == "Python.h not found"
    assert machine.check_compiler(None, header, gpu=True).found == "a C compiler and Python.h not found"
    assert machine.check_compiler(None, header, gpu=True).state == "fail"
    assert machine.check_compiler(None, header, gpu=False).state == "note"
    header.touch()
    assert machine.check_compiler("/usr/bin/gcc", header, gpu=True).state == "ok"
    assert machine.check_compiler(None, header, gpu=True).found == "a C compiler not found"


def test_cache(tmp_path, monkeypatch):
    assert machine.check_cache(tmp_path / "not" / "yet", gpu=True).state == "ok" and not (tmp_path / "not").exists()
    (tmp_path / "file").touch()
    assert machine.check_cache(tmp_path / "file" / "cache", gpu=True).state == "fail"
    assert machine.check_cache(tmp_path / "file" / "cache", gpu=False).state == "note"
    assert "TRITON_CACHE_DIR" in machine.check_cache(tmp_path / "file" / "cache", gpu=True).do

    def read_only(dir):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", read_only)
    assert machine.check_cache(tmp_path, gpu=True).state == "fail"


@pytest.mark.parametrize("gpu, state", [(True, "fail"), (False, "note")])
def test_a_cache_in_a_folder_that_may_not_be_searched(tmp_path, monkeypatch, gpu, state):
    closed, stat = tmp_path / "closed", os.stat
    closed.mkdir()

    def refuse(path, *arguments, **options):  # what another user's folder does; root, as in CI, may search any
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(machine, "writable", lambda folder: folder != closed)
    check = machine.check_cache(closed / "triton" / "cache", gpu=gpu)
    assert (check.found, check.state) == (f"{closed / 'triton' / 'cache'} cannot be written", state)
    assert machine.check_compiler("gcc", closed / "include" / "Python.h", gpu=gpu).state == state


OLD_PTXAS, NEW_PTXAS = Assembler(Path("/t/ptxas"), (12, 8, 93)), Assembler(Path("/t/ptxas-blackwell"), (12, 9, 86))
WRONG = "It can build wrong code for Hopper: "


@pytest.mark.parametrize(
    "used, newest, check",
    [
        (NEW_PTXAS, NEW_PTXAS, Check("ptxas", "12.9.86, /t/ptxas-blackwell")),
        (NEW_PTXAS, Assembler(Path("/t/b"), (13, 3, 33)), Check("ptxas", "12.9.86, /t/ptxas-blackwell")),
        (OLD_PTXAS, NEW_PTXAS, Check("ptxas", "12.8.93, /t/ptxas", "note", f"{WRONG}unset TRITON_PTXAS_PATH, and 12.9.86 is taken")),
        (OLD_PTXAS, OLD_PTXAS, Check("ptxas", "12.8.93, /t/ptxas", "note", f"{WRONG}update the driver to one for CUDA 13, or install Triton 3.8")),
        (OLD_PTXAS, None, Check("ptxas", "12.8.93, /t/ptxas", "note", f"{WRONG}update the driver to one for CUDA 13, or install Triton 3.8")),
        (None, None, Check("ptxas", "not found", "note", "Without one Triton cannot compile: install triton anew")),
    ],
)
def test_assembler(used, newest, check):
    assert machine.check_assembler(used, newest, "TRITON_PTXAS_PATH") == check


NEEDED = ["numpy>=2", "torch>=2.11,<2.14", "triton>=3.6; sys_platform == 'linux'", "anywidget>=0.9.13", "old; python_version < '3'"]
EXTRA = "pytest>=8; extra == 'test'"


def packages(**versions):
    return machine.check_packages([*NEEDED, EXTRA], {"numpy": "2.4.0", "anywidget": "0.11.0", **versions}.get)


def test_packages_other_than_those_with_a_line_of_their_own_and_those_not_for_here():
    assert packages() == Check("Packages", "numpy 2.4.0, anywidget 0.11.0")
    assert packages(numpy="2.0.0rc1+local").state == "fail" and packages(numpy="2.5.0.dev1").state == "ok"


@pytest.mark.parametrize(
    "versions, found, needed",
    [
        ({"anywidget": None}, "numpy 2.4.0, anywidget not installed", "anywidget>=0.9.13"),
        ({"numpy": "1.26.4"}, "numpy 1.26.4, anywidget 0.11.0", "numpy>=2"),
        ({"numpy": None, "anywidget": "0.9.3"}, "numpy not installed, anywidget 0.9.3", "numpy>=2, anywidget>=0.9.13"),
    ],
)
def test_a_package_that_is_missing_or_out_of_range_is_a_failure(versions, found, needed):
    assert packages(**versions) == Check("Packages", found, "fail", f"flashlab needs {needed}: make lab, or pip install -e .")


def test_packages_without_packaging(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    check = packages()
    assert check.state == "fail" and check.found.startswith("packaging not installed")


def test_packages_without_a_list_of_them():
    assert machine.check_packages([], {}.get).state == "note"


def test_chromium():
    assert machine.check_chromium("/usr/bin/chromium").state == "ok" and machine.check_chromium(None).state == "note"


@pytest.mark.parametrize(
    "ncu, gpu, restricted, root, found, state",
    [
        (None, False, False, False, "no GPU to count on", "note"),
        (None, True, False, False, "not found", "note"),
        ("/bin/ncu", True, True, False, "/bin/ncu, counters closed", "note"),
        ("/bin/ncu", True, True, True, "/bin/ncu, counters open", "ok"),
        ("/bin/ncu", True, False, False, "/bin/ncu, counters open", "ok"),
    ],
)
def test_counters(ncu, gpu, restricted, root, found, state):
    check = machine.check_counters(ncu, gpu=gpu, restricted=restricted, root=root)
    assert (check.found, check.state) == (found, state)


def test_the_ranges_are_those_of_pyproject():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for package, (low, high) in machine.RANGES.items():
        assert f'"{package}>={low[0]}.{low[1]},<{high[0]}.{high[1]}' in text
