"""The tile-loop widget: what it finds out in the kernel, its pure functions in Node, and how it works in JupyterLab."""

from __future__ import annotations

import base64
import inspect
import json
import os
import re
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from flashlab.problem import AttentionProblem
from flashlab.reference.flash1 import flash1
from flashlab.reference.flash2 import flash2
from flashlab.reference.online_softmax import softmax_three_passes
from flashlab.reference.standard import standard
from flashlab.traffic.memory import Memory, tiles
from flashlab.traffic.model import standard_traffic
from flashlab.traffic.trace import Trace
from flashlab.widgets.faults import WATCH
from flashlab.widgets.reading import noted
from flashlab.widgets.still import HEIGHT, middle, still
from flashlab.widgets.tile_loop import TileLoop

VIEW = "application/vnd.jupyter.widget-view+json"
STEPS_4096 = 4096


def traced(algorithm, title="FlashAttention-2", n_q=64, n_k=64, head_dim=16, sram_bytes=16_384, watch=WATCH, **options):
    """The trace of one reference algorithm."""
    memory = Memory(title, sram_bytes=sram_bytes, watch=watch)
    algorithm(*AttentionProblem(n_q, n_k, head_dim, dtype="float32").arrays(), memory=memory, **options)
    return memory.trace


def loop(q, k, v, memory, block=16, forget=()):
    """A tile loop as a reader writes it; `forget` names what is left out."""
    n, head_dim = q.shape
    o = memory.hbm("o", np.zeros_like(q))
    q, k, v = memory.hbm("q", q), memory.hbm("k", k), memory.hbm("v", v)
    for rows in tiles(n, block):
        q_tile = q.load(rows)
        row_max, row_sum = np.full(len(q_tile), -np.inf, "float32"), np.zeros(len(q_tile), "float32")
        acc = memory.hold("acc", np.zeros_like(q_tile), rows.start)
        for cols in tiles(n, block):
            k_tile, v_tile = k.load(cols), v.load(cols)
            scores = memory.hold("scores", q_tile @ k_tile.T / np.sqrt(np.float32(head_dim)), rows.start, cols.start)
            new_max = np.maximum(row_max, scores.max(axis=1)) if "max" not in forget else scores.max(axis=1)
            rescale = np.exp(row_max - new_max)
            weights = np.exp(scores - new_max[:, None])
            row_sum = row_sum * (1 if "row_sum" in forget else rescale) + weights.sum(axis=1)
            acc = acc * (1 if "acc" in forget else rescale[:, None]) + weights @ v_tile
            row_max = new_max
            memory.compute("acc", rows, cols, row_max=row_max, row_sum=row_sum, rescale=rescale, acc=acc)
        o.store(rows, acc if "division" in forget else acc / row_sum[:, None])
        memory.release()


def looped(*forget, title="your loop"):
    memory = Memory(title, sram_bytes=16_384, watch=WATCH)
    loop(*AttentionProblem(64, 64, 16, dtype="float32").arrays(), memory, forget=forget)
    return memory.trace


def triton_like() -> Trace:
    """What a Triton kernel's trace looks like: two programs and two heads, loads without releases, no computes."""
    trace = Trace("my_kernel", tensors={"q": (32, 16, 2), "k": (48, 16, 2), "bias_table": (1, 7, 4), "o": (32, 16, 2)})
    for program, (head, row0) in enumerate([(0, 0), (0, 16), (1, 0), (1, 16)]):
        place = {"program": program, "head": head}
        trace.append("load", "q", row0=row0, rows=16, cols=16, bytes=512, **place)
        trace.append("load", "bias_table", rows=1, cols=7, bytes=28, **place)
        for col0 in (0, 20, 40):
            trace.append("load", "k", row0=col0, rows=min(20, 48 - col0), cols=16, bytes=32 * min(20, 48 - col0), **place)
            trace.note(row_max=np.arange(16.0) + col0, acc=np.ones((16, 16)) * col0)
        trace.append("atomic", "o", row0=row0, rows=16, cols=16, bytes=512, **place)
    return trace


def three_passes() -> Trace:
    memory = Memory("three passes")
    softmax_three_passes(np.random.default_rng(0).standard_normal((5, 40)), block_k=16, memory=memory)
    return memory.trace


CASES = {
    "flash2": lambda: traced(flash2, causal=True, block_q=16, block_k=16),
    "flash1": lambda: traced(flash1, "FlashAttention-1", causal=True, block_q=16, block_k=16),
    "standard": lambda: traced(standard, "standard attention", sram_bytes=None, block_q=16),
    "ragged": lambda: traced(flash2, n_q=17, n_k=113, block_q=5, block_k=48, causal=True, sram_bytes=None),
    "without values": lambda: traced(flash1, block_q=32, block_k=16, watch=()),
    "triton": triton_like,
    "no computes": three_passes,
    "long": lambda: traced(flash2, "a loop of 300 steps", n_q=112, n_k=112, block_q=16, block_k=16),
    "empty": lambda: Trace("nothing"),
    "no keys": lambda: traced(standard, "standard attention", n_k=0, sram_bytes=None, block_q=16),
    "no queries": lambda: traced(standard, "standard attention", n_q=0, sram_bytes=None, block_q=16),
    "no queries in FlashAttention-1": lambda: traced(flash1, "FlashAttention-1", n_q=0, block_q=16, block_k=16),
    "neither": lambda: traced(standard, "standard attention", n_q=0, n_k=0, sram_bytes=None, block_q=16),
}


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {name: make() for name, make in CASES.items()}


# -- In the kernel ------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("error::RuntimeWarning", "ignore:.* encountered in matmul:RuntimeWarning")  # NumPy divides by zero with a warning
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_trace_is_packed_and_drawn(traces, name):
    trace = traces[name]
    widget = TileLoop(trace)
    events = np.frombuffer(widget.data[0]["events"], "<i4").reshape(8, -1)
    assert events[4].tolist() == trace.columns["row0"].tolist()
    assert np.frombuffer(widget.data[0]["bytes"]).sum() == trace.columns["bytes"].sum()
    for step in (0, len(trace) // 2, len(trace)):
        assert still([trace], step).startswith(b"\x89PNG")
    assert "image/png" in widget._repr_mimebundle_()[0]


def test_it_compares_with_what_standard_attention_really_moves(traces):
    by_form = standard_traffic(AttentionProblem(64, 64, 16, dtype="float32")).bytes_moved
    assert TileLoop(traces["flash2"]).data[0]["standard_bytes"] == by_form == traces["standard"].bytes_moved
    heads = standard_traffic(AttentionProblem(32, 48, 16, heads=2)).bytes_moved
    assert TileLoop(traces["triton"]).data[0]["standard_bytes"] == heads
    assert TileLoop(traces["no computes"]).data[0]["standard_bytes"] is None


def test_a_right_trace_has_no_fault_whatever_the_order_of_its_loops(traces):
    for right in (traced(flash2, block_q=16, block_k=16), traced(flash1, block_q=16, block_k=16)):
        widget = TileLoop(looped(), against=right)
        assert (widget.wrong_rows, widget.first_wrong_step, widget.fault) == ([], None, "")


@pytest.mark.parametrize("forget", [("acc",), ("row_sum",), ("acc", "row_sum")])
def test_a_forgotten_rescale_is_found_at_the_first_tile_whose_row_max_rose(forget):
    wrong, right = looped(*forget), looped()
    widget = TileLoop(wrong, against=right)
    by_hand = next(  # the first compute whose row_max is above the one before it, in the same rows
        step + 1
        for (_, row0, before), (step, again, after) in zip(noted(right, "row_max"), list(noted(right, "row_max"))[1:])
        if row0 == again and (after > before).any()
    )
    assert widget.first_wrong_step == by_hand
    row, old, new, factor = re.match(r"row (\d+): row_max rose from (\S+) to (\S+), so .* = (\S+);", widget.fault).groups()
    values = [value[:, 0] for *_, value in noted(right, "row_max")]
    assert float(old) == pytest.approx(values[0][int(row)], rel=5e-3)
    assert float(new) == pytest.approx(values[1][int(row)], rel=5e-3)
    assert float(factor) == pytest.approx(np.exp(values[0][int(row)] - values[1][int(row)]), rel=5e-3)
    rise = values[1] - values[0]
    assert int(row) == rise.argmax() and rise[int(row)] > rise.min()
    assert widget.fault.endswith("acc and row_sum were not." if len(forget) == 2 else f"{forget[0]} was not.")
    o_wrong, o_right = (np.concatenate([value for *_, value in noted(trace, "o")]) for trace in (wrong, right))
    differ = np.abs(o_wrong - o_right).max(axis=1) > 1e-5
    assert 20 < differ.sum() < 64, "some rows must be right, or the test shows nothing"
    assert widget.wrong_rows == np.flatnonzero(differ).tolist()


def test_other_faults_are_named_by_their_numbers():
    assert re.fullmatch(r"row \d+: row_max is \S+, but must be \S+\.", TileLoop(looped("max"), against=looped()).fault)
    undivided = TileLoop(looped("division"), against=looped())
    assert "every tile is right, but the o that is stored is not" in undivided.fault
    assert undivided.wrong_rows == list(range(64))
    assert undivided.first_wrong_step == next(event.step + 1 for event in looped() if event.op == "store")
    blind = TileLoop(traced(flash2, block_q=16, block_k=16, watch=()), against=looped())
    assert blind.first_wrong_step is None and "watch=" in blind.fault


def test_replacing_traces_sends_them_and_keeps_the_step_in_range(traces):
    widget = TileLoop(traces["flash1"], against=looped())
    widget.step, widget.row = 10_000, 10_000
    assert (widget.step, widget.row) == (len(traces["flash1"]), 63)
    widget.traces = (traces["ragged"],)
    assert [panel["title"] for panel in widget.data] == ["FlashAttention-2"]
    assert (widget.step, widget.row) == (len(traces["ragged"]), 16)
    widget.replace(looped("acc"))
    assert widget.first_wrong_step is not None
    widget.step = -3
    assert widget.step == 0


def test_what_is_not_a_trace_is_refused_in_words():
    with pytest.raises(TypeError, match=r"TileLoop shows traces, but was given Memory\. Pass memory\.trace"):
        TileLoop(Memory())


def test_its_repr_is_a_sentence_and_its_picture_has_it_as_alt_text(traces):
    widget = TileLoop(traces["flash2"])
    assert repr(widget) == "Tile loop at step 0 of 92: FlashAttention-2 moves 28,928 bytes in all, standard attention 81,920."
    data, metadata = widget._repr_mimebundle_()
    assert data["text/plain"] == repr(widget) and data[VIEW]["model_id"] == widget.model_id
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == (
        "Still picture of the tile loop at step 54 of 92: FlashAttention-2 moves 28,928 bytes in all, standard attention 81,920."
    )


def test_nbconvert_shows_the_picture_with_its_alt_text(traces):
    import nbformat
    from nbconvert import HTMLExporter

    data, metadata = TileLoop(traces["flash2"])._repr_mimebundle_()
    cell = nbformat.v4.new_code_cell("w", outputs=[nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)])
    page, _ = HTMLExporter(template_name="classic").from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert metadata["image/png"]["alt"] in re.findall(r'alt="([^"]*)"', page)  # its lab template leaves alt texts out


def test_the_still_picture_of_a_fault_marks_the_wrong_rows_once_they_are_stored():
    widget, right = TileLoop(looped("acc"), against=looped()), TileLoop(looped())
    first = min(widget._faults[0].wrong_rows.values())
    assert still(widget._traces, first - 1, widget._faults) == still(widget._traces, first - 1)
    assert still(widget._traces, first, widget._faults) != still(widget._traces, first)
    for shown, step in ((widget, widget.steps), (right, middle(right._traces))):
        data, metadata = shown._repr_mimebundle_()
        picture = still(shown._traces, step, shown._faults, caption=metadata["image/png"]["alt"])
        assert data["image/png"] == base64.b64encode(picture).decode()


def test_two_steps_give_two_pictures(traces):
    assert still([traces["flash2"]], 8) != still([traces["flash2"]], 40)


# -- Its pure functions, in Node ----------------------------------------------------------------------------------------
def _replayed(trace: Trace, row: int = 3) -> list[dict]:
    """The state after every step, by plain replay: nothing of reading.py's or the widget's bookkeeping."""
    managed = any(event.op in ("hold", "release") for event in trace)
    computes = [event.step for event in trace if event.op == "compute"] or [event.step for event in trace if event.tensor == "k" and "q" in trace.tensor_names]
    if not computes and not {"q", "k"} & set(trace.tensor_names):
        computes = [event.step for event in trace if event.op == "load" and event.tensor == "scores"]
    held, values, states, program = {}, {}, [], 0
    loaded = stored = 0
    for step, event in enumerate([None, *trace]):
        if event is not None:
            if not managed and event.program != program:
                held, program = {}, event.program
            loaded += event.bytes * (event.op == "load")
            stored += event.bytes * (event.op in ("store", "atomic"))
            if event.op in ("load", "hold"):
                held[event.tensor] = event.step
            elif event.op == "release":
                held.pop(event.tensor, None)
            for name, value in trace.values.get(event.step, {}).items():
                shown = event.op == "store" if name == "o" else event.op in ("compute", "load")
                row0 = 16 * (event.program % 2) if event.tensor == "k" else event.row0
                if shown and row0 <= row < row0 + len(value) and event.head == 0:
                    values[name] = np.atleast_1d(value[row - row0])[:4].tolist()
        states.append({
            "loaded": loaded, "stored": stored, "held": sorted([name, at] for name, at in held.items()),
            "sram": sum(trace[at].bytes for at in held.values()), "tiles_done": sum(at < step for at in computes),
            "row": row, "values": {name: [_finite(x) for x in value] for name, value in values.items()},
        })  # fmt: skip
    return states


def _finite(x: float):
    return x if np.isfinite(x) else str(x).replace("inf", "Infinity")


def _base64(packed):
    if isinstance(packed, bytes):
        return {"base64": base64.b64encode(packed).decode()}
    if isinstance(packed, dict):
        return {name: _base64(value) for name, value in packed.items()}
    return [_base64(value) for value in packed] if isinstance(packed, (list, tuple)) else packed


def test_pure_functions_in_node(node, traces, tmp_path):
    module, cases = tmp_path / "tile_loop.mjs", tmp_path / "cases.json"
    module.write_text(TileLoop._esm, "utf-8")
    packed = [{"name": name, "packed": _base64(TileLoop(trace).data[0]), "truth": _replayed(trace)} for name, trace in traces.items()]
    cases.write_text(json.dumps(packed))
    environment = os.environ | {"TILE_LOOP_MODULE": module.as_uri(), "TILE_LOOP_CASES": str(cases)}
    test = Path(__file__).with_name("tile_loop.test.mjs")
    done = subprocess.run([node, "--test", "--test-reporter=tap", str(test)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert int(re.search(r"# pass (\d+)", done.stdout)[1]) == 3 * len(CASES) + 6


# -- In JupyterLab ------------------------------------------------------------------------------------------------------
IMPORTS = """
import numpy as np
from flashlab.problem import AttentionProblem
from flashlab.reference.flash1 import flash1
from flashlab.reference.flash2 import flash2
from flashlab.reference.standard import standard
from flashlab.traffic.memory import Memory, tiles
from flashlab.widgets.faults import WATCH
from flashlab.widgets.tile_loop import TileLoop
"""
SETUP = "\n".join([IMPORTS, *map(inspect.getsource, (traced, loop, looped))])
FLASH2 = "t = traced(flash2, causal=True, block_q=16, block_k=16)"


def widget_of(lab):
    return lab.page.get_by_role("group", name=re.compile("^Tile loop"))


@pytest.mark.browser
def test_it_is_found_by_role_and_stepped_by_button_and_key(open_notebook):
    lab = open_notebook([SETUP, FLASH2, "w = TileLoop(t, row=37); w"])
    widget = widget_of(lab)
    said = widget.get_by_role("region", name="FlashAttention-2").get_by_role("status").first
    lab.wait_text(said, "step 0 of 92: nothing has moved yet")
    assert said.get_attribute("aria-live") == "polite"
    widget.get_by_role("button", name="Step forward").click()
    lab.wait_kernel("w.step", "1")
    lab.wait_text(said, "step 1 of 92: load q rows 0 to 15, 1,024 bytes")
    for key, step in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", 92), ("ArrowLeft", 91), ("Home", 0)):
        widget.press(key)
        lab.wait_kernel("w.step", str(step))
        lab.wait_text(said, re.compile(f"^step {step} of 92"))
    widget.get_by_role("button", name="Last step").click()
    lab.wait_kernel("w.step", "92")
    lab.wait_text(widget.get_by_label("bytes loaded"), lab.kernel("f'{t.bytes_loaded:,} bytes'").strip("'"))
    lab.wait_text(widget.get_by_label("bytes stored"), lab.kernel("f'{t.bytes_stored:,} bytes'").strip("'"))
    lab.wait_text(said, re.compile("Done: 28,928 bytes moved, 2.83 × less than standard attention$"))
    widget.get_by_role("button", name="First step").click()
    widget.get_by_role("slider", name="Step").fill("17")
    lab.wait_kernel("w.step", "17")
    lab.execute("w.step = 40")
    lab.page.wait_for_function("document.querySelector('.fl-line').textContent.startsWith('step 40 of 92')")
    assert widget.get_by_role("slider", name="Step").input_value() == "40"
    assert not [line for line in lab.console if line.startswith("error")]


@pytest.mark.browser
def test_every_control_has_a_name_and_shows_its_focus(open_notebook):
    lab = open_notebook([SETUP, FLASH2, "TileLoop(t)"])
    widget = widget_of(lab)
    controls = widget.locator("button, input, select")
    assert controls.count() == 8
    snapshot = widget.aria_snapshot()
    for role, name in [("slider", "Step"), ("combobox", "Speed"), ("spinbutton", "Row"), ("button", "Play"), ("toolbar", "Playback")]:
        assert widget.get_by_role(role, name=name, exact=True).count() == 1, snapshot
    widget.focus()
    seen = []
    for _ in range(8):  # keyboard alone reaches all of them, each with a ring
        lab.page.keyboard.press("Tab")
        seen.append(lab.page.evaluate("document.activeElement.ariaLabel + ' ' + getComputedStyle(document.activeElement).outlineStyle"))
    assert seen == [f"{name} solid" for name in ("First step", "Step back", "Play", "Step forward", "Last step", "Step", "Speed", "Row")]


@pytest.mark.browser
def test_its_keys_do_not_reach_the_notebook_but_shift_enter_does(open_notebook):
    import nbformat

    lab = open_notebook([nbformat.v4.new_markdown_cell("# A heading"), SETUP, FLASH2, "w = TileLoop(t); w"])
    notebook = "window.jupyterapp.shell.currentWidget.content"
    lab.page.evaluate(f"{notebook}.activeCellIndex = 3")
    widget = widget_of(lab)
    for key in ("ArrowLeft", "b", "ArrowRight", "Home"):
        widget.press(key)
    assert lab.page.evaluate(f"[{notebook}.activeCellIndex, {notebook}.widgets.length]") == [3, 4]
    before = lab.kernel("id(w)")
    widget.press("Shift+Enter")
    lab.page.wait_for_function(f"{notebook}.activeCellIndex === 4")
    assert lab.kernel("id(w)") != before


@pytest.mark.browser
def test_the_button_that_has_the_focus_keeps_it_at_the_last_step(open_notebook):
    lab = open_notebook([SETUP, FLASH2, "w = TileLoop(t); w.step = 91; w"])
    active = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    cell = lab.page.evaluate(active)
    widget_of(lab).get_by_role("button", name="Step forward").focus()
    for key, step in (("Enter", 92), ("Enter", 92), ("ArrowLeft", 91), ("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1)):
        lab.page.keyboard.press(key)
        lab.wait_kernel("w.step", str(step))
        assert lab.page.evaluate("document.activeElement.ariaLabel") == "Step forward"
    assert lab.page.evaluate(active) == cell


@pytest.mark.browser
def test_it_plays_pauses_and_stops_at_the_end(open_notebook):
    lab = open_notebook([SETUP, FLASH2, "w = TileLoop(t); w"])
    widget = widget_of(lab)
    widget.get_by_role("combobox", name="Speed").select_option("16")
    lab.wait_kernel("w.speed", "16.0")
    start = time.monotonic()
    widget.press(" ")
    lab.wait_kernel("w.playing", "True")
    lab.wait_kernel("w.step >= 4", "True")
    widget.get_by_role("button", name="Pause").click()
    lab.wait_kernel("w.playing", "False")
    step = int(lab.kernel("w.step"))
    assert 4 <= step <= min(91, 1 + 16 * (time.monotonic() - start))
    lab.page.wait_for_timeout(400)
    assert int(lab.kernel("w.step")) == step == int(widget.get_by_role("slider", name="Step").input_value())
    lab.execute("w.speed, w.playing = 512, True")
    lab.wait_kernel("w.playing, w.step", "(False, 92)")


@pytest.mark.browser
def test_playing_sends_the_step_at_most_four_times_a_second(open_notebook):
    long = "t = traced(flash2, n_q=496, n_k=496, block_q=16, block_k=16, watch=())"
    count = "seen = []; w.observe(lambda change: seen.append(change.new), 'step')"
    lab = open_notebook([SETUP, long, "w = TileLoop(t); w.speed = 256; w", count])
    start = time.monotonic()
    widget_of(lab).press(" ")
    lab.wait_kernel("len(seen) >= 4", "True")
    widget_of(lab).press(" ")
    lab.wait_kernel("w.playing", "False")
    messages, step = int(lab.kernel("len(seen)")), int(lab.kernel("w.step"))
    assert messages <= 2 + 4 * (time.monotonic() - start)  # the first step and the last are sent at once
    assert step > 20 * messages, "steps are left out, not put off"


@pytest.mark.browser
def test_the_rows_numbers_are_the_traces(open_notebook):
    lab = open_notebook([SETUP, FLASH2, "w = TileLoop(t, row=37); w"])
    widget = widget_of(lab)
    lab.execute("from flashlab.widgets.reading import noted")
    lab.execute("computes = [e.step for e in t if e.op == 'compute' and e.row0 == 32]; w.step = computes[1] + 1")
    widget.get_by_text(f"row 37: last changed at step {int(lab.kernel('w.step'))}").wait_for()
    for name in ("row_max", "row_sum", "acc"):
        cells = widget.get_by_role("row", name=re.compile(rf"^{name}")).get_by_role("cell").all_inner_texts()
        for text, which in zip(cells, (0, 1)):
            right = json.loads(lab.kernel(f"np.atleast_1d(t.values[computes[{which}]]['{name}'][5])[:4].tolist()"))
            assert [float(x.replace("−", "-")) for x in text.split()] == pytest.approx(right, rel=6e-4)
    box = widget.locator("canvas").bounding_box()
    widget.get_by_role("spinbutton", name="Row").fill("3")
    lab.wait_kernel("w.row", "3")
    widget.locator("canvas").click(position={"x": box["width"] * 0.52, "y": 46 + 0.5})  # the first row of the grid
    lab.wait_kernel("w.row", "0")
    lab.execute("w.replace(traced(flash2, block_q=16, block_k=16, watch=()))")
    widget.get_by_text("watch=").wait_for()


@pytest.mark.browser
def test_it_stops_once_at_the_first_wrong_tile_and_marks_the_wrong_rows(open_notebook):
    lab = open_notebook([SETUP, "w = TileLoop(looped('acc'), against=looped()); w.speed = 64; w"])
    widget = widget_of(lab)
    widget.get_by_role("button", name="Play").click()
    alert = widget.get_by_role("alert")
    alert.wait_for()
    lab.wait_kernel("w.playing", "False")
    assert lab.kernel("w.step") == lab.kernel("w.first_wrong_step")
    assert alert.inner_text() == f"✗ step {lab.kernel('w.step')}, " + lab.kernel("w.fault").strip("'")
    assert f"row {lab.kernel('w.row')}:" in alert.inner_text()
    lab.screenshot("tile-loop-fault", widget)
    red = """() => {
        const canvas = document.querySelector('.fl-tile-loop canvas'), pen = canvas.getContext('2d')
        const pixels = pen.getImageData(0, 0, canvas.width * 0.3, canvas.height).data
        return pixels.filter((_, i) => i % 4 === 0 && pixels[i] > 180 && pixels[i + 1] < 110 && pixels[i + 2] < 110).length
    }"""
    assert lab.page.evaluate(red) == 0, "no row is wrong before one is stored"
    widget.get_by_role("button", name="Play").click()
    lab.wait_kernel("(w.playing, w.step)", "(False, 96)")
    assert lab.page.evaluate(red) > 200
    lab.screenshot("tile-loop-fault-end", widget)
    widget.get_by_role("button", name="Play").click()  # from the start again, this time without a stop
    lab.wait_kernel("w.playing", "True")
    lab.wait_kernel("(w.playing, w.step)", "(False, 96)")


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_three_algorithms_share_one_clock_and_theme(open_notebook, theme):
    side_by_side = """w = TileLoop(traced(standard, "standard attention", sram_bytes=None, block_q=16, causal=True),
        traced(flash1, "FlashAttention-1", causal=True, block_q=16, block_k=16), traced(flash2, causal=True, block_q=16, block_k=16)); w"""
    lab = open_notebook([SETUP, side_by_side, FLASH2, "one = TileLoop(t, row=37); one.step = 53; one"], theme=theme)
    three, one = widget_of(lab).nth(0), widget_of(lab).nth(1)
    lab.execute("w.step = 60")
    regions = three.get_by_role("region")
    lab.page.wait_for_function("document.querySelectorAll('.fl-line')[2].textContent.startsWith('step 60 of 92')")
    lines = [regions.nth(i).locator(".fl-line").inner_text() for i in range(3)]
    assert [line.split(":")[0] for line in lines] == ["step 43 of 43", "step 60 of 128", "step 60 of 92"]
    tops = {round(regions.nth(i).bounding_box()["y"]) for i in range(3)}
    assert len(tops) == 1, "side by side at notebook width"
    style = "getComputedStyle(document.querySelector('.fl-tile-loop'))"
    ink, paper = lab.page.evaluate(f"[{style}.color, {style}.backgroundColor]")
    light = [sum(map(float, re.findall(r"[\d.]+", colour)[:3])) for colour in (ink, paper)]
    assert (light[1] - light[0]) * (1 if theme == "light" else -1) > 300, f"text {ink} on {paper}"
    lab.page.set_viewport_size({"width": 1120, "height": 1500})
    lab.screenshot(f"tile-loop-{theme}", one)
    lab.screenshot(f"tile-loop-three-{theme}", three)
    lab.page.set_viewport_size({"width": 620, "height": 1500})
    lab.page.wait_for_timeout(300)
    assert len({round(regions.nth(i).bounding_box()["y"]) for i in range(3)}) > 1, "in rows when narrow"
    lab.screenshot(f"tile-loop-narrow-{theme}", three)
    lab.page.set_viewport_size({"width": 1120, "height": 1000})


@pytest.mark.browser
def test_tiles_fly_unless_reduced_motion_is_asked_for(open_notebook):
    lab = open_notebook([SETUP, FLASH2, "w = TileLoop(t); w"])
    frames = """async () => {
        const root = document.querySelector('.fl-tile-loop'), canvas = root.querySelector('canvas'), seen = new Set()
        root.querySelector('[aria-label="Step forward"]').click()
        const until = performance.now() + 600
        while (performance.now() < until) { await new Promise(requestAnimationFrame); seen.add(canvas.toDataURL()) }
        return seen.size
    }"""
    assert any(lab.page.evaluate(frames) > 4 for _ in range(5))
    lab.page.emulate_media(reduced_motion="reduce")
    assert lab.page.evaluate(frames) <= 2  # before and after


@pytest.mark.browser
def test_a_4096_step_trace_paints_in_a_second_and_plays_at_60_frames(open_notebook, record_property):
    """The goal: a first paint below 1,000 ms, and frames that cost 8 ms, so that half of a 60th of a second is left to
    the browser. Other tests run beside this one, so it fails at ten times that, which drawing every step again would
    cost; what was measured goes into the report."""
    long = "t = traced(flash2, n_q=496, n_k=496, block_q=16, block_k=16)"
    lab = open_notebook([SETUP, long, "w = TileLoop(t); w"])
    assert int(lab.kernel("len(t)")) >= STEPS_4096
    first_paint = """async () => {
        const painted = new Promise((resolve) => {
            const old = document.querySelector('.fl-tile-loop canvas')
            new MutationObserver(() => {
                const canvas = document.querySelector('.fl-tile-loop canvas[aria-label]')
                if (canvas && canvas !== old) resolve(performance.now())
            }).observe(document.body, {subtree: true, childList: true, attributes: true})
        })
        const start = performance.now()
        window.jupyterapp.commands.execute('notebook:run-cell')
        return (await painted) - start
    }"""
    paint_ms = min(lab.page.evaluate(first_paint) for _ in range(3))
    lab.page.evaluate("""() => {
        [window.costs, window.times] = [[], []]
        const original = window.requestAnimationFrame
        window.requestAnimationFrame = (callback) => original((time) => {
            const start = performance.now()
            callback(time)
            window.costs.push(performance.now() - start), window.times.push(time)
        })
    }""")
    widget = widget_of(lab)
    widget.get_by_role("combobox", name="Speed").select_option("512")
    widget.press(" ")
    lab.page.wait_for_timeout(4000)
    costs, times = lab.page.evaluate("[window.costs.slice(), window.times.slice()]")
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    measured = {
        "first paint ms": paint_ms, "frames": len(costs), "median cost of a frame ms": statistics.median(costs),
        "95 % ms": float(np.percentile(costs, 95)), "median gap between frames ms": statistics.median(gaps),
    }  # fmt: skip
    print({name: round(value, 2) for name, value in measured.items()})
    for name, value in measured.items():
        record_property(name, value)
    assert len(costs) > 20
    assert statistics.median(costs) < 10 * 8
    assert paint_ms < 10 * 1000
    widget.press(" ")
    lab.wait_kernel("w.playing", "False")
    assert int(lab.kernel("w.step")) > 800


@pytest.mark.browser
def test_a_fresh_untrusted_notebook_without_a_kernel_shows_the_still_picture(open_notebook, traces):
    import nbformat

    data, metadata = TileLoop(traces["flash2"])._repr_mimebundle_()
    whole = nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)
    without_view = {mime: value for mime, value in data.items() if mime != VIEW}
    stripped = nbformat.v4.new_output("execute_result", without_view, metadata=metadata, execution_count=1)
    cells = [nbformat.v4.new_code_cell("w", outputs=[output], execution_count=1) for output in (stripped, whole)]
    lab = open_notebook(cells, kernel=False)
    assert lab.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session") is None
    for output in lab.page.locator(".jp-OutputArea-output").all():
        picture = output.locator("img")  # JupyterLab leaves the alt text out; nbconvert puts it in
        picture.wait_for()
        width, height = picture.evaluate("image => [image.naturalWidth, image.naturalHeight]")
        assert width == 900 and height > HEIGHT, "the sentence stands under the picture"
    lab.screenshot("tile-loop-untrusted")
