"""The L2 model held against the GPU's counters, launch by launch: a table that says how many cases are within 10 %.

    accuracy(by_launch(load()), modelled)      traffic/counter_records.py · bench/dram.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flashlab.traffic.cache import DramTraffic


@dataclass(frozen=True)
class Compared:
    """One kernel launch: the model's DRAM bytes beside the counters'. A ratio is model / counters."""

    record: Mapping
    model: DramTraffic

    @property
    def read(self) -> float:
        return _ratio(self.model.dram_bytes_read, self.record["dram_bytes_read"])

    @property
    def written(self) -> float:
        return _ratio(self.model.dram_bytes_written, self.record["dram_bytes_written"])

    @property
    def moved(self) -> float:
        """Of bytes read and written together: the one that decides, since a kernel may write next to nothing."""
        return _ratio(
            self.model.dram_bytes_read + self.model.dram_bytes_written, self.record["dram_bytes_read"] + self.record["dram_bytes_written"]
        )


def _ratio(model: int, counted: float) -> float:
    if counted:
        return model / counted
    return float("inf") if model else 1.0


class Accuracy(list):
    """The Compared of every record; its repr is the table, and it says how many are within `tolerance`."""

    tolerance = 0.10

    def within(self, tolerance: float | None = None) -> float:
        """The share of cases whose bytes moved are within `tolerance` of the counters'; 1 where there are none."""
        near = [abs(case.moved - 1) <= (self.tolerance if tolerance is None else tolerance) for case in self]
        return sum(near) / len(near) if near else 1.0

    def misses(self) -> list[Compared]:
        """The cases outside the tolerance, the worst first."""
        return sorted((c for c in self if abs(c.moved - 1) > self.tolerance), key=lambda c: -abs(c.moved - 1))

    def __repr__(self) -> str:
        lines = [f"{'kernel':<16}{'n':>7}{'head_dim':>9}{'causal':>7}{'heads':>6}{'batch':>6}{'counted MB':>12}{'model/counted':>15}{'read':>7}{'written':>9}"]
        for case in self:
            r = case.record
            counted = (r["dram_bytes_read"] + r["dram_bytes_written"]) / 1e6
            lines.append(
                f"{r['kernel']:<16}{r['n']:>7}{r['head_dim']:>9}{'yes' if r['causal'] else 'no':>7}{r['heads']:>6}{r['batch']:>6}"
                f"{counted:>12,.1f}{case.moved:>15.2f}{case.read:>7.2f}{case.written:>9.2f}"
            )
        return "\n".join([*lines, self.verdict()])

    def verdict(self) -> str:
        """Such as "3 of 4 within 10% of the counters."."""
        return f"{round(self.within() * len(self))} of {len(self)} within {self.tolerance:.0%} of the counters."

    def summary(self) -> str:
        """The table in short: for each kernel and head_dim the least and the most of model / counted, moved and read, and how many are near."""
        groups: dict[tuple, Accuracy] = {}
        for case in self:
            groups.setdefault((case.record["kernel"], case.record["head_dim"]), Accuracy()).append(case)
        lines = [f"{'kernel':<16}{'head_dim':>8}{'moved':>16}{'read':>16}{f'within {self.tolerance:.0%}':>14}"]
        for (kernel, head_dim), cases in groups.items():
            moved, read = (f"{min(ratios):.2f} to {max(ratios):.2f}" for ratios in ([c.moved for c in cases], [c.read for c in cases]))
            lines.append(f"{kernel:<16}{head_dim:>8}{moved:>16}{read:>16}{f'{len(cases) - len(cases.misses())} of {len(cases)}':>14}")
        return "\n".join([*lines, self.verdict()])


def accuracy(records: Iterable[Mapping], model: Callable[[Mapping], DramTraffic | None]) -> Accuracy:
    """The model beside the counters, for each record that the model knows.

    A record is a mapping with kernel, n, head_dim, causal, heads, batch, dram_bytes_read and dram_bytes_written, such as
    counter_records.by_launch() gives. `model` turns one into a DramTraffic, or None for a kernel without a schedule, such as cuBLAS's:
    the caller knows which tiles the kernel took.
    """
    return Accuracy(Compared(record, found) for record in records if (found := model(record)) is not None)
