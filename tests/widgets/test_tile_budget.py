"""The tile budget: its parts add up to the model's SRAM, it fits exactly up to the budget, the sentence tells the truth."""

from __future__ import annotations

import re

import pytest

from flashlab.hardware import gpu
from flashlab.problem import AttentionProblem
from flashlab.reference.flash1 import flash1
from flashlab.reference.flash2 import flash2
from flashlab.traffic.memory import Memory
from flashlab.traffic.model import flash1_sram_bytes, flash1_traffic, flash2_sram_bytes, flash2_traffic, standard_traffic
from flashlab.widgets.tile_budget import SRAM_PARTS, TileBudget, tile_budget_figure

PARTS = ["q", "k", "v", "o", "acc", "scores", "row_max, row_sum"]


def held_at_the_peak(trace) -> dict[str, int]:
    """{tile: bytes} of what a trace holds where it holds most, by plain replay."""
    held, most = {}, {}
    for event in trace:
        if event.op in ("load", "hold"):
            held = held | {event.tensor: event.bytes}
        elif event.op == "release":
            held = {name: size for name, size in held.items() if name != event.tensor}
        most = max(most, held, key=lambda tiles: sum(tiles.values()))
    statistics = {"row_max, row_sum": most["row_max"] + most["row_sum"]}
    return {name: size for name, size in most.items() if not name.startswith("row_")} | statistics


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("blocks", [(16, 16), (8, 32), (64, 64)])
@pytest.mark.parametrize("algorithm", ["flash1", "flash2"])
def test_parts_are_what_the_trace_holds(algorithm, blocks, dtype):
    problem, block = AttentionProblem(n_q=48, n_k=40, head_dim=12, dtype=dtype), {"block_q": blocks[0], "block_k": blocks[1]}
    memory = Memory(algorithm)
    {"flash1": flash1, "flash2": flash2}[algorithm](*problem.arrays(), **block, memory=memory)
    parts = SRAM_PARTS[algorithm](problem, **block)
    assert parts == held_at_the_peak(memory.trace)
    assert list(parts) == [name for name in PARTS if name in parts], "in the order in which the bar is read"
    total = {"flash1": flash1_sram_bytes, "flash2": flash2_sram_bytes}[algorithm]
    assert sum(parts.values()) == total(problem, **block) == memory.trace.peak_sram_bytes


def test_parts_by_hand():
    widget = TileBudget("H100", n=4096, head_dim=128, algorithm="flash1", block_q=64, block_k=32)
    assert widget.sram_parts == {
        "q": 64 * 128 * 2,
        "k": 32 * 128 * 2,
        "v": 32 * 128 * 2,
        "o": 64 * 128 * 2,
        "acc": 64 * 128 * 4,
        "scores": 64 * 32 * 4,
        "row_max, row_sum": 2 * 64 * 4,
    }
    widget.set(algorithm="flash2")
    assert "o" not in widget.sram_parts and sum(widget.sram_parts.values()) == widget.sram_bytes


def test_fits_or_not():
    widget = TileBudget("H100", n=4096, head_dim=128, block_q=128, block_k=64)
    assert widget.sram_bytes == 2 * 128 * (128 + 2 * 64) + 4 * 128 * (128 + 64 + 2) == 164_864
    assert widget.fits and "holds 161 KiB of SRAM; the H100 leaves one program 227 KiB, so the tiles fit." in repr(widget)
    widget.set(gpu=gpu("RTX 4090"))
    assert not widget.fits and "the RTX 4090 leaves one program 99 KiB, so the tiles do not fit." in repr(widget)
    widget.set(block_q=32)
    assert widget.fits


def test_budget_is_exact():
    """A budget of exactly what the tiles need is enough, and one byte less is not."""
    from dataclasses import replace

    needed = TileBudget("H100").sram_bytes
    assert TileBudget(replace(gpu("H100"), name="just enough", sram_bytes_per_block=needed)).fits
    assert not TileBudget(replace(gpu("H100"), name="one too few", sram_bytes_per_block=needed - 1)).fits


def test_bytes_moved_are_the_model_s():
    widget = TileBudget(n=2048, head_dim=64, dtype="float32", algorithm="flash1", block_q=32, block_k=128)
    problem = AttentionProblem(n_q=2048, n_k=2048, head_dim=64, dtype="float32")
    assert widget.bytes_moved["standard"] == standard_traffic(problem).bytes_moved
    assert widget.bytes_moved["flash1"] == flash1_traffic(problem, block_q=32, block_k=128).bytes_moved
    widget.controls["algorithm"].value = "flash2"
    assert list(widget.bytes_moved) == ["standard", "flash2", "fused"]
    assert widget.bytes_moved["flash2"] == flash2_traffic(problem, block_q=32, block_k=128).bytes_moved


def test_sentence_compares_in_the_right_direction():
    widget = TileBudget(n=4096, head_dim=128)
    assert "it moves 69.2 MB at n = 4,096, 2.0 times less than standard attention's 138 MB" in repr(widget)
    widget.set(block_q=16)
    assert re.search(r"3\.\d times more than standard", repr(widget))
    widget.set(block_q=64)  # 2 · head_dim / block_q is 4, the passes of standard attention
    assert "about as much as standard attention's" in repr(widget)


def test_figure_names_every_part_and_the_verdict():
    parts, moved = {"q": 40_000, "acc": 20_000}, {"standard": 1_000_000, "flash2": 500_000, "fused": 1_000}
    for budget, verdict in ((60_000, "\nfits"), (59_999, "\nDOES NOT FIT")):
        held, traffic = tile_budget_figure(parts, budget, moved, "H100").axes
        assert held.get_yticklabels()[0].get_text().endswith(verdict)
        assert [text.get_text() for text in held.get_legend().get_texts()] == ["q: 39 KiB", "acc: 20 KiB"]
        assert [bar.get_width() for bar in held.patches] == [40_000 / 1024, 20_000 / 1024]
        assert held.patches[1].get_x() == 40_000 / 1024
        (line,) = held.get_lines()
        assert list(line.get_xdata()) == [budget / 1024] * 2, "the budget stands where the bytes are"
        (label,) = [text for text in held.texts if text.get_text().startswith("budget")]
        assert label.get_position()[0] == budget / 1024 and label.get_text() == "budget: 59 KiB"
        assert held.get_xlim()[0] == 0 and held.get_xlim()[1] > 60_000 / 1024
        assert [bar.get_width() for bar in traffic.patches] == [1, 0.5, 0.001]
        assert [text.get_text().strip() for text in traffic.texts] == ["1.00 MB", "500 kB", "1.00 kB"]


def test_still():
    data, metadata = TileBudget()._repr_mimebundle_()
    assert data["image/png"] and metadata["image/png"]["alt"] == data["text/plain"]


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_jupyterlab(open_notebook, theme):
    lab = open_notebook(["from flashlab.widgets.tile_budget import TileBudget", "w = TileBudget('H100'); w"], theme=theme)
    page = lab.page
    page.get_by_role("img", name=re.compile("so the tiles fit")).wait_for()
    lab.screenshot(f"tile-budget-{theme}")
    slider = page.get_by_role("slider", name="block_q")
    slider.focus()
    slider.press("ArrowRight")  # 128 -> 256
    lab.wait_kernel("(w.values['block_q'], w.fits)", "(256, False)")
    page.get_by_role("img", name=re.compile("so the tiles do not fit")).wait_for()
    slider.press("Home")
    lab.wait_kernel("w.values['block_q']", "16")
    page.get_by_label("algorithm").select_option("FlashAttention-1")
    lab.wait_kernel("w.values['algorithm']", "'flash1'")
    page.get_by_role("status").filter(has_text="FlashAttention-1 in tiles of 16 queries by 64 keys").wait_for()
