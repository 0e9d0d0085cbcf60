"""traffic/model.py: every closed form equals the trace of its algorithm, tensor by tensor, and the bound is met."""

from collections import Counter

import numpy as np
import pytest
import torch

from flashlab import runtime, trace
from flashlab.kernels import backward as kernels
from flashlab.kernels import masks
from flashlab.kernels.tiles import BackwardTiles, Tile
from flashlab.problem import AttentionProblem
from flashlab.reference.backward import backward, fused_backward
from flashlab.reference.flash1 import flash1
from flashlab.reference.flash2 import flash2
from flashlab.reference.standard import standard
from flashlab.traffic import triton_hooks
from flashlab.traffic.eager import count_bytes
from flashlab.traffic.memory import Memory
from flashlab.traffic.model import (
    Traffic,
    attention_flops,
    backward_flops,
    backward_sram_bytes,
    backward_traffic,
    flash1_sram_bytes,
    flash1_traffic,
    flash2_sram_bytes,
    flash2_traffic,
    flash_bound,
    fused_backward_traffic,
    fused_traffic,
    least_backward_traffic,
    softmax_traffic,
    standard_backward_traffic,
    standard_traffic,
    unfused_traffic,
    visible_scores,
)

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in matmul:RuntimeWarning")  # see tests/reference/conftest.py

SIZES = [1, 3, 17, 113, 239]
BLOCKS = [(1, 1), (2, 5), (16, 16), (32, 64), (64, 32), (200, 200)]
TRAFFIC = {flash1: flash1_traffic, flash2: flash2_traffic}
SRAM = {flash1: flash1_sram_bytes, flash2: flash2_sram_bytes}


def trace_of(algorithm, problem, **blocks):
    memory = Memory()
    algorithm(*problem.arrays(), causal=problem.causal, memory=memory, **blocks)
    return memory.trace


def moved(trace):
    """bytes_by_tensor without the loads and stores of empty tiles."""
    return {key: size for key, size in trace.bytes_by_tensor().items() if size}


def grid():
    for n_q in SIZES:
        for n_k in SIZES:
            for block_q, block_k in BLOCKS:
                if n_q * n_k / (block_q * block_k) <= 600:  # (1, 1) tiles of a large problem take long and show nothing more
                    yield n_q, n_k, block_q, block_k
    yield 0, 5, 2, 2
    yield 5, 0, 2, 2
    yield 128, 128, 32, 32


# -- closed form = trace ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("algorithm", [flash1, flash2])
def test_flash_bytes_and_sram_are_the_closed_forms(algorithm, causal, dtype):
    for n_q, n_k, block_q, block_k in grid():
        problem = AttentionProblem(n_q, n_k, head_dim=5, causal=causal, dtype=dtype)
        blocks = {"block_q": block_q, "block_k": block_k}
        trace, traffic = trace_of(algorithm, problem, **blocks), TRAFFIC[algorithm](problem, **blocks)
        assert moved(trace) == traffic.by_tensor, (problem, blocks)
        assert (trace.bytes_loaded, trace.bytes_stored, trace.bytes_moved) == (traffic.bytes_loaded, traffic.bytes_stored, traffic.bytes_moved)
        if causal or n_q * n_k == 0:
            assert trace.peak_sram_bytes <= SRAM[algorithm](problem, **blocks), (problem, blocks)
        else:
            assert trace.peak_sram_bytes == SRAM[algorithm](problem, **blocks), (problem, blocks)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_standard_bytes_are_the_closed_form(causal, dtype):
    for n_q, n_k, block_q, _ in grid():
        problem = AttentionProblem(n_q, n_k, head_dim=5, causal=causal, dtype=dtype)
        trace, traffic = trace_of(standard, problem, block_q=block_q), standard_traffic(problem)
        assert moved(trace) == traffic.by_tensor, (problem, block_q)
        assert trace.bytes_moved == traffic.bytes_moved


# -- the formulas of the docstrings, in numbers ---------------------------------------------------------------------------------
def test_standard_by_hand():
    assert standard_traffic(AttentionProblem(5, 7, 3)).by_tensor == {
        ("q", "load"): 30, ("k", "load"): 42, ("v", "load"): 42, ("o", "store"): 30,
        ("scores", "store"): 70, ("scores", "load"): 70, ("weights", "store"): 70, ("weights", "load"): 70,
    }  # fmt: skip


def test_unfused_by_hand():
    traffic = unfused_traffic(AttentionProblem(5, 7, 3, heads=4, kv_heads=2), block_q=2, block_k=3)  # 3 x 3 tiles a head
    assert traffic.by_tensor == standard_traffic(AttentionProblem(5, 7, 3, heads=4)).by_tensor | {
        ("q", "load"): 4 * 3 * 30, ("k", "load"): 4 * 3 * 42, ("v", "load"): 4 * 3 * 42,
    }  # fmt: skip
    assert traffic.bytes_moved == 4 * 2 * (4 * 5 * 7 + 5 * 3 * (3 + 1) + 2 * 7 * 3 * 3)
    assert unfused_traffic(AttentionProblem(5, 7, 3, causal=True), block_q=5, block_k=7).by_tensor == standard_traffic(AttentionProblem(5, 7, 3)).by_tensor


def test_flash1_by_hand():
    traffic = flash1_traffic(AttentionProblem(5, 7, 3), block_q=2, block_k=3)  # 3 passes over q
    assert traffic.by_tensor == {
        ("k", "load"): 42, ("v", "load"): 42, ("q", "load"): 90, ("o", "load"): 90, ("o", "store"): 120,
        ("row_max", "load"): 60, ("row_max", "store"): 80, ("row_sum", "load"): 60, ("row_sum", "store"): 80,
    }  # fmt: skip
    precise = flash1_traffic(AttentionProblem(5, 7, 3), block_q=2, block_k=3, float32_o=True)
    assert precise.by_tensor == traffic.by_tensor | {("o", "load"): 180, ("o", "store"): 240}
    e64 = flash1_traffic(AttentionProblem(5, 7, 3, dtype="float64"), block_q=2, block_k=3)  # one size of element: the docstring's formula
    assert e64.bytes_moved == 8 * (2 * 7 * 3 + 5 * (3 * 3 + 4) * 3 + 5 * (3 + 2))


def test_flash2_by_hand():
    traffic = flash2_traffic(AttentionProblem(5, 7, 3), block_q=2, block_k=3)  # 3 programs
    assert traffic.by_tensor == {("q", "load"): 30, ("k", "load"): 126, ("v", "load"): 126, ("o", "store"): 30, ("lse", "store"): 20}
    e64 = flash2_traffic(AttentionProblem(5, 7, 3, dtype="float64"), block_q=2, block_k=3)
    assert e64.bytes_moved == 8 * (2 * 5 * 3 + 2 * 7 * 3 * 3 + 5)


def test_causal_flash_by_hand():
    problem = AttentionProblem(4, 6, 1, causal=True, dtype="float64")  # query i sees keys 0 to i + 2
    assert flash2_traffic(problem, block_q=2, block_k=2).by_tensor["k", "load"] == 8 * (4 + 6)
    assert flash1_traffic(problem, block_q=2, block_k=2).by_tensor["q", "load"] == 8 * (4 + 4 + 2)


def test_sram_by_hand():
    problem = AttentionProblem(64, 64, 16)
    tiles_qkv, acc, scores, statistics = 2 * 16 * (16 + 32 + 32), 4 * 16 * 16, 4 * 16 * 32, 2 * 4 * 16
    assert flash2_sram_bytes(problem, block_q=16, block_k=32) == tiles_qkv + acc + scores + statistics == 5760
    assert flash1_sram_bytes(problem, block_q=16, block_k=32) == 5760 + 2 * 16 * 16
    assert flash2_sram_bytes(problem, block_q=640, block_k=640) == flash2_sram_bytes(problem, block_q=64, block_k=64)


def test_softmax_by_hand():
    problem = AttentionProblem(5, 7, 3)
    assert softmax_traffic(problem, passes=3).by_tensor == {("scores", "load"): 210, ("weights", "store"): 70}
    assert softmax_traffic(problem, passes=2).by_tensor == {("scores", "load"): 140, ("weights", "store"): 70}
    assert softmax_traffic(problem, passes=1).by_tensor == {("scores", "load"): 70, ("v", "load"): 42, ("o", "store"): 30}


def test_bfloat16_and_float32_have_their_own_sizes():
    half, brain, single = (AttentionProblem(16, 16, 8, dtype=dtype) for dtype in ("float16", "bfloat16", "float32"))
    for count in (standard_traffic, fused_traffic, lambda p: flash1_traffic(p, block_q=8, block_k=8), lambda p: flash2_traffic(p, block_q=8, block_k=8)):
        assert count(half).by_tensor == count(brain).by_tensor
        assert count(single).by_tensor["q", "load"] == 2 * count(half).by_tensor["q", "load"]
    lse = {p.dtype: flash2_traffic(p, block_q=8, block_k=8).by_tensor["lse", "store"] for p in (half, brain, single)}
    assert set(lse.values()) == {64}  # always float32


def test_batch_and_heads_multiply_and_a_key_head_is_read_for_each_query_head_it_serves():
    one = AttentionProblem(17, 23, 8, causal=True)
    many = AttentionProblem(17, 23, 8, causal=True, batch=2, heads=6, kv_heads=3)
    for count in (flash1_traffic, flash2_traffic):
        alone, together = (count(problem, block_q=4, block_k=8).by_tensor for problem in (one, many))
        assert together == {key: 12 * size for key, size in alone.items()}
    for count in (standard_traffic, fused_traffic):  # an ideal operator reads each of its inputs once
        alone, together = count(one).by_tensor, count(many).by_tensor
        assert together == {key: size * (6 if key[0] in "kv" else 12) for key, size in alone.items()}
    assert attention_flops(many) == 12 * attention_flops(one)
    assert flash_bound(many, 1024) == 12 * flash_bound(one, 1024)


@pytest.mark.parametrize("block", ["block_q", "block_k"])
@pytest.mark.parametrize("count", [flash1_traffic, flash2_traffic, flash1_sram_bytes, flash2_sram_bytes])
def test_a_block_of_zero_is_refused_by_name(count, block):
    with pytest.raises(ValueError, match=f"^{block} is 0; it must be a whole number of at least 1"):
        count(AttentionProblem(4, 4, 4), **({"block_q": 2, "block_k": 2} | {block: 0}))


def test_traffic_adds_up_and_reads_as_a_sentence():
    traffic = Traffic({("q", "load"): 1000, ("k", "load"): 234, ("o", "store"): 5000})
    assert (traffic.bytes_loaded, traffic.bytes_stored, traffic.bytes_moved) == (1234, 5000, 6234)
    assert repr(traffic) == "1,234 bytes loaded, 5,000 bytes stored"


# -- FLOPs --------------------------------------------------------------------------------------------------------------------
def test_visible_scores_are_counted_one_by_one():
    for n_q in (0, 1, 3, 17, 40):
        for n_k in (0, 1, 3, 17, 40):
            pairs = sum(j <= i + n_k - n_q for i in range(n_q) for j in range(n_k))
            assert visible_scores(AttentionProblem(n_q, n_k, 4, causal=True)) == pairs
            assert visible_scores(AttentionProblem(n_q, n_k, 4)) == n_q * n_k


def test_flops_are_two_products_of_two_flops_and_causal_is_about_half():
    problem = AttentionProblem(8192, 8192, 64)
    assert attention_flops(problem) == 4 * 8192 * 8192 * 64
    assert attention_flops(problem.with_(causal=True)) / attention_flops(problem) == pytest.approx(0.5, rel=1e-3)
    assert attention_flops(AttentionProblem(3, 3, 1, causal=True)) == 4 * 6


# -- the facts of the lessons ---------------------------------------------------------------------------------------------------
def test_one_head_s_scores_at_8192_are_134_217_728_bytes_and_at_4096_a_quarter():
    assert AttentionProblem(8192, 8192, 128).score_matrix_bytes == 134_217_728 == 128 * 2**20
    assert AttentionProblem(4096, 4096, 128).score_matrix_bytes == 33_554_432


def test_standard_attention_passes_the_scores_four_times_64_times_q_k_v_o():
    problem = AttentionProblem(8192, 8192, 128)
    by_tensor = standard_traffic(problem).by_tensor
    passes = sum(size for (tensor, _), size in by_tensor.items() if tensor in ("scores", "weights"))
    assert passes == 536_870_912 == 4 * problem.score_matrix_bytes
    assert passes == 64 * fused_traffic(problem).bytes_moved
    assert standard_traffic(problem).bytes_moved == passes + fused_traffic(problem).bytes_moved == 545_259_520


def test_intensity_of_standard_attention_is_half_of_head_dim_and_of_a_fused_kernel_half_of_n():
    problem = AttentionProblem(2**17, 2**17, 128)
    assert attention_flops(problem) / standard_traffic(problem).bytes_moved == pytest.approx(128 / 2, rel=0.01)
    assert attention_flops(problem) / fused_traffic(problem).bytes_moved == 2**17 / 2


def test_standard_grows_with_n_squared_and_flash2_loads_less():
    small, large = AttentionProblem(4096, 4096, 64), AttentionProblem(8192, 8192, 64)
    assert standard_traffic(large).bytes_moved / standard_traffic(small).bytes_moved == pytest.approx(4, rel=0.02)
    assert flash2_traffic(large, block_q=128, block_k=64).bytes_moved < standard_traffic(large).bytes_moved / 3.9
    assert flash1_traffic(large, block_q=64, block_k=128).bytes_moved < standard_traffic(large).bytes_moved / 2


# -- Θ(n²·d²/M) -----------------------------------------------------------------------------------------------------------------
def algorithm_1_blocks(problem, sram_bytes):
    """Dao et al. 2022, Algorithm 1, line 1, with M counted in elements."""
    rows = sram_bytes // problem.element_bytes // (4 * problem.head_dim)
    return {"block_k": rows, "block_q": min(rows, problem.head_dim)}


def ratios(n, head_dim=64, sram_bytes=131_072, dtype="float16"):
    """Exact bytes / bound: (FlashAttention-1's q and o, all of FlashAttention-1, FlashAttention-2's k and v, all of it)."""
    problem = AttentionProblem(n, n, head_dim, dtype=dtype)
    bound, blocks = flash_bound(problem, sram_bytes), algorithm_1_blocks(problem, sram_bytes)
    first = flash1_traffic(problem, **blocks)
    second = flash2_traffic(problem, block_q=blocks["block_k"], block_k=blocks["block_q"])
    q_and_o = sum(size for (tensor, _), size in first.by_tensor.items() if tensor in "qo")
    k_and_v = sum(size for (tensor, _), size in second.by_tensor.items() if tensor in "kv")
    return q_and_o / bound, first.bytes_moved / bound, k_and_v / bound, second.bytes_moved / bound


def test_the_bound_by_hand():
    assert flash_bound(AttentionProblem(512, 1024, 16), 8192) == 2 * 512 * 1024 * 16 * 16 / 4096
    assert flash_bound(AttentionProblem(512, 1024, 16, dtype="float32"), 8192) == 4 * 512 * 1024 * 16 * 16 / 2048


@pytest.mark.parametrize("head_dim, sram_bytes", [(64, 131_072), (128, 131_072), (64, 65_536)])
def test_flash1_meets_12_times_the_bound_and_flash2_8_times(head_dim, sram_bytes):
    q_and_o, all_of_1, k_and_v, all_of_2 = ratios(2**20, head_dim, sram_bytes)
    assert q_and_o == pytest.approx(12, rel=1e-3)  # q read, o read, o written: 3, each 4 times the bound
    assert k_and_v == pytest.approx(8, rel=1e-12)  # k read, v read: 2, each 4 times
    assert all_of_2 == pytest.approx(8, rel=1e-3)
    statistics = 4 * 4 * (4 / 2) / head_dim  # row_max, row_sum read and written, float32 beside float16: 1/d of o each
    assert all_of_1 == pytest.approx(12 + statistics, rel=1e-3)


def test_where_the_exact_count_meets_the_bound():
    gap_1 = [ratios(n)[0] / 12 - 1 for n in (2**10, 2**12, 2**14, 2**16)]
    gap_2 = [ratios(n)[3] / 8 - 1 for n in (2**10, 2**12, 2**14, 2**16)]
    for gaps in (gap_1, gap_2):
        assert all(later == pytest.approx(earlier / 4, rel=1e-6) for earlier, later in zip(gaps, gaps[1:]))  # linear terms fade as 1/n
    assert gap_1[0] == pytest.approx(1 / 12, rel=1e-6) and gap_1[1] < 0.025 and gap_1[2] < 0.01
    assert gap_2[0] < 0.27 and gap_2[2] < 0.02 and gap_2[3] < 0.005


@pytest.mark.parametrize("algorithm, factor", [(flash1, 12), (flash2, 8)])
def test_a_trace_meets_the_bound_as_the_closed_form_does(algorithm, factor):
    problem, sram_bytes = AttentionProblem(1024, 1024, 16), 8192
    blocks = algorithm_1_blocks(problem, sram_bytes)
    assert blocks == {"block_k": 64, "block_q": 16}
    if algorithm is flash2:
        blocks = {"block_q": 64, "block_k": 16}
    by_tensor = trace_of(algorithm, problem, **blocks).bytes_by_tensor()
    counted = sum(size for (tensor, _), size in by_tensor.items() if tensor in ("qo" if algorithm is flash1 else "kv"))
    assert counted / flash_bound(problem, sram_bytes) == pytest.approx(factor, rel=0.03)


@pytest.mark.parametrize("count", [0, 1], ids=["flash1", "flash2"])
def test_exact_bytes_grow_with_n_squared_with_d_squared_and_with_one_over_m(count):
    def exact(n=2**18, head_dim=64, sram_bytes=2**17):
        problem = AttentionProblem(n, n, head_dim, dtype="float64")
        blocks = algorithm_1_blocks(problem, sram_bytes)
        if count == 0:
            by_tensor = flash1_traffic(problem, **blocks).by_tensor
            return sum(size for (tensor, _), size in by_tensor.items() if tensor in "qkvo")
        return flash2_traffic(problem, block_q=blocks["block_k"], block_k=blocks["block_q"]).bytes_moved

    assert exact(n=2**19) / exact() == pytest.approx(4, rel=0.01)
    assert exact(head_dim=128) / exact() == pytest.approx(4, rel=0.01)
    assert exact(sram_bytes=2**18) / exact() == pytest.approx(1 / 2, rel=0.01)


def test_tiles_of_k_cost_flash2_nothing_and_tiles_of_q_cost_flash1_nothing():
    problem = AttentionProblem(128, 256, 8)
    assert len({flash2_traffic(problem, block_q=32, block_k=block).bytes_moved for block in (1, 7, 64, 300)}) == 1
    assert len({flash1_traffic(problem, block_k=32, block_q=block).bytes_moved for block in (1, 7, 64, 300)}) == 1
    two, four = (flash2_traffic(problem, block_q=block, block_k=32).by_tensor["k", "load"] for block in (64, 32))
    assert four == 2 * two


def test_counts_are_plain_integers():
    traffic = flash1_traffic(AttentionProblem(17, 23, 8, causal=True), block_q=4, block_k=8)
    assert {type(size) for size in traffic.by_tensor.values()} == {int} and type(traffic.bytes_moved) is int
    assert not any(isinstance(size, np.integer) for size in flash2_traffic(AttentionProblem(17, 23, 8), block_q=4, block_k=8).by_tensor.values())


@pytest.mark.parametrize("passes", [0, 4, -1])
def test_a_softmax_takes_one_to_three_passes(passes):
    with pytest.raises(ValueError) as caught:
        softmax_traffic(AttentionProblem(4, 4, 4), passes=passes)
    assert str(caught.value) == f"passes is {passes}; a softmax here takes 3, 2 or 1. Pass passes=3, passes=2 or passes=1."


def test_closed_forms_stay_cheap_at_any_size():
    huge = AttentionProblem(10**9, 10**9, 128, causal=True)
    assert attention_flops(huge) == 4 * 128 * (10**9 * (10**9 + 1) // 2)
    long = AttentionProblem(2**19, 2**19, 64, causal=True)
    assert flash1_traffic(long, block_q=16, block_k=16).bytes_moved > standard_traffic(long).bytes_moved


# -- the backward pass ----------------------------------------------------------------------------------------------------------
def backward_trace(algorithm, problem, **blocks):
    q, k, v = problem.arrays()
    o, lse = flash2(q, k, v, causal=problem.causal, **blocks)
    memory = Memory()
    algorithm(q, k, v, o, np.ones_like(o), lse, causal=problem.causal, memory=memory, **blocks)
    return memory.trace


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("algorithm, form", [(backward, backward_traffic), (fused_backward, fused_backward_traffic)])
def test_backward_bytes_and_sram_are_the_closed_forms(algorithm, form, causal, dtype):
    for n_q, n_k, block_q, block_k in grid():
        problem, blocks = AttentionProblem(n_q, n_k, head_dim=5, causal=causal, dtype=dtype), {"block_q": block_q, "block_k": block_k}
        trace, most = backward_trace(algorithm, problem, **blocks), backward_sram_bytes(problem, fused=form is fused_backward_traffic, **blocks)
        assert moved(trace) == form(problem, **blocks).by_tensor, (problem, blocks)
        if causal or n_q * n_k == 0:
            assert trace.peak_sram_bytes <= most, (problem, blocks)
        else:
            assert trace.peak_sram_bytes == most, (problem, blocks)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("n_q, n_k, block_q, block_k", [(64, 64, 16, 16), (40, 72, 16, 32), (72, 40, 32, 16)])
def test_the_triton_backward_moves_what_the_closed_forms_say(n_q, n_k, block_q, block_k, causal):
    problem = AttentionProblem(n_q, n_k, 16, batch=2, heads=4, kv_heads=2, causal=causal)
    q, k, v = problem.tensors(device=runtime.device())
    seen = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).tril(n_k - n_q if causal else n_k)
    scores = (problem.scale * q.float() @ k.float().repeat_interleave(2, 1).mT).masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    mask, tile = (masks.causal() if causal else masks.Mask()).encode(), Tile(block_q, block_k, 4, 1)
    tiles = BackwardTiles(tile, (tile,), tile, tile)
    for fused, form in ((False, backward_traffic), (True, fused_backward_traffic)):
        traced = []
        with triton_hooks.launches(lambda one: traced.append(trace(one.kernel, one.grid, *one.args, **one.meta))):
            kernels.backward(q, k, v, q, lse, q, None, *masks.decode(*mask), problem.scale, fused=fused, tiles=tiles)
        counted = sum((Counter(launch.bytes_by_tensor()) for launch in traced), Counter())
        expected = form(problem, block_q=block_q, block_k=block_k).by_tensor.copy()
        if fused:  # what the kernel adds by atomics: the sum's stores, less the zeros; zeros and the copy into dq are torch's
            zeros = 4 * problem.batch * problem.heads * n_q * 16
            expected["dq", "atomic"] = expected.pop(("dq_sum", "store")) - zeros
            assert expected.pop(("dq_sum", "load")) == expected["dq", "atomic"] + zeros
            del expected["dq", "store"]
        assert counted == expected


@pytest.mark.parametrize("n_q, n_k", [(64, 64), (17, 39)])
def test_standard_backward_is_what_pytorch_s_operators_move(n_q, n_k):
    problem = AttentionProblem(n_q, n_k, 16)
    q, k, v = (x[0, 0] for x in problem.tensors())
    weights, do = torch.softmax(q.float() @ k.float().T, -1).half(), torch.ones_like(q)
    with count_bytes() as counter:
        weights.T @ do
        dscores = torch.ops.aten._softmax_backward_data(do @ v.T, weights, -1, torch.float16)
        dscores @ k, dscores.T @ q
    traffic = standard_backward_traffic(problem)
    assert (counter.bytes_loaded, counter.bytes_stored) == (traffic.bytes_loaded, traffic.bytes_stored)


def test_backward_by_hand():
    problem = AttentionProblem(5, 7, 3, dtype="float64")  # tiles of 2 and 3: 3 of queries, 3 of keys
    traffic = backward_traffic(problem, block_q=2, block_k=3)
    assert traffic.bytes_moved == 8 * (5 * 15 + 4 * 21 + 2 * 15 * 3 + 2 * 21 * 3 + 5 * (3 + 2 * 3))
    fused = fused_backward_traffic(problem, block_q=2, block_k=3)
    assert fused.bytes_moved == 8 * (3 * 15 + 4 * 21 + 2 * 15 * 3 + 5 * (1 + 2 * 3) + 2 * 15 * (1 + 3))
    half = fused_backward_traffic(problem.with_(dtype="float16"), block_q=2, block_k=3).by_tensor
    assert half["dq_sum", "store"] == 2 * half["dq", "store"] * 4 == 240  # float32, once for zeros and once for each key tile
    assert standard_backward_traffic(problem).bytes_moved == 8 * (7 * 35 + 4 * 15 + 4 * 21)
    assert backward_sram_bytes(problem, block_q=2, block_k=3) == 8 * (2 * 3 * 5 + 2 * 6 + 2 * 2 + 2 * 9)
    assert backward_sram_bytes(problem, block_q=5, block_k=2) == 8 * (2 * 3 * 7 + 2 * 10 + 2 * 5 + 15)
    assert backward_sram_bytes(problem, block_q=5, block_k=2, fused=True) == 8 * (2 * 3 * 7 + 2 * 10 + 2 * 5 + 12 + 15)


def test_causal_backward_by_hand():
    problem = AttentionProblem(4, 6, 1, causal=True, dtype="float64")  # query i sees keys 0 to i + 2
    by_tensor = backward_traffic(problem, block_q=2, block_k=2).by_tensor
    assert by_tensor["q", "load"] == 8 * (4 + 4 + 2 + 4)  # key tiles see 4, 4 and 2 queries; and each query program its own
    assert by_tensor["k", "load"] == 8 * (6 + 4 + 6)


def test_the_backward_of_many_heads_and_of_few_key_heads():
    one, many = AttentionProblem(17, 23, 8, causal=True), AttentionProblem(17, 23, 8, causal=True, batch=2, heads=6, kv_heads=3)
    alone, together = (fused_backward_traffic(problem, block_q=4, block_k=8).by_tensor for problem in (one, many))
    assert together == {key: size * (6 if key[0] in ("k", "v", "dk", "dv") else 12) for key, size in alone.items()}
    alone, together = (backward_traffic(problem, block_q=4, block_k=8).by_tensor for problem in (one, many))
    own, streamed = 23 * 8 * 2, alone["k", "load"] - 23 * 8 * 2  # by keys programs, and by queries programs
    assert together["k", "load"] == together["v", "load"] == 6 * own + 12 * streamed
    assert together["q", "load"] == 12 * alone["q", "load"] and together["dk", "store"] == 6 * alone["dk", "store"]


def test_the_backward_does_two_and_a_half_times_the_forward_s_flops():
    for causal in (False, True):
        problem = AttentionProblem(113, 239, 16, heads=3, causal=causal)
        assert 2 * backward_flops(problem) == 5 * attention_flops(problem)
        assert 2 * backward_flops(problem, products=7) == 7 * attention_flops(problem)
    with pytest.raises(ValueError, match="^products is 0; it must be"):
        backward_flops(problem, products=0)


@pytest.mark.parametrize("block", ["block_q", "block_k"])
@pytest.mark.parametrize("count", [backward_traffic, fused_backward_traffic, backward_sram_bytes])
def test_a_block_of_zero_is_refused_in_the_backward_too(count, block):
    with pytest.raises(ValueError, match=f"^{block} is 0; it must be a whole number of at least 1"):
        count(AttentionProblem(4, 4, 4, causal=True), **({"block_q": 2, "block_k": 2} | {block: 0}))


def test_the_least_a_backward_moves_by_hand():
    problem = AttentionProblem(3, 5, 8, batch=2, heads=4, kv_heads=2, dtype="float16")
    queries, keys, lse = 2 * 4 * 3 * 8 * 2, 2 * 2 * 5 * 8 * 2, 2 * 4 * 3 * 4
    found = least_backward_traffic(problem)
    assert (found.bytes_loaded, found.bytes_stored) == (3 * queries + 2 * keys + lse, queries + 2 * keys)  # q, o, do; k, v | dq; dk, dv
    assert found.bytes_moved < backward_traffic(problem, block_q=16, block_k=16).bytes_moved
