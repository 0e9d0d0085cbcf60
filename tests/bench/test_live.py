"""live.py: one call measures or reads, and says which."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from flashlab import runtime
from flashlab.bench import live, records, three_ways
from flashlab.bench.live import measured_or_recorded
from flashlab.bench.records import record
from flashlab.bench.sweep import Missing, grid
from flashlab.bench.timing import Timing
from flashlab.errors import error
from flashlab.problem import AttentionProblem
from flashlab.traffic import counter_records

PROBLEMS = grid((64,))[:2]
ONE = replace(record("triton", "forward", PROBLEMS[0], Timing(1, 1, 1, 5, ""), date="2026-01-02T00", device="cpu"), device="NVIDIA H200")


@pytest.fixture(autouse=True)
def recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RECORDED", tmp_path)
    for one in (replace(ONE, date="2026-01-01T00"), ONE, replace(ONE, kernel="flex", digest=None), replace(ONE, n_q=8192)):
        records.append(one, tmp_path / "x.jsonl")


def on(monkeypatch, device, results):
    monkeypatch.setattr(runtime, "device", lambda: device)
    monkeypatch.setattr(live, "sweep", results)


def test_without_a_gpu_the_recorded_ones_of_what_was_asked(monkeypatch, capsys):
    on(monkeypatch, "cpu", None)
    assert measured_or_recorded(PROBLEMS, "forward", ["triton"]) == [ONE]
    assert capsys.readouterr().out == "recorded on NVIDIA H200, 2026-01-02 (there is no GPU here)\n"
    assert measured_or_recorded(PROBLEMS, "backward", ["triton"]) == []
    assert capsys.readouterr().out == "recorded on no machine yet (there is no GPU here)\n"


def test_a_stale_one_says_so(monkeypatch, capsys):
    on(monkeypatch, "cpu", None)
    monkeypatch.setattr(records, "stale", lambda one: one.kernel == "triton")
    measured_or_recorded(PROBLEMS, "forward", ["triton", "flex"])
    assert capsys.readouterr().out.endswith("; stale, its code has changed since: triton\n")


def test_with_a_gpu_it_measures_and_names_what_is_missing(monkeypatch, capsys):
    on(monkeypatch, "cuda", lambda *_, **__: iter([ONE, Missing("flex", "forward", PROBLEMS[0], "no")]))
    assert measured_or_recorded(PROBLEMS, "forward", ["triton", "flex"]) == [ONE]
    assert capsys.readouterr().out == "flex, n 512: no\nmeasured on NVIDIA H200, 2026-01-02\n"


def test_a_gpu_that_stays_taken_gives_the_recorded_ones(monkeypatch, capsys):
    def busy(*_, **__):
        raise error("gpu_busy", device="GPU-1", waited=5, ahead=1)

    on(monkeypatch, "cuda", busy)
    assert measured_or_recorded(PROBLEMS, "forward", ["triton"]) == [ONE]
    assert capsys.readouterr().out == "recorded on NVIDIA H200, 2026-01-02 (GPU-1 was still taken after 5 s, with 1 before you)\n"


def test_counters_are_recalled_where_nothing_can_be_counted(monkeypatch, capsys):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    problem = AttentionProblem(4096, 4096, 64, heads=16, dtype="bfloat16")
    one, other = live.counted_or_recorded(problem, ["standard", "sdpa-flash"])
    assert (one.workload, other.workload, one.problem) == ("standard", "sdpa-flash", problem) and len(one.launches) == 3
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and said.startswith("recorded on NVIDIA H200, ") and "; not counted here: Counting with Nsight Compute needs a CUDA GPU" in said
    with pytest.raises(LookupError, match="was not counted here and is not recorded"):
        live.counted_or_recorded(problem.with_(heads=3), ["standard"])


def test_counters_are_asked_in_turn_and_a_gpu_that_stays_taken_gives_the_recorded_ones(monkeypatch, capsys):
    held = []

    @contextmanager
    def turn(device):
        held.append(device)
        try:
            yield
        finally:
            held.clear()

    def cannot(requests):
        assert held == ["cuda"]
        raise RuntimeError("no ncu")

    @contextmanager
    def busy(device):
        raise error("gpu_busy", device="GPU-1", waited=5, ahead=1)
        yield

    monkeypatch.setattr(runtime, "device", lambda: "cuda")
    monkeypatch.setattr(counter_records, "count_many", cannot)
    problem = AttentionProblem(4096, 4096, 64, heads=16, dtype="bfloat16")
    for how, why in ((turn, "no ncu"), (busy, "GPU-1 was still taken after 5 s, with 1 before you")):
        monkeypatch.setattr(live, "turn", how)
        assert live.counted_or_recorded(problem, ["standard"])[0].dram_bytes > 2e9
        assert capsys.readouterr().out.endswith(f"; not counted here: {why}\n") and not held
        monkeypatch.setattr(three_ways, "turn", how)
        assert why in repr(three_ways.three_ways(problem, ["standard"])) and not held
