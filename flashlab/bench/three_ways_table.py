"""The table of three_ways.py, as text and as HTML, and what must be said with its numbers."""

from __future__ import annotations

from html import escape

from flashlab.problem import AttentionProblem
from flashlab.traffic import model

ASKED, DRAM = "asked for (MB)", "DRAM (MB)"
COLUMNS = {
    (ASKED, "predicted"): lambda row: row.predicted_bytes,
    (ASKED, "traced"): lambda row: row.traced and row.traced.moved,
    (ASKED, "measured"): lambda row: row.measured_sm and row.measured_sm.moved,
    (DRAM, "modelled"): lambda row: row.modelled_dram and row.modelled_dram.moved,
    (DRAM, "measured"): lambda row: row.measured_dram and row.measured_dram.moved,
    (DRAM, "read"): lambda row: row.measured_dram and row.measured_dram.read,
    (DRAM, "written"): lambda row: row.measured_dram and row.measured_dram.written,
}


class ThreeWays(list):
    """The rows; shown as a table. A column that no row has a number for is left out."""

    def __init__(self, rows, problem: AttentionProblem, pass_: str) -> None:
        super().__init__(rows)
        self.problem, self.pass_ = problem, pass_

    def columns(self) -> dict[tuple[str, str], list[str]]:
        """{(group, column): a text for each row}, in MB (1e6 bytes)."""
        values = {column: [value(row) for row in self] for column, value in COLUMNS.items()}
        return {column: ["-" if n is None else f"{n / 1e6:,.1f}" for n in ns] for column, ns in values.items() if set(ns) != {None}}

    def title(self) -> str:
        p = self.problem
        least, what = (model.fused_traffic, "q, k, v and o") if self.pass_ == "forward" else (model.least_backward_traffic, "inputs and gradients")
        n = f"n {p.n_q:,}" if p.n_q == p.n_k else f"n_q {p.n_q:,}, n_k {p.n_k:,}"
        sizes = f"{n}, head_dim {p.head_dim}, {'causal' if p.causal else 'full'}, batch {p.batch}, {p.heads} heads, {p.dtype}"
        return f"{self.pass_}, {sizes}; {what} once are {least(p).bytes_moved / 1e6:,.1f} MB"

    def notes(self) -> list[str]:
        """What must be said with the numbers: whether formula and trace agree, where the measured ones are from, what is left out."""
        both = [row for row in self if row.traced]
        differ = [row.workload for row in both if row.predicted_bytes != row.traced.moved]
        agree = f"predicted and traced differ: {', '.join(differ)}" if differ else "predicted and traced agree to the byte"
        places: dict[str, list[str]] = {}
        for row in self:
            stand_in = f"; traced and modelled as on an {row.device}, one program a multiprocessor" if row.traced and not row.measured_dram else ""
            places.setdefault(row.where.partition(". ")[0] + stand_in, []).append(row.workload)
        where = [place if len(places) == 1 else f"{', '.join(names)}: {place}" for place, names in places.items()]
        left_out = [f"{row.workload}: without {row.left_out} launches of torch's own" for row in self if row.left_out]
        return [agree] * bool(both) + where + left_out

    def __repr__(self) -> str:
        columns = self.columns()
        width = {column: max(map(len, [*texts, column[1]])) + 2 for column, texts in columns.items()}
        first = max([len(row.workload) for row in self] + [8])
        groups = {group: sum(width[column] for column in columns if column[0] == group) for group in dict.fromkeys(group for group, _ in columns)}
        lines = [" " * first + "".join(f"{'  ' + group:{wide + 2}}" for group, wide in groups.items())]
        gap = {column: "  " if i and column[0] != list(columns)[i - 1][0] else "" for i, column in enumerate(columns)}
        lines.append("workload".ljust(first) + "".join(gap[column] + column[1].rjust(width[column]) for column in columns))
        for i, row in enumerate(self):
            lines.append(row.workload.ljust(first) + "".join(gap[column] + texts[i].rjust(width[column]) for column, texts in columns.items()))
        return "\n".join([self.title(), *(line.rstrip() for line in lines), *self.notes()])

    def _repr_html_(self) -> str:
        columns, right = self.columns(), ' style="text-align: right"'
        groups = {group: sum(group == other for other, _ in columns) for group in dict.fromkeys(group for group, _ in columns)}
        head = "".join(f'<th colspan="{many}" style="text-align: center">{group}</th>' for group, many in groups.items())
        names = "".join(f"<th{right}>{column}</th>" for _, column in columns)
        cells = ["".join(f"<td{right}>{texts[i]}</td>" for texts in columns.values()) for i in range(len(self))]
        body = "".join(f'<tr><th style="text-align: left">{escape(row.workload)}</th>{cell}</tr>' for row, cell in zip(self, cells))
        return (
            f"<p>{escape(self.title())}</p><table><thead><tr><td></td>{head}</tr><tr><th>workload</th>{names}</tr></thead>"
            f"<tbody>{body}</tbody></table><p>{'<br>'.join(map(escape, self.notes()))}</p>"
        )

    def figure(self):
        """The table as a matplotlib Figure."""
        from flashlab.bench.three_ways_figure import draw  # not at the top: matplotlib is slow to load

        return draw(self)
