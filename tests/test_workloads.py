"""workloads.py, without ncu and without a GPU: the names, a reader's own function, and what is skipped and why."""

import json
import subprocess
import sys
import time
from dataclasses import asdict

from flashlab import runtime  # before triton

import pytest
import torch

from flashlab import workloads
from flashlab.errors import ERRORS
from flashlab.problem import AttentionProblem
from flashlab.traffic.counters import MARKER, WORKLOADS

SMALL = AttentionProblem(16, 16, 16, heads=1, dtype="float32")
OWN = """
import torch
from beside import FACTOR
CALLS = []

def attend(q, k, v, causal=False):
    CALLS.append(causal)
    return FACTOR * torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

def plain(q, k, v):
    return v.clone()

NOT_A_FUNCTION = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("FACTOR = 2\n")
    (tmp_path / "own_attention.py").write_text(OWN)
    yield tmp_path / "own_attention.py"
    for name in ("beside", "own_attention"):
        sys.modules.pop(name, None)


@pytest.fixture
def profiled(monkeypatch):
    """Everything on the CPU; lists what happens between the profiler's start and stop."""
    seen = []
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("wait"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: seen.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: seen.append("stop"))

    class Marker:
        def __getitem__(self, grid):
            return lambda out: seen.append(f"marker {grid[0]}")

    monkeypatch.setattr(workloads, "flashlab_marker_kernel", Marker())
    return seen


def item(workload, pass_="forward", problem=SMALL):
    return {"workload": workload, "pass": pass_, "problem": asdict(problem)}


def counted(*items, until=1e18):
    events = []
    workloads.count({"items": list(items), "until": until}, events.append)
    return events


def test_the_names_and_passes_are_those_that_counters_knows():
    assert set(workloads.NAMED) >= set(WORKLOADS)
    assert {name: tuple(workloads.NAMED[name].passes) for name in WORKLOADS} == WORKLOADS
    assert workloads.flashlab_marker_kernel.__name__ == MARKER
    with pytest.raises(ERRORS["workload"][0], match="^no workload is called 'tritn'; there are: triton, .*Or pass a function of your own as FILE"):
        workloads.find("tritn")


def test_one_call_runs_between_start_and_stop_after_its_marker(own, profiled):
    (event,) = counted(item(f"{own}:plain"))
    assert profiled[-4:] == ["start", "marker 1", "wait", "stop"]
    assert profiled[0] == "marker 1"  # compiled beforehand
    name = f"{own}:plain forward, n 16, head_dim 16, full"
    assert {**event, "seconds": 0} == {"index": 0, "name": name, "state": "counted", "why": "", "seconds": 0}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_a_readers_function_gets_q_k_v_and_causal_where_asked(own, profiled, pass_, causal):
    (event,) = counted(item(f"{own}:attend", pass_, SMALL.with_(causal=causal)))
    assert event["state"] == "counted"
    calls = sys.modules["own_attention"].CALLS
    assert set(calls) == {causal} and len(calls) == (2 if pass_ == "forward" else 1)  # warmed up, then counted; backward keeps one forward


def test_a_file_without_that_function(own, profiled):
    (event,) = counted(item(f"{own}:attention"))
    assert event["state"] == "failed"
    assert event["why"] == (
        f"LookupError: {own} defines no function attention; it defines attend, plain. Pass FILE.py:function, which is called with q, k, v."
    )
    with pytest.raises(ERRORS["workload_function"][0], match="defines no function NOT_A_FUNCTION"):
        workloads.find(f"{own}:NOT_A_FUNCTION")


def test_one_fault_does_not_stop_the_others(own, profiled):
    own.write_text(OWN + "\ndef broken(q, k, v):\n    raise ValueError('first line\\nsecond')\n")
    broken, fine = counted(item(f"{own}:broken"), item(f"{own}:plain"))
    assert (broken["state"], broken["why"], broken["index"]) == ("failed", "ValueError: first line", 0)
    assert (fine["state"], fine["index"]) == ("counted", 1) and "marker 2" in profiled and "marker 1" not in profiled[1:]


def test_what_a_workload_cannot_do_is_skipped(profiled):
    cudnn, fused = counted(item("sdpa-cudnn"), item("triton/fused"))
    assert (cudnn["state"], cudnn["why"]) == ("skipped", "runs on a CUDA GPU only")
    assert (fused["state"], fused["why"]) == ("skipped", "its forward pass is that of triton")


def test_a_kernel_that_is_not_there_is_skipped(profiled, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashlab.kernels.flash1", None)
    monkeypatch.setitem(workloads.NAMED, "flash1", workloads.Peer("flash1", workloads._flash1))
    (event,) = counted(item("flash1"))
    assert event["state"] == "skipped" and event["why"] == "flashlab.kernels.flash1 is not there"


def test_nothing_is_begun_after_its_time(own, profiled):
    (event,) = counted(item(f"{own}:plain"), until=0)
    assert (event["state"], event["why"]) == ("skipped", "the time given was over") and "start" not in profiled


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `tick(seconds)` moves, from here or from a workload's file: how busy this machine is decides nothing."""

    class Clock:
        now = 100.0

        def tick(self, seconds):
            self.now += seconds

        def monotonic(self):
            return self.now

        time = staticmethod(time.time)

    monkeypatch.setattr(workloads, "time", Clock())
    monkeypatch.setattr(workloads, "SLOW_S", 0.2)


def test_a_slow_call_is_not_counted_nor_a_longer_one_of_its_kind(own, profiled, clock):
    own.write_text(OWN + "\nfrom flashlab.workloads import time\ndef slow(q, k, v):\n    time.tick(0.3 if q.shape[2] >= 32 else 0)\n    return v\n")
    lengths = [SMALL.with_(n_q=n, n_k=n) for n in (16, 32, 64)]
    short, slow, longer, other = counted(*(item(f"{own}:slow", problem=p) for p in lengths), item(f"{own}:plain", problem=lengths[2]))
    assert short["state"] == other["state"] == "counted"
    assert slow["state"] == "skipped" and slow["why"] == "one call takes 0.3 s, and ncu repeats what takes up to 0.2 s only"
    assert longer["state"] == "skipped" and longer["why"] == "n 32 took more than 0.2 s already"
    assert profiled.count("start") == 2


def test_a_first_call_that_compiles_is_not_taken_for_slow(own, profiled, clock):
    own.write_text(OWN + "\nfrom flashlab.workloads import time\ndef once(q, k, v):\n    time.tick(0 if CALLS else 0.3)\n    CALLS.append(1)\n    return v\n")
    (event,) = counted(item(f"{own}:once"))
    assert event["state"] == "counted"


def test_a_spoiled_gpu_ends_the_process(own, profiled, monkeypatch):
    own.write_text(OWN + "\ndef broken(q, k, v):\n    raise RuntimeError('CUDA error: an illegal memory access was encountered')\n")
    events = []

    def spoiled():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", spoiled)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        workloads.count({"items": [item(f"{own}:broken"), item(f"{own}:plain")], "until": 1e18}, events.append)
    assert [event["state"] for event in events] == ["failed"]


def test_main_does_a_job_from_files(own, profiled, tmp_path):
    job, events = tmp_path / "job.json", tmp_path / "events"
    job.write_text(json.dumps({"items": [item(f"{own}:plain"), item("sdpa-math")], "until": 1e18}))
    assert workloads.main(["count", str(job), str(events)]) == 0
    assert [json.loads(line)["state"] for line in events.read_text().splitlines()] == ["counted", "counted"]
    assert workloads.main(["compile", str(job)]) == 0


def test_compiling_passes_over_what_fails(own, profiled):
    own.write_text(OWN + "\ndef broken(q, k, v):\n    raise ValueError\n")
    workloads.compile_all({"items": [item(f"{own}:broken"), item(f"{own}:attend")]})
    assert sys.modules["own_attention"].CALLS == [False]


def test_it_runs_as_a_module(tmp_path):
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"items": [], "until": 0}))
    assert subprocess.run([sys.executable, "-m", "flashlab.workloads", "compile", str(job)]).returncode == 0


@pytest.mark.gpu
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_runs_on_the_gpu(workload, tmp_path):
    problem = AttentionProblem(256, 256, 64, heads=2, causal=True, dtype="bfloat16")
    events = counted(*(item(workload, pass_, problem) for pass_ in WORKLOADS[workload]))
    assert [event["state"] for event in events] in (["counted"] * len(events), ["skipped"] * len(events)), events
