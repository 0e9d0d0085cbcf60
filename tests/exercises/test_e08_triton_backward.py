"""e08_triton_backward: each misconception is a mutant of one of the two kernels, caught at a named test with its name."""

import pytest
from exercise_cells import ROOT, assert_caught, solution_of, stub_of
from kernel_mutants import failures

from flashlab.grading import marks
from flashlab.grading.exercise import find
from flashlab.grading.exercises.e08_triton_backward import KEYS, QUERIES
from flashlab.grading.misconceptions import MEANS

DQ_ATOMIC = ("tl.store(dq + own, dq_tile * scale, mask=inside)", "tl.atomic_add(dq + own, (dq_tile * scale).to(q_tile.dtype), mask=inside)")
# {misconception: (the test it fails first, the edits that make it)}
MUTANTS = {
    QUERIES: {
        "delta left out": ("dq", [("(dweights - row_delta[:, None])", "dweights")]),
        "dS without weights factor": ("dq", [("weights * (dweights", "(dweights")]),
        "dK without scale": ("dq", [("dq_tile * scale", "dq_tile")]),
        "scale forgotten": ("dq", [("scores = scale * tl.dot", "scores = tl.dot")]),
        "scale applied twice": ("dq", [("scores = scale * tl.dot", "scores = scale * scale * tl.dot")]),
        "lse in base 2": ("dq", [("tl.exp(", "tl.exp2(")]),
        "backward masks when it should not": ("dq", [("if CAUSAL:\n            seen", "if True:\n            seen")]),
        "last ragged tile dropped": ("dq ragged", [("end = n_k\n", "end = n_k // BLOCK_K * BLOCK_K\n")]),
        "padded keys not masked": ("dq ragged", [("seen = cols[None, :] < n_k", "seen = cols[None, :] >= 0")]),
        "grouped heads mapped by modulo": ("dq ragged", [("head // GROUP", "head % (tl.num_programs(1) // GROUP)")]),
        "stride assumed contiguous": ("dq layout", [("* q_row", "* HEAD_DIM")]),
        "top-left causal alignment": ("dq causal", [("rows[:, None] + n_k - n_q", "rows[:, None]")]),
        "causal mask off by one": ("dq causal", [("<= rows[:, None] + n_k", "< rows[:, None] + n_k")]),
        "backward ignores the mask": ("dq causal", [("if CAUSAL:", "if False:")]),
        "fully masked row gives NaN": ("dq causal", [("row_lse = tl.where(row_lse == -INF, INF, row_lse)", "row_lse = row_lse")]),
        "low-precision accumulator": ("dq budget", [
            ("dq_tile = tl.zeros([BLOCK_Q, HEAD_DIM], tl.float32)", "dq_tile = tl.zeros([BLOCK_Q, HEAD_DIM], q_tile.dtype)"),
            ("dq_tile = tl.dot(dscores.to(k_tile.dtype), k_tile, dq_tile, ", "dq_tile += tl.dot(dscores.to(k_tile.dtype), k_tile, out_dtype=q_tile.dtype, "),
        ]),
        "out-of-bounds load": ("dq ragged", [("v_tile = tl.load(v + at, mask=exists, other=0.0)", "v_tile = tl.load(v + at)")]),
        "several writers": ("dq bytes", [DQ_ATOMIC]),
        "K/V read once per row": ("dq bytes", [("k_tile = tl.load(k + at, mask=exists, other=0.0)", "for row in range(BLOCK_Q):\n            k_tile = tl.load(k + at, mask=exists, other=0.0)")]),
        "tiles above the diagonal visited": ("dq bytes", [("end = tl.minimum(n_k, first + BLOCK_Q + n_k - n_q)", "end = n_k")]),
    },
    KEYS: {
        "delta left out": ("dk, dv", [("(dweights - row_delta[:, None])", "dweights")]),
        "dS without weights factor": ("dk, dv", [("weights * (dweights", "(dweights")]),
        "dK without scale": ("dk, dv", [("dk_tile * scale", "dk_tile")]),
        "scale forgotten": ("dk, dv", [("scores = scale * tl.dot", "scores = tl.dot")]),
        "scale applied twice": ("dk, dv", [("scores = scale * tl.dot", "scores = scale * scale * tl.dot")]),
        "lse in base 2": ("dk, dv", [("tl.exp(", "tl.exp2(")]),
        "backward masks when it should not": ("dk, dv", [("if CAUSAL:\n                scores", "if True:\n                scores")]),
        "last ragged tile dropped": ("dk, dv ragged", [("range(begin, n_q, BLOCK_Q)", "range(begin, n_q // BLOCK_Q * BLOCK_Q, BLOCK_Q)")]),
        "grouped heads mapped by modulo": ("dk, dv ragged", [("kv_head * GROUP + g", "g * tl.num_programs(1) + kv_head")]),
        "grouped gradients not summed": ("dk, dv ragged", [("range(GROUP)", "range(GROUP - 1, GROUP)")]),
        "out-of-bounds store": ("dk, dv ragged", [("tl.store(dv + own, dv_tile, mask=exists)", "tl.store(dv + own, dv_tile)")]),
        "out-of-bounds load": ("dk, dv ragged", [("tl.load(delta + head * n_q + rows, mask=rows < n_q, other=0.0)", "tl.load(delta + head * n_q + rows)")]),
        "stride assumed contiguous": ("dk, dv layout", [("* k_row", "* HEAD_DIM")]),
        "top-left causal alignment": ("dk, dv causal", [("rows[:, None] + n_k - n_q", "rows[:, None]")]),
        "causal mask off by one": ("dk, dv causal", [("<= rows[:, None] + n_k", "< rows[:, None] + n_k")]),
        "backward ignores the mask": ("dk, dv causal", [("if CAUSAL:", "if False:")]),
        "fully masked row gives NaN": ("dk, dv causal", [("row_lse = tl.where(row_lse == -INF, INF, row_lse)", "row_lse = row_lse")]),
        "low-precision accumulator": ("dk, dv budget", [
            ("dv_tile = tl.zeros([BLOCK_K, HEAD_DIM], tl.float32)", "dv_tile = tl.zeros([BLOCK_K, HEAD_DIM], k_tile.dtype)"),
            ("dv_tile = tl.dot(weights.to(do_tile.dtype).T, do_tile, dv_tile, ", "dv_tile += tl.dot(weights.to(do_tile.dtype).T, do_tile, out_dtype=k_tile.dtype, "),
        ]),
        "several writers": ("dk, dv bytes", [("tl.store(dv + own, dv_tile, mask=exists)", "tl.atomic_add(dv + own, dv_tile.to(k_tile.dtype), mask=exists)")]),
        "K/V read once per row": ("dk, dv bytes", [("q_tile = tl.load(q + at, mask=inside, other=0.0)", "for row in range(BLOCK_K):\n                q_tile = tl.load(q + at, mask=inside, other=0.0)")]),
        "tiles above the diagonal visited": ("dk, dv bytes", [("begin = tl.maximum(first - (n_k - n_q), 0) // BLOCK_Q * BLOCK_Q", "begin = 0")]),
    },
}  # fmt: skip


# what no misconception names: {what is wrong: (test, edits, how the finding begins)}
OTHERS = {
    QUERIES: {
        "a tile of twice the keys": (
            "dq bytes",
            [("range(0, end, BLOCK_K)", "range(0, end, 2 * BLOCK_K)"), ("start + tl.arange(0, BLOCK_K)", "start + tl.arange(0, 2 * BLOCK_K)")],
            "one access of k asks for 512 elements; a tile of the given sizes has 256",
        ),
        "delta summed in float16": ("dq budget", [("o_tile.to(tl.float32) * do_tile.to(tl.float32)", "o_tile * do_tile")], "delta[0, 0] is"),
        "heads forgotten in delta": ("dq", [("delta + head * n_q", "delta")], "delta[0, 0] is"),
        "the wrong head of a group": ("dq ragged", [("head // GROUP", "head")], "IndexError: program 4"),
        "delta not stored": ("dq", [("tl.store(delta + head * n_q + rows, row_delta, mask=rows < n_q)", "")], "delta[0, 0] is 0; it must be"),
    },
    KEYS: {"dv not stored": ("dk, dv", [("tl.store(dv + own, dv_tile, mask=exists)", "")], "dv[0, 0, 0] is 0; it must be")},
}


def mutant(function, edits):
    """The cell of `function` with these edits; each must change it."""
    source = solution_of("e08")[function]
    for old, new in edits:
        assert old in source, f"{function} does not contain {old!r}"
        source = source.replace(old, new)
    return source


@pytest.fixture(scope="module", params=[QUERIES, KEYS])
def found(request):
    """What each mutant of one kernel fails at: one child for all of them."""
    every = MUTANTS[request.param] | OTHERS[request.param]
    cells = {name: mutant(request.param, edits) for name, (_, edits, *_) in every.items()}
    return request.param, failures(find("e08"), request.param, cells)


def test_each_misconception_is_caught_at_its_test_and_named(found):
    function, first = found
    wanted = {name: (test, name) for name, (test, _) in MUTANTS[function].items()}
    assert {name: failure and (failure[0], failure[1].misconception) for name, failure in first.items() if name in wanted} == wanted
    assert set(wanted) <= set(MEANS)


def test_a_masked_load_without_other_is_named():
    assert_caught("e08", "masked load without other", "dq ragged", [(", other=0.0", "")])


def test_other_faults_are_caught_at_their_test_in_plain_words(found):
    function, first = found
    for name, (test, _, begins) in OTHERS[function].items():
        assert first[name][0] == test and first[name][1].what.startswith(begins), first[name]


def test_what_is_printed_names_it():
    assert_caught("e08", "delta left out", "dq", [("(dweights - row_delta[:, None])", "dweights")])


# other right ways, as far from the solution as they get
RIGHT = {
    QUERIES: '''
@triton.jit
def rows_of(base, row, stride, n, HEAD_DIM: tl.constexpr):
    return tl.load(base + row[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :], mask=row[:, None] < n, other=0.0).to(tl.float32)


@triton.jit
def dq_delta_kernel(
    q, k, v, o, do, lse, delta, dq, n_q, n_k, q_row, q_head, k_row, k_head, scale,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """In float32 throughout, exp2, the last tile of keys first, weights masked after the exponential."""
    head, first = tl.program_id(1), tl.program_id(0) * BLOCK_Q
    row = first + tl.arange(0, BLOCK_Q)
    q_tile = rows_of(q + head * q_head, row, q_row, n_q, HEAD_DIM) * (scale * LOG2_E)
    do_tile = rows_of(do + head * q_head, row, q_row, n_q, HEAD_DIM)
    row_lse = tl.load(lse + head * n_q + row, mask=row < n_q, other=0.0) * LOG2_E
    summed = tl.sum(do_tile * rows_of(o + head * q_head, row, q_row, n_q, HEAD_DIM), axis=1)
    grad = tl.zeros([BLOCK_Q, HEAD_DIM], dtype=tl.float32)
    tiles = tl.cdiv(n_k, BLOCK_K)
    start = (tiles - 1) * BLOCK_K
    while start >= 0:
        if (not CAUSAL) or start <= first + BLOCK_Q - 1 + n_k - n_q:
            j = start + tl.arange(0, BLOCK_K)
            k_tile = rows_of(k + head // GROUP * k_head, j, k_row, n_k, HEAD_DIM)
            v_tile = rows_of(v + head // GROUP * k_head, j, k_row, n_k, HEAD_DIM)
            weights = tl.exp2(tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") - row_lse[:, None])
            shown = (j < n_k)[None, :] & (row < n_q)[:, None]
            if CAUSAL:
                shown = shown & (row[:, None] - j[None, :] >= n_q - n_k)
            weights = tl.where(shown, weights, 0.0)
            grad += tl.dot(weights * (tl.dot(do_tile, tl.trans(v_tile), input_precision="ieee") - summed[:, None]), k_tile, input_precision="ieee")
        start -= BLOCK_K
    at = head * q_head + row[:, None] * q_row + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(dq + at, (grad * scale).to(dq.dtype.element_ty), mask=row[:, None] < n_q)
    tl.store(delta + head * n_q + row, summed, mask=row < n_q)
''',
    KEYS: '''
@triton.jit
def dk_dv_kernel(
    q, k, v, do, lse, delta, dk, dv, n_q, n_k, q_row, q_head, k_row, k_head, scale,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Transposed tiles as the library has them, and heads inside queries: one loop over both."""
    j, d = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K), tl.arange(0, HEAD_DIM)
    mine = tl.program_id(1) * k_head + j[:, None] * k_row + d[None, :]
    k_tile = tl.load(k + mine, mask=j[:, None] < n_k, other=0.0)
    v_tile = tl.load(v + mine, mask=j[:, None] < n_k, other=0.0)
    sums_k = tl.zeros([BLOCK_K, HEAD_DIM], tl.float32)
    sums_v = tl.zeros([BLOCK_K, HEAD_DIM], tl.float32)
    tiles = tl.cdiv(n_q, BLOCK_Q)
    skipped = 0
    if CAUSAL:
        skipped = max(tl.program_id(0) * BLOCK_K - n_k + n_q, 0) // BLOCK_Q
    for step in range((tiles - skipped) * GROUP):
        head = tl.program_id(1) * GROUP + step % GROUP
        i = (skipped + step // GROUP) * BLOCK_Q + tl.arange(0, BLOCK_Q)
        theirs = head * q_head + i[:, None] * q_row + d[None, :]
        q_tile = tl.load(q + theirs, mask=i[:, None] < n_q, other=0.0)
        do_tile = tl.load(do + theirs, mask=i[:, None] < n_q, other=0.0)
        known = tl.load(lse + head * n_q + i, mask=i < n_q, other=-INF)
        scores = tl.dot(k_tile, q_tile.T, input_precision="ieee") * scale
        if CAUSAL:
            scores = tl.where(j[:, None] <= i[None, :] + n_k - n_q, scores, -INF)
        weights = tl.where(known[None, :] == -INF, 0.0, tl.exp(scores - known[None, :]))
        weights = tl.where(j[:, None] < n_k, weights, 0.0)
        sums_v = tl.dot(weights.to(do_tile.dtype), do_tile, sums_v, input_precision="ieee")
        lost = tl.load(delta + head * n_q + i, mask=i < n_q, other=0.0)
        dscores = weights * (tl.dot(v_tile, do_tile.T, input_precision="ieee") - lost[None, :]) * scale
        sums_k = tl.dot(dscores.to(q_tile.dtype), q_tile, sums_k, input_precision="ieee")
    tl.store(dk + mine, sums_k, mask=j[:, None] < n_k)
    tl.store(dv + mine, sums_v, mask=j[:, None] < n_k)
''',
}


def test_other_right_ways_get_full_marks():
    result = marks.mark(find("e08").with_hidden(ROOT / "solutions"), RIGHT)
    assert result and result.points == 16, "\n".join(marks.lines(result))


def test_one_solved_kernel_keeps_its_points_while_the_other_is_a_stub():
    result = marks.mark(find("e08"), {**stub_of("e08"), QUERIES: RIGHT[QUERIES]}, stop=True)
    assert result.points == 8 and not result.unsolved
    assert result.first_failure.finding.what == "NotImplementedError"
