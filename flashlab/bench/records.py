"""What was timed, kept: one JSON object a line, with the machine, the versions and a digest of our kernels' code.

Digests and files are provenance.py's. Records of other people's kernels have no digest: the version of their package, or
of torch, stands for their code. Records of one run share a date, and only those are compared with each other.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from flashlab import provenance
from flashlab.bench.timing import Timing, device_name
from flashlab.problem import AttentionProblem
from flashlab.provenance import KERNELS, SOURCES
from flashlab.traffic.model import attention_flops

RECORDED = Path(__file__).parent / "recorded"
# The papers' grid: every n has the same inputs to read, and twice the scores of the one before.
TOKENS = 16384  # batch · n
WIDTH = 2048  # heads · head_dim
OPTIONAL = {"package", "budget_ms"}  # of a record's fields
JSON = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float), "None": (type(None),)}  # what each kind of a field may be
BACKWARD_FLOPS = 2.5  # of the forward's: five matrix products instead of two; a kernel that repeats one gets no credit for it


@dataclass(frozen=True)
class Record:
    """One kernel timed on one problem. `extra_bytes` is the peak memory beyond inputs and results, None where not measured.

    `package` is the version of the kernel's own package, None where that is torch or flashlab. `budget_ms` is how long the
    clock repeated the kernel, None in records from before it was kept.
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
    budget_ms: float | None = None

    @property
    def problem(self) -> tuple:
        """What was asked: the same for every kernel of a cell."""
        return (self.pass_, self.dtype, self.batch, self.heads, self.kv_heads, self.n_q, self.n_k, self.head_dim, self.causal)

    def to_json(self) -> str:
        """One line, without the line's end; the field `pass_` is called `pass` there, and what is OPTIONAL is left out where it is None."""
        given = {name.rstrip("_"): value for name, value in asdict(self).items()}
        return json.dumps({name: value for name, value in given.items() if name not in OPTIONAL or value is not None})

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Raises ValueError for a line that is not such an object, has other fields, or what no clock could have told in one of them."""
        given = json.loads(line)
        known = {field.name.rstrip("_"): field.name for field in fields(cls)}
        if not isinstance(given, dict) or set(given) | OPTIONAL != set(known):
            wrong = sorted((set(given) | OPTIONAL) ^ set(known)) if isinstance(given, dict) else [type(given).__name__]
            raise ValueError(f"missing or unknown: {', '.join(wrong)}")
        for field in fields(cls):
            name, kinds = field.name.rstrip("_"), field.type.split(" | ")
            if name in given and type(given[name]) not in [kind for one in kinds for kind in JSON[one]]:
                raise ValueError(f"{name} is {given[name]!r}, which is no {' or '.join(kinds)}")
        for name in ("time_ms", "p20_ms", "p80_ms", "tflops"):
            if not 0 < given[name] < math.inf:
                raise ValueError(f"{name} is {given[name]}, which is no number above 0")
        if given["pass"] not in SOURCES:
            raise ValueError(f"pass is {given['pass']!r}, which is none of {', '.join(SOURCES)}")
        return cls(**{known[name]: value for name, value in given.items()})


def record(
    kernel: str, pass_: str, problem: AttentionProblem, timing: Timing, *, date: str, device: str, extra_bytes: int | None = None,
    package: str | None = None, budget_ms: float | None = None,
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
        device=device_name(device), **provenance.versions(), date=date, digest=digest_of(kernel, pass_) if is_ours(kernel) else None, package=package,
        budget_ms=budget_ms,
    )  # fmt: skip


# -- the digest -------------------------------------------------------------------------------------------------------
def is_ours(kernel: str) -> bool:
    """Whether flashlab/kernels holds the code of this kernel: `triton`, a variant of it, or a step of lesson 09's ladder."""
    return kernel.partition("/")[0] in ("triton", "steps")


def digest(pass_: str, folder: Path = KERNELS) -> str:
    """Twelve hexadecimal digits that change when the code of `pass_` does, and not with its comments and docstrings."""
    return provenance.digest(SOURCES[pass_], folder)


def digest_of(kernel: str, pass_: str, folder: Path = KERNELS) -> str:
    """The digest of the code behind one of our kernels."""
    return provenance.digest(provenance.reached("steps", folder), folder) if kernel.startswith("steps/") else digest(pass_, folder)


def stale(record: Record) -> bool:
    """Whether the kernel's code has changed since. Always False for other people's kernels."""
    return record.digest is not None and record.digest != digest_of(record.kernel, record.pass_)


# -- files ------------------------------------------------------------------------------------------------------------
def path_for(device: str) -> Path:
    """Where records of a device are kept: recorded/nvidia-h200.jsonl for an NVIDIA H200."""
    return RECORDED / provenance.file_name(device)


def may_record(folder: Path) -> bool:
    """Whether this user may put files there."""
    return os.access(folder, os.W_OK | os.X_OK)


def own_file(path: Path, instead: str = "") -> Path:
    """`path` in recorded/; where flashlab is installed for many and this user may not write there, a file of that name in the working folder's `instead`."""
    folder = next(one for one in path.parents if one.exists())
    return path if may_record(folder) and (not path.exists() or os.access(path, os.W_OK)) else Path(instead, path.name)


def append(record: Record, path: Path) -> None:
    """Add one line at the end, so that an interrupted run keeps what it has."""
    provenance.append(record.to_json(), path)


def load(path: Path | None = None) -> list[Record]:
    """Every record of a file, or of all files of recorded/. Raises ValueError that names the file and line of what is no record."""
    return provenance.load(sorted(RECORDED.glob("*.jsonl")) if path is None else [path], Record.from_json)


def on_grid(records: Iterable[Record]) -> list[Record]:
    """Those of the grid; the others are of one sequence that grows, and do not belong into its tables and means."""
    return [one for one in records if one.n_q == one.n_k and one.batch * one.n_q == TOKENS and one.heads * one.head_dim == WIDTH]


def growing(records: Iterable[Record], pass_: str, *, head_dim: int = 128, heads: int = 16, causal: bool = False) -> dict[str, list[Record]]:
    """{kernel: the records of one run of one sequence, in the order of n}, those kernels that were timed at two lengths or more."""
    wanted = (pass_, 1, heads, head_dim, causal)
    lines: dict[str, list[Record]] = {}
    for one in records:
        if (one.pass_, one.batch, one.heads, one.head_dim, one.causal) == wanted and one.n_q == one.n_k and one.extra_bytes is not None:
            lines.setdefault(one.kernel, []).append(one)
    runs = {kernel: sorted(fullest(line), key=lambda one: one.n_q) for kernel, line in lines.items()}
    return {kernel: run for kernel, run in runs.items() if len(run) > 1}


def fullest(records: Iterable[Record]) -> list[Record]:
    """Those of one run on one device: of the run with the most of them, of several such the newest; [] where there are none.

    So what is compared is never of two runs, and one that was interrupted does not hide a whole one.
    """
    runs: dict[tuple[str, str], list[Record]] = {}
    for one in records:
        runs.setdefault((one.device, one.date), []).append(one)
    return max(runs.values(), key=lambda run: (len(run), run[0].date), default=[])


def latest(records: Iterable[Record]) -> list[Record]:
    """The newest record of each kernel on each problem and device."""
    newest: dict[tuple, Record] = {}
    for one in records:
        key = (one.kernel, one.device, one.problem)
        if key not in newest or one.date >= newest[key].date:
            newest[key] = one
    return list(newest.values())


def to_resume(records: Iterable[Record], pass_: str, cells: Iterable[tuple[str, AttentionProblem]], device: str, budget_ms: float = 0) -> list[Record]:
    """What an interrupted run of today has already timed of `cells`, (kernel, problem): one date, this device, these versions, not stale.

    What was timed for less than `budget_ms`, as by --quick, or for an unknown time, is not done. A run begins with the first
    problem of `cells`; one that only shares a later one (growth's is a cell of the grid) is another.
    """
    cells = [(kernel, key_of(pass_, problem)) for kernel, problem in cells]
    wanted = set(cells)
    here, today = {"device": device_name(device), **provenance.versions()}, provenance.now().partition("T")[0]
    found = [
        one
        for one in records
        if (one.kernel, one.problem) in wanted and one.date.startswith(today) and not stale(one) and all(getattr(one, k) == v for k, v in here.items())
        and (one.budget_ms or 0) >= budget_ms
    ]
    newest = max((one.date for one in found if one.problem == cells[0][1]), default=None)
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
