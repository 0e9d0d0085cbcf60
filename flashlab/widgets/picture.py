"""A figure as the PNG that a notebook keeps, with its sentence drawn under it.

JupyterLab shows a stored picture without its alt text, and a widget without a kernel is nothing but that picture. So the
finding stands in the picture itself, for whoever opens a notebook and does not run it.
"""

from __future__ import annotations

import io
import re

INK = "#212121"
CAPTION_POINTS = 9.5
MARGIN_INCHES = 0.15  # left, right and below; a third of it above
LINE_SPACING = 1.45  # of the caption's size


def png(figure, width: float, caption: str = "") -> bytes:
    """A matplotlib figure as a PNG `width` pixels wide, white behind so that it reads in a dark theme, over its caption.

    >>> from matplotlib.figure import Figure
    >>> png(Figure(figsize=(2, 1)), 200, "A picture of nothing.")[:4]
    b'\\x89PNG'
    """
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.image import imsave

    inches, dpi = figure.get_figwidth(), width / figure.get_figwidth()
    parts = [_pixels(figure, dpi)]
    if caption:
        lines = wrapped(caption, inches - 2 * MARGIN_INCHES)
        line = CAPTION_POINTS * LINE_SPACING / 72
        below = Figure(figsize=(inches, len(lines) * line + 4 / 3 * MARGIN_INCHES))
        for i, text in enumerate(lines):
            middle = 1 - (MARGIN_INCHES / 3 + (i + 0.5) * line) / below.get_figheight()
            # A sentence may name a price twice: its two $ are no formula.
            below.text(MARGIN_INCHES / inches, middle, text, va="center", color=INK, parse_math=False, fontproperties=_font())
        parts.append(_pixels(below, dpi))
    buffer = io.BytesIO()
    imsave(buffer, np.concatenate(parts), format="png", dpi=dpi)
    return buffer.getvalue()


def wrapped(text: str, inches: float) -> list[str]:
    """The lines of `text`, none wider than `inches` in the caption's letters; a number stays with the word after it.

    >>> wrapped("four words in lines", 0.8)
    ['four words', 'in lines']
    """
    from matplotlib.backends.backend_agg import RendererAgg

    measure = RendererAgg(1, 1, 72)  # 72 dots an inch: its widths are points
    lines = [""]
    for word in re.split(r"(?<!\d)\s+", text.strip()):
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and measure.get_text_width_height_descent(longer, _font(), False)[0] > 72 * inches:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _font():
    from matplotlib.font_manager import FontProperties

    return FontProperties(family="DejaVu Sans", size=CAPTION_POINTS)  # it has ✗, − and ∞, and comes with matplotlib


def _pixels(figure, dpi: float):
    """(height, width, 4): the figure drawn on white."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set(dpi=dpi, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
