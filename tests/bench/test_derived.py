"""derived.py: rates, shares and memory by hand, and no record above what its chip can do."""

from dataclasses import replace

import pytest

from flashlab.bench.ceilings import Ceilings
from flashlab.bench.derived import derive, impossible, least_bytes
from flashlab.bench.records import load, record
from flashlab.bench.timing import Timing
from flashlab.problem import AttentionProblem

PROBLEM = AttentionProblem(1024, 1024, 128, batch=2, heads=4, dtype="bfloat16")
TENSOR = 2 * 4 * 1024 * 128 * 2
FLOPS = 4 * 2 * 4 * 1024 * 1024 * 128


def made(time_ms, pass_="forward", **changes):
    one = record("triton", pass_, PROBLEM, Timing(time_ms, 0.9 * time_ms, 1.2 * time_ms, 5, ""), date="", device="cpu", extra_bytes=100)
    return replace(one, device="NVIDIA H200", **changes)


def test_by_hand():
    found = derive(made(1.0), Ceilings("NVIDIA H200", "bfloat16", bytes_per_s=4e12, flops_per_s=8e14))
    assert found.bytes_per_s == pytest.approx(4 * TENSOR / 1e-3) and found.intensity == pytest.approx(FLOPS / (4 * TENSOR)) == 512
    assert found.spread == pytest.approx(0.3) and found.peak_bytes == 4 * TENSOR + 100
    assert found.matmul_share == pytest.approx(FLOPS / 1e-3 / 8e14) and found.copy_share == pytest.approx(4 * TENSOR / 1e-3 / 4e12)
    assert found.roofline_share == pytest.approx(FLOPS / 989e12 / 1e-3, rel=1e-2)


def test_the_backward_moves_its_gradients_too():
    lse = 2 * 4 * 1024 * 4
    assert least_bytes(made(1.0, "backward")) == 8 * TENSOR + lse
    assert derive(made(1.0, "backward")).intensity == pytest.approx(2.5 * FLOPS / (8 * TENSOR + lse))


def test_what_is_not_known_is_none():
    found = derive(made(1.0, extra_bytes=None), Ceilings("Tesla", "bfloat16", 1, 1))
    assert (found.matmul_share, found.copy_share, found.peak_bytes) == (None, None, None)
    assert derive(replace(made(1.0), device="CPU (2 threads)")).roofline_share is None
    assert derive(made(1.0), Ceilings("NVIDIA H200", "float16", 1, 1)).matmul_share is None


def test_a_record_above_the_data_sheet_is_impossible():
    least = FLOPS / 989e12 * 1e3
    assert impossible(made(least)) is None and impossible(made(least / 1.04)) is None
    why = impossible(made(least / 2))
    assert why.startswith("impossible: 1,97") and why.endswith(" TFLOP/s, but NVIDIA H200 SXM does at most 989; it did not do the work, or not in this time")
    assert impossible(replace(made(1e-9), device="CPU (2 threads)")) is None


def test_inputs_that_stay_in_the_l2_are_impossible():
    decode = AttentionProblem(1, 65536, 128, batch=1, heads=8, dtype="bfloat16")
    one = replace(record("triton", "forward", decode, Timing(0.01, 0.01, 0.01, 5, ""), date="", device="cpu"), device="NVIDIA H200")
    assert " GB/s, but NVIDIA H200 SXM does at most 4,8" in impossible(one)


def test_every_record_of_the_repository_is_possible():
    assert [why for why in map(impossible, load()) if why] == []
