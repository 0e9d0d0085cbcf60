"""The cache model of our own launches: with the tiles, the order and the programs at once that they really have."""

from __future__ import annotations

import importlib.util
import json

import pytest

from flashlab.bench import dram
from flashlab.bench.dram import modelled, programs_at_once, scheduled
from flashlab.kernels.tiles import backward_tiles_for, forward_tile_for
from flashlab.problem import AttentionProblem
from flashlab.traffic.accuracy import accuracy
from flashlab.traffic.cache import SHARE
from flashlab.traffic.counter_records import CounterRecord, by_launch
from flashlab.traffic.launches import Launch

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
    assert [programs_at_once(25, 128, gpu) for gpu in ("A100", "RTX 4090", "RTX 5090", "B200")] == [4, 3, 3, 4]


def test_the_model_runs_as_many_programs_at_once_as_the_record_says():
    """With 2112 rows in flight instead of 132 the bytes read are the same, and what is left in the L2 at the end is not."""
    alone, crowded = modelled(record("softmax_kernel", n=4096)), modelled(record("softmax_kernel", n=4096, occupancy_limit_percent=100, threads=128))
    assert alone.dram_bytes_read == crowded.dram_bytes_read == 16 * 4096 * 4096 * 2
    assert alone.dirty_bytes != crowded.dirty_bytes


def test_the_model_takes_the_warps_of_the_gpu_that_is_asked_about(monkeypatch):
    asked = []
    monkeypatch.setattr(dram, "through_l2", lambda trace, device, **options: asked.append((device.name, options["programs_per_multiprocessor"])))
    for gpu in ("H200", "RTX 4090"):
        modelled(record("softmax_kernel", n=1024, occupancy_limit_percent=100, threads=128), gpu=gpu)
    assert [together for _, together in asked] == [16, 12]


@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_gpus_of_each_architecture_are_modelled(gpu):
    assert modelled(record("forward_kernel"), gpu=gpu).dram_bytes_read == 3 * 1024 * 16 * 64 * 2


# -- from a line of counters to the table ------------------------------------------------------------------------------------------
MACHINE = {"device": "NVIDIA H200", "driver": "580.95", "torch": "2.11.0+cu130", "triton": "3.6.0", "ncu": "2025.3.1.0", "date": "2026-11-05T10:00:00+00:00"}
SIZES = {"dtype": "bfloat16", "batch": 1, "heads": 16, "kv_heads": 16, "n_q": 4096, "n_k": 4096, "head_dim": 64, "causal": False}
TENSOR = 16 * 4096 * 64 * 2  # bytes of q, k, v or o


def launch(kernel, read, written, threads=128, limit=18.75):
    """A launch as ncu's table gives it, with these DRAM bytes."""
    few = {"registers": 168, "sram_bytes": 66_568, "occupancy_percent": limit - 1, "occupancy_limit_percent": limit, "time_ms": 0.21, "tensor_percent": 55.9}
    moved = {"l2_bytes": 580_911_104, "sm_bytes_read": 562_036_736, "sm_bytes_written": 8_912_896, "shared_bytes": 1_000_000}
    return {"kernel": kernel, "grid": [512, 1, 1], "threads": threads, **few, "dram_bytes_read": read, "dram_bytes_written": written, **moved}


def line(workload, *launches, pass_="forward", **changes):
    return json.dumps({"workload": workload, "pass": pass_, **SIZES, **changes, "launches": launches, **MACHINE, "digest": None})


def test_a_line_of_counters_becomes_a_row_of_the_accuracy_table():
    """A fused forward reads q, k and v once, and its o stays in the L2; a fill by torch beside it is nobody's row."""
    fill = launch("vectorized_elementwise_kernel", 640, 4_194_304, limit=100)
    one = CounterRecord.from_json(line("triton", fill, launch("forward_kernel", 3 * TENSOR + 80_000, 120_000)))
    table = accuracy(by_launch([one]), modelled)
    assert len(table) == 1 and table.within() == 1 and table[0].record["kernel"] == "forward_kernel"
    assert table[0].model.title == "forward_kernel" and table[0].model.dram_bytes_read == 3 * TENSOR
    assert repr(table).splitlines()[1].split()[:7] == ["forward_kernel", "4096", "64", "no", "16", "1", "25.4"]
    assert repr(table).endswith("1 of 1 within 10% of the counters.")


def test_each_launch_of_a_record_is_a_mapping_of_its_own():
    backward = [launch("delta_kernel", 2 * TENSOR, 0), launch("keys_kernel", 4 * TENSOR, 0), launch("queries_kernel", 4 * TENSOR, 0)]
    unfused = [launch(kernel, TENSOR, TENSOR) for kernel in ("scores_kernel", "softmax_kernel", "product_kernel")]
    lines = [line("triton", *backward, pass_="backward"), line("unfused", *unfused), line("flash1", launch("fill", 1, 1), launch("flash1_kernel", 7, 5))]
    flat = by_launch(map(CounterRecord.from_json, lines))
    assert [(one["workload"], one["pass"], one["kernel"]) for one in flat] == [
        *(("triton", "backward", kernel) for kernel in ("delta_kernel", "keys_kernel", "queries_kernel")),
        *(("unfused", "forward", kernel) for kernel in ("scores_kernel", "softmax_kernel", "product_kernel")),
        ("flash1", "forward", "flash1_kernel"),
    ]
    fields = {"workload", "pass", "n", "device", "date", *SIZES, *Launch.__dataclass_fields__}
    assert set(flat[-1]) == fields and flat[-1]["dram_bytes_read"] == 7 and flat[-1]["n"] == 4096
    assert all(scheduled(one["kernel"], AttentionProblem(128, 128, 64, heads=2)) for one in flat)


def test_launches_without_a_schedule_of_that_name_give_no_row():
    """The fused backward's keys_kernel adds to dq too, which the schedule of that name does not."""
    lines = [line("triton/fused", launch("keys_kernel", 1, 1), pass_="backward"), line("sdpa-flash", launch("flash_fwd_kernel", 1, 1))]
    assert by_launch(map(CounterRecord.from_json, lines)) == []


def test_the_record_s_own_gpu_and_lengths_are_modelled():
    for more, tensors in (({"n_k": 2048}, 1024 + 2 * 2048), ({"device": "NVIDIA H200"}, 3 * 1024)):
        assert modelled(record("forward_kernel", **more)).dram_bytes_read == tensors * 16 * 64 * 2
    assert modelled(record("forward_kernel", device="NVIDIA B200")).l2_bytes == modelled(record("forward_kernel"), gpu="B200").l2_bytes
    assert modelled(record("forward_kernel", device="nobody's"), gpu="A100").l2_bytes == int(40 * 2**20 * SHARE)
