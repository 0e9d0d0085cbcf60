"""Several widgets on one page: no rule of one changes another, in either order, and none reads data as HTML."""

from __future__ import annotations

import re

import pytest

from flashlab.widgets import panel, tile_loop

STATIC = tile_loop.STATIC
CSS = {
    ".fl-tile-loop": (STATIC / "tile_loop.css").read_text("utf-8"),
    ".flashlab-softmax": (STATIC / "online_softmax.css").read_text("utf-8"),
    ".flashlab-quiz": (STATIC / "quiz.css").read_text("utf-8"),
    ".flashlab-control": panel._CONTROL_CSS,
}
DARK = '[data-jp-theme-light="false"] '  # JupyterLab's mark on <body>


def selectors(css: str) -> list[str]:
    """Every selector of a style sheet, without at-rules and comments."""
    css = re.sub(r"/\*.*?\*/|@media[^{]*\{", "", css, flags=re.DOTALL)
    while "(" in css:  # what stands in brackets, as in :is(a, b), begins no selector
        css = re.sub(r"\([^()]*\)", "", css)
    return [one.strip() for rule in re.findall(r"([^{}]+)\{", css) for one in rule.split(",")]


def test_every_style_sheet_is_tested():
    assert len(list(STATIC.glob("*.css"))) == len(CSS) - 1
    assert selectors("/* a {} */ @media (x) { .a, .b :is(c, d:not(e)) { f: g } } .h{}") == [".a", ".b :is", ".h"]


@pytest.mark.parametrize("root", CSS)
def test_every_rule_stays_below_its_own_root(root):
    found = selectors(CSS[root])
    assert len(found) > 5
    strangers = [one for one in found if not re.match(re.escape(root) + r"(?![\w-])", one.removeprefix(DARK))]
    assert strangers == [], "these reach other widgets"
    assert f"{root} [hidden] {{ display: none !important; }}" in CSS[root]


def test_no_widget_reads_data_as_html():
    """The one innerHTML is a constant sign; everything else goes in as text."""
    source = "\n".join(path.read_text("utf-8") for path in sorted(STATIC.glob("*.js"))) + panel._CONTROL
    found = [line.strip() for line in source.splitlines() if re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", line)]
    assert len(found) == 1 and found[0].startswith("button.innerHTML = `<svg ") and re.findall(r"\$\{(.*?)\}", found[0]) == ["SIGNS[label]"]


IMPORTS = """
from flashlab.problem import AttentionProblem
from flashlab.reference.flash2 import flash2
from flashlab.reference.online_softmax import softmax_two_passes
from flashlab.traffic.memory import Memory
from flashlab.widgets.faults import WATCH
from flashlab.widgets.online_softmax import OnlineSoftmax
from flashlab.widgets.quiz import Quiz, single, true_false
from flashlab.widgets.tile_loop import TileLoop
memory = Memory("FlashAttention-2", sram_bytes=16_384, watch=WATCH)
_ = flash2(*AttentionProblem(48, 48, 16, dtype="float32").arrays(), block_q=16, block_k=16, memory=memory)
"""
WIDGETS = [
    "loop = TileLoop(memory.trace, row=20)\nloop.step = 40\nloop",
    "row = OnlineSoftmax(softmax_two_passes)\nrow.step = 4\nrow",
    "asked = Quiz(true_false('It changes the definition of attention.', False), single('Which?', right='this', wrong={'that': 'no'}))\nasked",
]
ROOTS = [".fl-tile-loop", ".flashlab-softmax", ".flashlab-quiz"]

# The look of every element below `root`, with all style sheets and then without those of the other widgets.
LOOKS = """([root, roots]) => {
    const shown = ["display", "position", "color", "backgroundColor", "backgroundImage", "borderTop", "borderLeft", "padding", "margin",
        "font", "textAlign", "opacity", "cursor", "minWidth", "minHeight", "flex", "gap", "borderRadius", "fontVariantNumeric", "whiteSpace"]
    const look = () => [...document.querySelectorAll(`${root}, ${root} *`)].map((element) => {
        const style = getComputedStyle(element)
        return [`${element.tagName}.${element.className}`, ...shown.map((name) => `${name}: ${style[name]}`)]
    })
    const text = (sheet) => { try { return [...sheet.cssRules].map((rule) => rule.cssText).join() } catch { return "" } }
    const others = [...document.styleSheets].filter((sheet) => roots.some((other) => other !== root && text(sheet).includes(other)))
    const together = look()
    for (const sheet of others) sheet.disabled = true
    const alone = look()
    for (const sheet of others) sheet.disabled = false
    return [others.length, together, alone]
}"""


@pytest.mark.browser
@pytest.mark.parametrize(("order", "theme"), [((0, 1, 2), "light"), ((2, 1, 0), "dark")])
def test_no_widget_changes_the_look_of_another(open_notebook, order, theme):
    lab = open_notebook([IMPORTS, *[WIDGETS[place] for place in order]], theme=theme)
    page = lab.page
    page.set_viewport_size({"width": 1120, "height": 2400})  # all on the page: JupyterLab draws no cell that is far away
    for root in ROOTS:
        page.locator(root).wait_for()
    page.get_by_text("step 40 of").first.wait_for()
    page.wait_for_timeout(800)  # the bars have moved
    page.mouse.move(1, 1)
    for root in ROOTS:
        others, together, alone = page.evaluate(LOOKS, [root, ROOTS])
        assert others >= 2 and len(together) > 20
        for mixed, own in zip(together, alone, strict=True):
            assert mixed == own, f"{root} looks different beside the other widgets"

    hidden = page.evaluate("[...document.querySelectorAll('.flashlab-softmax .fl-bar[hidden]')].map((bar) => getComputedStyle(bar).display)")
    assert hidden and set(hidden) == {"none"}
    style = "([root, name]) => { const s = getComputedStyle(document.querySelector(`${root} button[aria-label='${name}']`)); return [s.color, s.backgroundColor] }"
    colours = {(root, name): page.evaluate(style, [root, name]) for root, name in [(ROOTS[0], "Play"), (ROOTS[1], "Play"), (ROOTS[1], "Step")]}
    assert colours[ROOTS[1], "Play"] == colours[ROOTS[1], "Step"], "Play is a button like the others"
    for button, (ink, paper) in colours.items():
        assert "rgba(0, 0, 0, 0)" not in (ink, paper), f"{button}: {ink} on {paper}"
        assert contrast(ink, paper) > 3, f"{button}: {ink} on {paper}"
    lab.screenshot(f"one-page-{theme}")
    page.set_viewport_size({"width": 1120, "height": 1000})


def contrast(*colours: str) -> float:
    """How much lighter one colour is than another, as WCAG counts it: 1 to 21."""
    linear = [[float(c) / 255 for c in re.findall(r"[\d.]+", colour)[:3]] for colour in colours]
    linear = [[c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb] for rgb in linear]
    dark, light = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (light + 0.05) / (dark + 0.05)
