"""The online-softmax widget: what it runs and says, its errors, its still picture, and stepping it in JupyterLab.

The JavaScript functions are tested on real runs of the reference: `RUNS` go to node as JSON in FLASHLAB_RUNS.
"""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from flashlab.errors import ERRORS
from flashlab.reference.online_softmax import empty_state, softmax_dot_one_pass, softmax_three_passes, softmax_two_passes, update
from flashlab.traffic.memory import tiles
from flashlab.widgets.online_softmax import STILL_PX, OnlineSoftmax, exact_softmax, presets

VALUES = np.random.default_rng(0).standard_normal((12, 2))


def forgets_the_rescale(scores, *, block_k, memory):
    """The loop that a reader gets wrong: row_sum is never corrected when row_max rises."""
    scores, state = memory.hbm("scores", scores), empty_state(1, 0)
    rows = slice(0, 1)
    for cols in tiles(scores.array.shape[1], block_k):
        tile = scores.load(rows, cols)
        after, _ = update(state, tile, np.empty((tile.shape[1], 0)))
        row_sum = state.row_sum + np.exp(tile - after.row_max[:, None]).sum(axis=1)
        state = after._replace(row_sum=row_sum)
        memory.compute("row_sum", rows, cols, row_max=state.row_max, row_sum=row_sum, rescale=np.ones(1))
    return np.exp(scores.array - state.row_max) / state.row_sum


def row(name: str) -> list[float]:
    return next(scores for preset, scores in presets(12, 4).items() if preset.startswith(name))


RUNS = {
    "ordinary": lambda: OnlineSoftmax(softmax_two_passes),
    "huge": lambda: OnlineSoftmax(softmax_two_passes, row("huge")),
    "masked": lambda: OnlineSoftmax(softmax_two_passes, row("with -inf")),
    "equal": lambda: OnlineSoftmax(softmax_two_passes, row("all equal"), block_k=5),
    "values": lambda: OnlineSoftmax(softmax_dot_one_pass, values=VALUES),
    "broken": lambda: OnlineSoftmax(forgets_the_rescale),
}


def test_javascript(node):
    runs = json.dumps({name: make().run for name, make in RUNS.items()}, allow_nan=False)
    command = [node, "--test", "--test-reporter=tap", Path(__file__).with_name("online_softmax.test.mjs")]
    run = subprocess.run(command, env=os.environ | {"FLASHLAB_RUNS": runs}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "# skipped 0" in run.stdout, run.stdout


@pytest.mark.parametrize("name", presets(12, 4))
@pytest.mark.parametrize("block_k", [1, 4, 5, 12, 64])
def test_each_preset_is_exact(name, block_k):
    widget = OnlineSoftmax(softmax_two_passes, presets(12, 4)[name], block_k=block_k)
    assert widget.is_exact and widget.difference < 1e-15
    assert widget.exact == pytest.approx(softmax_three_passes(np.array([widget.scores]), block_k=3)[0], rel=1e-15, abs=0)
    assert widget.run["is_exact"] and not widget.run["fault"]


def test_presets_are_what_they_are_called():
    rows = presets(12, 4)
    assert row("all equal") == [2.0] * 12
    assert all(later > sooner for sooner, later in zip(row("rising"), row("rising")[1:]))
    assert np.isneginf(row("with -inf")[:4]).all() and np.isfinite(row("with -inf")).any()
    assert max(row("huge")) > 1e4 and min(row("huge")) == -1e4
    assert all(len(scores) == 12 for scores in rows.values())
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        np.exp(row("huge"))  # without the maximum these would overflow


def test_exact_softmax_of_a_masked_row_is_zero():
    assert exact_softmax(np.full(3, -np.inf)).tolist() == [0, 0, 0]
    assert exact_softmax([0.0, math.log(3)]).tolist() == pytest.approx([0.25, 0.75])


def test_repr_is_a_sentence():
    assert repr(OnlineSoftmax(softmax_two_passes)) == (
        "Online softmax of 12 scores in 3 tiles: row_max ends at 3.4 after rising 1 time, row_sum at 2.67988;"
        " the result differs from the exact one by 0"
    )


def test_values_give_o():
    widget = OnlineSoftmax(softmax_dot_one_pass, values=VALUES, block_k=5)
    assert widget.is_exact
    assert widget.result == pytest.approx(exact_softmax(widget.scores) @ VALUES, rel=1e-14)
    assert OnlineSoftmax(softmax_dot_one_pass, values=VALUES[:, 0]).result.shape == (1,)


def test_a_wrong_loop_is_found():
    widget = OnlineSoftmax(forgets_the_rescale)
    assert not widget.is_exact and widget.difference > 0.05
    assert widget.run["is_exact"] is False


def test_scores_keep_their_dtype():
    widget = OnlineSoftmax(softmax_two_passes, np.float32([0.1, 0.2, 0.7]))
    assert widget.result.dtype == np.float32 and widget.is_exact and 0 < widget.difference < 1e-7


def test_editing_runs_the_function_again():
    widget = OnlineSoftmax(softmax_two_passes)
    first = widget.trace
    widget.scores = [0.0, -math.inf, 0.0]
    assert widget.trace is not first and widget.result.tolist() == [0.5, 0, 0.5]
    assert widget.run["scores"] == [0.0, "-inf", 0.0] and widget.run["count"] == 1
    widget.block_k = 2
    assert [event.cols for event in widget.trace if event.op == "compute"] == [2, 1]


def test_a_fault_while_editing_is_shown_and_the_row_stays():
    widget = OnlineSoftmax(softmax_two_passes)
    before = widget.run
    widget.block_k = 0
    assert widget.run["fault"].startswith("ValueError: block_k is 0")
    assert widget.run["trace"] == before["trace"]
    told = widget.run
    widget.scores = [1.0]
    assert widget.run != told, "the same fault again must reach the browser, which waits for an answer"
    widget.block_k = 3
    assert widget.run["fault"] == "" and widget.run["block_k"] == 3


def records_nothing(scores, *, block_k, memory):
    return exact_softmax(scores[0])


# what was done wrong: (line of errors.ERRORS, how, what the message says)
BAD = {
    "no score": ("softmax_scores", lambda: OnlineSoftmax(softmax_two_passes, []), "scores is \\[\\]; one row of at least one number"),
    "nan": ("softmax_scores", lambda: OnlineSoftmax(softmax_two_passes, [1.0, math.nan]), "scores is \\[.*nan.*\\]; .* each finite or -inf"),
    "inf": ("softmax_scores", lambda: OnlineSoftmax(softmax_two_passes, [1.0, math.inf]), "each finite or -inf"),
    "two rows": ("softmax_scores", lambda: OnlineSoftmax(softmax_two_passes, np.zeros((2, 20))), "scores is .*; one row"),
    "texts": ("softmax_scores", lambda: OnlineSoftmax(softmax_two_passes, ["a"]), "scores is \\['a'\\]"),
    "values too short": ("softmax_values", lambda: OnlineSoftmax(softmax_dot_one_pass, values=VALUES[:5]), "values has shape \\(5, 2\\); one row for each of the 12"),
    "no trace": ("softmax_trace", lambda: OnlineSoftmax(records_nothing), "trace has no row_max, row_sum, rescale"),
    "wrong result": ("softmax_result", lambda: OnlineSoftmax(lambda s, **k: softmax_two_passes(s, **k)[:, :3]), "returned 3 number\\(s\\), but 12 are needed"),
    "no tile": ("block", lambda: OnlineSoftmax(softmax_two_passes, block_k=0), "block_k is 0"),
    "edited to nan": ("softmax_scores", lambda: setattr(OnlineSoftmax(softmax_two_passes), "scores", [math.nan]), "each finite or -inf"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_to_do(case):
    line, make, message = BAD[case]
    with pytest.raises(ERRORS[line][0], match=message):
        make()


@pytest.mark.parametrize("name", RUNS)
def test_without_a_kernel_a_picture_and_a_sentence(name):
    widget = RUNS[name]()
    data, metadata = widget._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG") and len(data["image/png"]) < 120_000
    assert metadata["image/png"]["alt"] == f"{widget!r}." and data["text/plain"] == repr(widget)
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id


def test_the_still_picture_shows_the_row():
    above, below = OnlineSoftmax(softmax_two_passes).figure().axes
    assert [bar.get_height() for bar in above.patches] == row("ordinary")
    assert [bar.get_height() for bar in below.patches] == pytest.approx(exact_softmax(row("ordinary")))
    assert [text.get_text() for text in below.texts] == [
        "tile 1: rescale × 0\nrow_max 2.1\nrow_sum 1.646",
        "tile 2: rescale × 0.2725\nrow_max 3.4\nrow_sum 1.757",
        "tile 3: rescale × 1\nrow_max 3.4\nrow_sum 2.68",
    ]
    lines = [segment.tolist() for lines in above.collections for segment in lines.get_segments()]
    assert lines == [[[first - 0.5, row_max], [first + 3.5, row_max]] for first, row_max in ((0, 2.1), (4, 3.4), (8, 3.4))]
    edges = [line.get_xdata()[0] for line in above.get_lines() if line.get_linestyle() == "--"]
    assert edges == [3.5, 7.5, 11.5]


def test_the_still_picture_of_a_masked_row_says_where():
    above, below = RUNS["masked"]().figure().axes
    masked = [place for place, score in enumerate(row("with -inf")) if score == -math.inf]
    assert [(text.get_text(), text.xy[0]) for text in above.texts] == [("-inf", place) for place in masked]
    assert [bar.get_height() for place, bar in enumerate(below.patches) if place in masked] == [0] * len(masked)
    assert below.texts[0].get_text().splitlines()[1:] == ["row_max -inf", "row_sum 0"]
    assert len(above.collections) == 2, "the first tile has no row_max to draw"


SETUP = "from flashlab.reference.online_softmax import softmax_two_passes\nfrom flashlab.widgets.online_softmax import OnlineSoftmax"


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_stepping_and_editing(open_notebook, theme):
    lab = open_notebook([SETUP, "row = OnlineSoftmax(softmax_two_passes)\nrow"], theme=theme)
    root = lab.page.get_by_role("region", name="Online softmax")
    said = root.get_by_role("status").first
    assert said.inner_text() == "Nothing is read yet: row_max is −inf and row_sum is 0."
    assert root.get_by_role("button", name="Step back").is_disabled()
    for _ in range(4):
        root.get_by_role("button", name="Step", exact=True).click()
    assert said.inner_text().startswith("Tile 2 of 3: row_max rises from 2.1 to 3.4")
    lab.wait_kernel("row.step", "4")
    cells = root.get_by_role("row", name="rescale").get_by_role("cell").all_inner_texts()
    assert cells == ["", "exp(2.1 − 3.4)", "× 0.2725"]
    assert root.get_by_text("▼ tile 2: now").is_visible() and root.get_by_text("tile 3: to come").is_visible()
    lab.page.wait_for_timeout(800)  # the bars have shrunk
    lab.screenshot(f"online-softmax-{theme}", root)

    score = root.get_by_role("textbox", name="score 6", exact=True)
    score.fill("2")
    score.press("Enter")
    lab.wait_kernel("row.scores[5], float(row.trace.values[3]['row_max'][0])", "(2.0, 2.1)")
    said.get_by_text("row_max stays 2.1").wait_for()
    score.press("ArrowUp")
    lab.wait_kernel("row.scores[5]", "2.5")
    said.get_by_text("row_max rises from 2.1 to 2.5").wait_for()
    score.fill("two")
    score.press("Enter")
    root.get_by_text("Score 6 does not read as a number").wait_for()
    assert score.get_attribute("aria-invalid") == "true"
    lab.wait_kernel("row.scores[5]", "2.5")

    root.get_by_role("combobox", name="scores").select_option("with -inf (masked)")
    lab.wait_kernel("row.scores[:2]", "[-inf, -inf]")
    root.get_by_role("spinbutton", name="tile size").fill("6")
    root.get_by_role("spinbutton", name="tile size").press("Enter")
    lab.wait_kernel("row.block_k, row.run['fault']", "(6, '')")
    root.get_by_role("button", name="Go to the end").click()
    said.get_by_text("the same, up to rounding").wait_for()
    lab.wait_kernel("row.step", "5")
    lab.screenshot(f"online-softmax-end-{theme}", root)


@pytest.mark.browser
def test_keys_and_playing(open_notebook):
    lab = open_notebook([SETUP, "row = OnlineSoftmax(softmax_two_passes)\nrow"])
    root = lab.page.get_by_role("region", name="Online softmax")
    root.get_by_role("group", name="Scores and weights").focus()
    for key, step in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 7), ("Home", 0)):
        lab.page.keyboard.press(key)
        assert root.get_by_text(f"step {step} of 7").is_visible(), key
    lab.page.keyboard.press("Space")
    root.get_by_role("button", name="Pause").wait_for()
    lab.wait_kernel("row.playing", "True")
    root.get_by_text("step 1 of 7").wait_for()
    lab.page.keyboard.press("Space")
    root.get_by_role("button", name="Play").wait_for()
    lab.wait_kernel("row.playing, row.step", "(False, 1)")
    assert lab.page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Scores and weights")

    root.get_by_role("slider", name="step").focus()
    lab.page.keyboard.press("ArrowUp")  # an arrow that JupyterLab would take for itself
    lab.wait_kernel("row.step", "2")
    assert lab.page.evaluate("document.activeElement.getAttribute('aria-label')") == "step"


@pytest.mark.browser
def test_the_button_that_has_the_focus_keeps_it_at_the_last_step(open_notebook):
    lab = open_notebook([SETUP, "row = OnlineSoftmax(softmax_two_passes)\nrow.step = 6\nrow"])
    root = lab.page.get_by_role("region", name="Online softmax")
    active = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    cell, focus = lab.page.evaluate(active), "document.activeElement.getAttribute('aria-label')"
    off = lambda name: root.get_by_role("button", name=name, exact=True).get_attribute("aria-disabled")  # noqa: E731
    for name, presses in {
        "Step": (("Enter", 7), ("Enter", 7), ("Space", 7), ("ArrowLeft", 6), ("ArrowRight", 7)),
        "Go to the end": (("Enter", 7), ("ArrowLeft", 6), ("Enter", 7)),
        "Step back": (("Home", 0), ("Enter", 0), ("ArrowRight", 1), ("Enter", 0)),
        "Go to the start": (("Enter", 0), ("ArrowRight", 1), ("Enter", 0)),
    }.items():
        root.get_by_role("button", name=name, exact=True).focus()
        for key, step in presses:
            lab.page.keyboard.press(key)
            root.get_by_text(f"step {step} of 7").wait_for()
            assert lab.page.evaluate(focus) == name, f"{key} at {name}"
            ends = {"Go to the start": step == 0, "Step back": step == 0, "Step": step == 7, "Go to the end": step == 7}
            assert {button: off(button) == "true" for button in ends} == ends
    assert lab.page.evaluate(active) == cell, "no key may have reached the notebook"
    style = "(name) => getComputedStyle(document.querySelector(`.flashlab-softmax [aria-label='${name}']`)).opacity"
    assert [lab.page.evaluate(style, name) for name in ("Step back", "Step")] == ["0.4", "1"]
    lab.execute("row.playing = True")
    root.get_by_role("button", name="Pause").wait_for()
    lab.page.keyboard.press("Enter")  # at the start "Go to the start" does nothing, so it does not stop what plays
    lab.page.wait_for_timeout(200)
    assert lab.kernel("row.playing") == "True"


@pytest.mark.browser
def test_playing_needs_no_kernel(open_notebook):
    lab = open_notebook([SETUP, "row = OnlineSoftmax(softmax_two_passes)\nrow.step = 5\nrow"])
    root = lab.page.get_by_role("region", name="Online softmax")
    kernel = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
    lab.page.evaluate(f"() => {{ void {kernel}.requestExecute({{code: 'import time; time.sleep(600)', stop_on_error: false}}) }}")
    root.get_by_role("button", name="Play").click()
    root.get_by_text("step 7 of 7").wait_for()  # while the kernel sleeps
    root.get_by_role("button", name="Play").wait_for()  # it stopped by itself
    assert lab.page.evaluate(f"{kernel}.status") == "busy"
    lab.page.evaluate(f"{kernel}.interrupt()")
    lab.wait_kernel("row.step, row.playing", "(7, False)", timeout_s=20)
    assert lab.kernel("row.is_exact") == "True"


@pytest.mark.browser
def test_a_wrong_loop_is_marked_and_a_fault_is_told(open_notebook):
    code = Path(__file__).read_text().split("def forgets_the_rescale")[1].split("\n\n\ndef ")[0]
    needs = "import numpy as np\nfrom flashlab.reference.online_softmax import empty_state, update\nfrom flashlab.traffic.memory import tiles"
    lab = open_notebook([SETUP, f"{needs}\ndef forgets_the_rescale{code}", "row = OnlineSoftmax(forgets_the_rescale)\nrow"])
    root = lab.page.get_by_role("region", name="Online softmax")
    root.get_by_role("button", name="Go to the end").click()
    root.get_by_role("cell", name="✗ not the same").wait_for()
    lab.execute("row.block_k = -1")
    root.get_by_text("The function stopped with ValueError: block is -1").wait_for()
    assert lab.kernel("row.is_exact") == "False"


@pytest.mark.browser
def test_a_fresh_untrusted_clone_shows_the_still_picture(open_notebook):
    import nbformat

    data, metadata = OnlineSoftmax(softmax_two_passes)._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    lab = open_notebook([nbformat.v4.new_code_cell("row", outputs=[output])], run=False)
    picture = lab.page.locator(".jp-OutputArea img")
    picture.wait_for()
    assert picture.evaluate("(img) => img.complete && img.naturalWidth") == STILL_PX
    lab.screenshot("online-softmax-untrusted")
