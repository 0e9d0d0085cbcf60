"""errors.py: every line of the table is raised somewhere, word for word in a test, and is a whole sentence."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flashlab.errors import ERRORS, error
from flashlab.problem import AttentionProblem
from flashlab.reference.flash1 import flash1
from flashlab.reference.flash2 import flash2
from flashlab.reference.standard import standard
from flashlab.traffic.memory import Memory, tiles
from flashlab.traffic.model import flash1_traffic, flash2_sram_bytes, flash_bound
from flashlab.traffic.trace import Trace

ROOT = Path(__file__).parent.parent
PROBLEM = AttentionProblem(4, 4, 4)
Q, K, V = PROBLEM.arrays()


def _over_budget():
    memory = Memory(sram_bytes=1100)
    memory.hbm("q", np.zeros((64, 8), np.float16)).load(slice(0, 64))
    memory.hold("acc", np.zeros((4, 8), np.float32))


def _outside():
    Memory().hbm("q", np.zeros((8, 4))).load(slice(4, 12))


def _store_shape():
    Memory().hbm("o", np.zeros((8, 4))).store(slice(4, 8), np.zeros((3, 4)))


# (line, what triggers it, the text word for word). Lines of other modules are triggered in the tests of those modules.
TRIGGERS = [
    ("size", lambda: AttentionProblem(-1, 4, 4), "n_q is -1; it must be a whole number of at least 0. Pass n_q=0 or more."),
    ("size", lambda: AttentionProblem(4, 2.5, 4), "n_k is 2.5; it must be a whole number of at least 0. Pass n_k=0 or more."),
    ("size", lambda: AttentionProblem(4, 4, 0), "head_dim is 0; it must be a whole number of at least 1. Pass head_dim=1 or more."),
    ("size", lambda: AttentionProblem(4, 4, 4, batch=0), "batch is 0; it must be a whole number of at least 1. Pass batch=1 or more."),
    ("size", lambda: AttentionProblem(4, 4, 4, heads=True), "heads is True; it must be a whole number of at least 1. Pass heads=1 or more."),
    ("size", lambda: AttentionProblem(4, 4, 4, kv_heads=0), "kv_heads is 0; it must be a whole number of at least 1. Pass kv_heads=1 or more."),
    (
        "size",
        lambda: flash1_traffic(PROBLEM, block_q=0, block_k=2),
        "block_q is 0; it must be a whole number of at least 1. Pass block_q=1 or more.",
    ),
    (
        "size",
        lambda: flash2_sram_bytes(PROBLEM, block_q=2, block_k=-3),
        "block_k is -3; it must be a whole number of at least 1. Pass block_k=1 or more.",
    ),
    ("size", lambda: flash_bound(PROBLEM, 0), "sram_bytes is 0; it must be a whole number of at least 1. Pass sram_bytes=1 or more."),
    (
        "dtype",
        lambda: AttentionProblem(4, 4, 4, dtype="fp16"),
        "dtype is 'fp16'; it must be one of float16, bfloat16, float32, float64. Pass it as a string, e.g. dtype='float16'.",
    ),
    (
        "kv_heads",
        lambda: AttentionProblem(4, 4, 4, heads=6, kv_heads=4),
        "kv_heads is 4, but heads is 6; heads must be a multiple of kv_heads, so that each key head serves the same number"
        " of query heads. Pass one of 1, 2, 3, 6.",
    ),
    (
        "numpy_dtype",
        lambda: AttentionProblem(4, 4, 4, dtype="bfloat16").arrays(),
        "q has dtype bfloat16; the NumPy algorithms take float16, float32 or float64 (NumPy has no bfloat16). Convert it"
        " first, e.g. q.astype('float32').",
    ),
    (
        "numpy_dtype",
        lambda: flash2(Q, K, V.astype(np.int32), block_q=2, block_k=2),
        "v has dtype int32; the NumPy algorithms take float16, float32 or float64 (NumPy has no bfloat16). Convert it"
        " first, e.g. v.astype('float32').",
    ),
    (
        "one_head",
        lambda: standard(Q[None, None], K, V),
        "q has shape (1, 1, 4, 4); the NumPy algorithms work on one head, shape (n, head_dim). Pass one head, e.g. q[0, 0].",
    ),
    (
        "head_dim_differs",
        lambda: flash1(Q, K[:, :3], V, block_q=2, block_k=2),
        "k has head_dim 3, but q has 4; a score is a dot product, so both need the same head_dim.",
    ),
    ("n_k_differs", lambda: flash2(Q, K, V[:3], block_q=2, block_k=2), "v has 3 rows, but k has 4; every key needs one value row."),
    ("block", lambda: tiles(4, 0), "block is 0; a tile needs at least 1 row. Pass a whole number such as block=64."),
    (
        "sram_full",
        _over_budget,
        "holding acc (4, 8) (128 bytes) needs 1,152 bytes of SRAM, but the budget is 1,100. Held now: q (64, 8) 1,024 bytes."
        " Use smaller tiles (block_q, block_k) or a larger sram_bytes.",
    ),
    (
        "outside",
        _outside,
        "rows 4 to 12 of q were asked for, but it has 8 rows. Cut the last tile to what is left, as tiles(n, block) does.",
    ),
    (
        "store_shape",
        _store_shape,
        "a tile of shape (3, 4) was stored to o at a place of shape (4, 4). Store exactly the rows you name.",
    ),
    (
        "trace_op",
        lambda: Trace().append("read", "q"),
        "op is 'read'; a trace knows load, store, atomic, hold, release, compute.",
    ),
    (
        "trace_json",
        lambda: Trace.from_json("no"),
        "this JSON is not a trace: JSONDecodeError: Expecting value: line 1 column 1 (char 0). Make one with Trace.to_json().",
    ),
]


@pytest.mark.parametrize("name, trigger, text", TRIGGERS, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(TRIGGERS)])
def test_each_line_of_the_table_is_raised_word_for_word(name, trigger, text):
    kind, _ = ERRORS[name]
    with pytest.raises(kind) as caught:
        trigger()
    assert type(caught.value) is kind
    assert str(caught.value) == text


def _raised_by():
    """{line of the table: the modules of flashlab that raise it}."""
    raised = {}
    for source in sorted((ROOT / "flashlab").rglob("*.py")):
        for name in re.findall(r"""\berror\(\s*["'](\w+)["']""", source.read_text()):
            raised.setdefault(name, set()).add(source.relative_to(ROOT / "flashlab"))
    return raised


def test_every_line_is_raised_somewhere_and_nothing_else_is():
    raised = set(_raised_by())
    assert not raised - set(ERRORS), "raised, but not in the table"
    assert not set(ERRORS) - raised, "in the table, but never raised"


@pytest.mark.skipif(not (ROOT / "tests/grading").is_dir(), reason="a class's copy lacks the tests of the grading")
def test_every_line_has_a_test_here_or_in_the_tests_of_the_module_that_raises_it():
    elsewhere = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")) if path != Path(__file__))
    elsewhere = re.sub(r"""["']\s*\n\s*f?["']""", "", elsewhere)  # a text written over several lines, as one
    missing = {}
    for name, modules in _raised_by().items():
        fixed_words = [piece for piece in re.split(r"{[^}]*}", ERRORS[name][1]) if len(piece) >= 20]
        named = re.search(rf"""["']{name}["']""", elsewhere) or any(words in elsewhere for words in fixed_words)
        if name not in {line for line, *_ in TRIGGERS} and not named:
            missing[name] = sorted(f"tests/{module.with_name('test_' + module.name)}" for module in modules)
    assert not missing, f"no test names or quotes these lines of errors.ERRORS; each belongs into a file beside it: {missing}"


def test_every_text_says_what_is_wrong_in_a_whole_sentence():
    for name, (kind, text) in ERRORS.items():
        assert issubclass(kind, Exception) and text.endswith((".", "}")), name
        assert "  " not in text, name
        assert re.search(r"{\w+", text.replace("{{", "")), name  # says what was given


def test_error_makes_the_exception_and_raises_nothing():
    fault = error("n_k_differs", given=3, needed=4)
    assert isinstance(fault, ValueError) and str(fault) == "v has 3 rows, but k has 4; every key needs one value row."


def test_errors_loads_nothing_but_the_standard_library():
    code = "import sys; import flashlab.errors; print([name for name in ('numpy', 'torch', 'triton') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
