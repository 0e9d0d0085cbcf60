"""The bytes that a GPU really moved: a workload runs under Nsight Compute, and each kernel it launches comes back counted.

    count(workload, problem)                         one workload, on one problem
    count_many([(workload, pass, problem), ...])     several in one process: to start ncu and torch takes about 8 s

A workload is a name from WORKLOADS or a function of yours, FILE.py:function, called with q, k and v. It runs in a
process of its own (flashlab/workloads.py), so nothing here imports a kernel.

launches.py says what each number is. Caches are empty before each kernel, and clocks are left as they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from flashlab import runtime
from flashlab.errors import error
from flashlab.problem import AttentionProblem
from flashlab.traffic import ncu
from flashlab.traffic.launches import METRICS, OPTIONAL, Counted, Launch, Uncounted, launch, name, triple

# The names that flashlab/workloads.py knows (a test holds them equal) and the passes each has.
BOTH = ("forward", "backward")
STEPS = (  # of kernels/steps.py, as steps/NAME
    "flash1", "small", "tiles", "all-tiles", "divide", "e", "wide", "warps", "stages", "fit", "fold", "whole", "longest", "l2", "all-heads", "mixed",
    "library", "overlap",
)  # fmt: skip
WORKLOADS = {
    "standard": BOTH, "unfused": ("forward",), "flash1": ("forward",), "triton": BOTH, "triton/fused": ("backward",),
    "sdpa-flash": BOTH, "sdpa-cudnn": BOTH, "sdpa-efficient": BOTH, "sdpa-math": BOTH,
    **{f"steps/{name}": ("forward",) for name in STEPS},
}  # fmt: skip
CHILD = [sys.executable, "-m", "flashlab.workloads"]
MARKER = "flashlab_marker_kernel"  # launched before each workload: its grid says which one
MOST_COMPILERS = 8  # processes that compile at a time: each holds torch, and a context on the GPU
SPARE_S = 60  # after the child's own time is up: ncu's last pass, and its table


Request = tuple[str, str, AttentionProblem]


def check(workload: str, pass_: str) -> None:
    """Raises LookupError for a workload or a pass that there is not, FileNotFoundError for a file."""
    file, separator, _ = workload.rpartition(":")
    if separator:
        if not Path(file).is_file():
            raise error("count_file", given=file)
    elif workload not in WORKLOADS:
        raise error("workload", given=workload, allowed=", ".join(WORKLOADS))
    if pass_ not in WORKLOADS.get(workload, BOTH):
        raise error("workload_pass", given=pass_, workload=workload, allowed=", ".join(WORKLOADS.get(workload, BOTH)))


def count(workload: str, problem: AttentionProblem, pass_: str = "forward", **options: object) -> Counted:
    """Count one workload here and now. Raises RuntimeError where that cannot be, and says why."""
    (one,) = count_many([(workload, pass_, problem)], **options)
    if isinstance(one, Uncounted):
        raise error("count_not", given=name(one), why=one.why)
    return one


def count_many(
    requests: Sequence[Request],
    *,
    budget_s: float = 300,
    compile_first: bool = True,
    log: Path | None = None,
    told: Callable[[str], object] = lambda text: None,
) -> list[Counted | Uncounted]:
    """Count (workload, pass, problem) after another in one process under ncu; what could not be counted says why.

    With `compile_first` kernels of more than one kind are compiled beforehand, in parallel. After `budget_s` in all nothing
    new is begun, and what was counted by then comes back. ncu's own text is added to `log`; `told` gets a line for each
    workload as it is done. Raises RuntimeError where there is no GPU, no ncu or no permission, or when ncu fails.
    """
    requests, until = list(requests), time.time() + budget_s
    for workload, pass_, _ in requests:
        check(workload, pass_)
    runtime.need_gpu("Counting with Nsight Compute")
    path = ncu.find()
    if not requests:
        return []
    if compile_first:
        compile_kinds(requests, budget_s / 2)
    with tempfile.TemporaryDirectory(prefix="flashlab-count-") as folder:
        work = Path(folder)
        for tried, fields in enumerate((METRICS, METRICS.keys() - OPTIONAL)):
            said, output, events = (work / f"{name}{tried}" for name in ("ncu", "output", "events"))
            seen = Follow(events, len(requests), told)
            job = _write(work, f"job{tried}", requests, until)
            metrics = [metric for field, (metric, _) in METRICS.items() if field in fields]
            arguments = ncu.command(path, metrics, said, [*CHILD, "count", str(job), str(events)])
            status = ncu.run(arguments, output, timeout_s=max(until - time.time(), 0) + SPARE_S, environment=_environment(), meanwhile=seen)
            text = said.read_text(errors="replace") if said.exists() else ""
            if log is not None:
                ncu.keep(text, log)
            fault = ncu.fault(text, status, output.read_text(errors="replace"))
            rows = ncu.parse(text, metrics)
            if fault is None or rows or "metric" not in str(fault):
                break  # else this GPU or ncu may lack a counter that one can do without
    if fault is not None and not rows:
        raise fault
    return assign(requests, rows, seen.events, fault)


class Follow:
    """Reads what the child writes about each workload, one JSON object a line, and tells it on."""

    def __init__(self, path: Path, many: int, told: Callable[[str], object]) -> None:
        self.path, self.many, self.told, self.events = path, many, told, {}

    def __call__(self) -> None:
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []  # the last line may be half written
        for line in lines[len(self.events) :]:
            event = json.loads(line)
            self.events[event["index"]] = event
            self.told(f"[{len(self.events)}/{self.many}, {event['seconds']:.0f} s] {event['name']}: {event['state']}{event['why'] and ': ' + event['why']}")


def assign(requests: Sequence[Request], rows: Iterable[dict], events: dict[int, dict], fault: Exception | None = None) -> list[Counted | Uncounted]:
    """Each request's launches: those that follow its marker in ncu's table. Raises RuntimeError for a counter that is missing.

    After a `fault` of ncu the last marker's launches may be incomplete, so they do not count.
    """
    found: dict[int, list[Launch]] = {}
    index = None
    for row in rows:
        if row["Kernel Name"] == MARKER:
            index = triple(row["Grid Size"])[0] - 1
            found[index] = []
        elif index is not None:
            found[index].append(launch(row))
    ended = {"state": "failed", "why": str(fault or "the process under ncu ended before its turn")}
    if fault is not None and index is not None:
        events = {**events, index: ended}
    results = []
    for number, (workload, pass_, problem) in enumerate(requests):
        event = events.get(number, ended)
        if event["state"] != "counted":
            results.append(Uncounted(workload, pass_, problem, event["why"], failed=event["state"] == "failed"))
        elif found.get(number):
            results.append(Counted(workload, pass_, problem, tuple(found[number]), f"counted here, on the {runtime.gpu_found().name}"))
        else:
            results.append(Uncounted(workload, pass_, problem, str(error("count_no_kernel", given=workload)), failed=True))
    return results


def _environment() -> dict[str, str]:
    """The child finds this flashlab, wherever it is started; ncu writes numbers with a point."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "LC_ALL": "C"}


def _write(folder: Path, stem: str, requests: Sequence[Request], until: float = 0) -> Path:
    """A job for the child: a JSON file. After the time `until` the child begins nothing new."""
    items = [{"workload": workload, "pass": pass_, "problem": asdict(problem)} for workload, pass_, problem in requests]
    path = folder / f"{stem}.json"
    path.write_text(json.dumps({"items": items, "until": until}))
    return path


def kinds(requests: Iterable[Request]) -> list[Request]:
    """The shortest requests that between them need every kernel that Triton compiles.

    Kernels are compiled for all but the length; of `unfused` one (the softmax, a row in registers) for the length and nothing else.
    """
    found, chosen = set(), []
    for workload, pass_, problem in sorted(requests, key=lambda one: one[2].n_q):
        if workload.partition("-")[0] in ("standard", "sdpa"):
            continue
        needs = {(workload, pass_, problem.head_dim, problem.causal, problem.dtype)}
        if workload == "unfused":
            needs.add((workload, problem.n_k, problem.dtype))
        if needs - found:
            found |= needs
            chosen.append((workload, pass_, problem))
    return chosen


def compile_kinds(requests: Iterable[Request], seconds: float) -> None:
    """Run one of each kind without ncu, several processes at a time, so that Triton's cache on disk holds their kernels.

    What fails here fails again, and is told, when it is counted. One kind alone is left to its counting.
    """
    chosen = kinds(requests)
    if len(chosen) < 2:
        return
    shares = min(len(chosen), os.cpu_count() or 1, MOST_COMPILERS)
    started, until = [], time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="flashlab-compile-") as folder:
        try:
            for share in range(shares):
                job = _write(Path(folder), f"compile{share}", chosen[share::shares])
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                started.append(subprocess.Popen([*CHILD, "compile", str(job)], env=_environment(), start_new_session=True, **quiet))
            for process in started:
                process.wait(max(until - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in started:
                ncu.end(process)
