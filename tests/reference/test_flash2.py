"""reference/flash2.py: exact, q outside, o written once, and programs that share nothing."""

import numpy as np
import pytest

from flashlab.problem import AttentionProblem
from flashlab.reference.flash2 import flash2
from flashlab.traffic.memory import Memory
from flashlab.traffic.model import flash2_sram_bytes


def traced(q, k, v, sram_bytes=None, watch=(), **options):
    memory = Memory("FlashAttention-2", sram_bytes=sram_bytes, watch=watch)
    return flash2(q, k, v, memory=memory, **options), memory.trace


def moves(trace, op, *tensors):
    return [(event.tensor, event.row0) for event in trace if event.op == op and event.tensor in tensors]


# -- the loop -----------------------------------------------------------------------------------------------------------------
def test_q_outside_k_inside(oracle):
    _, trace = traced(*oracle.inputs(7, 5, 3), block_q=3, block_k=2)
    inner = [("k", 0), ("k", 2), ("k", 4)]
    assert moves(trace, "load", "q", "k") == [("q", 0), *inner, ("q", 3), *inner, ("q", 6), *inner]
    assert moves(trace, "load", "v") == 3 * [("v", 0), ("v", 2), ("v", 4)]


def test_o_and_lse_are_written_once_and_never_read(oracle, causal):
    _, trace = traced(*oracle.inputs(7, 5, 3), block_q=3, block_k=2, causal=causal)
    for tensor in ("o", "lse"):
        assert moves(trace, "store", tensor) == [(tensor, 0), (tensor, 3), (tensor, 6)] and not moves(trace, "load", tensor)
    assert {name for name, _ in trace.bytes_by_tensor()} == {"q", "k", "v", "o", "lse"}  # no scores, no row_max, no row_sum


def test_one_program_step_by_step(oracle):
    _, trace = traced(*oracle.inputs(3, 4, 5, "float16"), block_q=3, block_k=4)
    steps = [(event.op, event.tensor, event.rows, event.cols, event.bytes) for event in trace if event.op != "release"]
    assert steps == [
        ("load", "q", 3, 5, 30), ("hold", "row_max", 3, 1, 12), ("hold", "row_sum", 3, 1, 12), ("hold", "acc", 3, 5, 60),
        ("load", "k", 4, 5, 40), ("hold", "scores", 3, 4, 48), ("load", "v", 4, 5, 40), ("compute", "acc", 3, 4, 0),
        ("store", "o", 3, 5, 30), ("store", "lse", 3, 1, 12),
    ]  # fmt: skip


def test_a_tile_made_on_the_chip_says_where_it_lies(oracle, causal):
    _, trace = traced(*oracle.inputs(7, 5, 3), block_q=3, block_k=2, causal=causal)
    computed = [(event.row0, event.col0) for event in trace if event.op == "compute"]
    assert [(event.row0, event.col0) for event in trace if event.op == "hold" and event.tensor == "scores"] == computed
    for name in ("row_max", "row_sum", "acc"):
        assert moves(trace, "hold", name) == [(name, 0), (name, 3), (name, 6)]


def test_programs_share_nothing(oracle):
    q, k, v = oracle.inputs(17, 23, 8)
    (o, lse), trace = traced(q, k, v, block_q=5, block_k=8)
    held = trace.sram_by_step()
    programs = trace.columns["program"]
    assert sorted(set(programs.tolist())) == [0, 1, 2, 3] and (np.diff(programs) >= 0).all()
    for program in range(4):
        steps = np.flatnonzero(programs == program)
        own = trace.columns[steps]
        assert held[steps[-1]] == 0  # nothing stays for the next program
        for name in ("q", "o", "lse"):
            op = "load" if name == "q" else "store"
            events = [event for event in trace if event.program == program and event.op == op and event.tensor == name]
            assert [(event.row0, event.rows) for event in events] == [(5 * program, min(5, 17 - 5 * program))], (name, own)
        rows = slice(5 * program, 5 * program + 5)
        alone = flash2(q[rows], k, v, block_q=5, block_k=8)
        np.testing.assert_allclose(alone[0], o[rows], rtol=0, atol=1e-14)
        np.testing.assert_allclose(alone[1], lse[rows], rtol=0, atol=1e-14)


def test_every_visible_score_is_computed_once_and_no_tile_in_vain(oracle, sizes, causal):
    n_q, n_k, head_dim, block_q, block_k = sizes
    _, trace = traced(*oracle.inputs(n_q, n_k, head_dim), block_q=block_q, block_k=block_k, causal=causal)
    times, seen = np.zeros((n_q, n_k), int), oracle.causal_mask(n_q, n_k).numpy() if causal else np.ones((n_q, n_k), bool)
    for event in trace.select("compute"):
        place = np.s_[event["row0"] : event["row0"] + event["rows"], event["col0"] : event["col0"] + event["cols"]]
        assert seen[place].any()
        times[place] += 1
    assert (times[seen] == 1).all() and times.max(initial=0) <= 1
    assert len(trace.select("load", tensor="k")) == len(trace.select("load", tensor="v")) == len(trace.select("compute"))


def test_the_values_noted_are_the_statistics_of_the_keys_seen_so_far(oracle):
    q, k, v = oracle.inputs(4, 6, 3)
    (o, lse), trace = traced(q, k, v, watch=("row_max", "row_sum", "rescale", "acc", "o"), block_q=4, block_k=2)
    computed = [trace.values[step] for step, event in enumerate(trace) if event.op == "compute"]
    scores, before = q @ k.T / np.sqrt(3), np.full(4, -np.inf)
    for visit, named in enumerate(computed, start=1):
        seen = scores[:, : 2 * visit]
        weights = np.exp(seen - seen.max(axis=1, keepdims=True))
        np.testing.assert_allclose(named["row_max"], seen.max(axis=1), rtol=1e-14)
        np.testing.assert_allclose(named["row_sum"], weights.sum(axis=1), rtol=1e-14)
        np.testing.assert_allclose(named["acc"], weights @ v[: 2 * visit], rtol=0, atol=1e-14)
        np.testing.assert_allclose(named["rescale"], np.exp(before - seen.max(axis=1)), rtol=1e-14)
        before = seen.max(axis=1)
    assert [named["o"].tolist() for named in trace.values.values() if "o" in named] == [o.tolist()]
    np.testing.assert_allclose(lse, before + np.log(computed[-1]["row_sum"]), rtol=1e-14)


# -- SRAM ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_budget_is_exact_to_the_byte(oracle, sizes, dtype):
    n_q, n_k, head_dim, block_q, block_k = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim, dtype)
    blocks = {"block_q": block_q, "block_k": block_k}
    (free, _), trace = traced(q, k, v, **blocks)
    peak = trace.peak_sram_bytes
    assert peak == flash2_sram_bytes(AttentionProblem(n_q, n_k, head_dim, dtype=dtype), **blocks)
    (o, _), within = traced(q, k, v, sram_bytes=peak, **blocks)
    assert (o == free).all() and within.sram_bytes == peak
    with pytest.raises(MemoryError, match=f"needs {peak:,} bytes of SRAM, but the budget is {peak - 1:,}"):
        traced(q, k, v, sram_bytes=peak - 1, **blocks)


def test_over_the_budget_names_the_tiles_held(oracle):
    with pytest.raises(MemoryError) as caught:
        traced(*oracle.inputs(64, 64, 16, "float16"), sram_bytes=5759, block_q=16, block_k=32)
    assert str(caught.value) == (
        "holding v (32, 16) (1,024 bytes) needs 5,760 bytes of SRAM, but the budget is 5,759."
        " Held now: q (16, 16) 512 bytes, row_max (16,) 64 bytes, row_sum (16,) 64 bytes, acc (16, 16) 1,024 bytes,"
        " k (32, 16) 1,024 bytes, scores (16, 32) 2,048 bytes. Use smaller tiles (block_q, block_k) or a larger sram_bytes."
    )


def test_sram_does_not_grow_with_n(oracle):
    peaks = {traced(*oracle.inputs(n, n, 8), block_q=8, block_k=16)[1].peak_sram_bytes for n in (16, 48, 113)}
    assert len(peaks) == 1
