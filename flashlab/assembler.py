"""Which ptxas makes machine code of kernels on a Hopper GPU: the newest that Triton brings.

Triton brings two, one of them for Blackwell. Before 3.9 the older one assembles for Hopper, and ptxas 12.8 (Triton 3.6 and 3.7)
can take the shared-memory address of a wgmma's tile from a wrong register: in one variant of our forward kernel (head_dim 20,
tensors with gaps) it reads outside of what the program has. ptxas 12.9, 13.1, 13.3 and 13.4 take the right one from the same PTX.
From 3.9 on Triton itself uses the newest on Hopper. Triton reads TRITON_PTXAS_PATH, which processes started later inherit.

Does not handle: GPUs before Hopper, which have no wgmma; those after it, for which Triton takes the newest anyway.
Source of a like fault: https://github.com/triton-lang/triton/issues/11366
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from flashlab.driver import GpuFound

VARIABLE = "TRITON_PTXAS_PATH"
BROUGHT = ("ptxas", "ptxas-blackwell")
HOPPER = 9  # compute capability 9.0
RIGHT = (12, 9)  # the oldest that is known to be right


class Assembler(NamedTuple):
    """A ptxas that runs, and its version, such as (12, 9, 86)."""

    path: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def at(path: Path) -> Assembler | None:
    """The assembler there, or None if nothing there runs and says its version."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\bV(\d+(?:\.\d+)+)", said)
    return Assembler(path, tuple(map(int, version[1].split(".")))) if version else None


def brought() -> list[Assembler]:
    """Those that the installed Triton brings, found without importing it."""
    triton = importlib.util.find_spec("triton")
    folders = [Path(folder) / "backends" / "nvidia" / "bin" for folder in (triton and triton.submodule_search_locations) or ()]
    return [found for folder in folders for name in BROUGHT if (found := at(folder / name))]


def newest(assemblers: list[Assembler], gpu: GpuFound) -> Assembler | None:
    """The newest whose code the driver can load: its CUDA, the first number, is no later than the driver's."""
    known = [one for one in assemblers if gpu.cuda_version is None or one.version[0] <= gpu.cuda_version[0]]
    return max(known, key=lambda one: one.version, default=None)


def prefer_newest(gpu: GpuFound) -> None:
    """On Hopper let Triton use the newest assembler that it brings, unless TRITON_PTXAS_PATH is set already."""
    if not on_hopper(gpu) or os.environ.get(VARIABLE):
        return
    best = newest(brought(), gpu)
    if best:
        os.environ[VARIABLE] = str(best.path)


def on_hopper(gpu: GpuFound) -> bool:
    return bool(gpu) and gpu.capability is not None and gpu.capability[0] == HOPPER


def in_use() -> Assembler | None:
    """The one that Triton takes: what TRITON_PTXAS_PATH names, if that runs, else its first."""
    named = os.environ.get(VARIABLE)
    return (at(Path(named)) if named else None) or next(iter(brought()), None)
