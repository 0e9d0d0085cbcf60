"""What was measured, kept: one JSON object a line, with the machine, the versions and a digest of our kernels' code.

The digest is taken over syntax trees without docstrings, so a comment or a line break changes nothing, and any change
that could change the speed makes our own records stale. Records of other people's kernels have no digest: the
version of their package, or of torch, stands for their code. Records of one run share a date, and only those are compared with each other.
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import importlib.metadata
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import torch

from flashlab.bench.timing import Timing, device_name
from flashlab.errors import error
from flashlab.problem import AttentionProblem
from flashlab.traffic.model import attention_flops

RECORDED = Path(__file__).parent / "recorded"
KERNELS = Path(__file__).parents[1] / "kernels"
# The papers' grid: every n has the same inputs to read, and twice the scores of the one before.
TOKENS = 16384  # batch · n
WIDTH = 2048  # heads · head_dim
# The modules of flashlab/kernels that a pass of kernel `triton` runs through.
SOURCES = {
    "forward": ("api", "autotune", "forward", "joined_masks", "launch", "masks", "primitives", "tiles"),
    "backward": ("api", "autotune", "backward", "joined_masks", "launch", "masks", "primitives", "tiles"),
}
BACKWARD_FLOPS = 2.5  # of the forward's: five matrix products instead of two; a kernel that repeats one gets no credit for it


@dataclass(frozen=True)
class Record:
    """One kernel timed on one problem. `extra_bytes` is the peak memory beyond inputs and results, None where not measured.

    `package` is the version of the kernel's own package, None where that is torch or flashlab.
    """

    kernel: str
    pass_: str
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    n_q: int
    n_k: int
    head_dim: int
    causal: bool
    time_ms: float
    p20_ms: float
    p80_ms: float
    tflops: float
    extra_bytes: int | None
    device: str
    driver: str
    torch: str
    triton: str
    date: str
    digest: str | None
    package: str | None = None

    @property
    def problem(self) -> tuple:
        """What was asked: the same for every kernel of a cell."""
        return (self.pass_, self.dtype, self.batch, self.heads, self.kv_heads, self.n_q, self.n_k, self.head_dim, self.causal)

    def to_json(self) -> str:
        """One line, without the line's end; the field `pass_` is called `pass` there, and `package` is left out where there is none."""
        given = {name.rstrip("_"): value for name, value in asdict(self).items()}
        return json.dumps({name: value for name, value in given.items() if name != "package" or value})

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Raises ValueError for a line that is not such an object, or has other fields."""
        given = json.loads(line)
        known = {field.name.rstrip("_"): field.name for field in fields(cls)}
        if not isinstance(given, dict) or set(given) | {"package"} != set(known):
            wrong = sorted((set(given) | {"package"}) ^ set(known)) if isinstance(given, dict) else [type(given).__name__]
            raise ValueError(f"missing or unknown: {', '.join(wrong)}")
        return cls(**{known[name]: value for name, value in given.items()})


def record(
    kernel: str, pass_: str, problem: AttentionProblem, timing: Timing, *, date: str, device: str, extra_bytes: int | None = None,
    package: str | None = None,
) -> Record:  # fmt: skip
    """The record of one timing, with what this machine runs filled in.

    TFLOP/s count the visible scores exactly, which for causal is (n + 1) / 2n of all: the papers' half, within 0.2 % from
    n = 512 on.
    """
    p = problem
    flops = attention_flops(p) * (BACKWARD_FLOPS if pass_ == "backward" else 1)
    return Record(
        kernel, pass_, p.dtype, p.batch, p.heads, p.kv_heads, p.n_q, p.n_k, p.head_dim, p.causal,
        timing.time_ms, timing.p20_ms, timing.p80_ms, flops / timing.time_ms / 1e9, extra_bytes,
        **_machine(device), date=date, digest=digest(pass_) if is_ours(kernel) else None, package=package,
    )  # fmt: skip


@cache
def _machine(device: str) -> dict[str, str]:
    """The device, its driver, and the versions of torch and Triton."""
    try:
        ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0]
    except (OSError, IndexError, subprocess.SubprocessError):
        driver = "unknown"
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "not installed"
    return {"device": device_name(device), "driver": driver, "torch": torch.__version__, "triton": triton}


# -- the digest -------------------------------------------------------------------------------------------------------
def is_ours(kernel: str) -> bool:
    """Whether flashlab/kernels holds the code of this kernel: `triton`, or a variant of it."""
    return kernel.partition("/")[0] == "triton"


def digest(pass_: str, folder: Path = KERNELS) -> str:
    """Twelve hexadecimal digits that change when the code of `pass_` does, and not with its comments and docstrings."""
    return _digest(pass_, folder, tuple((folder / f"{name}.py").stat().st_mtime_ns for name in SOURCES[pass_]))


@cache
def _digest(pass_: str, folder: Path, changed: tuple) -> str:
    trees = [_shape(ast.parse((folder / f"{name}.py").read_text())) for name in SOURCES[pass_]]
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


def stale(record: Record) -> bool:
    """Whether the kernel's code has changed since. Always False for other people's kernels."""
    return record.digest is not None and record.digest != digest(record.pass_)


# -- files ------------------------------------------------------------------------------------------------------------
def path_for(device: str) -> Path:
    """Where records of a device are kept: recorded/nvidia-h200.jsonl for an NVIDIA H200."""
    return RECORDED / f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.jsonl"


def append(record: Record, path: Path) -> None:
    """Add one line at the end, so that an interrupted run keeps what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(record.to_json() + "\n")


def load(path: Path | None = None) -> list[Record]:
    """Every record of a file, or of all files of recorded/. Raises ValueError that names the file and line of what is no record."""
    found = []
    for file in sorted(RECORDED.glob("*.jsonl")) if path is None else [path]:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            try:
                found.append(Record.from_json(line))
            except (ValueError, TypeError) as why:
                raise error("not_a_record", file=file, line=number, why=why) from None
    return found


def on_grid(records: Iterable[Record]) -> list[Record]:
    """Those of the grid; the others are of one sequence that grows, and do not belong into its tables and means."""
    return [one for one in records if one.n_q == one.n_k and one.batch * one.n_q == TOKENS and one.heads * one.head_dim == WIDTH]


def growing(records: Iterable[Record], pass_: str, *, head_dim: int = 128, heads: int = 16, causal: bool = False) -> dict[str, list[Record]]:
    """{kernel: its newest records of one sequence, in the order of n}, those kernels that were timed at two lengths or more."""
    wanted = (pass_, 1, heads, head_dim, causal)
    found: dict[str, list[Record]] = {}
    for one in sorted(latest(records), key=lambda one: one.n_q):
        if (one.pass_, one.batch, one.heads, one.head_dim, one.causal) == wanted and one.n_q == one.n_k and one.extra_bytes is not None:
            found.setdefault(one.kernel, []).append(one)
    return {kernel: line for kernel, line in found.items() if len(line) > 1}


def latest(records: Iterable[Record]) -> list[Record]:
    """The newest record of each kernel on each problem and device."""
    newest: dict[tuple, Record] = {}
    for one in records:
        key = (one.kernel, one.device, one.problem)
        if key not in newest or one.date >= newest[key].date:
            newest[key] = one
    return list(newest.values())


def to_resume(records: Iterable[Record], pass_: str, cells: Iterable[tuple[str, AttentionProblem]], device: str) -> list[Record]:
    """What an interrupted run of today has already timed of `cells`, (kernel, problem): one date, this device, these versions, not stale."""
    wanted = {(kernel, key_of(pass_, problem)) for kernel, problem in cells}
    here, today = _machine(device), datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    found = [
        one
        for one in records
        if (one.kernel, one.problem) in wanted and one.date.startswith(today) and not stale(one) and all(getattr(one, k) == v for k, v in here.items())
    ]
    newest = max((one.date for one in found), default=None)
    return [one for one in found if one.date == newest]


def key_of(pass_: str, p: AttentionProblem) -> tuple:
    """What Record.problem is for a record of this pass and problem."""
    return (pass_, p.dtype, p.batch, p.heads, p.kv_heads, p.n_q, p.n_k, p.head_dim, p.causal)


def pairs(records: Iterable[Record], ours: str, peer: str) -> list[tuple[Record, Record]]:
    """(ours, peer) of each problem and device, from the newest run that timed both: a ratio never spans two runs."""
    cells: dict[tuple, dict[str, Record]] = {}
    for one in records:
        cells.setdefault((one.device, one.problem, one.date), {})[one.kernel] = one
    newest: dict[tuple, tuple[Record, Record]] = {}
    for (device, problem, _), cell in sorted(cells.items(), key=lambda item: item[0][2]):
        if ours in cell and peer in cell:
            newest[device, problem] = cell[ours], cell[peer]
    return list(newest.values())
