"""Lesson 09's ladder as a table: each step's time beside the step it changes and SDPA's flash kernel, and what explains it.

What can be known before a step runs is worked out here: the programs that share a multiprocessor, from COMPILED; how well
programs of unequal length fill the GPU, by idle(); the bytes that pass the L2 and DRAM, by traffic/schedule.py and cache.py.
Registers, DRAM bytes and tensor cores as the counters saw them come from traffic/counter_records.py, where they are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from html import escape
from typing import NamedTuple

import numpy as np

from flashlab.bench.dram import scheduled
from flashlab.bench.records import Record, stale
from flashlab.bench.report import columns
from flashlab.bench.tiles_taken import blocks, heads_taken
from flashlab.hardware import gpu as gpu_called
from flashlab.kernels import flash1
from flashlab.kernels.steps import STEPS, Step
from flashlab.problem import AttentionProblem
from flashlab.traffic import counter_records, schedule
from flashlab.traffic.cache import DramTraffic, through_l2
from flashlab.traffic.launches import Launch
from flashlab.traffic.model import attention_flops, fused_traffic
from flashlab.traffic.trace import OP_CODE, Trace
from flashlab.traffic.waves import start_times

BESIDE = "sdpa-flash"
GPU = "H200"
REGISTERS, REGISTER_UNIT, WARP = 65_536, 8, 32  # of a multiprocessor of sm_90; a thread's are given in eights; threads of a warp
EXP2_PER_CLOCK = 16  # powers of two a multiprocessor computes in a clock, 8.0 to 9.0 (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions")
SHARED, RESERVED = 228 * 2**10, 2**10  # bytes of a multiprocessor; what each program takes besides its own

# {step: {head_dim: (registers a thread, bytes spilled, bytes of shared memory)}}: Triton 3.6 with ptxas 12.9, sm_90, bfloat16, causal.
# tests/kernels/step_compile.py prints them.
COMPILED = {
    "flash1": {64: (255, 8, 65536), 128: (255, 128, 98304)},
    "small": {64: (56, 0, 10752), 128: (64, 0, 20992)},
    "tiles": {64: (230, 0, 65536), 128: (255, 256, 131072)},
    "all-tiles": {64: (227, 0, 65536), 128: (255, 220, 131072)},
    "divide": {64: (250, 0, 65536), 128: (255, 620, 131072)},
    "e": {64: (230, 0, 65536), 128: (255, 244, 131072)},
    "wide": {64: (255, 0, 81920), 128: (255, 980, 163840)},
    "warps": {64: (113, 0, 65536), 128: (176, 0, 131072)},
    "stages": {64: (113, 0, 81920), 128: (174, 0, 163840)},
    "fit": {64: (168, 8, 73728), 128: (128, 56, 98304)},
    "fold": {64: (168, 8, 73728), 128: (128, 32, 98304)},
    "whole": {64: (168, 0, 73728), 128: (128, 96, 98304)},
    "longest": {64: (168, 0, 73728), 128: (128, 96, 98304)},
    "l2": {64: (168, 0, 73728), 128: (128, 96, 98304)},
    "all-heads": {64: (168, 0, 73728), 128: (128, 96, 98304)},
    "mixed": {64: (168, 0, 73728), 128: (128, 76, 98304)},
    "library": {64: (167, 0, 74752), 128: (128, 8, 98336)},
    "overlap": {64: (251, 0, 91136), 128: (193, 0, 114720)},
}


def tile_of(step: Step, head_dim: int):
    return step.tile(head_dim) if step.tiles else flash1.TILES[head_dim]


def programs(name: str, head_dim: int) -> int:
    """How many programs of this step share a multiprocessor of an H100 or H200: what registers, shared memory and warps allow.

    >>> programs("warps", 128), programs("fit", 128)
    (1, 2)
    """
    registers, _, shared = COMPILED[name][head_dim]
    warps = tile_of(STEPS[name], head_dim).warps
    a_warp = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * WARP
    return min(REGISTERS // (a_warp * warps), SHARED // (shared + RESERVED), gpu_called(GPU).warps // warps)


def trace_of(name: str, problem: AttentionProblem) -> Trace:
    """What this step would load and store on this problem, in the order of its programs."""
    step, tile = STEPS[name], tile_of(STEPS[name], problem.head_dim)
    if step.kernel == "step_kernel":
        order = {"one": 1, "l2": heads_taken(problem), "all": problem.batch * problem.heads}[step.heads]
        return schedule.step_schedule(problem, **blocks(tile), heads_at_once=order, longest=step.longest, skip=step.skip)
    if step.kernel == "forward_kernel":
        return schedule.forward_schedule(problem, **blocks(tile), heads_at_once=heads_taken(problem), overlap=tile.overlap)
    return scheduled("flash1_kernel", problem)


def through(name: str, problem: AttentionProblem, gpu: str = GPU) -> DramTraffic:
    """The bytes of this step that pass the L2, and those that reach DRAM, by the cache model: a few seconds for small tiles."""
    return through_l2(trace_of(name, problem), gpu, programs_per_multiprocessor=programs(name, problem.head_dim))


def idle(name: str, problem: AttentionProblem, gpu: str = GPU) -> float:
    """The share of the GPU's slots that stand empty until the last program ends, if a tile of keys takes the same time everywhere.

    Programs start in the order of their numbers; when one ends, the next takes its slot.
    """
    trace = trace_of(name, problem)
    loads = trace.columns["program"][(trace.columns["op"] == OP_CODE["load"]) & (trace.columns["tensor"] == trace.tensor_names.index("k"))]
    lengths = np.bincount(loads)
    slots = gpu_called(gpu).multiprocessors * programs(name, problem.head_dim)
    end = (start_times(lengths, slots) + lengths).max()
    return float(1 - lengths.sum() / (slots * end))


def least_ms(problem: AttentionProblem, gpu: str = GPU) -> dict[str, float]:
    """The least time that each part of a GPU needs for a forward pass, by its data sheet, if it works without a pause.

    >>> {part: round(time, 3) for part, time in least_ms(AttentionProblem(4096, 4096, 64, batch=4, heads=16, causal=True)).items()}
    {'tensor cores': 0.139, 'exponentials': 0.128, 'DRAM': 0.028}
    """
    row, flops = gpu_called(gpu), attention_flops(problem)
    scores = flops / (4 * problem.head_dim)  # each takes part in two products: 4 · head_dim FLOPs
    return {
        "tensor cores": 1e3 * flops / row.peak_flops_per_s(problem.dtype),
        "exponentials": 1e3 * scores / (row.multiprocessors * EXP2_PER_CLOCK * row.boost_clock_hz),
        "DRAM": 1e3 * fused_traffic(problem).bytes_moved / row.hbm_bytes_per_s,
    }


class Rung(NamedTuple):
    """One step of a Ladder: its record, that of the step it changes, SDPA's, and its launch as counted; None where there is none."""

    step: Step
    table: Ladder

    @property
    def record(self) -> Record | None:
        return self.table.records.get(f"steps/{self.step.name}")

    @property
    def before(self) -> Record | None:
        return self.table.records.get(f"steps/{self.step.after}")

    @property
    def sdpa(self) -> Record | None:
        return self.table.records.get(BESIDE)

    @property
    def counted(self) -> Launch | None:
        return self.table.counters.get(self.step.name)

    @property
    def gain(self) -> float | None:
        """How many times as fast as the step it changes."""
        return self.before.time_ms / self.record.time_ms if self.before and self.record else None

    @property
    def against_sdpa(self) -> float | None:
        """How many times as fast as SDPA's flash kernel of the same run."""
        return self.sdpa.time_ms / self.record.time_ms if self.sdpa and self.record else None


class Ladder:
    """Steps on one problem, in the ladder's order; shown as a table. `ladder["fit"]` is a Rung."""

    def __init__(self, names: Sequence[str], problem: AttentionProblem, records: Iterable[Record]) -> None:
        self.names, self.problem = list(names), problem
        self.records = {one.kernel: one for one in records}

    @cached_property
    def counters(self) -> dict[str, Launch]:
        """{step: its launch as the counters saw it}, the newest record of each; what is stale is left out."""
        found, key = {}, counter_records.sizes(self.problem)
        for one in sorted(counter_records.load(), key=lambda one: one.date):
            kind, _, name = one.counted.workload.partition("/")
            if kind == "steps" and counter_records.sizes(one.counted.problem) == key and not counter_records.stale(one):
                found |= {name: launch for launch in one.counted.launches if launch.kernel == STEPS[name].kernel}
        return found

    def __getitem__(self, name: str) -> Rung:
        return Rung(STEPS[name], self)

    def __iter__(self):
        return map(self.__getitem__, self.names)

    @property
    def device(self) -> str:
        """What the records were measured on, or "" where there are none."""
        return next((one.device for one in self.records.values()), "")

    def points(self) -> list[tuple[str, float, float | None]]:
        """(step, FLOP for each byte of DRAM, FLOP/s or None where it was not timed) of each step: for a roofline.

        The bytes are the counters', or the L2 model's where a step was not counted; a step of your own that has neither is left out.
        """
        flops, known = attention_flops(self.problem), (rung for rung in self if rung.counted or rung.step.name in COMPILED)
        return [(rung.step.name, flops / self.dram_bytes(rung.step.name), rung.record and rung.record.tflops * 1e12) for rung in known]

    def dram_bytes(self, name: str) -> int:
        """Bytes read from DRAM and written to it, counted, or by the L2 model."""
        found = self.counters.get(name) or through(name, self.problem)
        return found.dram_bytes_read + found.dram_bytes_written

    def rows(self) -> list[tuple[str, ...]]:
        """The table as text, its head first."""
        head = ("step", "changes", "kept", "ms", "TFLOP/s", "× its step", "× SDPA", "programs", "registers", "spilled", "DRAM MB", "tensor")
        found = [head]
        for rung in self:
            step, one, launch = rung.step, rung.record, rung.counted
            known = ("–",) * 3  # a step of your own
            if step.name in COMPILED:
                registers, spilled, _ = COMPILED[step.name][self.problem.head_dim]
                known = (str(programs(step.name, self.problem.head_dim)), str(registers), str(spilled))
            dram = _text(launch and (launch.dram_bytes_read + launch.dram_bytes_written) / 1e6, "{:,.0f}")
            busy = _text(launch and launch.tensor_percent, "{:.0f}%")
            times = (_text(rung.gain, "{:.2f}") + (f" {step.after}" if step.after else ""), _text(rung.against_sdpa, "{:.2f}"))
            found.append((step.name, step.changes, "yes" if step.kept else "no", _text(one and one.time_ms, "{:,.3f}"), _text(one and one.tflops, "{:,.0f}"), *times, *known, dram, busy))
        return found

    def _title(self) -> str:
        p = self.problem
        what = f"batch {p.batch}, heads {p.heads}, n {p.n_q:,}, head_dim {p.head_dim}, {'causal' if p.causal else 'full'}, {p.dtype}"
        old = "; stale: the code has changed since" if any(map(stale, self.records.values())) else ""
        return f"{what}; {self.device or 'not measured yet'}{old}. Programs, registers and spilled bytes: compiled for sm_90."

    def __repr__(self) -> str:
        return f"{self._title()}\n{columns(self.rows())}"

    def _repr_html_(self) -> str:
        head, *rows = ([escape(cell) for cell in row] for row in self.rows())
        body = "".join("<tr>" + "".join(f"<td style='text-align:{'left' if i < 3 else 'right'}{'' if i == 1 else ';white-space:nowrap'}'>{cell}</td>" for i, cell in enumerate(row)) + "</tr>" for row in rows)
        titles = "".join(f"<th style='text-align:{'left' if i < 3 else 'right'}'>{cell}</th>" for i, cell in enumerate(head))
        return f"<p>{escape(self._title())}</p><table><tr>{titles}</tr>{body}</table>"


def _text(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
