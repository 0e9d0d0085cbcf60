"""Which ptxas makes machine code of kernels on a Hopper GPU: the newest that Triton brings and whose code the driver can load.

Triton brings two, one of them for Blackwell. Before 3.9 the other one assembles for Hopper, and ptxas 12.8 (Triton 3.6 and 3.7)
can take the shared-memory address of a wgmma's tile from a wrong register: in one variant of our forward kernel (head_dim 20,
tensors with gaps) it reads outside of what the program has. ptxas 12.9, 13.1, 13.3 and 13.4 take the right one from the same PTX.
Before 3.9 Triton looks for Hopper's assembler in TRITON_PTXAS_PATH, which processes started later inherit, so that is set. From 3.9
on it takes the one for Blackwell by itself, and nothing is done.

Does not handle: GPUs before Hopper, which have no wgmma; those after it, for which Triton takes the newest anyway.
Source of a like fault: https://github.com/triton-lang/triton/issues/11366
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

from flashlab.driver import GpuFound
from flashlab.errors import error

BROUGHT = ("ptxas", "ptxas-blackwell")
HOPPER = 9  # compute capability 9.0
RIGHT = (12, 9)  # the oldest that is known to be right
ITSELF = (3, 9)  # the first Triton that takes Blackwell's on Hopper by itself
TIMEOUT_S = 10


class Assembler(NamedTuple):
    """A ptxas that runs, and its version, such as (12, 9, 86)."""

    path: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def at(path: Path) -> Assembler | None:
    """The assembler there, or None if nothing there runs and says its version."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\bV(\d+(?:\.\d+)+)", said)
    return Assembler(path, tuple(map(int, version[1].split(".")))) if version else None


def brought() -> dict[str, Assembler]:
    """{its name in BROUGHT: the assembler} of the installed Triton, found without importing it; only those that run."""
    try:
        triton = importlib.util.find_spec("triton")
    except ValueError:  # a stand-in without a spec was imported
        triton = None
    folders = [Path(folder) / "backends" / "nvidia" / "bin" for folder in (triton and triton.submodule_search_locations) or ()]
    return {name: found for folder in folders for name in BROUGHT if (found := at(folder / name))}


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: (2, 13) of "2.13.0+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def triton_release() -> tuple[int, ...]:
    """That of the installed Triton, () without one."""
    try:
        return release(importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        return ()


def own() -> str:
    """The name of the one that Triton takes for Hopper if nothing else is named."""
    return "ptxas-blackwell" if triton_release() >= ITSELF else "ptxas"


def variable() -> str:
    """The environment variable that names another."""
    return f"TRITON_{own().replace('-', '_').upper()}_PATH"


def newest(gpu: GpuFound) -> Assembler | None:
    """The newest that Triton brings and whose code the driver can load: its CUDA, the first number, is no later than the driver's."""
    known = [one for one in brought().values() if gpu.cuda_version is None or one.version[0] <= gpu.cuda_version[0]]
    return max(known, key=lambda one: one.version, default=None)


def in_use() -> Assembler | None:
    """The one that Triton takes on Hopper: what `variable()` names, if that runs, else its own."""
    named = os.environ.get(variable())
    return (at(Path(named)) if named else None) or brought().get(own())


def on_hopper(gpu: GpuFound) -> bool:
    return bool(gpu) and gpu.capability is not None and gpu.capability[0] == HOPPER


def prefer_newest(gpu: GpuFound) -> None:
    """On Hopper let a Triton before 3.9 use the newest assembler, unless TRITON_PTXAS_PATH is set. Warns where that one is not RIGHT."""
    if not on_hopper(gpu) or triton_release() >= ITSELF or os.environ.get(variable()):
        return
    best = newest(gpu)
    if best is None:
        return
    os.environ[variable()] = str(best.path)
    compiler = sys.modules.get("triton.backends.nvidia.compiler")
    if compiler:  # it has perhaps compiled, and kept the version under which it caches machine code
        compiler.get_ptxas_version.cache_clear()
        compiler.CUDABackend.hash.cache_clear()
    if best.version < RIGHT:
        warnings.warn(error("old_ptxas", given=best), stacklevel=3)
