"""Two files of records side by side: what got faster or slower beyond the noise.

A cell has changed only where the two bands from p20 to p80 do not touch and the medians differ by more than LEAST_CHANGE: the
band is the noise within a run, and two runs of the same code differ by a little more than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from flashlab.bench.records import Record, latest
from flashlab.bench.report import columns

LEAST_CHANGE = 0.02


class Change(NamedTuple):
    """One cell of both files; `verdict` is "faster", "slower" or "same", `ratio` the old time over the new."""

    old: Record
    new: Record
    ratio: float
    verdict: str


def changes(old: Iterable[Record], new: Iterable[Record]) -> list[Change]:
    """The newest record of each cell that both have, slowest change first."""
    before = {_cell(one): one for one in latest(old)}
    found = []
    for one in latest(new):
        if _cell(one) in before:
            found.append(_change(before[_cell(one)], one))
    return sorted(found, key=lambda change: change.ratio)


def _cell(one: Record) -> tuple:
    return (one.kernel, one.device, one.problem)


def _change(old: Record, new: Record) -> Change:
    ratio = old.time_ms / new.time_ms
    large = abs(math.log(ratio)) > math.log(1 + LEAST_CHANGE)
    apart = "faster" if new.p80_ms < old.p20_ms else "slower" if new.p20_ms > old.p80_ms else "same"
    return Change(old, new, ratio, apart if large else "same")


def comparison(old: Iterable[Record], new: Iterable[Record]) -> tuple[str, int]:
    """The comparison as text, and the exit status: 1 where a cell got slower, or where no cell is in both."""
    old, new = latest(old), latest(new)
    found = changes(old, new)
    if not found:
        return f"0 cells in both: the old file has {_kinds(old)}, the new one {_kinds(new)}. Nothing was compared.", 1
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in ("slower", "faster", "same")}
    lines = [f"{len(found)} cells in both: {counts['slower']} slower, {counts['faster']} faster, {counts['same']} the same within the noise."]
    alone = [len(records) - len(found) for records in (old, new)]
    if any(alone):
        lines.append(f"In one file only: {alone[0]} of the old, {alone[1]} of the new.")
    lines += [f"Not the same {what}: {a} before, {b} now." for what, a, b in _settings(found)]
    rows = [("", "kernel", "pass", "head_dim", "mask", "n", "batch", "before (ms)", "now (ms)", "times as fast")]
    for old_one, new_one, ratio, verdict in found:
        if verdict != "same":
            mask, shape = "causal" if new_one.causal else "full", (f"{new_one.n_q:,}", str(new_one.batch))
            times = (f"{old_one.time_ms:,.3f}", f"{new_one.time_ms:,.3f}", f"{ratio:.2f}")
            rows.append((verdict, new_one.kernel, new_one.pass_, str(new_one.head_dim), mask, *shape, *times))
    if len(rows) > 1:
        lines += ["", columns(rows, left=3)]
    return "\n".join(lines), int(counts["slower"] > 0)


def _kinds(records: list[Record]) -> str:
    """What a file is of, pass and device."""
    return ", ".join(sorted({f"{one.pass_} on {one.device}" for one in records})) or "no record"


def _settings(found: list[Change]) -> list[tuple[str, str, str]]:
    """(what, before, now) of what the cells of both files were timed with, of those cells in which it is not the same."""
    settings = []
    for name in ("torch", "triton", "driver", "package", "budget_ms"):
        pairs = [(_setting(old, name), _setting(new, name)) for old, new, *_ in found]
        before, now = (sorted({pair[i] for pair in pairs if pair[0] != pair[1]}) for i in (0, 1))
        settings += [(name, ", ".join(before), ", ".join(now))] * bool(before)
    return settings


def _setting(one: Record, name: str) -> str:
    value = getattr(one, name)
    text = "unknown" if value is None else f"{value:g}" if name == "budget_ms" else value
    return f"{one.kernel} {text}" if name == "package" else text  # each kernel has its own
