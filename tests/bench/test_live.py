"""live.py: one call counts or reads, and says which."""

from contextlib import contextmanager

import pytest

from flashlab import runtime
from flashlab.bench import live, three_ways
from flashlab.errors import error
from flashlab.problem import AttentionProblem
from flashlab.traffic import counter_records


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
