"""The cache model of our own launches: with the tiles, the order and the programs at once that they really have."""

from __future__ import annotations

import importlib.util

import pytest

from flashlab.bench.dram import modelled, programs_at_once, scheduled
from flashlab.kernels.tiles import backward_tiles_for, forward_tile_for
from flashlab.problem import AttentionProblem
from flashlab.traffic.cache import accuracy

OURS = {"forward_kernel", "delta_kernel", "keys_kernel", "queries_kernel", "softmax_kernel"}
SLOW = {"scores_kernel": "unfused", "product_kernel": "unfused", "flash1_kernel": "flash1"}
HERE = [*sorted(OURS), *(kernel for kernel, file in SLOW.items() if importlib.util.find_spec(f"flashlab.kernels.{file}"))]


def record(kernel, read=0, written=0, **more):
    sizes = {"n": 1024, "head_dim": 64, "causal": False, "heads": 16, "batch": 1}
    return {"workload": "triton", "kernel": kernel, **sizes, "dram_bytes_read": read, "dram_bytes_written": written} | more


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_each_kernel_of_ours_is_modelled(kernel, head_dim, causal):
    trace = scheduled(kernel, AttentionProblem(1024, 1024, head_dim, heads=16, causal=causal))
    assert trace.title == kernel and trace.bytes_loaded and trace.bytes_stored
    result = modelled(record(kernel, head_dim=head_dim, causal=causal))
    assert result.requested_bytes_read == trace.bytes_loaded
    assert 0 < result.dram_bytes_read <= trace.bytes_loaded


def test_tiles_are_those_that_a_hopper_gpu_takes():
    problem, shared = AttentionProblem(1024, 1024, 128, heads=16), 227 * 2**10
    (keys,) = backward_tiles_for(90, 128, False, shared).keys
    of = {"forward_kernel": ("q", forward_tile_for(90, 128, False, shared).block_q), "keys_kernel": ("k", keys.block_k)}
    for kernel, (tensor, rows) in of.items():
        assert set(scheduled(kernel, problem).select("load", tensor=tensor)["rows"].tolist()) == {rows}


def test_other_people_s_kernels_and_what_has_no_name_of_its_own_are_left_out():
    records = [record("flash_fwd_kernel"), record("keys_kernel", head_dim=256), record("forward_kernel")]
    assert [case.record["kernel"] for case in accuracy(records, modelled)] == ["forward_kernel"]


def test_programs_that_share_a_multiprocessor():
    assert [programs_at_once(18.75, 128), programs_at_once(25, 256), programs_at_once(1.5, 128), programs_at_once(100, 32)] == [3, 2, 1, 64]


def test_the_model_runs_as_many_programs_at_once_as_the_record_says():
    """With 2112 rows in flight instead of 132 the bytes read are the same, and what is left in the L2 at the end is not."""
    alone, crowded = modelled(record("softmax_kernel", n=4096)), modelled(record("softmax_kernel", n=4096, occupancy_limit_percent=100, threads=128))
    assert alone.dram_bytes_read == crowded.dram_bytes_read == 16 * 4096 * 4096 * 2
    assert alone.dirty_bytes != crowded.dirty_bytes


@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_gpus_of_each_architecture_are_modelled(gpu):
    assert modelled(record("forward_kernel"), gpu=gpu).dram_bytes_read == 3 * 1024 * 16 * 64 * 2
