"""What the hardware counted, kept: one JSON object a line, with the machine, the versions and a digest of our kernels.

Here and not in bench/, since the cache model is judged by it (traffic/accuracy.py), and traffic may not import bench; bench may
import traffic. Digests and files are provenance.py's, as they are bench/records.py's.

A line: workload, pass, dtype, batch, heads, kv_heads, n_q, n_k, head_dim, causal, launches (a list, one object a kernel in
launch order, with the fields of launches.Launch), device, driver, torch, triton, ncu, date, digest. by_launch() turns such
records into one flat mapping a launch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flashlab import provenance, runtime
from flashlab.errors import error
from flashlab.problem import AttentionProblem
from flashlab.traffic import ncu
from flashlab.traffic.counters import STEPS, Request, check, compile_kinds, count_many
from flashlab.traffic.launches import Counted, Launch, Uncounted, name

RECORDED = Path(__file__).parent / "recorded"
SIZES = ("dtype", "batch", "heads", "kv_heads", "n_q", "n_k", "head_dim", "causal")
MACHINE = ("device", "driver", "torch", "triton", "ncu", "date", "digest")

# What `flashlab count --measured --record` counts. The cache model is checked on OURS; the others stand beside them.
LENGTHS = (1024, 2048, 4096, 8192, 16384)
FIRST = 4096  # in a process of its own, so that the middle of the grid is kept whatever happens later
HEAD_DIMS, HEADS = (64, 128), 16
OURS = (("unfused", "forward"), ("flash1", "forward"), ("triton", "forward"), ("triton", "backward"))
OTHERS = tuple((workload, "forward") for workload in ("standard", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math"))
# The kernels that each of OURS launches, without torch's own that fill or convert a tensor beside them. Not those of
# triton/fused: one goes by the name keys_kernel too, and adds to dq besides.
KERNELS = {
    "unfused": ("scores_kernel", "softmax_kernel", "product_kernel"),
    "flash1": ("flash1_kernel",),
    "triton": ("forward_kernel", "delta_kernel", "keys_kernel", "queries_kernel"),
}
BUDGET_S, LEAST_S = 110, 15
NO_TURN = nullcontext()
STALE = "stale: the kernel's code has changed since"


@dataclass(frozen=True)
class CounterRecord:
    """One workload counted on one problem, and on what."""

    counted: Counted
    device: str
    driver: str
    torch: str
    triton: str
    ncu: str
    date: str
    digest: str | None

    def to_json(self) -> str:
        """One line, without the line's end. A scale is not kept: it moves no byte."""
        one = self.counted
        sizes = {size: getattr(one.problem, size) for size in SIZES}
        machine = {field: getattr(self, field) for field in MACHINE}
        return json.dumps({"workload": one.workload, "pass": one.pass_, **sizes, "launches": [asdict(x) for x in one.launches], **machine})

    @classmethod
    def from_json(cls, line: str) -> CounterRecord:
        """Raises ValueError for a line that is not such an object, or has other fields."""
        given = json.loads(line)
        known = {"workload", "pass", *SIZES, "launches", *MACHINE}
        if not isinstance(given, dict) or set(given) != known:
            wrong = sorted(set(given) ^ known) if isinstance(given, dict) else [type(given).__name__]
            raise ValueError(f"missing or unknown: {', '.join(wrong)}")
        launches = tuple(Launch(**{**one, "grid": tuple(one["grid"])}) for one in given["launches"])
        problem = AttentionProblem(**{size: given[size] for size in SIZES})
        machine = {field: given[field] for field in MACHINE}
        where = f"recorded on {given['device']}, {given['date'][:10]}"
        if given["digest"] != digest(given["workload"], given["pass"]):
            where += f"; {STALE}"
        return cls(Counted(given["workload"], given["pass"], problem, launches, where), **machine)


def digest(workload: str, pass_: str, folder: Path = provenance.KERNELS) -> str | None:
    """The digest of the code behind a workload; None for other people's kernels."""
    kernel = workload.partition("/")[0]
    if kernel == "triton":
        return provenance.digest(provenance.SOURCES[pass_], folder)
    return provenance.digest(provenance.reached(kernel, folder), folder) if kernel in ("standard", "unfused", "flash1", "steps") else None


def stale(one: CounterRecord) -> bool:
    """Whether the workload's code has changed since. Always False for other people's kernels."""
    return one.digest != digest(one.counted.workload, one.counted.pass_)


def load(path: Path | None = None) -> list[CounterRecord]:
    """Every record of a file, or of all files of recorded/. Raises ValueError that names the file and line of what is no record."""
    return provenance.load(sorted(RECORDED.glob("*.jsonl")) if path is None else [path], CounterRecord.from_json)


def sizes(problem: AttentionProblem) -> tuple:
    """What two problems have in common that move the same bytes."""
    return tuple(getattr(problem, size) for size in SIZES)


def key(one: Counted) -> tuple:
    """What was counted: two records with the same key are of the same bytes."""
    return one.workload, one.pass_, sizes(one.problem)


def recall(
    workload: str, problem: AttentionProblem, pass_: str = "forward", *, records: Iterable[CounterRecord] | None = None
) -> CounterRecord | None:
    """The newest record of a workload on a problem, or None."""
    found = [one for one in (load() if records is None else records) if key(one.counted) == (workload, pass_, sizes(problem))]
    return max(found, key=lambda one: one.date, default=None)


def measure_or_recall_many(requests: Sequence[Request], **options: object) -> list[Counted]:
    """Each (workload, pass, problem) counted here, in one process, if this machine can, else as it was recorded, which `where` says with the reason.

    Raises LookupError where one can be had neither way.
    """
    results = count_or_recall_many(requests, **options)
    for one in results:
        if isinstance(one, Uncounted):
            raise error("count_recorded", given=name(one), why=one.why, allowed=held(load()))
    return results


def count_or_recall_many(requests: Sequence[Request], *, turn: AbstractContextManager = NO_TURN, **options: object) -> list[Counted | Uncounted]:
    """The same, but what can be had neither way stays Uncounted and says why. `turn` is held while counting: bench/turn.py's."""
    for workload, pass_, _ in requests:
        check(workload, pass_)
    try:
        with turn:
            results = count_many(requests, **options)
    except (RuntimeError, TimeoutError) as reason:
        results = [Uncounted(*request, str(reason)) for request in requests]
    records = load() if any(isinstance(one, Uncounted) for one in results) else []
    return [_recalled(one, records) if isinstance(one, Uncounted) else one for one in results]


def _recalled(one: Uncounted, records: list[CounterRecord]) -> Counted | Uncounted:
    found = recall(one.workload, one.problem, one.pass_, records=records)
    return one if found is None else replace(found.counted, where=f"{found.counted.where}; not counted here: {one.why}")


def held(records: Iterable[CounterRecord]) -> str:
    """What is recorded, in a few words: workload, pass and lengths."""
    lengths: dict[str, set[int]] = {}
    for one in records:
        lengths.setdefault(f"{one.counted.workload} {one.counted.pass_}", set()).add(one.counted.problem.n_q)
    return "; ".join(f"{what} at n {', '.join(f'{n:,}' for n in sorted(ns))}" for what, ns in lengths.items()) or "none"


def by_launch(records: Iterable[CounterRecord]) -> list[dict]:
    """A flat mapping for each launch of KERNELS, in order: workload, pass, sizes (n is n_q), the fields of a Launch, device, date.

    This is what accuracy.accuracy() takes. Stale records are passed on too: leave them out where today's tiles are looked up.
    """
    return [launch | {"date": one.date} for one in records for launch in launches_of(one.counted, one.device)]


def launches_of(one: Counted, device: str) -> list[dict]:
    """The same for one Counted, without a date: each launch of our own kernels, and none of torch's beside them."""
    sizes = {"n": one.problem.n_q} | {size: getattr(one.problem, size) for size in SIZES}
    ours = (launch for launch in one.launches if launch.kernel in KERNELS.get(one.workload, ()))
    return [{"workload": one.workload, "pass": one.pass_} | sizes | asdict(launch) | {"device": device} for launch in ours]


# -- recording --------------------------------------------------------------------------------------------------------
def grid() -> list[list[Request]]:
    """What is recorded, in two parts, each counted in one process: everything at n = 4,096, then our kernels at the other lengths."""

    def requests(workloads: Sequence[tuple[str, str]], lengths: Iterable[int]) -> Iterator[Request]:
        for n in lengths:
            for head_dim in HEAD_DIMS:
                for causal in (False, True):
                    problem = AttentionProblem(n, n, head_dim, heads=HEADS, causal=causal, dtype="bfloat16")
                    yield from ((workload, pass_, problem) for workload, pass_ in workloads)

    return [list(requests(OURS + OTHERS, [FIRST])), list(requests(OURS, [n for n in LENGTHS if n != FIRST]))]


def ladder() -> list[list[Request]]:
    """What `flashlab count --record steps` records: every step of lesson 09, a part for each head_dim."""
    return [[(f"steps/{name}", "forward", problem) for name in STEPS] for problem in step_problems()]


def step_problems() -> list[AttentionProblem]:
    """What the steps of lesson 09 are timed and counted on: causal, 4 batches of 16 heads, whose k and v at head_dim 128 exceed the L2."""
    return [AttentionProblem(FIRST, FIRST, head_dim, batch=4, heads=HEADS, causal=True, dtype="bfloat16") for head_dim in HEAD_DIMS]


def record(
    path: Path | None = None, *, parts: list[list[Request]] | None = None, budget_s: float = BUDGET_S, anew: bool = False,
    log: Path | None = None, told: Callable[[str], object] = print,
) -> tuple[Path, int, list[Uncounted]]:  # fmt: skip
    """Count the grid, or other `parts`, and add what was counted to a file, part by part; (the file, how many, what was not counted).

    What the file already holds of today's code, device and versions is not counted again unless `anew`, so a run that was cut
    short goes on where it ended. Raises RuntimeError as count_many does.
    """
    begun, added, missing = time.monotonic(), 0, []
    runtime.need_gpu("Recording what the counters say")
    device = runtime.gpu_found().name
    path = path or RECORDED / provenance.file_name(device)
    known = {"device": device, **provenance.versions(), "ncu": ncu.version(ncu.find())}
    have = {
        key(one.counted)
        for one in (load(path) if path.exists() and not anew else [])
        if not stale(one) and all(getattr(one, field) == value for field, value in known.items())
    }
    parts = [[one for one in part if (one[0], one[1], sizes(one[2])) not in have] for part in parts or grid()]
    compile_kinds(sum(parts, []), budget_s / 2)
    for wanted in parts:
        left_s = budget_s - (time.monotonic() - begun)
        if wanted and left_s < LEAST_S:
            missing += [Uncounted(*one, "the time given was over") for one in wanted]
            continue
        date = provenance.now()
        results = count_many(wanted, budget_s=left_s, compile_first=False, log=log, told=told)
        for one in results:
            if isinstance(one, Uncounted):
                missing.append(one)
                continue
            provenance.append(CounterRecord(one, **known, date=date, digest=digest(one.workload, one.pass_)).to_json(), path)
            added += 1
    return path, added, missing
