"""Figures: the numbers given are the numbers drawn, an algorithm keeps its look, and axes carry units."""

from dataclasses import replace

import pytest

from flashlab.bench.figures import against_n, growth_against_n, memory_levels, tflops_against_n
from flashlab.bench.records import record
from flashlab.bench.timing import Timing
from flashlab.errors import ERRORS
from flashlab.hardware import GPUS, gpu
from flashlab.looks import ALGORITHMS
from flashlab.problem import AttentionProblem


def test_lines_carry_the_numbers_and_the_looks():
    axes = against_n({"standard": {1: 10, 2: 40}, "flash2": {1: 5, 2: 10}}, "bytes").axes[0]
    for line, (key, points) in zip(axes.lines, (("standard", [(1, 10), (2, 40)]), ("flash2", [(1, 5), (2, 10)]))):
        assert list(zip(*line.get_data())) == points
        assert (line.get_label(), line.get_color(), line.get_marker()) == ALGORITHMS[key]
    assert axes.get_xlabel() == "sequence length n" and axes.get_ylabel() == "bytes"
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_a_line_may_have_another_name_but_must_be_known():
    axes = against_n({"standard": {1: 1}}, "bytes", labels={"standard": "scores"}).axes[0]
    assert axes.lines[0].get_label() == "scores"
    with pytest.raises(KeyError):
        against_n({"unheard of": {1: 1}}, "bytes")


@pytest.mark.parametrize("name", GPUS)
def test_memory_levels_state_the_sizes_of_the_table(name):
    texts = " ".join(text.get_text() for text in memory_levels(gpu(name)).axes[0].texts)
    assert f"{gpu(name).multiprocessors} × {gpu(name).sram_bytes // 1024:,} KiB" in texts or "MiB" in texts
    assert f"{gpu(name).hbm_bytes_per_s / 1e12:,.1f} TB/s" in texts and "HBM" in texts


def made(**changes):
    problem = AttentionProblem(1024, 1024, 128, batch=16, heads=16, dtype="bfloat16")
    one = record("triton", "forward", problem, Timing(2.0, 1.0, 4.0, 5, ""), date="2026", device="cpu", extra_bytes=64)
    return replace(one, device="NVIDIA H200", **changes)


def test_tflops_are_drawn_kernel_by_kernel_with_their_spread():
    longer = {"n_q": 2048, "n_k": 2048, "batch": 8}
    records = [made(tflops=200.0, **longer), made(tflops=100.0), made(kernel="sdpa-cudnn", tflops=300.0), made(causal=True), made(batch=1)]
    axes = tflops_against_n(records).axes[0]
    assert [(line.get_label(), list(zip(*line.get_data()))) for line in axes.lines] == [
        ("flashlab, Triton", [(1024, 100), (2048, 200)]),
        ("torch SDPA, cuDNN", [(1024, 300)]),
    ]
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (50, 400)  # 100 · 2 ms / 4 ms, 200 · 2 ms / 1 ms
    assert axes.get_title() == "forward, head_dim 128, full: NVIDIA H200" and axes.get_ylabel() == "TFLOP/s"


def test_a_stale_line_says_so():
    axes = tflops_against_n([made(digest="0")]).axes[0]
    assert axes.lines[0].get_label() == "flashlab, Triton (stale)"


def test_growth_is_drawn_beside_the_slopes_it_should_have():
    line = [made(batch=1, n_q=n, n_k=n, time_ms=t, extra_bytes=n * 4) for n, t in ((1024, 1.0), (2048, 3.0), (4096, 12.0))]
    time, memory = growth_against_n([made(), *line]).axes
    assert [list(curve.get_ydata()) for curve in time.lines] == [[1, 3, 12], [0.75, 3, 12]]
    assert [list(curve.get_ydata()) for curve in memory.lines] == [[4096, 8192, 16384]] * 2
    assert [curve.get_label() for curve in time.lines] == ["flashlab, Triton", "n²"] and memory.lines[1].get_label() == "n"


@pytest.mark.parametrize(
    "figure, what",
    [(tflops_against_n, "forward records of the grid with head_dim 128, full"), (growth_against_n, "forward records of a growing sequence")],
)
def test_a_figure_of_nothing_says_what_it_needs(figure, what):
    with pytest.raises(ERRORS["figure_device"][0]) as caught:
        figure([])
    assert str(caught.value) == f"the figure needs {what}, of one device; there are those of none."


def test_a_figure_of_two_devices_names_both():
    with pytest.raises(LookupError) as caught:
        tflops_against_n([made(), replace(made(), device="Tesla")])
    assert str(caught.value).endswith(", of one device; there are those of NVIDIA H200, Tesla.")
