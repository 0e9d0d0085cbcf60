"""The table of lab 1's instructor page: what each recorded GPU gave, written between two marks by one command.

    flashlab bench lengths --page notebooks/labs/lab1_speedup_vs_length.md

It writes what is recorded; with a GPU, what that GPU gives now as well. A test holds the page to the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flashlab.bench.lengths import BATCHES, COMMAND, FLASH, MATH, OURS, on_grid, recorded, too_large
from flashlab.bench.records import Record
from flashlab.errors import error

MARK = "<!-- recorded -->"
NOTHING = f"*No GPU has recorded this grid yet: `{COMMAND}` on a CUDA GPU, then the same with `--page` and this file.*"
HEADINGS = (
    "GPU", "batch", "flash, n = 512", "flash, n = 4,096", "flash, longest that math can", "flashlab, n = 512", "flashlab, n = 4,096",
    "one query: flash", "one query: flashlab", "math's extra memory, n = 4,096", "no room for math from",
)  # fmt: skip


def page_table(found: Iterable[Record]) -> str:
    """Markdown: a row for each GPU and batch, speed-ups over math; a sentence where nothing is recorded."""
    found = on_grid(found)
    rows = [row for device in sorted({one.device for one in found}) for row in _rows(found, device)]
    if not rows:
        return NOTHING
    return "\n".join(f"| {' | '.join(row)} |" for row in (HEADINGS, ("---",) * len(HEADINGS), *rows))


def around(page: Path) -> list[str]:
    """The page's text, parted at its two marks. Raises LookupError where they are not there."""
    parts = page.read_text(encoding="utf-8").split(MARK) if page.is_file() else []
    if len(parts) != 3:
        raise error("page_marks", page=page, mark=MARK)
    return parts


def fill(page: Path, found: Iterable[Record]) -> None:
    """Put the table between the page's two marks. Raises LookupError where they are not there."""
    parts = around(page)
    page.write_text(f"{parts[0]}{MARK}\n{page_table(found)}\n{MARK}{parts[2]}", encoding="utf-8")


def _rows(found: list[Record], device: str) -> list[tuple[str, ...]]:
    run = recorded(found, device)
    rows = []
    for batch in BATCHES:
        ns = run.lengths(batch)
        last = max((n for n in ns if run.speedup(n, batch)), default=None)
        full = [n for n in ns if too_large(run.cell(MATH, n, batch))]
        math = run.cell(MATH, 4096, batch)
        ratios = [run.speedup(n, batch, kernel=kernel) for kernel, n in ((FLASH, 512), (FLASH, 4096), (OURS, 512), (OURS, 4096))]
        single = [run.speedup(run.decoded(), batch, kernel=kernel, queries=1) for kernel in (FLASH, OURS)]
        longest = f"{_times(run.speedup(last, batch))} (n = {last:,})" if last else "-"
        memory = f"{math.extra_bytes / 1e9:.1f} GB" if isinstance(math, Record) and math.extra_bytes else "-"
        rows.append((
            device, str(batch), *map(_times, ratios[:2]), longest, *map(_times, ratios[2:]), *map(_times, single),
            memory, f"n = {min(full):,}" if full else "-",
        ))  # fmt: skip
    return rows


def _times(ratio: float | None) -> str:
    return f"{ratio:.1f} ×" if ratio else "-"
