"""instructor_page.py: the table of lab 1's page is what was recorded, and filling it leaves the rest of the page alone."""

from pathlib import Path

import length_runs as runs
import pytest

from flashlab import cli, runtime
from flashlab.bench import records
from flashlab.bench.instructor_page import HEADINGS, MARK, NOTHING, fill, page_table
from flashlab.errors import ERRORS

PAGE = Path(__file__).parents[2] / "notebooks/labs/lab1_speedup_vs_length.md"


def test_the_page_says_what_is_recorded():
    assert PAGE.read_text().split(MARK)[1].strip() == page_table(records.load()), "flashlab bench lengths --page (see its first lines) fills it"


def test_the_table_by_hand():
    lines = page_table(runs.made_run()).splitlines()
    assert len(lines) == 2 + 3 and lines[0].count("|") == len(HEADINGS) + 1
    assert lines[2] == "| NVIDIA H200 | 1 | 6.0 × | 6.0 × | 6.0 × (n = 16,384) | 12.0 × | 12.0 × | 6.0 × | 12.0 × | 2.5 GB | - |"
    assert lines[4] == "| NVIDIA H200 | 16 | 6.0 × | 6.0 × | 6.0 × (n = 4,096) | 12.0 × | 12.0 × | 6.0 × | 12.0 × | 39.6 GB | n = 8,192 |"
    assert page_table([]) == page_table([runs.made(runs.ALL[0], "sdpa-cudnn", 1)]) == NOTHING


def test_filling_keeps_the_rest_and_can_be_done_again(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARK}\nold\n{MARK}\nafter\n")
    for _ in range(2):
        fill(page, runs.made_run())
    before, table, after = page.read_text().split(MARK)
    assert (before, after) == ("before\n", "\nafter\n") and table == f"\n{page_table(runs.made_run())}\n"


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(ERRORS["page_marks"][0]) as caught:
        fill(page, [])
    assert str(caught.value) == f"{page} has no line '<!-- recorded -->', between two of which the table goes. Put both back, as `git diff` shows them."
    assert page.read_text() == "no marks"


def test_one_command_fills_it_from_what_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    monkeypatch.setattr(records, "RECORDED", tmp_path)
    for one in runs.made_run():
        records.append(one, tmp_path / "x.jsonl")
    page = tmp_path / "page.md"
    page.write_text(f"{MARK}{MARK}")
    assert cli.main(["bench", "lengths", "--page", str(page)]) == 0
    assert "| NVIDIA H200 | 4 |" in page.read_text() and f"the table of {page} was filled" in capsys.readouterr().out


def test_the_readme_says_of_the_labs_outputs_where_they_are_from():
    said = " ".join((PAGE.parents[2] / "README.md").read_text().split())
    assert ("stored outputs are from a CPU, beside what the H200 recorded." in said) == ("No GPU: " in PAGE.with_suffix(".ipynb").read_text())


def test_the_page_has_its_parts():
    text = PAGE.read_text()
    for part in ("**Goal.**", "**Minutes.**", "## Expected ranges", "## Discussion, with answers", "decode (one query)", "## What goes wrong"):
        assert part in text
