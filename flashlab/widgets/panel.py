"""Labelled controls over a figure, with one sentence that says what the figure shows: the frame of the ipywidgets ones.

A widget gives its controls and a `draw` that turns their values into a matplotlib figure and a sentence. The sentence is
the picture's alt text, the widget's repr, and the line under the picture. Where no kernel runs, the picture stands
alone: the same PNG, with the same alt text. Sliders are a native <input type="range"> with a label, which ipywidgets'
own are not: a screen reader and a test find them by name, and the arrow keys move them.
"""

from __future__ import annotations

import base64
import html
import io

import anywidget
import ipywidgets
import traitlets

WIDTH_PX = 800  # of the picture on the page; it is drawn half as large again, for sharp screens

_SLIDER = """
function render({ model, el }) {
  const label = document.createElement("label"), name = document.createElement("span")
  const input = document.createElement("input"), shown = document.createElement("output")
  input.type = "range"; input.min = 0; input.step = 1
  name.textContent = model.get("label")
  label.append(name, input); el.append(label, shown); el.classList.add("flashlab-slider")
  el.dataset.lmSuppressShortcuts = "true"  // the arrow keys are the slider's, not the notebook's
  const draw = () => {
    const options = model.get("options")
    input.max = options.length - 1
    input.value = model.get("index")
    shown.textContent = options[model.get("index")]
    input.setAttribute("aria-valuetext", shown.textContent)
  }
  const say = () => { shown.textContent = model.get("options")[input.valueAsNumber] }
  const set = () => { model.set("index", input.valueAsNumber); model.save_changes() }
  input.addEventListener("input", say)
  input.addEventListener("change", set)
  model.on("change:index change:options", draw)
  draw()
  return () => model.off("change:index change:options", draw)
}
export default { render }
"""
_SLIDER_CSS = """
.flashlab-slider { display: flex; align-items: center; gap: 8px; margin: 2px; width: 100%; height: 28px;
  color: var(--jp-ui-font-color1, inherit); font-size: var(--jp-widgets-font-size, 13px); }
.flashlab-slider label { display: flex; align-items: center; gap: 8px; flex: 1; min-width: 0; }
.flashlab-slider label span { width: 80px; text-align: right; flex: none; }
.flashlab-slider input { flex: 1; min-width: 60px; accent-color: var(--jp-brand-color1, #0072B2); }
.flashlab-slider output { width: 64px; flex: none; font-variant-numeric: tabular-nums; }
"""


class Slider(anywidget.AnyWidget):
    """A slider over a list of values, such as powers of two; `value` is the one chosen, and may be one not listed yet."""

    _esm, _css = _SLIDER, _SLIDER_CSS
    label = traitlets.Unicode().tag(sync=True)
    options = traitlets.List(traitlets.Unicode()).tag(sync=True)
    index = traitlets.Int().tag(sync=True)
    value = traitlets.Int()

    def __init__(self, label: str, values: list[int], value: int) -> None:
        self._values = sorted({*values, value})
        super().__init__(label=label, options=[f"{v:,}" for v in self._values], index=self._values.index(value), value=value)

    @traitlets.observe("index")
    def _chosen(self, change) -> None:
        self.value = self._values[change["new"]]

    @traitlets.observe("value")
    def _moved(self, change) -> None:
        if change["new"] not in self._values:
            self._values = sorted({*self._values, change["new"]})
            with self.hold_sync():
                self.options = [f"{v:,}" for v in self._values]
                self.index = self._values.index(change["new"])
        self.index = self._values.index(change["new"])

    def __repr__(self) -> str:
        return f"{self.label}: {self.value:,}"


class Panel(ipywidgets.VBox):
    """Controls by name, the picture that `draw(**values)` makes of them, and its sentence.

    Read the state with `panel.values`, change it with `panel.set(n=8192)`. `draw` returns (figure, sentence); `adjust`
    may first bring one control into line with another, such as the dtypes that a GPU has.
    """

    def __init__(self, controls: dict[str, ipywidgets.DOMWidget]) -> None:
        self.controls = controls
        self.sentence, self.png = "", b""
        self._picture, self._line, self._busy = ipywidgets.HTML(), ipywidgets.HTML(), False
        grid = ipywidgets.GridBox(tuple(controls.values()), layout={"grid_template_columns": "repeat(auto-fit, minmax(260px, 1fr))"})
        for box in (grid, self._picture, self._line):
            box.layout.max_width = f"{WIDTH_PX}px"
        super().__init__((grid, self._picture, self._line))
        for control in controls.values():
            control.observe(self._changed, "value")
        self._changed()

    @property
    def values(self) -> dict[str, object]:
        """What the controls are set to."""
        return {name: control.value for name, control in self.controls.items()}

    def set(self, **values: object) -> None:
        """Set controls by name and draw once."""
        self._busy = True
        try:
            for name, value in values.items():
                self.controls[name].value = value
        finally:
            self._busy = False
        self._changed()

    def adjust(self) -> None:
        """Called before each drawing; nothing to do by default."""

    def draw(self, **values: object):
        """(figure, sentence) of these values."""
        raise NotImplementedError

    def _changed(self, change=None) -> None:
        if self._busy:
            return
        self._busy = True  # adjust() may set controls, which would call this again
        try:
            self.adjust()
            figure, self.sentence = self.draw(**self.values)
            self.png = png(figure)
        finally:
            self._busy = False
        alt, data = html.escape(self.sentence), base64.b64encode(self.png).decode()
        self._picture.value = f'<img alt="{alt}" src="data:image/png;base64,{data}" style="width: 100%; border-radius: 4px">'
        self._line.value = f'<p role="status" style="line-height: 1.5; margin: 4px 0 8px">{alt}</p>'

    def __repr__(self) -> str:
        return self.sentence

    def _repr_mimebundle_(self, **kwargs):
        """The live widget, and for readers without a kernel the picture, its alt text and the sentence."""
        data = dict(super()._repr_mimebundle_(**kwargs))
        data |= {"text/plain": self.sentence, "image/png": base64.b64encode(self.png).decode()}
        return data, {"image/png": {"alt": self.sentence, "width": WIDTH_PX}}


def png(figure) -> bytes:
    """A figure as PNG, white behind, so that it reads in a dark theme too."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=1.5 * WIDTH_PX / figure.get_figwidth(), facecolor="white")
    return buffer.getvalue()


def si(value: float, unit: str) -> str:
    """Three digits and a prefix: si(4.8e12, "B/s") is "4.80 TB/s". Powers of ten, as in GB = 1e9 bytes."""
    if value == 0:
        return f"0 {unit}"
    prefixes = {15: "P", 12: "T", 9: "G", 6: "M", 3: "k", 0: "", -3: "m", -6: "µ", -9: "n"}
    power = next((power for power in prefixes if value >= 0.9995 * 10**power), -9)  # 999.6 MB reads 1.00 GB
    return f"{value / 10**power:#.3g}".rstrip(".") + f" {prefixes[power]}{unit}"


def times(ratio: float) -> str:
    """A ratio in words: times(3.31) is "3.3", times(128) is "128"."""
    return f"{ratio:,.1f}" if ratio < 10 else f"{ratio:,.0f}"
