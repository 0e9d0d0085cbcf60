"""Time a callable honestly: warm it up, wait for it, empty the cache, repeat, and report the spread.

A GPU works behind the program's back: a call returns once the work is queued. So on CUDA the clock is the GPU's own
(events recorded around the work), and on a CPU it is time.perf_counter. Before each repeat a GPU's L2 is overwritten,
so that inputs come from HBM as they would in a real model, and the GPU is kept busy while Python queues the call, so
that a time is the GPU's alone: what Python and the driver take to queue a call is in nobody's figure. A CPU's caches are left as they are. The median is the result; p20 and p80 say
how far to trust it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from flashlab import runtime
from flashlab.problem import check_size


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, 20th and 80th percentile of `repeats` calls on `device`."""

    time_ms: float
    p20_ms: float
    p80_ms: float
    repeats: int
    device: str

    def __repr__(self) -> str:
        return f"{self.time_ms:.3g} ms (p20 {self.p20_ms:.3g}, p80 {self.p80_ms:.3g}; {self.repeats} repeats on {self.device})"


def time_call(function: Callable[[], object], *, device: str | None = None, warmup_ms: float = 100, budget_ms: float = 500, least: int = 5) -> Timing:
    """Time `function()`: warm up for about `warmup_ms`, then repeat for about `budget_ms`, at least `least` times.

    `device` is where it works, "cuda", "cuda:1" or "cpu"; by default where flashlab's kernels run (runtime.device()).
    Whatever it raises is raised.
    """
    least = check_size("least", least)
    device = device or runtime.device()
    clock = _CudaClock(device) if torch.device(device).type == "cuda" else _CpuClock()
    clock.measure(function)  # compiles, allocates, loads libraries: not even warm-up
    warm = [clock.measure(function)]
    while sum(warm) < warmup_ms and len(warm) < 1000:
        warm.append(clock.measure(function))
    repeats = int(np.clip(budget_ms / max(np.median(warm), 1e-3), least, 1000))
    times = [clock.measure(function) for _ in range(repeats)]
    p20, median, p80 = np.percentile(times, (20, 50, 80)).tolist()
    return Timing(median, p20, p80, repeats, device_name(device))


def device_name(device: str | None = None) -> str:
    """The GPU's name as its driver gives it, or "CPU (n threads)"."""
    device = device or runtime.device()
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.get_num_threads()} threads)"


HEAD_START = 2_000_000  # cycles, about 1 ms: longer than Python takes to queue one call of any kernel here


class _CpuClock:
    def measure(self, function: Callable[[], object]) -> float:
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) * 1e3


class _CudaClock:
    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
        self.flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device=self.device)

    def measure(self, function: Callable[[], object]) -> float:
        with torch.cuda.device(self.device):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.flush.zero_()  # overwrites the L2
            torch.cuda._sleep(HEAD_START)  # keeps the GPU busy while the CPU queues the work to be timed
            start.record()
            function()
            end.record()
            end.synchronize()  # wait: until here the work was only queued
            return start.elapsed_time(end)
