"""Labelled controls over a figure, with one sentence that says what the figure shows: the frame of the ipywidgets ones.

A widget gives its controls and a `draw` that turns their values into a matplotlib figure and a sentence. The sentence is
the picture's alt text, the widget's repr, and the line under the picture. Where no kernel runs, the picture stands
alone, so there the sentence is drawn under it. Lists and sliders are the browser's own with a label, and keep their arrow keys: those of
ipywidgets lose theirs to JupyterLab, and its sliders have no name that a screen reader or a test could find.
"""

from __future__ import annotations

import base64
import html
import threading

import anywidget
import ipywidgets
import traitlets

from flashlab.widgets.picture import png

WIDTH_PX = 800  # of the picture on the page
SHARP = 1.5  # times as many are drawn, for sharp screens

_CONTROL = """
function render({ model, el }) {
  const slides = model.get("slides")
  const label = document.createElement("label"), name = document.createElement("span"), shown = document.createElement("output")
  const control = document.createElement(slides ? "input" : "select")
  control.setAttribute("data-lm-suppress-shortcuts", "true")  // its arrow keys are not the notebook's
  if (slides) { control.type = "range"; control.min = 0; control.step = 1 }
  name.textContent = model.get("label")
  label.append(name, control)
  el.append(label, ...(slides ? [shown] : []))
  el.classList.add("flashlab-control")
  const index = () => slides ? control.valueAsNumber : control.selectedIndex
  const say = () => {
    shown.textContent = model.get("options")[index()]
    if (slides) control.setAttribute("aria-valuetext", shown.textContent)
  }
  const draw = () => {
    if (slides) {
      control.max = model.get("options").length - 1
      control.value = model.get("index")
    } else {
      control.replaceChildren(...model.get("options").map((text) => new Option(text)))
      control.selectedIndex = model.get("index")
    }
    say()
  }
  control.addEventListener("input", say)
  control.addEventListener("change", () => { model.set("index", index()); model.save_changes() })
  model.on("change:index change:options", draw)
  draw()
  return () => model.off("change:index change:options", draw)
}
export default { render }
"""
_CONTROL_CSS = """
.flashlab-control [hidden] { display: none !important; }
.flashlab-control { display: flex; align-items: center; gap: 8px; margin: 2px; height: 28px;
  color: var(--jp-ui-font-color1, inherit); font-size: var(--jp-widgets-font-size, 13px); }
.flashlab-control label { display: flex; align-items: center; gap: 8px; flex: 1; min-width: 0; }
.flashlab-control label span { width: 80px; text-align: right; flex: none; }
.flashlab-control input { flex: 1; min-width: 60px; accent-color: var(--jp-brand-color1, #0072B2); }
.flashlab-control select { flex: 1; min-width: 60px; height: 28px; font: inherit; color: inherit; padding: 0 4px;
  background: var(--jp-layout-color1, Canvas); border: 1px solid var(--jp-border-color1, currentColor); }
.flashlab-control output { width: 52px; flex: none; font-variant-numeric: tabular-nums; }
"""

# JupyterLab 4.4 and later gives each control a subshell of the kernel, a thread of its own: two quick changes arrive at
# once. The second waits for the first picture, then draws what holds by then. matplotlib wants one thread at a time too.
_ONE_AT_A_TIME = threading.RLock()


class Choice(anywidget.AnyWidget):
    """A labelled list to choose from: `names` maps what the reader sees to a value, and `value` is the one chosen."""

    _esm, _css = _CONTROL, _CONTROL_CSS
    slides = traitlets.Bool(False).tag(sync=True)
    label = traitlets.Unicode().tag(sync=True)
    options = traitlets.List(traitlets.Unicode()).tag(sync=True)
    index = traitlets.Int().tag(sync=True)
    value = traitlets.Any()

    def __init__(self, label: str, names: dict[str, object], value: object) -> None:
        self._values = list(names.values())
        super().__init__(label=label, options=list(names), index=self._values.index(value), value=value)

    def offer(self, names: dict[str, object], value: object) -> None:
        """Replace the list, and choose `value` of it."""
        self._values = list(names.values())
        with self.hold_sync():
            self.options = list(names)
            self.index = self._values.index(value)
        self.value = value

    @traitlets.observe("index")
    def _chosen(self, change) -> None:
        self.value = self._values[change["new"]]

    @traitlets.observe("value")
    def _set(self, change) -> None:
        self.index = self._values.index(change["new"])

    def __repr__(self) -> str:
        return f"{self.label}: {self.options[self.index]}"


class Slider(Choice):
    """The same as a slider over numbers, such as powers of two; setting `value` to one that is not listed adds it."""

    slides = traitlets.Bool(True).tag(sync=True)

    def __init__(self, label: str, values: list[int], value: int) -> None:
        super().__init__(label, {f"{number:,}": number for number in sorted({*values, value})}, value)

    @traitlets.observe("value")
    def _set(self, change) -> None:
        number = change["new"]
        if number not in self._values:
            self.offer({f"{n:,}": n for n in sorted({*self._values, number})}, number)
        self.index = self._values.index(number)


class Panel(ipywidgets.VBox):
    """Controls by name, the picture that `draw(**values)` makes of them, and its sentence.

    Read the state with `panel.values`, change it with `panel.set(n=8192)`. `draw` returns (figure, sentence); `adjust`
    may first bring one control into line with another, such as the dtypes that a GPU has.
    """

    def __init__(self, controls: dict[str, ipywidgets.DOMWidget]) -> None:
        self.controls = controls
        self.sentence, self.png = "", b""
        self._picture, self._line, self._busy = ipywidgets.HTML(), ipywidgets.HTML(), False
        grid = ipywidgets.GridBox(tuple(controls.values()), layout={"grid_template_columns": "repeat(auto-fit, minmax(240px, 1fr))"})
        for control in controls.values():
            control.layout.width = "auto"
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
        with _ONE_AT_A_TIME:
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
        with _ONE_AT_A_TIME:
            if self._busy:  # set() or adjust() is at work in this thread, and will draw
                return
            self._busy = True
            try:
                self.adjust()
                figure, self.sentence = self.draw(**self.values)
                self.png = png(figure, SHARP * WIDTH_PX)
                self._figure = figure
            finally:
                self._busy = False
            alt, data = html.escape(self.sentence), base64.b64encode(self.png).decode()
            self._picture.value = f'<img alt="{alt}" src="data:image/png;base64,{data}" style="width: 100%; border-radius: 4px">'
            self._line.value = f'<p role="status" style="line-height: 1.5; margin: 4px 0 8px">{alt}</p>'

    def __repr__(self) -> str:
        return self.sentence

    def _repr_mimebundle_(self, **kwargs):
        """The live widget, and for readers without a kernel the picture over its sentence, which is its alt text too."""
        data = dict(super()._repr_mimebundle_(**kwargs))
        with _ONE_AT_A_TIME:
            picture = png(self._figure, SHARP * WIDTH_PX, self.sentence)
        data |= {"text/plain": self.sentence, "image/png": base64.b64encode(picture).decode()}
        return data, {"image/png": {"alt": self.sentence, "width": WIDTH_PX}}


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
