"""Records of lab 1's grid as an H200 might give them, in round numbers, for the tests of lengths.py and of what is made of them."""

from dataclasses import replace

from flashlab.bench.lengths import MATH, NAMES, decode_problems, extra_by_formula, problems
from flashlab.bench.records import record
from flashlab.bench.timing import Timing

ALL = [*problems(), *decode_problems()]
H200 = "NVIDIA H200"


def made(p, kernel, time_ms, *, date="2026-01-01T00:00:00+00:00", device=H200, low=1.0, **changes):
    """A record; `low` is its 20th percentile over its median."""
    timing = Timing(time_ms, time_ms * low, time_ms, 5, "")
    one = record(kernel, "forward", p, timing, date=date, device="cpu", extra_bytes=extra_by_formula(kernel, p))
    return replace(one, device=device, **changes)


def made_run(**changes):
    """Math, flash and ours take 12, 2 and 1 ms for each n of 512, and math has room up to 140 GB."""
    return [
        made(p, kernel, ms * p.n_q / 512, **changes)
        for p in ALL
        for kernel, ms in zip(NAMES, (12, 2, 1))
        if kernel != MATH or extra_by_formula(MATH, p) < 140e9
    ]
