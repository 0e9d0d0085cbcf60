"""A Triton kernel in the sandbox: values and bytes come back, faults are told, and what only Python would run is refused."""

from dataclasses import replace

import numpy as np
import pytest

from flashlab.grading import judge, marks
from flashlab.grading.exercise import Call, Exercise, Test
from flashlab.grading.runner import Limits

KERNEL = '''import triton
import triton.language as tl

@triton.jit
def double_kernel(x, y, n, x_stride, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    tile = tl.load(x + row * x_stride + cols, mask=cols < n, other=0.0)
    tl.store(y + row * n + cols, 2 * tile, mask=cols < n)
'''


def call(case):
    x = np.random.default_rng(case["seed"]).standard_normal((3, case["n"])).astype(case["dtype"])
    stride = case["n"] + case.get("gap", 0)
    options = {"n": case["n"], "x_stride": stride, "BLOCK": 8}
    return Call(arrays={"x": x, "y": np.zeros_like(x)}, options=options, grid=(3,), strides={"x": (stride, 1)} if "gap" in case else {}, stores=("y",))


def closed_form(call):
    return {("x", "load"): call.arrays["x"].nbytes, ("y", "store"): call.arrays["y"].nbytes}


JUDGES = (judge.values(lambda call: {"y": 2 * call.arrays["x"]}), judge.traffic(closed_form), judge.tiles_at_most(lambda call: {"x": 8, "y": 8}))
CASES = ({"n": 5, "seed": 1, "dtype": "float32"}, {"n": 8, "seed": 2, "dtype": "float16", "gap": 3})
EXERCISE = Exercise("e55_double", "doubling", "05", (Test("small", 2, "double_kernel", CASES, call, JUDGES, kernel=True),))


def finding(*edits, limits=None):
    source = KERNEL
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    result = marks.mark(EXERCISE, {"double_kernel": source}, limits=limits)
    return result.first_failure.finding if result.first_failure else None


def test_a_right_kernel_passes_with_its_bytes_and_prints_nothing():
    result = marks.mark(EXERCISE, {"double_kernel": KERNEL})
    assert result.points == 2 and result.printed == ""


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("2 * tile", "3 * tile", "y[0, 0] is "),
        ("BLOCK)\n", "BLOCK)\n    tl.load(x + cols, mask=cols < n)\n", "bytes of x were loaded; the closed form is 60"),
        ("tl.arange(0, BLOCK)", "tl.arange(0, 2 * BLOCK)", "one access of x asks for 16 elements; a tile of the given sizes has 8"),
        ("    tile = ", "    raise NotImplementedError\n    tile = ", "NotImplementedError"),
        ("    tile = ", "    x.handle\n    tile = ", "NotAKernel: line 7: the attribute .handle is not for kernels"),
        ("2 * tile", "2 * tile.shape", "in line 8: tl.store("),
    ],
)
def test_a_wrong_kernel_is_told_why(old, new, words):
    found = finding((old, new))
    assert words in found.what


def test_a_read_outside_is_the_named_misconception():
    found = finding((", mask=cols < n, other=0.0", ""))
    assert found.misconception == "out-of-bounds load" and "would read x at element offset" in found.what


def test_a_stride_taken_for_the_width_is_the_named_misconception():
    assert finding(("row * x_stride", "row * n")).misconception == "stride assumed contiguous"


def test_python_that_only_an_interpreter_runs_does_not_compile():
    found = finding(("    tile = ", "    kinds = tl.float32, tl.float16\n    for kind in kinds:\n        n = n\n    tile = "))
    assert found.what.startswith("DoesNotCompile: it runs in the interpreter, but Triton cannot compile it for a GPU: ")


def test_a_kernel_that_never_ends_is_stopped():
    assert finding(("    tile = ", "    while True:\n        pass\n    tile = "), limits=Limits(cpu_s=1, wall_s=30, memory_bytes=2 << 30)).what.startswith("TimeLimit")


DEF = "def double_kernel(x, y, n, x_stride, BLOCK: tl.constexpr):"
EVIL = "import sys; print('ran outside the rules', file=sys.stderr)"


@pytest.mark.parametrize(
    "edits",
    [
        [("import triton\nimport", f"# note\f{EVIL}\n# \f\f\nimport triton\nimport")],
        [("mask=cols < n)\n", f"mask=cols < n)\n# \u2028{EVIL}\n# \x1c\x85{EVIL}\n")],
        [("import triton\nimport triton.language as tl\n", "# coding: utf-7\n"), ("    row, cols", f"    # +AAo-    {EVIL}\n    row, cols"), ("+ row", "- -row"), ("+ cols", "- -cols")],
        [(DEF, f'{DEF}\n    """\n{DEF}\n    {EVIL}\n    s = \'\'\'\n    """\n    # \'\'\'')],
    ],
    ids=["form feed", "other ends of lines", "encoding", "def in a docstring"],
)
def test_no_comment_or_docstring_becomes_code(edits):
    """Triton reads the file again, from the last line that begins with "def": 2 points went to what no rule had seen."""
    source = KERNEL
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    result = marks.mark(EXERCISE, {"double_kernel": source})
    assert "ran outside" not in result.printed and result.points == 2


LOOSE = (judge.values(lambda call: {"y": 2 * call.arrays["x"]}, atol=0.05, rtol=0.02),)
EXTRA = Test(
    "small", 2, "double_kernel", CASES, lambda case: replace(call(case), cast=case.get("cast")), JUDGES, kernel=True,
    gpu_cases=({"n": 8, "seed": 3, "dtype": "float32", "gap": 2, "cast": "float16"},), gpu_judges=LOOSE,
)  # fmt: skip


@pytest.mark.parametrize("factor, passed", [("2", True), ("3", False)])
def test_the_extra_runs_in_the_dtype_asked_for_and_is_worth_nothing(factor, passed):
    (outcome,) = marks.on_gpu(Exercise("e55_double", "x", "05", (EXTRA,)), {"double_kernel": KERNEL.replace("2 * tile", f"{factor} * tile")})
    assert outcome.passed is passed and (passed or "y[0, 0] is" in outcome.finding.what)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_a_gpu_in_both_dtypes(dtype):
    test = replace(EXTRA, gpu_cases=({"n": 8, "seed": 3, "dtype": "float32", "gap": 2, "cast": dtype},))
    (outcome,) = marks.on_gpu(Exercise("e55_double", "x", "05", (test,)), {"double_kernel": KERNEL})
    assert outcome.passed, outcome.finding
