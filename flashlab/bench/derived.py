"""What follows from a record: bytes a second, how near it came to the roofline and to the measured ceilings, and its memory.

The bytes are the least that any kernel must move (q, k, v and o once; for the backward the gradients too), not what this one
moved: that is counted elsewhere. So bytes/s and intensity place a kernel by its task. A rate above what the data sheet
allows is no feat: it is a fault of the measurement, and the sweep refuses it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from flashlab.bench.ceilings import Ceilings
from flashlab.bench.records import Record, stale
from flashlab.bench.timing import spread
from flashlab.hardware import Bound, Gpu, gpu
from flashlab.problem import AttentionProblem
from flashlab.traffic.model import fused_traffic, least_backward_traffic

TOO_FAST = 1.05  # of the data sheet: a clock may run a little above its rated boost


@dataclass(frozen=True)
class Derived:
    """Numbers of one record; a share is None where its ceiling is not known. `peak_bytes` is inputs, results and what came on top."""

    bytes_per_s: float
    intensity: float
    spread: float
    roofline_share: float | None
    matmul_share: float | None
    copy_share: float | None
    peak_bytes: int | None


def derive(one: Record, ceilings: Ceilings | None = None) -> Derived:
    """Everything that follows from a record, with the ceilings measured on its device where there are some."""
    bound, seconds = bound_of(one), one.time_ms / 1e3
    moved, flops = least_bytes(one), one.tflops * 1e12 * seconds
    known = ceilings if ceilings and ceilings.device == one.device else None
    return Derived(
        bytes_per_s=moved / seconds,
        intensity=flops / moved,
        spread=spread(one.time_ms, one.p20_ms, one.p80_ms),
        roofline_share=bound.time_s / seconds if bound else None,
        matmul_share=one.tflops * 1e12 / known.flops_per_s if known and known.dtype == one.dtype else None,
        copy_share=moved / seconds / known.bytes_per_s if known else None,
        peak_bytes=None if one.extra_bytes is None else moved + one.extra_bytes,
    )


def least_bytes(one: Record) -> int:
    """The bytes that a kernel must move for this record's problem."""
    p = AttentionProblem(one.n_q, one.n_k, one.head_dim, batch=one.batch, heads=one.heads, kv_heads=one.kv_heads, dtype=one.dtype)
    return (fused_traffic(p) if one.pass_ == "forward" else least_backward_traffic(p)).bytes_moved


def bound_of(one: Record) -> Bound | None:
    """The roofline's bound, None for a device or dtype that hardware.py does not know."""
    row = known_gpu(one.device)
    if row is None or one.dtype not in row.flops_per_s:
        return None
    return Bound(row, one.dtype, round(one.tflops * one.time_ms * 1e9), least_bytes(one))


def known_gpu(device: str) -> Gpu | None:
    """The data sheet of a device, by the name that its driver gives it."""
    try:
        return gpu(device)
    except KeyError:
        return None


def impossible(one: Record) -> str | None:
    """Why this record cannot be true, None where it can: faster than the roofline of its GPU's data sheet."""
    bound = bound_of(one)
    if bound is None or bound.time_s <= TOO_FAST * one.time_ms / 1e3:
        return None
    what = "TFLOP/s" if bound.binds == "compute" else "GB/s"
    rate, most = (
        (one.tflops, bound.gpu.peak_flops_per_s(one.dtype) / 1e12)
        if bound.binds == "compute"
        else (bound.bytes_moved / one.time_ms / 1e6, bound.gpu.hbm_bytes_per_s / 1e9)
    )
    return f"impossible: {rate:,.0f} {what}, but {bound.gpu.product} does at most {most:,.0f}; it did not do the work, or not in this time"


def write_csv(records: Iterable[Record], path: Path, ceilings: dict[str, Ceilings] | None = None) -> None:
    """One line for each record: its fields, what is derived from it with {device: ceilings}, and whether it is stale."""
    names = [field.name for field in fields(Record)] + [field.name for field in fields(Derived)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, [name.rstrip("_") for name in names] + ["stale"])
        lines.writeheader()
        for one in records:
            values = asdict(one) | asdict(derive(one, (ceilings or {}).get(one.device))) | {"stale": stale(one)}
            lines.writerow({name.rstrip("_"): value for name, value in values.items()})
