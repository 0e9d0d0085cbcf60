"""Time a callable honestly: warm it up, give it new numbers, empty the cache, wait for it, repeat, and report the spread.

A GPU works behind the program's back: a call returns once the work is queued. So on CUDA the clock is the GPU's own
(events recorded around the work), and on a CPU it is time.perf_counter. Before each repeat a GPU's L2 is overwritten,
so that inputs come from HBM as they would in a real model, and the GPU is kept busy while Python queues the call, so
that a time is the GPU's alone: what Python and the driver take to queue a call is in nobody's figure. A CPU's caches are
left as they are. The median is the result; p20 and p80 say how far to trust it. What a clock can be fooled by, and how it
is found out, is in honest.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns, sleep  # bound here: whoever replaces time.perf_counter later changes nothing

import numpy as np
import torch

from flashlab import runtime
from flashlab.bench import honest
from flashlab.bench.memory import out_of_memory_explained
from flashlab.bench.turn import turn
from flashlab.errors import error
from flashlab.problem import check_size

WIDE = 0.10  # a spread above this is said wherever the timing is shown; on an idle H200 3 of the first 543 records passed 0.05, none 0.07
MOST_REPEATS = 1000
# How long a GPU works after a call has returned is asked again, after a pause, until the answers that agree are enough, or those
# against the call weigh more after AUDIT_S seconds. One that agrees is enough, unless its own events tell more than the timed calls'
# did and DISTURBED_MS: then others had the GPU in between, and it proves little. Beside seven processes on an H200 94 to 100 of 100
# answers to an honest call agreed, but also 24 to 44 to one that works on another stream. So then they must lead by AUDIT_LEAD, and
# each answer against weighs as much as AUDIT_AGAINST that agree.
AUDIT_S, AUDIT_PAUSE_S, AUDIT_LEAD, AUDIT_AGAINST, DISTURBED_MS = 2.0, 0.01, 8, 3, 0.3


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, 20th and 80th percentile of `repeats` calls on `device`."""

    time_ms: float
    p20_ms: float
    p80_ms: float
    repeats: int
    device: str

    @property
    def spread(self) -> float:
        """From the 20th to the 80th percentile, as a share of the median: 0.1 is 10 %."""
        return spread(self.time_ms, self.p20_ms, self.p80_ms)

    def __repr__(self) -> str:
        text = f"{self.time_ms:.3g} ms (p20 {self.p20_ms:.3g}, p80 {self.p80_ms:.3g}; {self.repeats} repeats on {self.device})"
        return text + (f"; noisy: the spread is {self.spread:.0%} of the median" if self.spread > WIDE else "")


def spread(time_ms: float, p20_ms: float, p80_ms: float) -> float:
    """(p80 - p20) / median; 0 where the median is 0."""
    return (p80_ms - p20_ms) / time_ms if time_ms else 0.0


def time_call(
    function: Callable[[], object],
    *,
    device: str | None = None,
    fresh: Callable[[], object] | None = None,
    expected: Callable[[], object] | None = None,
    warmup_ms: float = 100,
    budget_ms: float = 500,
    least: int = 5,
    most_spread: float | None = None,
) -> Timing:
    """Time `function()`: warm up for about `warmup_ms`, then repeat for about `budget_ms`, at least `least` times, however many.

    `device` is where it works, "cuda", "cuda:1" or "cpu"; by default where flashlab's kernels run (runtime.device()).
    `fresh()` puts new numbers into the inputs before each call, outside the clock; `expected()` gives the right result
    for the inputs as they are. With either, the function must return its result, and one that it did not compute is
    refused. Raises RuntimeError for what honest.py finds, and for a spread above `most_spread`; TypeError for a result that is
    no tensor; ValueError for another device; TimeoutError where the GPU stayed taken (turn.py); MemoryError; whatever the
    function raises.

    >>> x = torch.zeros(8, 8)
    >>> time_call(lambda: x @ x, device="cpu", fresh=x.normal_, warmup_ms=0, budget_ms=0).repeats
    5
    """
    least = check_size("least", least)
    device = _checked(device or runtime.device())
    with turn(device), current(device), out_of_memory_explained(device):
        clock = _CudaClock(device) if torch.device(device).type == "cuda" else _CpuClock()
        witness = honest.Witness(device, fresh, expected)
        witness.first(function)  # compiles, allocates, loads libraries: not even warm-up
        warm = [_once(clock, function, witness)]
        while sum(warm) < warmup_ms and len(warm) < MOST_REPEATS:
            warm.append(_once(clock, function, witness))
        repeats = max(least, int(min(budget_ms / max(np.median(warm), 1e-3), MOST_REPEATS)))
        times = [_once(clock, function, witness) for _ in range(repeats)]
        p20, median, p80 = np.percentile(times, (20, 50, 80)).tolist()
        witness.last()
        clock.audit(function, median)
    timing = Timing(median, p20, p80, repeats, device_name(device))
    if most_spread is not None and timing.spread > most_spread:
        raise error("timed_spread", given=timing.spread, most=most_spread, timing=timing)
    return timing


def _checked(device: str) -> str:
    """`device`, where a clock here is right for it. Raises ValueError: on any other a CPU's clock would tell a time, and a false one."""
    here = torch.cuda.device_count()
    try:
        kind, number = torch.device(device).type, torch.device(device).index or 0
    except RuntimeError:  # no name of a device
        kind, number = "", 0
    if kind != "cpu" and not (kind == "cuda" and number < here):
        raise error("timed_device", given=str(device), allowed=", ".join(["cpu", *(f"cuda:{n}" for n in range(here))]))
    return device


def _once(clock: _CpuClock | _CudaClock, function: Callable[[], object], witness: honest.Witness) -> float:
    witness.before()
    time_ms, result = clock.measure(function)
    witness.after(result)
    return time_ms


def current(device: str) -> AbstractContextManager:
    """Hold this around the calls: a kernel that is launched on the current GPU is launched on this one."""
    return torch.cuda.device(device) if torch.device(device).type == "cuda" else nullcontext()


def device_name(device: str | None = None) -> str:
    """The GPU's name as its driver gives it, or "CPU (n threads)"."""
    device = device or runtime.device()
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.get_num_threads()} threads)"


HEAD_START = 2_000_000  # cycles, about 1 ms: longer than Python takes to queue one call of any kernel here


def _other_clock_ms() -> float:
    """A second clock, asked in another way than the first: who replaces one forgets the other."""
    return perf_counter_ns() / 1e6


class _CpuClock:
    def __init__(self) -> None:
        self.told: list[float] = []  # ms of each repeat by the one clock, and by the other
        self.other: list[float] = []

    def measure(self, function: Callable[[], object]) -> tuple[float, object]:
        busy = honest.gpu_busy()
        before = _other_clock_ms()
        start = perf_counter()
        result = function()
        time_ms = (perf_counter() - start) * 1e3
        self.other.append(_other_clock_ms() - before)
        self.told.append(time_ms)
        honest.check_place(result, busy)
        return time_ms, result

    def audit(self, function: Callable[[], object], time_ms: float) -> None:
        # Medians, since a busy computer may stop this process between the two clocks, now and then. Of a thousand calls at most: to
        # read the clocks takes up to a microsecond a call, and what check_clocks allows for it in all does not grow with `least`.
        calls = min(len(self.told), MOST_REPEATS)
        honest.check_clocks(*(calls * float(np.median(times)) for times in (self.told, self.other)))


class _CudaClock:
    """To be used where its device is the current one."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
        self.flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device=self.device)

    def measure(self, function: Callable[[], object]) -> tuple[float, object]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()  # overwrites the L2
        torch.cuda._sleep(HEAD_START)  # keeps the GPU busy while the CPU queues the work to be timed
        start.record()
        result = function()
        end.record()
        end.synchronize()  # wait: until here the work was only queued
        return honest.elapsed_ms(start, end), result

    def audit(self, function: Callable[[], object], time_ms: float) -> None:
        """Hold the events' time against how long the whole GPU works after a call has returned, by the computer's clock."""
        until, lead = perf_counter() + AUDIT_S, 0
        while True:
            told_ms, worked_ms, late_ms = self._after_return(function)
            try:  # a call that others slow down takes longer than those that were timed, and its own events say so
                honest.check_work(max(time_ms, told_ms), worked_ms=worked_ms + late_ms, late_ms=late_ms)
                lead += 1
            except RuntimeError:
                lead -= AUDIT_AGAINST
                if lead < 0 and perf_counter() > until:
                    raise
            else:
                undisturbed = told_ms <= honest.CLOCKS_APART * time_ms + DISTURBED_MS
                if undisturbed or lead >= AUDIT_LEAD:
                    return
            sleep(AUDIT_PAUSE_S)

    def _after_return(self, function: Callable[[], object]) -> tuple[float, float, float]:
        """ms of one call by its events; from its return to the end of its own stream's work; from there to the end of all work."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        start.record()
        start.synchronize()  # another process's time on the GPU, if it is its turn, comes before the start
        result = function()  # noqa: F841, held, so that freeing it is not timed
        returned = _other_clock_ms()
        end.record()
        end.synchronize()
        ended = _other_clock_ms()
        torch.cuda.synchronize(self.device)
        return honest.elapsed_ms(start, end), ended - returned, _other_clock_ms() - ended
