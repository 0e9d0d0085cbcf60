"""compare.py: a change is a change only beyond the noise, and everything else is said too."""

from dataclasses import replace

import pytest

from flashlab.bench.compare import changes, comparison
from flashlab.bench.records import load, record
from flashlab.bench.sweep import grid
from flashlab.bench.timing import Timing

ONE = record("triton", "forward", grid((64,))[0], Timing(1.0, 0.95, 1.05, 5, ""), date="1", device="cpu")


def timed(p20, median, p80, **changes):
    return replace(ONE, time_ms=median, p20_ms=p20, p80_ms=p80, **changes)


@pytest.mark.parametrize(
    "new, verdict",
    [
        ((0.80, 0.85, 0.90), "faster"),
        ((1.10, 1.15, 1.20), "slower"),
        ((0.80, 0.85, 0.96), "same"),  # the bands touch
        ((1.04, 1.15, 1.20), "same"),
    ],
)
def test_bands_must_not_touch(new, verdict):
    assert [change.verdict for change in changes([ONE], [timed(*new)])] == [verdict]


@pytest.mark.parametrize("median, verdict", [(1.015, "same"), (1.025, "slower"), (0.985, "same"), (0.975, "faster")])
def test_a_narrow_band_is_not_all_the_noise(median, verdict):
    steady = timed(1.0, 1.0, 1.0)
    assert changes([steady], [timed(median, median, median)])[0].verdict == verdict


def test_the_newest_of_each_cell_is_compared_slowest_first():
    other = {"kernel": "sdpa-math"}
    old = [timed(9, 9, 9, date="0"), ONE, timed(1, 1, 1, **other)]
    found = changes(old, [timed(2, 2, 2, date="2"), timed(4, 4, 4, **other)])
    assert [(change.new.kernel, change.ratio) for change in found] == [("sdpa-math", 0.25), ("triton", 0.5)]


def test_the_text():
    new = [timed(2, 2, 2, torch="9"), replace(ONE, kernel="flex"), replace(ONE, device="Tesla")]
    text, slower = comparison([ONE, replace(ONE, causal=True)], new)
    lines = text.splitlines()
    assert slower == 1 and lines[:2] == ["1 cells in both: 1 slower, 0 faster, 0 the same within the noise.", "In one file only: 1 of the old, 2 of the new."]
    assert lines[2] == f"Not the same torch: {ONE.torch} before, 9 now."
    assert comparison([ONE], [ONE])[1] == 0
    assert lines[-1].split() == ["slower", "triton", "forward", "64", "full", "512", "32", "1.000", "2.000", "0.50"]


def test_what_cells_were_timed_with_is_said_where_it_differs():
    """The version of a kernel's own package, and how long the clock repeated it: only of the cells that differ."""
    old, same = replace(ONE, kernel="flash-attn", package="2.7", budget_ms=None), replace(ONE, budget_ms=60.0)
    text, status = comparison([old, same], [replace(old, package="2.8", budget_ms=60.0), same])
    assert status == 0 and text.splitlines()[1:] == ["Not the same package: flash-attn 2.7 before, flash-attn 2.8 now.", "Not the same budget_ms: unknown before, 60 now."]
    swapped = [replace(old, budget_ms=30.0), same], [replace(old, budget_ms=60.0), replace(same, budget_ms=30.0)]
    assert comparison(*swapped)[0].endswith("Not the same budget_ms: 30, 60 before, 30, 60 now.")


@pytest.mark.parametrize("new, words", [([replace(ONE, device="Tesla")], "forward on Tesla"), ([replace(ONE, pass_="backward")], "backward on CPU"), ([], "no record")])
def test_nothing_in_both_is_no_success(new, words):
    text, status = comparison([ONE], new)
    assert status == 1 and text.startswith(f"0 cells in both: the old file has forward on {ONE.device}, the new one {words}")


def test_a_file_is_the_same_as_itself():
    text, slower = comparison(load(), load())
    assert slower == 0 and " 0 slower, 0 faster, " in text and len(text.splitlines()) == 1
