"""Where a recorded number comes from: the versions it was measured with, a digest of our kernels' code, a line in a file.

bench/records.py keeps timings so, traffic/counter_records.py the hardware's counters; neither may import the other.

The digest is taken over syntax trees without docstrings, so a comment or a line break changes nothing, and any change
that could change the speed or the traffic makes our own records stale. Records of other people's kernels have no digest:
their torch version stands for their code.
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import importlib.metadata
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from flashlab import assembler
from flashlab.driver import torch_build
from flashlab.errors import error

KERNELS = Path(__file__).parent / "kernels"
# The modules of flashlab/kernels that a pass of kernel `triton` runs through.
SOURCES = {
    "forward": ("api", "autotune", "forward", "joined_masks", "launch", "masks", "primitives", "tiles"),
    "backward": ("api", "autotune", "backward", "joined_masks", "launch", "masks", "primitives", "tiles"),
}


def now() -> str:
    """The time of day in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


@cache
def versions() -> dict[str, str]:
    """The versions of the GPU's driver, of torch and of Triton, with the ptxas that was chosen for it, if one was: "3.6.0, ptxas 12.9.86"."""
    try:
        ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0]
    except (OSError, IndexError, subprocess.SubprocessError):
        driver = "unknown"
    try:
        triton = importlib.metadata.version("triton")
        named = assembler.in_use() if os.environ.get(assembler.variable()) else None
        triton += f", ptxas {named}" if named else ""
    except importlib.metadata.PackageNotFoundError:
        triton = "not installed"
    torch = torch_build()
    return {"driver": driver, "torch": torch.version if torch else "not installed", "triton": triton}


# -- the digest -------------------------------------------------------------------------------------------------------
def reached(name: str, folder: Path = KERNELS) -> tuple[str, ...]:
    """The module `name` of flashlab/kernels and every one there that it imports, in alphabetical order; none if it is missing.

    Not api.py: others borrow its checks of arguments, and none of what it launches.
    """
    return _reached(name, folder, tuple(sorted((path.name, path.stat().st_mtime_ns) for path in folder.glob("*.py"))))


@cache
def _reached(name: str, folder: Path, changed: tuple) -> tuple[str, ...]:
    found, todo = set(), [name]
    while todo:
        name = todo.pop()
        path = folder / f"{name}.py"
        if name in found or name == "api" or not path.is_file():
            continue
        found.add(name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "flashlab.kernels":
                todo += [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flashlab.kernels."):
                todo.append(node.module.rpartition(".")[2])
    return tuple(sorted(found))


def digest(names: tuple[str, ...], folder: Path = KERNELS) -> str:
    """Twelve hexadecimal digits that change when the code of these modules does, and not with its comments and docstrings."""
    return _digest(names, folder, tuple((folder / f"{name}.py").stat().st_mtime_ns for name in names))


@cache
def _digest(names: tuple[str, ...], folder: Path, changed: tuple) -> str:
    trees = [_shape(ast.parse((folder / f"{name}.py").read_text())) for name in names]
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()[:12]


def _shape(node: object) -> str:
    """A syntax tree as text, without places and docstrings; empty fields are left out, since they differ between Pythons."""
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, list):
        return f"[{','.join(map(_shape, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    given = dict(ast.iter_fields(node))
    documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    if documented and ast.get_docstring(node, clean=False) is not None:
        given["body"] = given["body"][1:]
    inside = ",".join(f"{name}={_shape(value)}" for name, value in given.items() if value not in (None, []))
    return f"{type(node).__name__}({inside})"


# -- files ------------------------------------------------------------------------------------------------------------
def file_name(device: str) -> str:
    """What records of a device are kept in.

    >>> file_name("NVIDIA H200")
    'nvidia-h200.jsonl'
    """
    return f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.jsonl"


def append(line: str, path: Path) -> None:
    """Add one line at the end, so that an interrupted run keeps what it has; a last line that was cut stays a line of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        whole = file.tell() == 0
        if not whole:
            file.seek(-1, os.SEEK_END)
            whole = file.read(1) == b"\n"
        file.write((b"" if whole else b"\n") + f"{line}\n".encode())


def load(files: Iterable[Path], from_json: Callable[[str], object]) -> list:
    """Every record of these files. Raises ValueError that names the file and line of what is no record."""
    found = []
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(), 1):  # bytes: a file that is no text has a wrong line, too
            try:
                found.append(from_json(line.decode()))
            except (ValueError, TypeError, LookupError) as why:
                raise error("not_a_record", file=file, line=number, why=why) from None
    return found
