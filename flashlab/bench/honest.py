"""What fools a clock, and how each is found out: the harness reports the truth or refuses, and says which of these it was.

    returns before its work is done     its result goes on changing after the return; on a GPU, the device is still busy
                                        when the call's own stream is not (work on another stream)
    keeps an old result                 new numbers in the same tensors, the same result: it was not computed
    is right only the first time        the result of the last timed call is compared with `expected`
    replaces the timer                  the functions that tell time are bound when flashlab is imported; a second clock
                                        must agree with them
    works on a GPU, timed as a CPU      its result lies on the GPU, or that is still busy after the return
    is faster than the chip             derived.py: no kernel moves or computes more than the data sheet allows
    finds its inputs in the L2          nothing to refuse: timing.py overwrites the cache before each repeat

Not found: a wrong result where no `expected` is given; on a CPU, work that starts later than SETTLE_S after the return; on a
GPU, work on another stream of less than LATE_MS and LATE_SHARE of the time told, which other processes lengthen.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from flashlab.errors import error

SETTLE_S = 0.1  # how long a result on the CPU is watched after the first call has returned
# The whole GPU may be busy this much longer than the call's stream: waiting itself takes some of it, and after long work more:
# of 372 honest cells on an H200, nine of 15 to 810 ms waited 0.10 to 0.14 ms.
LATE_MS, LATE_SHARE = 0.1, 0.005
CLOCKS_APART, CLOCKS_APART_MS = 1.2, 1.0  # two clocks may differ by this factor and by this much in all
WRONG_BEYOND = 0.02  # of the right result's norm: more than half precision explains
NOTHING_FINITE = "nothing finite"
_elapsed = torch.cuda.Event.elapsed_time  # bound here, before anyone can replace it


def elapsed_ms(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Milliseconds between two recorded events, by the method that Event had when flashlab was imported."""
    return _elapsed(start, end)


def check_clocks(told_ms: float, other_ms: float) -> None:
    """Raises RuntimeError where the timer and the second clock disagree on the time of all repeats together."""
    apart = abs(told_ms - other_ms)
    if apart > CLOCKS_APART_MS and apart > (CLOCKS_APART - 1) * other_ms:
        raise error("timed_clocks", given=told_ms, other=other_ms)


def check_work(told_ms: float, *, worked_ms: float, late_ms: float) -> None:
    """Raises RuntimeError where a GPU worked longer after the call's return than its events tell, or on another stream."""
    if late_ms > LATE_MS + LATE_SHARE * told_ms:
        raise error("timed_elsewhere", given=late_ms, told=told_ms)
    if told_ms * CLOCKS_APART + LATE_MS < worked_ms:
        raise error("timed_clocks", given=told_ms, other=worked_ms)


def gpu_busy() -> bool:
    """Whether work that this process queued on its GPU is still to be done; never True where it has used none."""
    return torch.cuda.is_initialized() and not torch.cuda.current_stream().query()


def check_place(result: object, was_busy: bool) -> None:
    """Raises RuntimeError where a call that a CPU's clock timed worked on a GPU: it returned before the work was done."""
    found = result if isinstance(result, (tuple, list)) else [result]
    where = [str(x.device) for x in found if isinstance(x, torch.Tensor) and x.is_cuda]
    if where or (gpu_busy() and not was_busy):
        raise error("timed_on_gpu", given=where[0] if where else "a GPU")


class Witness:
    """Sees to new inputs before each call and looks at each result after it. Without `fresh` and `expected` it does nothing."""

    def __init__(self, device: str, fresh: Callable[[], object] | None = None, expected: Callable[[], object] | None = None) -> None:
        self.device, self.fresh, self.expected = torch.device(device), fresh, expected
        self.result, self.print = None, None

    def before(self) -> None:
        """New numbers into the inputs."""
        if self.fresh:
            self.fresh()

    def after(self, result: object) -> None:
        """Raises RuntimeError where the result is that of the call before, bit for bit, although the inputs are not."""
        if not (self.fresh or self.expected):
            return
        before, self.print, self.result = self.print, fingerprint(result), result
        if self.fresh and before == self.print:
            if set(self.print) == {NOTHING_FINITE}:
                raise error("timed_not_finite", given=sum(x.numel() for x in tensors(result)))
            raise error("timed_cached", what="inputs")

    def first(self, function: Callable[[], object]) -> None:
        """The first call. Raises RuntimeError where its result changes after the return, or is wrong."""
        self.before()
        self.after(function())
        if self.result is None:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        else:
            time.sleep(SETTLE_S)
        if fingerprint(self.result) != self.print:
            raise error("timed_unfinished", what="result")
        self.last()

    def last(self) -> None:
        """Raises RuntimeError where the newest result is not `expected`, TypeError where that gives no tensor."""
        if self.expected is None:
            return
        right = self.expected()
        given, needed = tensors(self.result), _tensors(right)
        if not needed:
            raise error("timed_expected", given=type(right).__name__)
        shapes = [", ".join(str(tuple(x.shape)) for x in found) for found in (given, needed)]
        if shapes[0] != shapes[1]:  # never broadcast: one row, right as it is, is not a whole result
            raise error("timed_shapes", given=shapes[0], needed=shapes[1])
        off = max(_distance(a, b) for a, b in zip(given, needed))
        if not off <= WRONG_BEYOND:
            raise error("timed_wrong", given=off, most=WRONG_BEYOND)


def tensors(result: object) -> list[torch.Tensor]:
    """The tensors of a result, which is one or a tuple of them. Raises TypeError for anything else: there is nothing to look at."""
    found = _tensors(result)
    if not found:
        raise error("timed_nothing", given=type(result).__name__)
    return found


def _tensors(result: object) -> list[torch.Tensor]:
    found = list(result) if isinstance(result, (tuple, list)) else [result]
    return found if all(isinstance(one, torch.Tensor) for one in found) else []


def fingerprint(result: object) -> tuple[str, ...]:
    """The norm of each tensor, exactly: the same for the same numbers, and hardly ever for others. As text.

    Where it is not finite: that of the numbers that are, and how many are not; NOTHING_FINITE where none is.
    """
    return tuple(_print(_floating(x)) for x in tensors(result))


def _print(x: torch.Tensor) -> str:
    norm = torch.linalg.vector_norm(x, dtype=torch.float64)
    if torch.isfinite(norm):
        return float(norm).hex()
    finite = x[torch.isfinite(x)]
    norm = torch.linalg.vector_norm(finite, dtype=torch.float64)
    return f"{float(norm).hex()} and {x.numel() - finite.numel()} not finite" if len(finite) else NOTHING_FINITE


def _floating(x: torch.Tensor) -> torch.Tensor:
    return x.detach() if x.is_floating_point() else x.double()


def _distance(given: torch.Tensor, needed: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is needed; 0 for two zeros."""
    needed = needed.detach().double()
    off, size = torch.linalg.vector_norm(given.detach().double() - needed), torch.linalg.vector_norm(needed)
    return float(off / size) if size else float(off)
