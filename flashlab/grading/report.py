"""The reports: one HTML page for each student, one for the class. All that came from outside is escaped, here alone."""

from __future__ import annotations

import html
import json
import re
import statistics

from flashlab.grading.marks import points
from flashlab.grading.plain import plain
from flashlab.grading.spreadsheet import total, usually

WARNING = re.compile(r"^\S.*: RuntimeWarning: .*\n?(?:[ \t]+.*\n?)?", re.MULTILINE)  # NumPy's, and the line of code below it

STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --quiet: #5c5c5c; --page: #fff; --box: #f4f4f4; --line: #ccc; --right: #00785a; --wrong: #b34700; --link: #0058a8 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --quiet: #a8a8a8; --page: #16181b; --box: #23262b; --line: #444a52; --right: #35c9a0; --wrong: #ff9a4d; --link: #7db8ff }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: var(--text); background: var(--page); overflow-wrap: anywhere }
a { color: var(--link) } h1 { font-size: 1.6rem; line-height: 1.25 } h2 { font-size: 1.2rem; margin: 1.8rem 0 .5rem } h3 { font-size: 1rem; margin: 1rem 0 .3rem }
section > h2 { margin-top: 0 } bdi, td, pre { unicode-bidi: isolate }
.wide { overflow-x: auto } table { border-collapse: collapse; min-width: 50% } thead th { border-bottom: 2px solid var(--line); color: var(--quiet); font-weight: 600 }
td, th { padding: .3rem .8rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: normal }
.line { white-space: nowrap } .number { text-align: right; font-variant-numeric: tabular-nums }
pre { background: var(--box); padding: .6rem .8rem; border-radius: 4px; overflow-x: auto; white-space: pre-wrap; font-size: .9rem; line-height: 1.4 }
summary { cursor: pointer; color: var(--quiet) } .numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 0 1rem }
.numbers > .input { grid-column: 1 / -1 }
section { margin: 1.2rem 0; padding: .1rem 0 .1rem 1rem; border-left: 4px solid var(--line) } section > :last-child { margin-bottom: 0 }
.failed { border-color: var(--wrong) } .passed { border-color: var(--right) } .failed > h2 { color: var(--wrong) } .passed > h2 { color: var(--right) }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px }
@media print { :root { --text: #000; --page: #fff; --box: #fff } }
"""


def escaped(text: object) -> str:
    """Text that is only text in HTML, and whose marks of direction and control characters are seen."""
    return html.escape(plain(text), quote=True)


def page(title: str, *parts: str) -> str:
    """A whole HTML page; it loads nothing and runs nothing."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>\n<body>\n<h1>{escaped(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def student_page(record: dict) -> str:
    """What one student reads: each test with its points, and for a failure the input, theirs, expected and what it usually means."""
    parts = [f"<p><b>{points(record['points'], record['possible'])}</b> by the tests of {escaped(record['exercise'])}: {escaped(record['title'])}.</p>"]
    if record.get("words"):
        more = f"; {record['words']:g} points possible" if record.get("by_hand") is None else " points"
        parts.append(f"<p>Answers in words: <b>{in_words(record)}</b>{more}.</p>")
    if record["problem"]:
        parts.append(f"<section class='failed'><p>{escaped(record['problem'])}</p></section>")
    first = next((test["name"] for test in record["tests"] if not test["passed"]), "")
    parts += [_test(test, test["name"] == first) for test in record["tests"]]
    if printed(record):
        parts.append(f"<section><h2>What your code printed</h2><pre>{escaped(printed(record))}</pre></section>")
    return page(f"{record['exercise']}: {record['student']}", *parts)


def in_words(record: dict) -> str:
    """Points of the answers in words, which a person gives: "1.5 of 2", or that there are none yet."""
    hand = record.get("by_hand")
    return "not graded yet" if hand is None else f"{hand:g} of {record['words']:g}"


def printed(record: dict) -> str:
    """What the code printed; right answers without NumPy's warnings, which some processors' matmul gives for finite numbers too."""
    right = bool(record["tests"]) and all(test["passed"] for test in record["tests"])
    return WARNING.sub("", record["printed"]).strip("\n") if right else record["printed"]


def _test(test: dict, first: bool) -> str:
    """One test; the numbers of the first failure are open, those of later ones behind a click."""
    head = f"<h2>{'✓' if test['passed'] else '✗'} {escaped(test['name'])}: {points(test['points'], test['possible'])}</h2>"
    if test["passed"]:
        return f"<section class='passed'>{head}</section>"
    parts = [f"<p>{escaped(test['what'])}</p>"]
    if test["meaning"]:
        name = f"<b>{escaped(test['misconception'])}.</b> " if test["misconception"] else ""
        parts.append(f"<p>What this difference usually means: {name}{escaped(test['meaning'])}</p>")
    numbers = [
        f"<div class='{key}'><h3>{title}</h3><pre>{escaped(test[key])}</pre></div>" for key, title in (("input", "Input"), ("theirs", "Yours"), ("expected", "Expected")) if test[key]
    ]
    if numbers:
        parts.append(f"<details{' open' * first}><summary>The input, yours and expected</summary><div class='numbers'>{''.join(numbers)}</div></details>")
    return f"<section class='failed'>{head}{''.join(parts)}</section>"


def class_page(exercise, records: list[dict], left_out: list[tuple[str, str]], alike: list[tuple[float, str, str]], picture: str, alt: str, notes: list[str] = ()) -> str:
    """What the instructor reads: marks, how often each misconception, and what needs a look."""
    middle = f"{statistics.median([record['points'] for record in records] or [0]):g}"
    rows = [
        (
            f"<a href='reports/{escaped(record['slug'])}.html'>{escaped(record['student'])}</a>", str(record["points"]), f"<span class='line'>{in_words(record)}</span>" if record.get("words") else "",
            escaped(record["first_failure"]), escaped(usually(record)), "late" if record["late"] else "",
        )
        for record in records
    ]  # fmt: skip
    parts = [
        f"<p>{len(records)} submissions, {exercise.points} points possible, median {middle}.</p>",
        *(f"<p>{escaped(note)}</p>" for note in notes),
        f"<h2>Misconceptions</h2><img alt='{escaped(alt)}' src='data:image/png;base64,{picture}'><p>{escaped(alt)}</p>",
        "<h2>Marks</h2>" + _table(("student", "points", "in words", "first failure", "usually means", "handed in"), rows, number=1),
    ]
    if left_out:
        parts.append(
            "<h2>What needs a look</h2><ul>" + "".join(f"<li><bdi>{escaped(name)}</bdi>: {escaped(why)}</li>" for name, why in left_out) + "</ul>"
        )
    if alike:
        pairs = [(f"{amount:.0%}", escaped(one), escaped(other)) for amount, one, other in alike]
        parts.append(
            "<h2>Most alike</h2><p>A number to look at, never a verdict: short exercises have few ways to be written.</p>"
            + _table(("shared", "one", "other"), pairs, number=0)
        )
    return page(f"{exercise.name}: the class", *parts)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]], number: int) -> str:
    """A table of cells that are HTML already; the column `number` is aligned as numbers are."""

    def line(tag: str, row: tuple[str, ...]) -> str:
        return "<tr>" + "".join(f"<{tag}{' class=number' if place == number else ''}>{cell}</{tag}>" for place, cell in enumerate(row)) + "</tr>"

    return f"<div class='wide'><table><thead>{line('th', head)}</thead><tbody>{''.join(line('td', row) for row in rows)}</tbody></table></div>"


def gradescope(record: dict) -> str:
    """Gradescope's results.json for one student."""
    tests = [
        {
            "name": test["name"], "score": test["points"], "max_score": test["possible"], "status": "passed" if test["passed"] else "failed",
            "output": "" if test["passed"] else "\n".join(filter(None, [test["what"], test["meaning"] and f"What this difference usually means: {test['meaning']}"])),
            "output_format": "text",
        }
        for test in record["tests"]
    ]  # fmt: skip
    if record.get("words"):
        hand = record.get("by_hand")
        tests.append({"name": "answers in words", "score": hand or 0, "max_score": record["words"], "output": "not graded yet" if hand is None else "", "output_format": "text"})
    return json.dumps({"score": total(record), "output": record["problem"], "output_format": "text", "visibility": "visible", "tests": tests}, indent=1)
