"""The reports: one HTML page for each student, one for the class. All that came from outside is escaped, here alone."""

from __future__ import annotations

import html
import json

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; background: #fff }
table { border-collapse: collapse } td, th { padding: .3rem .8rem; text-align: left; border-bottom: 1px solid #ccc; vertical-align: top }
pre { background: #f4f4f4; padding: .6rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere }
section { margin: 1.5rem 0 } .failed { border-left: 4px solid #D55E00; padding-left: 1rem } .passed { border-left: 4px solid #009E73; padding-left: 1rem }
"""


def escaped(text: object) -> str:
    """Text that is only text in HTML."""
    return html.escape(str(text), quote=True)


def page(title: str, *parts: str) -> str:
    """A whole HTML page; it loads nothing and runs nothing."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>\n<body>\n<h1>{escaped(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def student_page(record: dict) -> str:
    """What one student reads: each test with its points, and for a failure the input, theirs, expected and what it usually means."""
    parts = [f"<p><b>{record['points']} of {record['possible']} points</b> by the tests of {escaped(record['exercise'])}: {escaped(record['title'])}.</p>"]
    if record["problem"]:
        parts.append(f"<section class='failed'><p>{escaped(record['problem'])}</p></section>")
    parts += [_test(test) for test in record["tests"]]
    if record["printed"]:
        parts.append(f"<section><h2>What your code printed</h2><pre>{escaped(record['printed'])}</pre></section>")
    return page(f"{record['exercise']}: {record['student']}", *parts)


def _test(test: dict) -> str:
    head = f"<h2>{'✓' if test['passed'] else '✗'} {escaped(test['name'])}: {test['points']} of {test['possible']} points</h2>"
    if test["passed"]:
        return f"<section class='passed'>{head}</section>"
    parts = [f"<p>{escaped(test['what'])}</p>"]
    if test["meaning"]:
        name = f"<b>{escaped(test['misconception'])}.</b> " if test["misconception"] else ""
        parts.append(f"<p>What this difference usually means: {name}{escaped(test['meaning'])}</p>")
    parts += [f"<h3>{title}</h3><pre>{escaped(test[key])}</pre>" for key, title in (("input", "Input"), ("theirs", "Yours"), ("expected", "Expected")) if test[key]]
    return f"<section class='failed'>{head}{''.join(parts)}</section>"


def class_page(exercise, records: list[dict], left_out: list[tuple[str, str]], alike: list[tuple[float, str, str]], picture: str, alt: str) -> str:
    """What the instructor reads: marks, how often each misconception, who needs a look, and files that were not marked."""
    points = sorted(record["points"] for record in records)
    middle = points[len(points) // 2] if points else 0
    rows = "".join(
        f"<tr><td><a href='reports/{escaped(record['slug'])}.html'>{escaped(record['student'])}</a></td><td>{record['points']}</td>"
        f"<td>{escaped(record['first_failure'])}</td><td>{escaped(record['misconception'])}</td><td>{'late' if record['late'] else ''}</td></tr>"
        for record in records
    )
    parts = [
        f"<p>{len(records)} submissions, {exercise.points} points possible, median {middle}.</p>",
        f"<h2>Misconceptions</h2><img alt='{escaped(alt)}' src='data:image/png;base64,{picture}'><p>{escaped(alt)}</p>",
        f"<h2>Marks</h2><table><tr><th>student</th><th>points</th><th>first failure</th><th>usually means</th><th></th></tr>{rows}</table>",
    ]
    if left_out:
        parts.append("<h2>Not marked</h2><ul>" + "".join(f"<li>{escaped(name)}: {escaped(why)}</li>" for name, why in left_out) + "</ul>")
    if alike:
        pairs = "".join(f"<tr><td>{amount:.0%}</td><td>{escaped(one)}</td><td>{escaped(other)}</td></tr>" for amount, one, other in alike)
        parts.append(
            "<h2>Most alike</h2><p>A number to look at, never a verdict: short exercises have few ways to be written.</p>"
            f"<table><tr><th>shared</th><th>one</th><th>other</th></tr>{pairs}</table>"
        )
    return page(f"{exercise.name}: the class", *parts)


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
    return json.dumps({"score": record["points"], "output": record["problem"], "output_format": "text", "visibility": "visible", "tests": tests}, indent=1)
