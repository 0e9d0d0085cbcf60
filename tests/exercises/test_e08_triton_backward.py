"""e08_triton_backward: each misconception is a mutant of one of the two kernels, caught at a named test with its name."""

import pytest
from exercise_cells import assert_caught, solution_of
from kernel_mutants import failures

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
        "low-precision accumulator": ("dq budget", [("dq_tile = tl.zeros([BLOCK_Q, HEAD_DIM], tl.float32)", "dq_tile = tl.zeros([BLOCK_Q, HEAD_DIM], q_tile.dtype)"), ("dq_tile = tl.dot(dscores.to(k_tile.dtype), k_tile, dq_tile, input_precision=\"ieee\")", "dq_tile += tl.dot(dscores.to(k_tile.dtype), k_tile, input_precision=\"ieee\").to(q_tile.dtype)")]),
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
        "out-of-bounds load": ("dk, dv ragged", [("tl.load(delta + head * n_q + rows, mask=rows < n_q, other=0.0)", "tl.load(delta + head * n_q + rows)")]),
        "stride assumed contiguous": ("dk, dv layout", [("* k_row", "* HEAD_DIM")]),
        "top-left causal alignment": ("dk, dv causal", [("rows[:, None] + n_k - n_q", "rows[:, None]")]),
        "causal mask off by one": ("dk, dv causal", [("<= rows[:, None] + n_k", "< rows[:, None] + n_k")]),
        "backward ignores the mask": ("dk, dv causal", [("if CAUSAL:", "if False:")]),
        "fully masked row gives NaN": ("dk, dv causal", [("row_lse = tl.where(row_lse == -INF, INF, row_lse)", "row_lse = row_lse")]),
        "low-precision accumulator": ("dk, dv budget", [("dv_tile = tl.zeros([BLOCK_K, HEAD_DIM], tl.float32)", "dv_tile = tl.zeros([BLOCK_K, HEAD_DIM], k_tile.dtype)"), ("dv_tile = tl.dot(weights.to(do_tile.dtype).T, do_tile, dv_tile, input_precision=\"ieee\")", "dv_tile += tl.dot(weights.to(do_tile.dtype).T, do_tile, input_precision=\"ieee\").to(k_tile.dtype)")]),
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


def test_other_faults_are_caught_at_their_test_in_plain_words(found):
    function, first = found
    for name, (test, _, begins) in OTHERS[function].items():
        assert first[name][0] == test and first[name][1].what.startswith(begins), first[name]


def test_what_is_printed_names_it():
    assert_caught("e08", "delta left out", "dq", [("(dweights - row_delta[:, None])", "dweights")])
