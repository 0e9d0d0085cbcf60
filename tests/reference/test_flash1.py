"""reference/flash1.py: exact, k and v outside, and o, row_max, row_sum through HBM on every pass."""

import numpy as np
import pytest

from flashlab.problem import AttentionProblem
from flashlab.reference.flash1 import flash1
from flashlab.traffic.memory import Memory
from flashlab.traffic.model import flash1_sram_bytes


def traced(q, k, v, sram_bytes=None, watch=(), **options):
    memory = Memory("FlashAttention-1", sram_bytes=sram_bytes, watch=watch)
    return flash1(q, k, v, memory=memory, **options), memory.trace


def moves(trace, op, *tensors):
    return [(event.tensor, event.row0) for event in trace if event.op == op and event.tensor in tensors]


# -- the loop -----------------------------------------------------------------------------------------------------------------
def test_k_outside_q_inside(oracle):
    _, trace = traced(*oracle.inputs(7, 5, 3), block_q=3, block_k=2)
    inner = [("q", 0), ("q", 3), ("q", 6)]
    assert moves(trace, "load", "q", "k") == [("k", 0), *inner, ("k", 2), *inner, ("k", 4), *inner]
    assert moves(trace, "load", "v") == [("v", 0), ("v", 2), ("v", 4)]
    assert set(trace.columns["program"].tolist()) == {0}


def test_o_and_its_statistics_are_read_and_written_on_every_visit(oracle):
    _, trace = traced(*oracle.inputs(7, 5, 3), block_q=3, block_k=2)
    for tensor in ("o", "row_max", "row_sum"):
        pass_over_q = [(tensor, 0), (tensor, 3), (tensor, 6)]
        assert moves(trace, "load", tensor) == 3 * pass_over_q
        assert moves(trace, "store", tensor) == 4 * pass_over_q  # the first fills it, Algorithm 1 line 2
    assert {name for name, _ in trace.bytes_by_tensor()} == {"q", "k", "v", "o", "row_max", "row_sum"}  # no scores, no lse


def test_one_visit_step_by_step(oracle):
    _, trace = traced(*oracle.inputs(3, 4, 5, "float16"), block_q=3, block_k=4)
    steps = [(event.op, event.tensor, event.rows, event.cols, event.bytes) for event in trace if event.op != "release"]
    assert steps == [
        ("store", "o", 3, 5, 30), ("store", "row_max", 3, 1, 12), ("store", "row_sum", 3, 1, 12),
        ("load", "k", 4, 5, 40), ("load", "v", 4, 5, 40),
        ("load", "q", 3, 5, 30), ("load", "o", 3, 5, 30), ("load", "row_max", 3, 1, 12), ("load", "row_sum", 3, 1, 12),
        ("hold", "acc", 3, 5, 60), ("hold", "scores", 3, 4, 48), ("compute", "acc", 3, 4, 0),
        ("store", "o", 3, 5, 30), ("store", "row_max", 3, 1, 12), ("store", "row_sum", 3, 1, 12),
    ]  # fmt: skip


def test_the_first_fill_is_zero_minus_infinity_and_zero(oracle):
    _, trace = traced(*oracle.inputs(3, 4, 5), watch=("o", "row_max", "row_sum"), block_q=3, block_k=4)
    assert (trace.values[0]["o"] == 0).all() and np.isneginf(trace.values[1]["row_max"]).all() and (trace.values[2]["row_sum"] == 0).all()


def test_a_tile_made_on_the_chip_says_where_it_lies(oracle, causal):
    _, trace = traced(*oracle.inputs(7, 5, 3), block_q=3, block_k=2, causal=causal)
    computed = [(event.row0, event.col0) for event in trace if event.op == "compute"]
    assert [(event.row0, event.col0) for event in trace if event.op == "hold" and event.tensor == "scores"] == computed
    assert [(event.row0, event.col0) for event in trace if event.op == "hold" and event.tensor == "acc"] == [(row0, 0) for row0, _ in computed]


def test_every_visible_score_is_computed_once_and_no_tile_in_vain(oracle, sizes, causal):
    n_q, n_k, head_dim, block_q, block_k = sizes
    _, trace = traced(*oracle.inputs(n_q, n_k, head_dim), block_q=block_q, block_k=block_k, causal=causal)
    times, seen = np.zeros((n_q, n_k), int), oracle.causal_mask(n_q, n_k).numpy() if causal else np.ones((n_q, n_k), bool)
    for event in trace.select("compute"):
        place = np.s_[event["row0"] : event["row0"] + event["rows"], event["col0"] : event["col0"] + event["cols"]]
        assert seen[place].any()
        times[place] += 1
    assert (times[seen] == 1).all() and times.max(initial=0) <= 1
    assert len(trace.select("load", tensor="q")) == len(trace.select("compute"))


def test_o_in_hbm_is_always_a_softmax_of_the_keys_seen_so_far(oracle):
    q, k, v = oracle.inputs(4, 6, 3)
    _, trace = traced(q, k, v, watch=("o", "row_max", "row_sum", "rescale"), block_q=4, block_k=2)
    stored = [named["o"] for step, named in sorted(trace.values.items()) if "o" in named]
    assert len(stored) == 4 and (stored[0] == 0).all()
    for visit, o in enumerate(stored[1:], start=1):
        np.testing.assert_allclose(o, oracle.attention(q, k[: 2 * visit], v[: 2 * visit])[0], rtol=0, atol=1e-14)
    computed = [trace.values[step] for step, event in enumerate(trace) if event.op == "compute"]
    scores = q @ k.T / np.sqrt(3)
    for visit, named in enumerate(computed, start=1):
        np.testing.assert_allclose(named["row_max"], scores[:, : 2 * visit].max(axis=1), rtol=1e-14)
    assert (computed[0]["rescale"] == 0).all() and (computed[-1]["rescale"] > 0).all()


# -- SRAM ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_budget_is_exact_to_the_byte(oracle, sizes, dtype):
    n_q, n_k, head_dim, block_q, block_k = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim, dtype)
    blocks = {"block_q": block_q, "block_k": block_k}
    (free, _), trace = traced(q, k, v, **blocks)
    peak = trace.peak_sram_bytes
    assert peak == flash1_sram_bytes(AttentionProblem(n_q, n_k, head_dim, dtype=dtype), **blocks)
    (o, _), within = traced(q, k, v, sram_bytes=peak, **blocks)
    assert (o == free).all() and within.sram_bytes == peak
    with pytest.raises(MemoryError, match=f"needs {peak:,} bytes of SRAM, but the budget is {peak - 1:,}"):
        traced(q, k, v, sram_bytes=peak - 1, **blocks)


def test_over_the_budget_names_the_tiles_held(oracle):
    with pytest.raises(MemoryError) as caught:
        traced(*oracle.inputs(64, 64, 16, "float16"), sram_bytes=6271, block_q=16, block_k=32)
    assert str(caught.value) == (
        "holding scores (16, 32) (2,048 bytes) needs 6,272 bytes of SRAM, but the budget is 6,271."
        " Held now: k (32, 16) 1,024 bytes, v (32, 16) 1,024 bytes, q (16, 16) 512 bytes, o (16, 16) 512 bytes,"
        " row_max (16,) 64 bytes, row_sum (16,) 64 bytes, acc (16, 16) 1,024 bytes."
        " Use smaller tiles (block_q, block_k) or a larger sram_bytes."
    )


def test_nothing_is_left_in_sram(oracle, causal):
    _, trace = traced(*oracle.inputs(17, 23, 8), block_q=4, block_k=8, causal=causal)
    assert trace.sram_by_step()[-1] == 0 and trace.peak_sram_bytes > 0
