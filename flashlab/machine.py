"""The doctor's checks: what this machine has, whether that works, and what to do if not.

Each check is one function that takes what it looks at as arguments, so that a test can show it any machine, and returns
one Check. Only a check marked "fail" keeps the lessons from running; flashlab.doctor gathers the arguments.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

from flashlab import runtime
from flashlab.assembler import RIGHT, Assembler, release
from flashlab.driver import GpuFound, TorchBuild

GIB = 2**30
RANGES = {"torch": ((2, 11), (2, 14)), "triton": ((3, 6), (3, 10))}  # from, to below; as in pyproject.toml
GET = "make lab, or pip install -e ."


class Check(NamedTuple):
    """One line of the table: what was looked at, what was found, "ok", "note" or "fail", and what to do."""

    what: str
    found: str
    state: str = "ok"
    do: str = ""


def check_python(version: tuple[int, ...] = sys.version_info[:3], where: str = sys.executable) -> Check:
    found = f"{'.'.join(map(str, version))}, {where}"
    if version < (3, 11):
        return Check("Python", found, "fail", "flashlab needs Python 3.11 or newer: make lab finds one, or see environment.yml")
    return Check("Python", found)


def in_range(package: str, version: str) -> bool:
    """Whether flashlab was made for this version."""
    low, high = RANGES[package]
    return low <= release(version) < high


def check_torch(build: TorchBuild | None) -> Check:
    if build is None:
        return Check("torch", "not installed", "fail", GET)
    found = f"{build.version}, " + (f"built for CUDA {build.cuda}" if build.cuda else "CPU build")
    if not in_range("torch", build.version):
        return Check("torch", found, "fail", "flashlab needs torch >=2.11,<2.14: pip install 'torch>=2.11,<2.14'")
    return Check("torch", found)


def check_triton(version: str | None, system: str = platform.system()) -> Check:
    if version is None and system != "Linux":
        return Check("triton", "not installed", "note", runtime.NOT_LINUX.format(system=system))
    if version is None:
        return Check("triton", "not installed", "fail", "pip install 'triton>=3.6,<3.10', or make lab")
    if not in_range("triton", version):
        return Check("triton", version, "fail", "flashlab needs triton >=3.6,<3.10; let torch choose it: make lab")
    return Check("triton", version)


def check_packages(requirements: list[str], installed: Callable[[str], str | None]) -> Check:
    """Every other package that flashlab's `requirements` name, without its extras; `installed` gives a version or None."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return Check("Packages", "packaging not installed, so the others were not looked at", "fail", GET)
    found, faulty = [], []
    for requirement in map(Requirement, requirements):
        if requirement.name in RANGES or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        version = installed(requirement.name)
        found.append(f"{requirement.name} {version or 'not installed'}")
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            faulty.append(f"{requirement.name}{requirement.specifier}")
    if faulty:
        return Check("Packages", ", ".join(found), "fail", f"flashlab needs {', '.join(faulty)}: {GET}")
    return Check("Packages", ", ".join(found) or "unknown: flashlab is not installed and has no pyproject.toml", "ok" if found else "note")


def check_gpu(gpu: GpuFound, login: str = "") -> Check:
    if not gpu.name:
        do = login or "Lessons run without one; timings are those recorded on a GPU"
        return Check("GPU", f"none: {gpu.reason}", "note", do)
    found = (
        f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}, {gpu.memory_bytes / GIB:.0f} GiB memory,"
        f" {gpu.shared_memory_bytes / 1024:.0f} KiB shared memory a block, {gpu.l2_bytes / 2**20:.0f} MiB L2"
    )
    return Check("GPU", found) if gpu else Check("GPU", found, "note", f"Not used: {gpu.reason}")


def check_driver(gpu: GpuFound, kernel_module: str) -> Check:
    """`kernel_module` is the text of /proc/driver/nvidia/version, "" where there is none."""
    number = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", kernel_module)
    known = f"knows CUDA up to {gpu.cuda_version[0]}.{gpu.cuda_version[1]}" if gpu.cuda_version else ""
    found = ", ".join(part for part in (number[0] if number else "", known) if part)
    if found:
        return Check("NVIDIA driver", found)
    return Check("NVIDIA driver", "none", "note", "Only a GPU needs one")


def check_kernels(mode: str, result: str, problem: str) -> Check:
    """`result` is what flashlab.smoke printed, `problem` the last line of its error."""
    place = "on a CUDA GPU" if mode == "cuda" else "in Triton's interpreter on the CPU"
    if result == mode:
        return Check("Triton kernels", f"run {place}")
    return Check("Triton kernels", f"do not run {place}", "fail", problem or "python -m flashlab.smoke shows the error")


def check_assembler(used: Assembler | None, newest: Assembler | None, variable: str) -> Check:
    """On Hopper: the ptxas that Triton takes, the newest that it brings and whose code the driver can load, and the variable that names one."""
    if used is None:
        return Check("ptxas", "not found", "note", "Without one Triton cannot compile: install triton anew")
    found = f"{used}, {used.path}"
    if used.version >= RIGHT:
        return Check("ptxas", found)
    better = newest and newest.version >= RIGHT
    do = f"unset {variable}, and {newest} is taken" if better else "update the driver to one for CUDA 13, or install Triton 3.8"
    return Check("ptxas", found, "note", f"It can build wrong code for Hopper: {do}")


def check_compiler(compiler: str | None, header: Path, gpu: bool) -> Check:
    missing = [what for what, there in (("a C compiler", compiler), ("Python.h", os.path.isfile(header))) if not there]
    if not missing:
        return Check("C compiler, Python.h", f"{compiler}, {header}")
    state = "fail" if gpu else "note"
    get = "Triton needs both for a GPU: sudo apt install gcc python3-dev, or conda install gcc"
    found = f"{' and '.join(missing)} not found"
    return Check("C compiler, Python.h", found, state, get if gpu else "Only a GPU needs them")


def check_cache(folder: Path, gpu: bool) -> Check:
    place = folder
    while not os.path.exists(place):  # Path.exists raises where a folder above may not be searched
        place = place.parent
    if os.path.isdir(place) and writable(place):
        return Check("Triton's cache", str(folder))
    do = "Set TRITON_CACHE_DIR to a folder that you can write"
    return Check("Triton's cache", f"{folder} cannot be written", "fail" if gpu else "note", do)


def writable(folder: Path) -> bool:
    """Whether a file can be made in `folder`; os.access does not know of full or read-only disks."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def check_chromium(path: str | None) -> Check:
    if path is None:
        return Check("Chromium", "not found", "note", "Only make test needs it: sudo apt install chromium")
    return Check("Chromium", path)


def check_counters(ncu: str | None, gpu: bool, restricted: bool, root: bool) -> Check:
    """Whether Nsight Compute is there and may read the GPU's counters."""
    if not gpu:
        return Check("Nsight Compute (ncu)", "no GPU to count on", "note", "DRAM bytes are those recorded on a GPU")
    if ncu is None:
        do = "For measured DRAM bytes install nsight-compute and put ncu on PATH"
        return Check("Nsight Compute (ncu)", "not found", "note", do)
    if restricted and not root:
        do = "Only root may read counters here: ask for NVreg_RestrictProfilingToAdminUsers=0, or run as root"
        return Check("Nsight Compute (ncu)", f"{ncu}, counters closed", "note", do)
    return Check("Nsight Compute (ncu)", f"{ncu}, counters open")
