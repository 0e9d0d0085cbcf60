"""Figures: the numbers given are the numbers drawn, an algorithm keeps its look, and axes carry units."""

import pytest

from flashlab.bench.figures import against_n, memory_levels
from flashlab.hardware import GPUS, gpu
from flashlab.looks import ALGORITHMS


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
