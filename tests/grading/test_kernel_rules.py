"""kernel_rules.py: Triton passes, Python that only an interpreter would run does not."""

import ast
import json
from pathlib import Path

import pytest

from flashlab.grading.kernel_rules import broken_rule, is_stub, kernels_of, loads_without_other

ROOT = Path(__file__).parents[2]
GOOD = '''"""A cell."""
import triton
import triton.language as tl

@triton.jit
def helper(x, n):
    return tl.where(x < n, x, -INF)

@triton.jit
def kernel(x, y, n, scale, BLOCK: tl.constexpr, FAST: tl.constexpr = False):
    """What it does."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, tl.cdiv(n, BLOCK)):
        tile = tl.load(x + at, mask=at < n, other=-float("inf"))
        acc += tile.to(tl.float32) * scale if FAST else tile
        acc = tl.dot(tile, tile.T, acc, input_precision="ieee")
    a, b = at, acc.to(y.dtype.element_ty)
    tl.store(y + a, helper(b, n), mask=at < n)
'''


def test_a_kernel_passes():
    assert broken_rule(GOOD) == ""


@pytest.mark.parametrize("lesson, kernels", [("05_triton_primer", 2), ("06_triton_forward", 1), ("08_triton_backward", 1)])
def test_the_kernels_that_lessons_teach_pass(lesson, kernels):
    cells = json.loads((ROOT / f"notebooks/{lesson}.ipynb").read_bytes())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).startswith("@triton.jit")]
    passed = [source for source in sources if not broken_rule(source)]
    assert len(passed) >= kernels, [broken_rule(source) for source in sources]


# What is put in place of the line `a, b = …`, and the words of the rule it breaks.
LINES = [
    ("a, b = at, acc.handle", "the attribute .handle is not for kernels"),
    ("a, b = at, acc.handle.data", "the attribute .data is not for kernels"),
    ("a, b = at, tl.load.__globals__", "the attribute .__globals__"),
    ("a, b = at, tl.inline_asm_elementwise", "tl.inline_asm_elementwise is not among"),
    ("a, b = at, tl.extra", "tl.extra is not among"),
    ("a, b = at, open('x')", "'open' cannot be called"),
    ("a, b = at, __import__('os')", "'__import__' cannot be called"),
    ("a, b = at, __builtins__", "the name '__builtins__'"),
    ("a, b = at, interpreter_builder", "the name 'interpreter_builder'"),
    ("a, b = at, (lambda: 1)()", "cannot be called"),
    ("a, b = at, [i for i in range(3)]", "ListComp is not for kernels"),
    ("a, b = at, {1: 2}", "Dict is not for kernels"),
    ("a, b = at, {1}", "Set is not for kernels"),
    ("a, b = at, f'{n}'", "JoinedStr is not for kernels"),
    ("a, b = at, 'text'", "the constant 'text'"),
    ("a, b = at, b'x'", "is not for kernels"),
    ("a, b = at, (c := n)", "NamedExpr is not for kernels"),
    ("import os; a = b = at", "Import is not for kernels"),
    ("global n2; a = b = at", "Global is not for kernels"),
    ("a = b = at\n    x.y = 3", "only names are assigned to"),
    ("a = b = at\n    acc[0] = 3", "only names are assigned to"),
    ("a, *b = at, acc", "only names are assigned to"),
    ("a = b = at\n    def inner(): return 1", "FunctionDef is not for kernels"),
    ("a = b = at\n    del acc", "Delete is not for kernels"),
    ("a = b = at\n    assert n", "Assert is not for kernels"),
    ("a = b = at\n    with n: pass", "With is not for kernels"),
    ("a = b = at\n    try: pass\n    except: pass", "Try is not for kernels"),
    ("a = b = at\n    yield n", "Yield is not for kernels"),
    ("a = b = tl.load(x + at, _semantic=None)", "the argument _semantic"),
    ("a = b = tl.load(**n)", "the argument **"),
    ("a = b = [tl.load, tl.store]", "a list holds sizes only"),
    ("tl = n; a = b = at", "tl has a meaning already"),
    ("range = n; a = b = at", "range has a meaning already"),
    ("a = b = acc.to.im_self", "the attribute .im_self"),
    ("a = b = print(n)", "'print' cannot be called in a kernel; a kernel prints nothing here"),
    ("a = b = triton.cdiv(n, 2)", "'triton.cdiv' cannot be called in a kernel; use tl.cdiv"),
    ("a = b = at.sum(0)", "'at.sum' cannot be called in a kernel; use tl.sum"),
    ("a = b = getattr(n, 'x')", "'getattr' cannot be called"),
]


@pytest.mark.parametrize("line, words", LINES)
def test_a_line_that_is_python_and_no_kernel_is_refused(line, words):
    source = GOOD.replace("a, b = at, acc.to(y.dtype.element_ty)", line)
    assert source != GOOD and words in broken_rule(source), broken_rule(source)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("FAST: tl.constexpr = False", "FAST=[]", "the default '[]' is no constant"),
        ("FAST: tl.constexpr = False", "FAST: tl.constexpr = tl.load", "is no constant"),
        ("FAST: tl.constexpr = False", "FAST: open('x') = False", "the annotation of FAST"),
        ("FAST: tl.constexpr = False", "*more", "takes * or ** arguments"),
        ("@triton.jit\ndef kernel", "@triton.jit\n@open\ndef kernel", "needs the decorator @triton.jit and no other"),
        ("@triton.jit\ndef kernel", "def kernel", "needs the decorator @triton.jit and no other"),
        ("import triton\n", "import os\n", "'import os' stands outside a kernel"),
        ("import triton\n", "from triton.runtime import interpreter\n", "stands outside a kernel"),
        ("import triton\n", "tl.load = None\n", "stands outside a kernel"),
        ("import triton\n", "class A: pass\n", "stands outside a kernel"),
        ("def helper(x, n):", "def helper(x, n) -> open('x'):", "has a return annotation"),
        ("def helper", "def load", "helper"),
    ],
)
def test_what_stands_around_a_kernel_is_refused(old, new, words):
    source = GOOD.replace(old, new)
    assert source != GOOD and words in broken_rule(source), broken_rule(source)


def test_functions_only_are_run_with_their_line_numbers():
    kept = kernels_of(GOOD)
    assert "import" not in kept and kept.splitlines()[5] == "def helper(x, n):"


def test_a_stub_is_known_as_one():
    assert is_stub("@triton.jit\ndef f(x):\n    raise NotImplementedError", "f")
    assert not is_stub(GOOD, "kernel")


def with_text(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    "source, words",
    [
        (with_text("def helper(", "def tl("), "tl has a meaning already"),
        (with_text("def helper(", "def range("), "range has a meaning already"),
        (with_text("def helper(", "def __builtins__("), "__builtins__ has a meaning already"),
        (with_text("FAST: tl.constexpr = False", "FAST='\\ndef kernel():\\n  open(1)'"), "is no constant"),
        (with_text("    acc = tl.zeros", "    acc: open('x') = tl.zeros"), "the annotation"),
        (with_text("a, b = at, acc", "a, b = ('in' \\\n 'f'), acc"), "the constant"),
        (with_text("range(0, tl.cdiv(n, BLOCK))", "range(0, n" + " + 0" * 2000 + ")"), "nested too deeply"),
    ],
    ids=["tl", "range", "builtins", "default", "annotation", "text over two lines", "deep"],
)
def test_what_could_be_read_in_two_ways_is_refused(source, words):
    assert words in broken_rule(source), broken_rule(source)


def test_comments_and_docstrings_do_not_enter_and_lines_stay():
    source = GOOD.replace("    at = tl.program_id", "    # \u2028 a note\n    at = tl.program_id")
    kept, tree = kernels_of(source), ast.parse(source)
    assert "What it does" not in kept and "#" not in kept
    for old, new in zip((node for node in tree.body if isinstance(node, ast.FunctionDef)), ast.parse(kept).body, strict=True):
        at = 1 if ast.get_docstring(old) else 0
        assert [ast.dump(part, include_attributes=True) for part in old.body[at:]] == [ast.dump(part, include_attributes=True) for part in new.body[at:]]


@pytest.mark.parametrize("docstring", ['"""one"""; x = 1', '"""two\n    lines"""; x = 1', '("""é in\n    brackets""")\n    x = 1', '"in" "parts"; x = 1'])
def test_a_docstring_may_stand_anywhere(docstring):
    kept = kernels_of(f"@triton.jit\ndef f(x):\n    {docstring}\n    return x\n")
    assert [type(node).__name__ for node in ast.parse(kept).body[0].body] == ["Expr", "Assign", "Return"] and "two" not in kept


@pytest.mark.parametrize(
    "load, without",
    [
        ("tl.load(x)", False), ("tl.load(x, mask=n)", True), ("tl.load(x, n)", True), ("tl.load(x, n, 0.0)", False), ("tl.load(x, mask=n, other=0.0)", False),
        ("tl.load(x, boundary_check=(0,))", True), ('tl.load(x, boundary_check=(0,), padding_option="zero")', False),
    ],
)  # fmt: skip
def test_a_load_that_does_not_say_what_masked_lanes_hold_is_seen(load, without):
    assert loads_without_other(f"@triton.jit\ndef kernel(x, n):\n    y = {load}") is without
