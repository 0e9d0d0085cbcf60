"""The PNG that a notebook keeps: white behind, as wide as asked, and its sentence legible under the picture."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from flashlab.problem import AttentionProblem
from flashlab.reference.flash2 import flash2
from flashlab.reference.online_softmax import softmax_two_passes
from flashlab.traffic.memory import Memory
from flashlab.widgets.faults import WATCH
from flashlab.widgets.online_softmax import OnlineSoftmax
from flashlab.widgets.picture import CAPTION_POINTS, png, wrapped
from flashlab.widgets.roofline import Roofline, roofline_figure
from flashlab.widgets.tile_budget import TileBudget
from flashlab.widgets.tile_loop import TileLoop
from flashlab.widgets.token_cost import TokenCost

LONG = "Twelve words of a sentence that is too long for one line: 4.34 µs."


def pixels(picture: bytes) -> np.ndarray:
    return imread(io.BytesIO(picture))


def inked_lines(picture: np.ndarray) -> int:
    """How many lines of writing: runs of rows that have a dark pixel."""
    dark = (picture.min(axis=(1, 2)) < 0.5).astype(int)
    return int((np.diff(dark, prepend=0) == 1).sum())


def test_it_is_as_wide_as_asked_and_white_behind():
    picture = pixels(png(roofline_figure("H200", []), 1200))
    assert picture.shape == (690, 1200, 4)
    assert picture[0, 0].tolist() == [1, 1, 1, 1]


def test_the_caption_stands_under_the_unchanged_picture():
    figure = Figure(figsize=(4, 1))
    figure.text(0.5, 0.5, "the picture")
    alone, captioned = pixels(png(figure, 400)), pixels(png(figure, 400, LONG))
    assert np.array_equal(captioned[:100], alone)
    below = captioned[100:]
    lines = wrapped(LONG, 3.7)
    assert len(lines) == 2 and inked_lines(below) == 2
    line = CAPTION_POINTS / 72 * 100  # pixels of a letter's height
    assert 2 * line < len(below) < 5 * line
    assert below[:, :10].min() == below[:, -10:].min() == below[-5:].min() == 1, "nothing is cut off"


def test_lines_break_between_words_but_not_between_a_number_and_its_unit():
    assert wrapped(LONG, 100) == [LONG]
    for inches in np.arange(0.5, 4, 0.1):
        lines = wrapped(LONG, inches)
        assert " ".join(lines) == LONG
        assert not any(line.endswith("4.34") for line in lines)
    assert wrapped("incomprehensibilities", 0.1) == ["incomprehensibilities"]
    assert wrapped("iiii WWWW", 0.5) == ["iiii", "WWWW"]  # measured, not counted: the same letters fit where narrow
    assert wrapped("iiii iiii", 0.5) == ["iiii iiii"]


def test_a_price_is_no_formula():
    png(Figure(figsize=(4, 1)), 400, "from $3_ to $4^ an hour")  # as mathtext this would not parse
    twice = [pixels(png(Figure(figsize=(4, 1)), 400, f"{sign}3 or {sign}4")) for sign in ("$", "€")]
    assert abs(int((twice[0] < 0.5).sum()) - int((twice[1] < 0.5).sum())) < 0.2 * (twice[1] < 0.5).sum()


def tile_loop(*, wrong: bool = False) -> TileLoop:
    memories = [Memory("FlashAttention-2", sram_bytes=16_384, watch=WATCH) for _ in range(2)]
    problem = AttentionProblem(n_q=32, n_k=32, head_dim=8, dtype="float32")
    for memory, seed in zip(memories, (0, int(wrong))):
        flash2(*problem.arrays(seed), block_q=16, block_k=16, memory=memory)
    return TileLoop(memories[0].trace, against=memories[1].trace)


# a widget -> a word of what its sentence must say
WIDGETS = {
    "tile loop": (tile_loop, "moves 6,272 bytes"),
    "tile loop at fault": (lambda: tile_loop(wrong=True), "but must be"),
    "online softmax": (lambda: OnlineSoftmax(softmax_two_passes), "row_max ends at 3.4"),
    "roofline": (Roofline, "No fused kernel can be"),
    "tile budget": (TileBudget, "so the tiles fit"),
    "token cost": (TokenCost, "a million tokens"),
}


@pytest.mark.parametrize("name", WIDGETS)
def test_the_sentence_of_each_widget_can_be_read_without_a_kernel(name):
    make, words = WIDGETS[name]
    widget = make()
    data, metadata = widget._repr_mimebundle_()
    alt = metadata["image/png"]["alt"]
    assert words in alt and words in data["text/plain"]
    picture = pixels(base64.b64decode(data["image/png"]))
    inches = {"online softmax": 9, "tile loop": 9, "tile loop at fault": 9}.get(name, 8)
    blank = pixels(png(Figure(figsize=(inches, 1)), picture.shape[1], alt))
    caption = blank[round(picture.shape[1] / inches) :]
    assert inked_lines(caption) >= len(wrapped(alt, inches - 0.3)) >= 1
    assert np.array_equal(picture[-len(caption) :], caption), "the sentence does not stand under the picture"
