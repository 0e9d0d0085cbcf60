"""A quiz under a lesson: each answer gets its own feedback in words, and nothing is sent anywhere.

A lesson cell is one line, `quiz("standard_attention")`; the questions stand in questions/standard_attention.py, so the
answers are not in the notebook. A question's text may hold `code` and *emphasis*; everything else is shown as typed.
Answers are checked in the browser (static/quiz.js), so a busy kernel delays nothing; what was answered is readable here.
What it does not do: keep answers when the kernel stops.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import pkgutil
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import anywidget
import traitlets as t

from flashlab.errors import error
from flashlab.widgets import questions as question_files

_STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True)
class Option:
    """One choice, whether it belongs to the answer, and the feedback for one who chooses it."""

    text: str
    right: bool
    why: str


@dataclass(frozen=True)
class Question:
    """One question; `kind` is "single", "multiple" or "number". Made by the four functions below."""

    kind: str
    text: str
    options: tuple[Option, ...] = ()
    answer: float | None = None
    tolerance: float = 0
    unit: str = ""
    because: str = ""
    hints: tuple[tuple[float, str], ...] = ()


def single(text: str, *, right: str, wrong: dict[str, str], because: str = "") -> Question:
    """One right option among several; `wrong` says of each wrong one why not. Options come in a fixed shuffled order.

    >>> len(single("Which is larger?", right="HBM", wrong={"SRAM": "It is on the chip, so it is small."}).options)
    2
    """
    return _choices("single", text, {right: because}, wrong)


def multiple(text: str, *, right: dict[str, str], wrong: dict[str, str]) -> Question:
    """Any number of right options; each option, right or wrong, says why to one who chooses it."""
    return _choices("multiple", text, right, wrong)


def true_false(text: str, answer: bool, because: str = "") -> Question:
    """A statement to be called true or false; `because` is told after either choice."""
    options = tuple(Option(str(choice), choice is answer, because) for choice in (True, False))
    if not any(option.right for option in options):
        raise error("quiz_no_right", question=text, needed="answer=True or answer=False")
    return Question("single", _filled(text, "a question"), options)


def number(
    text: str, answer: float, *, tolerance: float = 0, unit: str = "", because: str = "", hints: dict[float, str] | None = None
) -> Question:
    """A number to type: 134,217,728 or 134217728 or 2**27 or 8192 * 8192 * 2, or 1.34e8 (rounded to 3 digits or more).

    `tolerance` is a fraction of the answer (0.05: 5 % either way); `hints` says of a likely wrong number what it would be.
    With unit="bytes", 128 MiB and 134 MB are read too.
    """
    for given in (answer, *(hints or {})):
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not math.isfinite(given):
            raise error("quiz_number", question=text, given=given)
    pairs = tuple((float(given), hint) for given, hint in (hints or {}).items())
    return Question(
        "number", _filled(text, "a question"), answer=float(answer), tolerance=tolerance, unit=unit, because=because, hints=pairs
    )


def _choices(kind: str, text: str, right: dict[str, str], wrong: dict[str, str]) -> Question:
    _filled(text, "a question")
    if not right:
        raise error("quiz_no_right", question=text, needed="at least one option in right=")
    if not wrong:
        raise error("quiz_no_wrong", question=text)
    options = [Option(_filled(option, f"an option of {text!r}"), True, why) for option, why in right.items()]
    options += [Option(_filled(option, f"an option of {text!r}"), False, why) for option, why in wrong.items()]
    seen = [option.text.strip() for option in options]
    for option in seen:
        if seen.count(option) > 1:
            raise error("quiz_twice", question=text, given=option)
    # By digest of question and option: looks random, and is the same on every machine (hash() is not).
    options.sort(key=lambda option: hashlib.sha256(f"{text}\n{option.text}".encode()).digest())
    return Question(kind, text, tuple(options))


def _filled(text: str, what: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise error("quiz_text", what=what, given=text)
    return text


class Quiz(anywidget.AnyWidget):
    """Questions with feedback; `quiz.answers`, `quiz.score` and `quiz.first_try` can be read while they are answered.

    `answers` has one entry a question, None until it is checked: {"given": [...], "tries": 2, "right": True, "first": False}.

    >>> Quiz(true_false("FlashAttention changes the definition of attention.", False))
    Quiz of 1 question, 0 answered right
    """

    _esm = _STATIC / "quiz.js"
    _css = _STATIC / "quiz.css"
    questions = t.List().tag(sync=True)
    answers = t.List().tag(sync=True)
    score = t.Int(0, help="questions whose last answer is right")
    first_try = t.Int(0, help="questions whose first answer was right")

    def __init__(self, *questions: Question) -> None:
        if not questions or not all(isinstance(question, Question) for question in questions):
            raise error("quiz_question", given=", ".join(type(question).__name__ for question in questions) or "nothing")
        # asdict keeps tuples; the wire needs lists, for the browser and for a comparison with what comes back.
        plain = [asdict(q) | {"options": [asdict(o) for o in q.options], "hints": [list(hint) for hint in q.hints]} for q in questions]
        super().__init__(questions=plain, answers=[None] * len(questions))

    @t.observe("answers")
    def _count(self, change: dict) -> None:
        given = [answer for answer in change["new"] if answer]
        self.score = sum(answer["right"] for answer in given)
        self.first_try = sum(answer["first"] for answer in given)

    def __repr__(self) -> str:
        n = len(self.questions)
        return f"Quiz of {n} question{'s' * (n != 1)}, {self.score} answered right"

    def as_text(self, *, markdown: bool = False) -> str:
        """The questions and options, without answers: what a reader without a kernel sees."""
        write = _markdown if markdown else str
        lines = [f"{self!r}. Run this cell to answer."]
        for place, question in enumerate(self.questions, 1):
            unit = question["unit"] and f", in {question['unit']}"
            note = {"single": "", "multiple": " (more than one may be right)", "number": f" (a number{unit})"}[question["kind"]]
            lines += ["", f"{place}. {write(question['text'] + note)}"]
            lines += [f"   - {write(option['text'])}" for option in question["options"]]
        return "\n".join(lines)

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict, dict]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return data | {"text/plain": self.as_text(), "text/markdown": self.as_text(markdown=True)}, metadata


# The same two marks as tokens() in quiz.js: `code`, and *emphasis* that is not part of 2*n*n.
_MARKS = re.compile(r"`([^`]+)`|(?<![\w*])\*([^\s*](?:[^*]*[^\s*])?)\*(?![\w*])")


def _markdown(text: str) -> str:
    """The text as Markdown in which only `code` and *emphasis* mean anything."""
    parts, end = [], 0
    for mark in _MARKS.finditer(text):
        parts += [_escaped(text[end : mark.start()]), f"`{mark[1]}`" if mark[1] else f"*{_escaped(mark[2])}*"]
        end = mark.end()
    return "".join(parts) + _escaped(text[end:])


def _escaped(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#$|~!])", r"\\\1", text)


def quiz(name: str) -> Quiz:
    """The quiz of that name: a file in flashlab/widgets/questions that defines QUESTIONS.

    Raises ValueError for an unknown name, with the known ones, and for a file without QUESTIONS.
    """
    known = sorted(module.name for module in pkgutil.iter_modules(question_files.__path__))
    if name not in known:
        raise error("quiz_unknown", given=name, allowed=", ".join(known) or "none yet")
    asked = getattr(importlib.import_module(f"{question_files.__name__}.{name}"), "QUESTIONS", None)
    if not asked:
        raise error("quiz_file", given=name)
    return Quiz(*asked)
