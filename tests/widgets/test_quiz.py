"""The quiz: construction and its errors, the text that stands in without a kernel, and answering it in JupyterLab."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashlab.errors import ERRORS
from flashlab.widgets import questions as question_files
from flashlab.widgets.quiz import Quiz, multiple, number, quiz, single, true_false

EXAMPLE = """
from flashlab.widgets.quiz import multiple, number, single, true_false

QUESTIONS = [
    single(
        "What does standard attention store that FlashAttention *never* does?",
        right="the `n × n` scores",
        wrong={"q, k and v": "Both read these.", "<img src=x onerror=alert(1)>": "That is no matrix."},
        because="They grow with the square of the length.",
    ),
    multiple("What leaves the chip?", right={"o": "It is the result.", "lse": "For the backward pass."}, wrong={"acc": "It stays in SRAM."}),
    number("Bytes of the scores of one head, n = 8192, float16?", 2**27, unit="bytes", because="8192 · 8192 · 2.",
           hints={2**26: "That would be one byte a score."}),
    true_false("FlashAttention changes the definition of attention.", False, because="It computes the same softmax(q·kᵀ)·v."),
]
"""


@pytest.fixture
def example(tmp_path, monkeypatch):
    """A folder on the questions' path with one file, example.py."""
    (tmp_path / "example.py").write_text(EXAMPLE)
    (tmp_path / "without.py").write_text("ANSWERS = []")
    monkeypatch.setattr(question_files, "__path__", [*question_files.__path__, str(tmp_path)])
    yield tmp_path
    for name in ("example", "without"):
        sys.modules.pop(f"{question_files.__name__}.{name}", None)


def test_javascript(node):
    run = subprocess.run([node, "--test", "--test-reporter=tap", Path(__file__).with_name("quiz.test.mjs")], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_name_loads_its_file(example):
    asked = quiz("example")
    assert repr(asked) == "Quiz of 4 questions, 0 answered right"
    assert [q["kind"] for q in asked.questions] == ["single", "multiple", "number", "single"]


@pytest.mark.parametrize("name", sorted(module.name for module in pkgutil.iter_modules(question_files.__path__)))
def test_every_lesson_quiz_loads_and_says_why(name):
    asked = quiz(name)
    for question in asked.questions:
        whys = [option["why"] for option in question["options"]] or [question["because"]]
        assert all(whys), f"{name}: no feedback for an answer to {question['text']!r}"


def test_score_follows_the_answers():
    asked = Quiz(true_false("a?", True), true_false("b?", True), true_false("c?", True))
    asked.answers = [
        {"given": ["True"], "tries": 1, "right": True, "first": True},
        {"given": ["True"], "tries": 2, "right": True, "first": False},
        None,
    ]
    assert (asked.score, asked.first_try) == (2, 1)
    assert repr(asked) == "Quiz of 3 questions, 2 answered right"


def test_order_is_shuffled_and_the_same_everywhere():
    def places(kind):
        asked = [kind(f"question {i}") for i in range(60)]
        return [[option.right for option in question.options].index(True) for question in asked]

    where = places(lambda text: single(text, right="r", wrong={"a": "", "b": "", "c": ""}))
    assert min(where.count(place) for place in range(4)) >= 5
    # These digits hold on any machine: the order comes from the text, not from hash() or a random seed.
    assert where[:12] == [1, 0, 1, 2, 2, 1, 0, 3, 3, 3, 1, 3]
    options = single("question", right="z", wrong={"y": "", "x": ""}).options
    assert options == single("question", right="z", wrong={"x": "", "y": ""}).options
    assert [option.text for option in true_false("question", False).options] == ["True", "False"]


def test_feedback_stays_with_its_option():
    by_text = {option.text: option for option in single("q", right="r", wrong={"a": "not a"}, because="r it is").options}
    assert (by_text["r"].right, by_text["r"].why, by_text["a"].right, by_text["a"].why) == (True, "r it is", False, "not a")
    true, false = true_false("q", False, "so").options
    assert (true.right, false.right, true.why, false.why) == (False, True, "so", "so")


# what was done wrong: (line of errors.ERRORS, how, what the message says)
BAD = {
    "no right option": ("quiz_no_right", lambda: multiple("q", right={}, wrong={"a": ""}), "has no right answer. Give at least one option in right="),
    "neither true nor false": ("quiz_no_right", lambda: true_false("q", "False"), "has no right answer. Give answer=True or answer=False"),
    "nothing wrong": ("quiz_no_wrong", lambda: single("q", right="a", wrong={}), "has no wrong option"),
    "twice": ("quiz_twice", lambda: single("q", right="a", wrong={"b": "", "a": ""}), "offers 'a' twice"),
    "twice but for spaces": ("quiz_twice", lambda: multiple("q", right={"a": "", "a ": ""}, wrong={"b": ""}), "offers 'a' twice"),
    "empty question": ("quiz_text", lambda: number("  ", 3), "a question is '  '; it needs a text"),
    "empty option": ("quiz_text", lambda: single("q", right="", wrong={"b": ""}), "an option of 'q' is ''"),
    "no number": ("quiz_number", lambda: number("q", float("nan")), "is nan; it must be a finite number"),
    "a text for a number": ("quiz_number", lambda: number("q", "2**27"), "is '2\\*\\*27'; it must be a finite number"),
    "no number in a hint": ("quiz_number", lambda: number("q", 1, hints={"two": ""}), "is 'two'; it must be a finite number"),
    "no question": ("quiz_question", lambda: Quiz(), "given: nothing"),
    "a list": ("quiz_question", lambda: Quiz([true_false("q", True)]), "given: list"),
    "unknown": ("quiz_unknown", lambda: quiz("nothing_like_it"), "no quiz called 'nothing_like_it' .* Known: .*example"),
    "a path": ("quiz_unknown", lambda: quiz("../example"), "no quiz called '../example'"),
    "no QUESTIONS": ("quiz_file", lambda: quiz("without"), "without.py defines no QUESTIONS"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_construction_says_what_to_do(case, example):
    line, make, message = BAD[case]
    with pytest.raises(ERRORS[line][0], match=message):
        make()


def test_without_a_kernel_the_questions_are_readable(example):
    asked = quiz("example")
    data, _ = asked._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == asked.model_id
    markdown, plain = data["text/markdown"], data["text/plain"]
    assert markdown.startswith("Quiz of 4 questions, 0 answered right. Run this cell to answer.\n\n1. What does")
    assert "*never*" in markdown and "`n × n`" in markdown
    assert "&lt;img src=x onerror=alert(1)&gt;" in markdown and "<img" not in markdown
    assert "3. Bytes of the scores of one head, n = 8192, float16? (a number, in bytes)" in markdown
    assert "2. What leaves the chip? (more than one may be right)" in plain and "<img" in plain
    for secret in ("square of the length", "134217728", "one byte a score", "same softmax"):
        assert secret not in markdown + plain


def test_markdown_shows_other_marks_as_typed():
    from markdown_it import MarkdownIt

    text = "2*n*n, n_q and _k_, $x$, # [a](b) ![c](d) ~~e~~ 4 * 5 * 6 \\ **f**"
    html = MarkdownIt("commonmark", {"html": True}).enable("strikethrough").render(Quiz(true_false(text, True)).as_text(markdown=True))
    assert f"<li>{text}\n<ul>" in html


def _notebook(folder: Path) -> list[str]:
    add = f"import flashlab.widgets.questions as files; files.__path__.append({str(folder)!r})"
    return [f"{add}\nfrom flashlab.widgets.quiz import quiz", "asked = quiz('example')\nasked"]


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_answering_with_the_mouse(open_notebook, example, theme):
    lab = open_notebook(_notebook(example), theme=theme)
    root = lab.page.get_by_role("region", name="Quiz")
    ask = lambda text: root.get_by_role("group", name=text)  # noqa: E731

    first = ask("What does standard attention store")
    first.get_by_role("radio", name="q, k and v").check()
    first.get_by_role("button", name="Check question 1").click()
    assert "✗\nNot so: Both read these." in first.get_by_role("status").inner_text()
    lab.wait_kernel("asked.answers[0]", "{'given': ['q, k and v'], 'tries': 1, 'right': False, 'first': False}")
    first.get_by_role("radio", name="the n × n scores").check()
    assert first.get_by_role("status").inner_text() == "", "feedback on the old answer must go when the answer changes"
    first.get_by_role("button", name="Check question 1").click()
    assert "✓\nRight: They grow with the square" in first.get_by_role("status").inner_text()

    second = ask("What leaves the chip?")
    second.get_by_role("checkbox", name="acc").check()
    second.get_by_role("checkbox", name="lse").check()
    third = ask("Bytes of the scores")
    third.get_by_role("textbox", name="Your answer").fill("134,217,728")
    third.get_by_role("button", name="Check question 3").click()
    assert second.get_by_role("checkbox", name="acc").is_checked(), "answering one question must not clear another"
    second.get_by_role("button", name="Check question 2").click()
    assert [line.strip() for line in second.get_by_role("status").inner_text().splitlines() if len(line) > 1] == [
        *sorted(["lse – right: For the backward pass.", "acc – not so: It stays in SRAM."], key=lambda line: EXAMPLE_ORDER.index(line[:3])),
        "1 more belongs to the answer.",
    ]
    lab.wait_kernel("(asked.score, asked.first_try)", "(2, 1)")
    assert root.get_by_text("2 of 4 right now, 1 of 4 right at the first try").is_visible()
    assert root.locator("img").count() == 0, "an option's text must never become HTML"
    lab.screenshot(f"quiz-{theme}", root)

    root.get_by_role("button", name="Start again").click()
    lab.wait_kernel("asked.answers", "[None, None, None, None]")
    assert not first.get_by_role("radio", name="the n × n scores").is_checked()
    assert third.get_by_role("textbox", name="Your answer").input_value() == ""


EXAMPLE_ORDER = [option.text for option in multiple("What leaves the chip?", right={"o": "", "lse": ""}, wrong={"acc": ""}).options]


@pytest.mark.browser
def test_answering_with_the_keyboard(open_notebook, example):
    lab = open_notebook(_notebook(example))
    keys = lab.page.keyboard
    group = lab.page.get_by_role("group", name="changes the definition")
    group.get_by_role("radio", name="True").focus()
    keys.press("Space")
    keys.press("ArrowDown")
    assert group.get_by_role("radio", name="False").is_checked()
    keys.press("Enter")
    lab.wait_kernel("asked.answers[3]", "{'given': ['False'], 'tries': 1, 'right': True, 'first': True}")
    number_box = lab.page.get_by_role("textbox", name="Your answer")
    number_box.focus()
    keys.type("2**26")
    keys.press("Enter")
    third = lab.page.get_by_role("group", name="Bytes of the scores")
    assert "That would be one byte a score." in third.get_by_role("status").inner_text()
    keys.press("Tab")
    assert lab.page.evaluate("document.activeElement.ariaLabel") == "Check question 3"
    lab.wait_kernel("asked.answers[2]['given']", "['2**26']")
    lab.page.get_by_role("button", name="Start again").focus()
    keys.press("Enter")  # the button goes away, and the focus goes to the first answer, not to the page
    lab.wait_kernel("asked.answers", "[None, None, None, None]")
    assert lab.page.get_by_role("button", name="Start again").count() == 0
    assert lab.page.evaluate("document.activeElement === document.querySelector('.flashlab-quiz input')")
    keys.press("ArrowDown")
    assert lab.page.evaluate("document.activeElement.closest('.flashlab-quiz') !== null")
    # None of these keys may have reached JupyterLab, whose commands they are: one code cell was run, none was entered.
    assert lab.page.locator(".jp-Notebook.jp-mod-editMode").count() == 0


@pytest.mark.browser
def test_the_kernel_can_set_answers(open_notebook, example):
    lab = open_notebook(_notebook(example))
    lab.execute("asked.answers = [None, None, None, {'given': ['True'], 'tries': 1, 'right': False, 'first': False}]")
    group = lab.page.get_by_role("group", name="changes the definition")
    group.get_by_text("Not so: It computes the same").wait_for()
    assert group.get_by_role("radio", name="True").is_checked()


@pytest.mark.browser
def test_a_fresh_untrusted_clone_shows_the_questions(open_notebook, example):
    import nbformat

    data, metadata = quiz("example")._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    lab = open_notebook([nbformat.v4.new_code_cell("quiz('example')", outputs=[output])], run=False)
    lab.page.get_by_text("Run this cell to answer.").wait_for()
    shown = lab.page.get_by_role("listitem")
    assert shown.filter(has_text="Bytes of the scores of one head").count() == 1
    assert shown.get_by_text("<img src=x onerror=alert(1)>").count() == 1
