"""What a lesson needs and nothing else: predict() before a run, show() a figure with words, source() of the real code."""

from __future__ import annotations

import base64
import difflib
import inspect
import io
import re
import textwrap

from flashlab.errors import error


class Prediction:
    """A question, the reader's own number, and (after `reveal`) what formula, trace and measurement say, in one line."""

    def __init__(self, question: str, mine: float | str | None, unit: str) -> None:
        self.question, self.mine, self.unit = question, mine, unit

    def reveal(self, **found: float | str) -> Line:
        """The prediction beside what was found: `reveal(formula=…, traced=…, measured=…)`; any names will do."""
        yours = "no guess" if self.mine is None else _with_unit(self.mine, self.unit)
        verdict = self._verdict(next(iter(found.values()))) if found else []
        return Line(self.question, [f"you: {yours}", *_found(found, self.unit), *verdict])

    def _verdict(self, truth: float | str) -> list[str]:
        """What to say of a number that was guessed, measured against the first one found."""
        if isinstance(self.mine, (str, type(None))) or isinstance(truth, str):
            return []
        if self.mine == truth:
            return ["✓ exactly"]
        if not truth or self.mine / truth <= 0:
            return ["not this time"]
        ratio = self.mine / truth
        return ["✓ close" if 0.8 <= ratio <= 1.25 else f"yours is {ratio:.2g} × that"]

    def __repr__(self) -> str:
        yours = "none yet: put a number for mine and run this cell again" if self.mine is None else _with_unit(self.mine, self.unit)
        return f"{self.question}  your prediction: {yours}"

    def _repr_markdown_(self) -> str:
        return f"**{_plain(self.question)}**  \n" + _plain(repr(self).removeprefix(self.question).strip())


class Line:
    """Numbers for the same thing side by side, shown as one line."""

    def __init__(self, title: str, parts: list[str]) -> None:
        self.title, self.parts = title, parts

    def __repr__(self) -> str:
        return f"{self.title}  " + " · ".join(self.parts)

    def _repr_markdown_(self) -> str:
        return f"**{_plain(self.title)}**  \n" + _plain(" · ".join(self.parts))


def predict(question: str, mine: float | str | None = None, *, unit: str = "") -> Prediction:
    """Ask the reader for a number before the cell that answers it. Nothing waits for an answer, so Run All runs.

    >>> predict("How many bytes is a float16?", mine=2, unit="bytes").reveal(formula=2)
    How many bytes is a float16?  you: 2 bytes · formula: 2 bytes · ✓ exactly
    """
    return Prediction(question, mine, unit)


def compare(what: str, *, unit: str = "", **found: float | str) -> Line:
    """One quantity found in several ways, in one line; where they are counts, it says whether they agree exactly.

    >>> compare("Bytes of 3 float16", unit="bytes", formula=6, traced=6)
    Bytes of 3 float16  formula: 6 bytes · traced: 6 bytes · ✓ equal
    """
    counts = [value for value in found.values() if isinstance(value, int)]
    verdict = [] if len(counts) < 2 else ["✓ equal" if len(set(found.values())) == 1 else "✗ not equal"]
    return Line(what, _found(found, unit) + verdict)


def _plain(text: str) -> str:
    """Text that Markdown shows as it stands."""
    return re.sub(r"([\\`*_<>\[\]&~])", r"\\\1", text)


def _found(found: dict[str, float | str], unit: str) -> list[str]:
    return [f"{name.replace('_', ' ')}: {_with_unit(value, unit)}" for name, value in found.items()]


def _with_unit(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    return f"{f'{int(value):,}' if float(value).is_integer() else f'{value:,.3g}'} {unit}".strip()


def show(figure, alt: str) -> None:
    """Display a matplotlib figure as a PNG, with one sentence that states what it shows, as alt text and as caption.

    Raises ValueError where `alt` is not a sentence: a picture that some readers cannot see must say its finding.
    """
    from IPython.display import Markdown, display

    if len(alt.split()) < 5 or alt.rstrip()[-1] not in ".!?":
        raise error("alt", given=alt)
    display({"image/png": png_base64(figure), "text/plain": alt}, metadata={"image/png": {"alt": alt}}, raw=True)
    display(Markdown(f"*{_plain(alt)}*"))


def png_base64(figure, dpi: int = 110) -> str:
    """A matplotlib figure as a base64 PNG on a white ground, readable in a light and in a dark theme."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", facecolor="white")
    return base64.b64encode(buffer.getvalue()).decode()


def source(thing, *, diff=None):
    """The library's own code of a function, a kernel or a class, without its docstring; with `diff`, how `diff` differs from it.

    Shown as it is on disk now, so a lesson can never show code that is not what runs.
    """
    if diff is None:
        return _fenced("python", f"# {_place(thing)}\n{code_of(thing)}")
    lines = difflib.unified_diff(code_of(thing).splitlines(), code_of(diff).splitlines(), _place(thing), _place(diff), lineterm="", n=100)
    return _fenced("diff", "\n".join(line for line in lines if not line.startswith("@@")))


def _fenced(language: str, code: str):
    """A code block whose fence is longer than any run of backticks in it."""
    from IPython.display import Markdown

    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return Markdown(f"{fence}{language}\n{code}\n{fence}")


def code_of(thing) -> str:
    """Source text of a function, a kernel or a class, dedented, its own docstring left out."""
    import ast

    text = textwrap.dedent(inspect.getsource(_unwrapped(thing)))
    node = ast.parse(text).body[0]
    if ast.get_docstring(node) is None or len(node.body) == 1:
        return text.rstrip()
    lines, doc = text.splitlines(), node.body[0]
    return "\n".join(lines[: doc.lineno - 1] + lines[doc.end_lineno :]).rstrip()


def _unwrapped(thing):
    """The Python function under @triton.jit, and under what lies around that (autotune, heuristics); all else as it is."""
    while not inspect.isroutine(thing) and not inspect.isclass(thing) and hasattr(thing, "fn"):
        thing = thing.fn
    return thing


def _place(thing) -> str:
    thing = _unwrapped(thing)
    module = inspect.getmodule(thing)
    path = f"{module.__name__.replace('.', '/')}.py"
    return f"{path}, line {inspect.getsourcelines(thing)[1]}"


def without(function, text: str):
    """The same function with every line that contains `text` deleted: to see what a line is for, take it out.

    Works on a function defined in a notebook cell or in the library; the original is untouched. Raises ValueError where
    no line contains the text.
    """
    code = textwrap.dedent(inspect.getsource(function))
    kept = [line for line in code.splitlines() if text not in line]
    if len(kept) == len(code.splitlines()):
        raise error("no_line", given=text, function=function.__name__)
    scope = dict(function.__globals__)
    exec("\n".join(kept), scope)
    return scope[function.__name__]
