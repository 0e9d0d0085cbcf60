"""All figures of a benchmark as PNG files, on a white ground: readable on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flashlab.bench.ceilings import Ceilings
from flashlab.bench import lengths
from flashlab.bench.figures import growth_against_n, tflops_against_n
from flashlab.bench.length_figures import memory_against_length, speedup_against_length, time_against_length
from flashlab.bench.peers import PASSES
from flashlab.bench.record_figures import memory_against_n, roofline_of, speedup_against_n
from flashlab.bench.records import Record
from flashlab.bench.three_ways_figure import recorded_bytes


def draw_all(
    records: Iterable[Record], what: str, folder: Path, ceilings: dict[str, Ceilings] | None = None, run: lengths.Run | None = None
) -> list[Path]:
    """Draw what the records allow, device by device, each with its own of {device: ceilings}; returns the files. What they do not
    allow is said and left out. `run` is what was just measured of lengths, whose missing cells no record tells.
    """
    records, drawn = list(records), []
    folder.mkdir(parents=True, exist_ok=True)
    for device in dict.fromkeys(one.device for one in records):
        here = [one for one in records if one.device == device]
        for name, draw in _figures(here, what, (ceilings or {}).get(device), run):
            path = folder / f"{device.lower().replace(' ', '-')}-{name}.png"
            try:
                draw().savefig(path, dpi=110, facecolor="white")
            except LookupError as why:
                print(f"not drawn: {path.name}: {why.args[0]}")
            else:
                drawn.append(path)
    return drawn


def _figures(records: list[Record], what: str, ceilings: Ceilings | None, run: lengths.Run | None):
    """(name, what draws it) of each figure that a command is about."""
    if what == "growth":
        for pass_ in PASSES:
            yield f"{pass_}-growth", lambda pass_=pass_: growth_against_n(records, pass_)
        return
    if what == "lengths":
        run = run or lengths.recorded(records)
        if run:
            yield "lengths-speedup", lambda: speedup_against_length(run)
            yield "lengths-time", lambda: time_against_length(run)
            yield "lengths-memory", lambda: memory_against_length(run)
        return
    device = records[0].device
    for head_dim in sorted({one.head_dim for one in records}):
        for causal in (False, True):
            options = {"head_dim": head_dim, "causal": causal}
            end = f"{head_dim}-{'causal' if causal else 'full'}"
            yield f"{what}-tflops-{end}", lambda o=options: tflops_against_n(records, what, **o)
            yield f"{what}-speedup-{end}", lambda o=options: speedup_against_n(records, "sdpa-flash", what, **o)
            yield f"{what}-memory-{end}", lambda o=options: memory_against_n(records, what, **o)
            yield f"{what}-roofline-{end}", lambda o=options: roofline_of(records, what, **o, ceilings=ceilings)
            yield f"{what}-bytes-{end}", lambda o=options: recorded_bytes(device, what, **o)
