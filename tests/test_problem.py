"""problem.py: sizes, inputs, and every line of the error table, word for word."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flashlab.problem import ELEMENT_BYTES, ERRORS, AttentionProblem, check_size, error
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


# -- the table ----------------------------------------------------------------------------------------------------------------
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


def test_every_line_has_a_test_here_or_in_the_tests_of_the_module_that_raises_it():
    elsewhere = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")) if path != Path(__file__))
    elsewhere = re.sub(r"""["']\s*\n\s*f?["']""", "", elsewhere)  # a text written over several lines, as one
    missing = {}
    for name, modules in _raised_by().items():
        fixed_words = [piece for piece in re.split(r"{[^}]*}", ERRORS[name][1]) if len(piece) >= 20]
        named = re.search(rf"""["']{name}["']""", elsewhere) or any(words in elsewhere for words in fixed_words)
        if name not in {line for line, *_ in TRIGGERS} and not named:
            missing[name] = sorted(f"tests/{module.with_name('test_' + module.name)}" for module in modules)
    assert not missing, f"no test names or quotes these lines of problem.ERRORS; each belongs into a file beside it: {missing}"


def test_every_text_says_what_is_wrong_in_a_whole_sentence():
    for name, (kind, text) in ERRORS.items():
        assert issubclass(kind, Exception) and text.endswith((".", "}")), name
        assert "  " not in text and re.search(r"{\w+", text.replace("{{", "")), name  # no double space; says what was given


def test_error_makes_the_exception_and_raises_nothing():
    fault = error("n_k_differs", given=3, needed=4)
    assert isinstance(fault, ValueError) and str(fault) == "v has 3 rows, but k has 4; every key needs one value row."


# -- sizes --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [3, np.int64(3), np.uint8(3)])
def test_a_size_becomes_a_plain_int(given):
    assert check_size("n_q", given) == 3 and type(check_size("n_q", given)) is int


@pytest.mark.parametrize("given", [0, -1, 2.0, "4", None, True, np.float64(4)])
def test_what_is_no_size_is_refused(given):
    with pytest.raises(ValueError, match="^n_q is .*; it must be a whole number of at least 1"):
        check_size("n_q", given)


def test_least_may_be_zero():
    assert check_size("n_q", 0, least=0) == 0 and AttentionProblem(0, 0, 1).score_matrix_bytes == 0


# -- the problem --------------------------------------------------------------------------------------------------------------
def test_defaults():
    problem = AttentionProblem(3, 5, 16)
    assert (problem.batch, problem.heads, problem.kv_heads, problem.causal, problem.dtype) == (1, 1, 1, False, "float16")
    assert problem.scale == 1 / 4 == 1 / math.sqrt(problem.head_dim)
    assert AttentionProblem(3, 5, 16, heads=6).kv_heads == 6 and AttentionProblem(3, 5, 16, scale=0).scale == 0.0


def test_a_problem_can_be_compared_hashed_and_not_changed():
    assert AttentionProblem(3, np.int64(5), 4) == AttentionProblem(3, 5, 4, scale=0.5, kv_heads=1)
    assert len({AttentionProblem(3, 5, 4), AttentionProblem(3, 5, 4), AttentionProblem(3, 5, 4, causal=True)}) == 2
    with pytest.raises(AttributeError):
        PROBLEM.n_q = 5


@pytest.mark.parametrize("dtype, element, statistic", [("float16", 2, 4), ("bfloat16", 2, 4), ("float32", 4, 4), ("float64", 8, 8)])
def test_bytes_of_an_element_and_of_a_statistic(dtype, element, statistic):
    problem = AttentionProblem(3, 5, 4, dtype=dtype)
    assert (problem.element_bytes, problem.statistic_bytes, problem.score_matrix_bytes) == (element, statistic, 15 * element)
    assert ELEMENT_BYTES[dtype] == getattr(torch, dtype).itemsize


def test_with_changes_what_is_named_and_a_default_scale_follows_head_dim():
    problem = AttentionProblem(3, 5, 16, heads=4, kv_heads=2, causal=True)
    changed = problem.with_(n_q=7, dtype="float32")
    assert (changed.n_q, changed.n_k, changed.dtype, changed.kv_heads, changed.causal) == (7, 5, "float32", 2, True)
    assert problem.n_q == 3 and changed.scale == problem.scale == 1 / 4
    assert problem.with_(head_dim=64).scale == 1 / 8
    assert problem.with_(head_dim=64, scale=3).scale == 3.0
    assert AttentionProblem(3, 5, 16, scale=0.7).with_(head_dim=64).scale == 0.7


def test_default_kv_heads_follow_heads():
    assert PROBLEM.with_(heads=8).kv_heads == 8
    assert AttentionProblem(4, 4, 4, heads=8).with_(heads=4).kv_heads == 4
    assert AttentionProblem(4, 4, 4, heads=8).with_(heads=4, kv_heads=2).kv_heads == 2
    assert AttentionProblem(4, 4, 4, heads=4, kv_heads=2).with_(heads=8).kv_heads == 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_are_seeded_standard_normal_and_of_one_head(dtype):
    problem = AttentionProblem(300, 200, 16, heads=4, dtype=dtype)
    q, k, v = problem.arrays(seed=3)
    assert (q.shape, k.shape, v.shape) == ((300, 16), (200, 16), (200, 16)) and {x.dtype for x in (q, k, v)} == {np.dtype(dtype)}
    assert all((x == y).all() for x, y in zip((q, k, v), problem.arrays(seed=3)))
    assert (q != problem.arrays(seed=4)[0]).any() and (k != v).any() and (q[:200] != k).any()
    for x in (q, k, v):
        assert abs(x.astype(float).mean()) < 0.1 and abs(x.astype(float).std() - 1) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tensors_are_the_whole_problem_in_torch_s_layout(dtype):
    problem = AttentionProblem(30, 20, 16, batch=2, heads=6, kv_heads=3, dtype=dtype)
    q, k, v = problem.tensors(seed=3)
    assert (tuple(q.shape), tuple(k.shape), tuple(v.shape)) == ((2, 6, 30, 16), (2, 3, 20, 16), (2, 3, 20, 16))
    assert {x.dtype for x in (q, k, v)} == {getattr(torch, dtype)} and q.device.type == "cpu"
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), problem.tensors(seed=3)))
    assert not torch.equal(q, problem.tensors(seed=4)[0]) and not torch.equal(k, v) and not torch.equal(q[0], q[1])
    assert abs(q.double().mean()) < 0.1 and abs(q.double().std() - 1) < 0.1


def test_tensors_leave_torch_s_own_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    PROBLEM.tensors()
    assert torch.equal(torch.rand(1), expected)


def test_problem_loads_nothing_but_the_standard_library():
    code = "import sys; import flashlab.problem; print([name for name in ('numpy', 'torch', 'triton') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
