"""record_figures.py and gallery.py: the numbers drawn are those of the records, and what cannot be drawn is said."""

from dataclasses import replace

import pytest

from flashlab.bench import lengths
from flashlab.bench.ceilings import Ceilings
from flashlab.bench.gallery import draw_all
from flashlab.bench.record_figures import memory_against_n, roofline_of, speedup_against_n
from flashlab.bench.records import record
from flashlab.bench.timing import Timing
from flashlab.problem import AttentionProblem


def made(n, kernel="triton", time_ms=1.0, extra=64, **changes):
    problem = AttentionProblem(n, n, 128, batch=16384 // n, heads=16, dtype="bfloat16")
    one = record(kernel, "forward", problem, Timing(time_ms, time_ms, time_ms, 5, ""), date="2026", device="cpu", extra_bytes=extra)
    return replace(one, device="NVIDIA H200", **changes)


RECORDS = [made(n, kernel, time) for n, times in ((1024, (2, 8)), (2048, (1, 20))) for kernel, time in zip(("triton", "sdpa-math"), times)]


def lines(axes):
    return {line.get_label(): list(zip(*line.get_data())) for line in axes.lines}


def test_speedup_is_the_ratio_of_one_run():
    other_run = [made(512, date="1"), made(512, "sdpa-math", date="2"), made(4096, causal=True)]
    axes = speedup_against_n(RECORDS + other_run).axes[0]
    assert lines(axes)["flashlab, Triton"] == [(1024, 4), (2048, 20)]
    assert set(lines(axes)) == {"flashlab, Triton", "torch SDPA, math"} and axes.get_ylabel() == "times as fast as torch SDPA, math"
    assert axes.get_title() == "forward, head_dim 128, full: NVIDIA H200"


def test_memory_is_the_extra_memory():
    axes = memory_against_n([made(1024, extra=0), made(2048, extra=4096), made(1024, "flex", extra=None)]).axes[0]
    assert lines(axes) == {"flashlab, Triton": [(1024, 1), (2048, 4096)]} and axes.get_ylabel() == "extra memory (bytes)"


def test_the_roofline_has_both_ceilings_and_a_mark_for_each_cell():
    found = roofline_of(RECORDS, ceilings=Ceilings("NVIDIA H200", "bfloat16", 4e12, 7e14))
    drawn = lines(found.axes[0])
    assert [x for x, _ in drawn["flashlab, Triton"]] == pytest.approx([512, 1024])  # n / 2 FLOP a byte
    assert max(y for _, y in drawn["NVIDIA H200 SXM, data sheet"]) == pytest.approx(989, abs=1)
    assert max(y for _, y in drawn["copy and matmul, measured"]) == 700
    for label in ("flashlab, Triton", "torch SDPA, math"):
        assert all(y < 989 for _, y in drawn[label])


def test_a_gpu_that_is_not_in_the_table_has_marks_and_no_roof():
    drawn = lines(roofline_of([replace(one, device="Tesla") for one in RECORDS]).axes[0])
    assert set(drawn) == {"flashlab, Triton", "torch SDPA, math"}


@pytest.mark.parametrize(
    "draw, what",
    [
        (speedup_against_n, "records of sdpa-math and another kernel of one run"),
        (memory_against_n, "records with memory"),
        (roofline_of, "records"),
    ],
)
def test_a_figure_of_nothing_says_what_it_needs(draw, what):
    with pytest.raises(LookupError) as caught:
        draw([])
    assert str(caught.value) == f"the figure needs forward, head_dim 128, full {what}, of one device; there are those of none."


def test_the_gallery_draws_what_it_can_and_says_what_it_cannot(tmp_path, capsys):
    drawn = draw_all([made(1024)], "forward", tmp_path / "new")
    kinds = ("tflops-128-full", "memory-128-full", "roofline-128-full", "bytes-128-full", "bytes-128-causal")  # bytes: of counter records
    assert [path.name for path in drawn] == [f"nvidia-h200-forward-{kind}.png" for kind in kinds]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    printed = capsys.readouterr().out
    assert "not drawn: nvidia-h200-forward-speedup-128-full.png: the figure needs forward, head_dim 128, full records of sdpa-flash" in printed
    assert printed.count("not drawn") == 5


def test_the_gallery_of_lengths_needs_their_grid(tmp_path, capsys):
    assert draw_all([made(1024)], "lengths", tmp_path / "none") == [] and "has not been recorded on a GPU yet" in capsys.readouterr().out
    cells = [
        replace(record(kernel, "forward", problem, Timing(time, time, time, 5, ""), date="2026", device="cpu", extra_bytes=64), device="NVIDIA H200")
        for problem in lengths.problems((1,))
        for kernel, time in (("sdpa-math", 4), ("sdpa-flash", 2))
    ]
    drawn = draw_all(cells, "lengths", tmp_path / "new")
    assert [path.name for path in drawn] == [f"nvidia-h200-lengths-{kind}.png" for kind in ("speedup", "time", "memory")]
