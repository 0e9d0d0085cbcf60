"""predict, compare, show, source and without: what a lesson's cell gives back."""

import base64

import pytest
from matplotlib.figure import Figure

from flashlab.notebook import code_of, compare, predict, show, source, without


def test_a_prediction_without_a_number_waits_for_nothing():
    guess = predict("How many?", unit="bytes")
    assert repr(guess) == "How many?  your prediction: none yet: put a number for mine and run this cell again"
    assert repr(guess.reveal(formula=8)) == "How many?  you: no guess · formula: 8 bytes"


@pytest.mark.parametrize(
    "mine, verdict",
    [
        (1024, "✓ exactly"),
        (1100, "✓ close"),
        (512, "yours is 0.5 × that"),
        (0, "not this time"),
        (-4, "not this time"),
    ],
)
def test_a_number_is_judged_against_the_first_thing_found(mine, verdict):
    line = predict("How many?", mine=mine, unit="bytes").reveal(formula=1024, traced=2048)
    assert repr(line) == f"How many?  you: {mine:,} bytes · formula: 1,024 bytes · traced: 2,048 bytes · {verdict}"


def test_words_are_shown_and_not_judged():
    line = predict("Measured?", mine=3).reveal(measured="needs a GPU")
    assert repr(line) == "Measured?  you: 3 · measured: needs a GPU"
    assert "needs a GPU" in line._repr_markdown_() and "**Measured?**" in line._repr_markdown_()


def test_compare_says_equal_only_when_all_are():
    assert repr(compare("Bytes", unit="bytes", formula=6, traced=6, counted=6)).endswith("✓ equal")
    assert repr(compare("Bytes", unit="bytes", formula=6, traced=7)).endswith("✗ not equal")
    assert "equal" not in repr(compare("Bytes", unit="bytes", formula=6)) + repr(compare("Rate", bytes=4, measured=3.9))
    assert "0.333 ms" in repr(compare("Time", unit="ms", measured=1 / 3))


def test_show_displays_a_png_with_its_finding_as_alt_text_and_caption(monkeypatch):
    displayed = []
    monkeypatch.setattr("IPython.display.display", lambda *things, **options: displayed.append((things, options)))
    figure = Figure()
    figure.subplots().plot([1, 2])
    finding = "The line rises from one to two."
    show(figure, finding)
    (picture,), options = displayed[0]
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")
    assert options["metadata"]["image/png"]["alt"] == finding and picture["text/plain"] == finding
    assert displayed[1][0][0].data == f"*{finding}*"


def test_source_is_the_code_that_runs_without_its_docstring():
    shown = source(predict).data
    assert shown.startswith("```python\n# flashlab/notebook.py, line ")
    assert "return Prediction(question, mine, unit)" in shown and "Nothing waits for an answer" not in shown


def test_source_of_a_kernel_is_that_of_the_function_under_triton_jit():
    triton = pytest.importorskip("triton")
    from flashlab.kernels.primitives import softmax_update

    shown = source(softmax_update).data
    assert shown.startswith("```python\n# flashlab/kernels/primitives.py, line ") and "def softmax_update(" in shown
    assert shown == source(softmax_update.fn).data
    assert shown == source(triton.heuristics({})(softmax_update)).data
    assert source(softmax_update, diff=predict).data == source(softmax_update.fn, diff=predict).data


def test_source_diff_marks_what_only_one_of_the_two_has():
    shown = source(predict, diff=compare).data.splitlines()
    assert "-    return Prediction(question, mine, unit)" in shown
    assert any(line.startswith("+    verdict = ") for line in shown)


def test_markdown_is_shown_as_it_stands():
    assert predict("2*n*d < n_q*2 <b>?").reveal()._repr_markdown_().startswith(r"**2\*n\*d \< n\_q\*2 \<b\>?**")


def _with_a_fence():
    return """
```
"""


def test_a_fence_in_the_code_does_not_end_the_block():
    lines = source(_with_a_fence).data.splitlines()
    assert lines[0] == "````python" and lines[-1] == "````" and "```" in lines


def _only_said():
    """Nothing but a docstring."""


def test_code_of_a_function_that_is_only_a_docstring_keeps_it():
    assert "Nothing but a docstring." in code_of(_only_said)


def test_code_of_a_function_without_a_docstring_is_whole():
    def plain(x):
        return x + 1

    assert code_of(plain) == "def plain(x):\n    return x + 1"


def _add(x):
    x = x + 1
    x = x * 10  # ✂
    return x


def test_without_deletes_the_line_and_leaves_the_original_alone():
    assert _add(1) == 20
    assert without(_add, "✂")(1) == 2
    assert _add(1) == 20


def test_a_line_that_is_not_there_is_an_error():
    with pytest.raises(ValueError) as caught:
        without(_add, "no such line")
    assert str(caught.value) == "no line of _add contains 'no such line', so nothing was deleted. Copy the text from the line itself."


@pytest.mark.parametrize("alt", ["", "A figure", "One two three four five"])
def test_a_figure_must_be_told_in_a_sentence(alt):
    with pytest.raises(ValueError) as caught:
        show(Figure(), alt)
    assert str(caught.value) == (
        f"alt is {alt!r}; a figure needs one whole sentence that states what it shows, for readers who cannot see it."
        " Write one of five words or more that ends in a full stop."
    )
