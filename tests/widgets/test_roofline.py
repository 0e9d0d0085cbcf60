"""The roofline figure and widget, and the panel of controls that the three figure widgets share."""

from __future__ import annotations

import base64
import re

import nbformat
import pytest

from flashlab.hardware import GPUS, gpu, roofline
from flashlab.looks import ALGORITHMS
from flashlab.problem import AttentionProblem
from flashlab.traffic.model import flash2_traffic, standard_traffic
from flashlab.widgets.panel import Choice, Slider, si, times
from flashlab.widgets.picture import png
from flashlab.widgets.roofline import Roofline, roofline_figure


def _texts(figure) -> str:
    axes = figure.axes[0]
    legend = [text for one in figure.legends for text in one.get_texts()]
    return "\n".join(text.get_text() for text in [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *legend])


def _lines(figure) -> list:
    return figure.axes[0].get_lines()


# -- the figure -------------------------------------------------------------------------------------------------------
def test_figure_draws_the_roof_where_the_data_sheet_says():
    figure = roofline_figure("H200", [("standard", 62.0, None), ("fused", 2048.0, None)], "bfloat16")
    axes = figure.axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    roof = next(line for line in _lines(figure) if len(line.get_xdata()) == 3)
    assert roof.get_xdata()[1] == pytest.approx(206.1, abs=0.1) and roof.get_ydata()[1] == 989.4e12
    assert roof.get_ydata()[0] / roof.get_xdata()[0] == pytest.approx(4.8e12)
    for words in ("4.80 TB/s", "989 TFLOP/s", "ridge: 206 FLOP/byte", "FLOP for each byte", "FLOP/s", "H200", "bfloat16"):
        assert words in _texts(figure)


def test_points_sit_on_the_roof_or_where_they_were_measured():
    figure = roofline_figure("H200", [("fused", 2048.0, None), ("standard", 62.0, None), ("my kernel", 500.0, 120e12)])
    points = {line.get_label(): line for line in _lines(figure) if "FLOP/byte" in line.get_label()}
    assert list(points) == [
        "standard attention: 62 FLOP/byte, at most 298 TFLOP/s",
        "my kernel: 500 FLOP/byte, 120 TFLOP/s",
        "q, k, v, o once: 2,048 FLOP/byte, at most 989 TFLOP/s",
    ]
    assert [line.get_ydata()[0] for line in points.values()] == [pytest.approx(62 * 4.8e12), 120e12, 989.4e12]
    first = next(iter(points.values()))
    assert (first.get_color(), first.get_marker()) == ALGORITHMS["standard"][1:]


def test_a_point_placed_again_keeps_its_look_and_is_hollow():
    figure = roofline_figure("H200", [("standard", 62.0, 120e12), ("standard: by counters", 63.4, 120e12), ("mine: fast", 500.0, 9e13)], "bfloat16")
    points = {line.get_label().split(": 6")[0]: line for line in _lines(figure) if "FLOP/byte" in line.get_label()}
    filled, hollow, mine = points.values()
    assert list(points) == ["standard attention", "standard attention, by counters", "mine: fast: 500 FLOP/byte, 90.0 TFLOP/s"]
    assert (hollow.get_color(), hollow.get_marker()) == (filled.get_color(), filled.get_marker()) == ALGORITHMS["standard"][1:]
    assert hollow.get_markerfacecolor() == "none" != mine.get_markerfacecolor() and filled.get_markersize() < hollow.get_markersize()


def test_points_of_other_names_differ_in_their_marks_and_no_legend_hides_one():
    figure = roofline_figure("H200", [(name, 900.0 + i, 1e14) for i, name in enumerate("abcd")])
    points = [line for line in _lines(figure) if "FLOP/byte" in line.get_label()]
    assert len({line.get_marker() for line in points}) == len({line.get_color() for line in points}) == 4
    figure.draw_without_rendering()
    (legend,), axes = figure.legends, figure.axes[0]
    assert 0 <= legend.get_window_extent().y0 and legend.get_window_extent().y1 < axes.get_tightbbox().y0


def test_measured_ceilings_are_dashed():
    without, measured = (roofline_figure("H200", [], ceilings=c) for c in (None, {"hbm_bytes_per_s": 4.26e12, "flops_per_s": 798e12}))
    dashed = [line for line in _lines(measured) if line.get_linestyle() == "--"]
    assert len(dashed) == 1 and dashed[0].get_ydata()[1] == 798e12
    assert dashed[0].get_xdata()[1] == pytest.approx(798 / 4.26)
    assert "measured: 4.26 TB/s, 798 TFLOP/s" in _texts(measured)
    assert not [line for line in _lines(without) if line.get_linestyle() == "--"]


@pytest.mark.parametrize("name", GPUS)
def test_every_point_lies_inside_the_axes(name):
    for n in (1, 128, 131072):
        problem = AttentionProblem(n_q=n, n_k=n, head_dim=64)
        figure = roofline_figure(name, [("fused", roofline(problem, name).intensity, None)])
        axes = figure.axes[0]
        (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        for line in _lines(figure):
            assert all(low <= x <= high for x in line.get_xdata() if line.get_linestyle() != ":")
            assert all(bottom * 0.999 <= y <= top for y in line.get_ydata() if line.get_linestyle() != ":")


# -- the widget -------------------------------------------------------------------------------------------------------
def test_widget_bounds_are_those_of_the_model():
    widget = Roofline("A100", n=2048, head_dim=64, dtype="bfloat16", block=64)
    problem = AttentionProblem(n_q=2048, n_k=2048, head_dim=64, dtype="bfloat16")
    bounds = widget.bounds()
    assert bounds["standard"] == roofline(problem, "A100", standard_traffic(problem).bytes_moved)
    assert bounds["flash2"] == roofline(problem, "A100", flash2_traffic(problem, block_q=64, block_k=64).bytes_moved)
    assert bounds["fused"] == roofline(problem, "A100")


def test_sentence_says_what_binds_and_the_speed_up():
    widget = Roofline("H200", n=4096, head_dim=128)
    standard = 4 * 128 * 4096**2 / (2 * (4 * 4096**2 + 4 * 4096 * 128))  # 62.06 FLOP a byte
    speed_up = (1 / (standard * 4.8e12)) / (1 / 989.4e12)
    assert f"standard attention does 62.1 FLOP a byte, {206.125 / standard:.1f} times below the ridge, so it is memory-bound" in repr(widget)
    assert "moving q, k, v and o once does 2,048 FLOP a byte, 9.9 times above the ridge, so it is compute-bound" in repr(widget)
    assert f"No fused kernel can be more than {speed_up:.1f} times as fast as standard attention at its roof." in repr(widget)


def test_causal_halves_the_work_but_not_the_bytes():
    full, causal = Roofline(n=4096).bounds()["standard"], Roofline(n=4096, causal=True).bounds()["standard"]
    assert causal.bytes_moved == full.bytes_moved and causal.flops == pytest.approx(full.flops / 2, rel=0.001)


def test_changing_a_control_draws_again():
    widget = Roofline("H200", n=4096)
    before = widget.png
    widget.controls["n"].value = 256
    assert "n = 256" in widget.sentence and widget.png != before
    widget.set(gpu=gpu("L4"), n=3000)  # a size that the slider did not list
    assert widget.values["gpu"] is gpu("L4") and widget.values["n"] == 3000 and "L4, float16, n = 3,000" in widget.sentence


def test_a_dtype_that_the_new_gpu_lacks_gives_way():
    widget = Roofline("H200", dtype="bfloat16")
    widget.controls["gpu"].value = gpu("T4")
    assert widget.values["dtype"] == "float16" and "T4, float16" in widget.sentence
    widget.controls["gpu"].value = gpu("H200")
    assert "bfloat16" in widget.controls["dtype"].options and widget.values["dtype"] == "float16"
    with pytest.raises(ValueError, match="T4 has no data-sheet rate for 'bfloat16'"):
        Roofline("T4", dtype="bfloat16")


def test_still_carries_the_picture_and_its_alt_text():
    widget = Roofline()
    data, metadata = widget._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]) == png(widget.draw(**widget.values)[0], 1200, widget.sentence)
    assert widget.png == png(widget.draw(**widget.values)[0], 1200), "on the live page the sentence is text, not picture"
    assert data["text/plain"] == repr(widget) == metadata["image/png"]["alt"] and repr(widget).count(". ") >= 1
    assert "application/vnd.jupyter.widget-view+json" in data


# -- panel.py ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "text"),
    [(4.8e12, "4.80 TB/s"), (989.4e12, "989 TB/s"), (0, "0 B/s"), (999.9e6, "1.00 GB/s"), (62.06, "62.1 B/s"), (2.9e-7, "290 nB/s"), (1, "1.00 B/s"), (5e-12, "0.00500 nB/s"), (999.4e6, "999 MB/s")],
)
def test_si(value, text):
    assert si(value, "B/s") == text


def test_times():
    assert (times(3.314), times(9.94), times(128.4), times(2048)) == ("3.3", "9.9", "128", "2,048")


def test_slider_index_and_value_agree():
    slider = Slider("n", [128, 256, 512], 256)
    assert slider.index == 1 and repr(slider) == "n: 256"
    slider.index = 2  # as the page sets it
    assert slider.value == 512
    slider.value = 300
    assert slider.options == ["128", "256", "300", "512"] and slider.index == 2 and slider.value == 300
    slider.index = 3
    assert slider.value == 512


def test_choice_index_and_value_agree():
    choice = Choice("dtype", {"half": "float16", "single": "float32"}, "float32")
    assert choice.index == 1 and repr(choice) == "dtype: single"
    choice.index = 0  # as the page sets it
    assert choice.value == "float16"
    choice.offer({"double": "float64", "half": "float16"}, "float16")
    assert (choice.options, choice.index, choice.value) == (["double", "half"], 1, "float16")
    with pytest.raises(ValueError):
        choice.value = "float8"


def test_a_change_during_a_drawing_is_drawn_too():
    """JupyterLab delivers two controls' changes in two threads; the second must not be lost."""
    import threading

    widget = Roofline("H200", n=4096)
    drawing, change, draw = threading.Event(), threading.Event(), widget.draw

    def slow_draw(**values):
        drawing.set()
        change.wait(5)
        return draw(**values)

    widget.draw = slow_draw
    first = threading.Thread(target=widget.set, kwargs={"n": 256})
    first.start()
    assert drawing.wait(5)
    second = threading.Thread(target=setattr, args=(widget.controls["head_dim"], "value", 64))
    second.start()
    second.join(0.2)  # it waits for the first
    change.set()
    for thread in (first, second):
        thread.join(10)
    assert "n = 256, head_dim 64" in widget.sentence


# -- in JupyterLab ----------------------------------------------------------------------------------------------------
CELLS = ["from flashlab.widgets.roofline import Roofline", "w = Roofline('H200', n=4096); w"]


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_jupyterlab(open_notebook, theme):
    lab = open_notebook(CELLS, theme=theme)
    page = lab.page
    picture = page.get_by_role("img", name=re.compile("standard attention does 62.1 FLOP a byte"))
    picture.wait_for()
    lab.screenshot(f"roofline-{theme}")
    page.get_by_label("GPU").press("ArrowUp")  # the list's own key, not the notebook's "previous cell"
    lab.wait_kernel("w.values['gpu'].name", "'H100'")
    page.get_by_label("GPU").select_option("A100-80GB")
    lab.wait_kernel("w.values['gpu'].name", "'A100-80GB'")
    slider = page.get_by_role("slider", name="head_dim")
    slider.focus()
    slider.press("ArrowLeft")  # 128 -> 96
    lab.wait_kernel("w.values['head_dim']", "96")
    page.get_by_label("causal").check()
    lab.wait_kernel("w.values['causal']", "True")
    page.get_by_label("dtype").select_option("bfloat16")
    lab.wait_kernel("w.values['dtype']", "'bfloat16'")
    page.get_by_role("img", name=re.compile("A100-80GB, bfloat16, n = 4,096, head_dim 96, causal")).wait_for()
    page.get_by_role("status").filter(has_text="A100-80GB, bfloat16").wait_for()
    lab.execute("w.set(n=1024)")
    page.get_by_role("img", name=re.compile("n = 1,024")).wait_for()
    assert page.get_by_role("slider", name="n", exact=True).get_attribute("aria-valuetext") == "1,024"


@pytest.mark.browser
def test_stored_output_shows_the_still_without_a_kernel(open_notebook):
    widget = Roofline("H200", n=4096)
    data, metadata = widget._repr_mimebundle_()
    data["application/vnd.jupyter.widget-view+json"] = {"version_major": 2, "version_minor": 0, "model_id": "0" * 32}
    cell = nbformat.v4.new_code_cell(CELLS[1], outputs=[nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)])
    lab = open_notebook([cell], run=False)
    picture = lab.page.locator(".jp-OutputArea-output img")
    picture.wait_for()
    lab.page.wait_for_function("document.querySelector('.jp-OutputArea-output img')?.naturalWidth > 0")
    assert picture.evaluate("img => [img.naturalWidth, img.width]") == [1200, 800]
