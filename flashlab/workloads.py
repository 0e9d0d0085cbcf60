"""Workloads by name, in a process of their own: what traffic/counters.py starts under Nsight Compute.

    python -m flashlab.workloads count JOB.json EVENTS     each workload once between cudaProfilerStart and cudaProfilerStop
    python -m flashlab.workloads compile JOB.json          each once, so that Triton's cache holds its kernels

A job is {"items": [{"workload", "pass", "problem"}], "until"}: after the time.time() of `until` nothing new is begun. EVENTS
gets one JSON object a line for each item as it is done: index, name, state ("counted", "skipped" or "failed"), why,
seconds. Before each item a marker is launched whose grid is the item's number plus one, so that ncu's table says which
launches are whose.

A call that takes more than SLOW_S is not counted, nor is a longer sequence of the same kind: ncu runs it several times.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.bench.peers import PEERS, Peer
from flashlab.bench.steps import PEERS as STEPS
from flashlab.errors import error
from flashlab.problem import AttentionProblem

SLOW_S = 1.5


@triton.jit
def flashlab_marker_kernel(out):
    tl.store(out, 0)


def _standard(q, k, v, *, is_causal, scale):
    from flashlab.kernels.standard import standard

    return standard(q, k, v, causal=is_causal, scale=scale)


def _unfused(q, k, v, *, is_causal, scale):
    from flashlab.kernels.unfused import unfused

    return unfused(q, k, v, causal=is_causal, scale=scale)


def _flash1(q, k, v, *, is_causal, scale):
    from flashlab.kernels.flash1 import flash1

    return flash1(q, k, v, causal=is_causal, scale=scale)


NAMED = {
    **PEERS,
    **STEPS,
    "standard": Peer("standard", _standard),
    "unfused": Peer("unfused", _unfused, passes=("forward",), cuda_only=True),
    "flash1": Peer("flash1", _flash1, passes=("forward",), cuda_only=True),
}


def find(workload: str) -> Peer:
    """The workload as a Peer, which knows what it cannot do. Raises LookupError for one that there is not."""
    file, separator, function = workload.rpartition(":")
    if separator:
        return Peer(workload, _own(Path(file), function))
    if workload not in NAMED:
        raise error("workload", given=workload, allowed=", ".join(NAMED))
    return NAMED[workload]


def _own(file: Path, function: str) -> Callable:
    """The reader's function, with causal=True passed on where a causal problem is asked for."""
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    chosen = getattr(module, function, None)
    if not callable(chosen):
        defined = [name for name, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == file.stem]
        raise error("workload_function", file=file, given=function, allowed=", ".join(defined) or "none")
    return lambda q, k, v, *, is_causal, scale: chosen(q, k, v, **({"causal": True} if is_causal else {}))


def call_of(item: dict) -> Callable[[], object]:
    """What to run, on seeded tensors on the GPU. Raises ValueError with the reason where there is nothing to run."""
    problem, device = AttentionProblem(**item["problem"]), runtime.device()
    peer = find(item["workload"])
    why = peer.can(problem, item["pass"], device)
    if why:
        raise Skipped(why)
    q, k, v = problem.tensors(seed=0, device=device)
    options = {"causal": problem.causal, "scale": problem.scale}
    with peer.chosen():
        if item["pass"] == "forward":
            call = peer.forward(q, k, v, **options)
        else:
            call = peer.backward(q, k, v, problem.tensors(seed=1, device=device)[0], **options)

    def chosen():
        with peer.chosen():
            return call()

    return chosen


class Skipped(Exception):
    """There is nothing to count, and that is no fault."""


def warm(call: Callable[[], object]) -> float:
    """Seconds of a call, after one that compiled and loaded what it needs."""
    for _ in range(2):
        start = time.monotonic()
        call()
        torch.cuda.synchronize()
        seconds = time.monotonic() - start
        if seconds < SLOW_S:
            break
    return seconds


def count(job: dict, told: Callable[[dict], object]) -> None:
    """Run each item once with the profiler on."""
    begun, longest, slow = time.monotonic(), 0.0, {}
    out = torch.zeros(1, device=runtime.device(), dtype=torch.int32)
    flashlab_marker_kernel[(1,)](out)
    for index, item in enumerate(job["items"]):
        start = time.monotonic()
        problem = item["problem"]
        kind = item["workload"], item["pass"], problem["head_dim"], problem["causal"]
        state, why = "counted", ""
        try:
            if time.time() + longest > job["until"]:
                raise Skipped("the time given was over")
            if problem["n_q"] >= slow.get(kind, problem["n_q"] + 1):
                raise Skipped(f"n {slow[kind]:,} took more than {SLOW_S} s already")
            call = call_of(item)
            seconds = warm(call)
            if seconds > SLOW_S:
                slow[kind] = problem["n_q"]
                raise Skipped(f"one call takes {seconds:.1f} s, and ncu repeats what takes up to {SLOW_S} s only")
            torch.cuda.profiler.start()
            try:
                flashlab_marker_kernel[(index + 1,)](out)
                call()
                torch.cuda.synchronize()
            finally:
                torch.cuda.profiler.stop()
        except Skipped as reason:
            state, why = "skipped", str(reason)
        except ModuleNotFoundError as reason:
            state, why = "skipped", f"{reason.name} is not there"
        except Exception as reason:  # one workload's fault is told, and the others go on
            state, why = "failed", f"{type(reason).__name__}: {str(reason).strip().partition(chr(10))[0]}"
        call = None
        gc.collect()
        torch.cuda.empty_cache()  # ncu saves all that is allocated before it repeats a kernel
        now = time.monotonic()
        longest = max(longest, now - start)
        name = f"{item['workload']} {item['pass']}, n {problem['n_q']:,}, head_dim {problem['head_dim']}, {'causal' if problem['causal'] else 'full'}"
        told({"index": index, "name": name, "state": state, "why": why, "seconds": now - begun})
        if state == "failed":
            torch.cuda.synchronize()  # an illegal access spoils the process: end it here, with the error's text


def compile_all(job: dict) -> None:
    """Run each item once; what fails is told when it is counted."""
    for item in job["items"]:
        try:
            call_of(item)()
        except Exception:  # noqa: S112
            continue


def main(arguments: list[str]) -> int:
    """Do a job; returns the exit status."""
    what, job, *events = arguments
    job = json.loads(Path(job).read_text())
    if what == "compile":
        compile_all(job)
        return 0
    with open(events[0], "a", buffering=1) as file:
        count(job, lambda event: file.write(json.dumps(event) + "\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
