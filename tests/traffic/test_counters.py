"""counters.py: what the child is asked, whose launch is whose, and what is told where nothing could be counted."""

import json
import types
from pathlib import Path

import fake_ncu as fake
import pytest

from flashlab import runtime
from flashlab.driver import GpuFound
from flashlab.errors import ERRORS
from flashlab.problem import AttentionProblem
from flashlab.traffic import counters, ncu
from flashlab.traffic.counters import WORKLOADS, Follow, assign, check, count, count_many, kinds
from flashlab.traffic.launches import METRICS, OPTIONAL, Counted, Launch, Uncounted, launch

SMALL = AttentionProblem(1024, 1024, 64, heads=2, dtype="bfloat16")
LARGE = SMALL.with_(n_q=2048, n_k=2048, causal=True)
MARK = counters.MARKER


@pytest.fixture
def gpu(monkeypatch):
    """A machine that seems to have a GPU; nothing is compiled beforehand."""
    monkeypatch.setattr(runtime, "need_gpu", lambda what: None)
    monkeypatch.setattr(runtime, "gpu_found", lambda: GpuFound(True, name="NVIDIA H200"))
    monkeypatch.setattr(ncu, "POLL_S", 0.02)


def plan(kernels, events, **more):
    return {"log": fake.table(kernels), "events": events, **more}


# -- numbers --------------------------------------------------------------------------------------------------------------
def test_a_launch_has_every_number_in_the_unit_of_its_name(gpu, tmp_path, monkeypatch):
    fake.install(tmp_path, monkeypatch, plan([(MARK, 1), ("forward_kernel", 512)], [fake.event(0)]))
    counted = count("triton", SMALL)
    assert counted.launches == (
        Launch(
            "forward_kernel", (512, 1, 1), 128, registers=128, sram_bytes=66_568, occupancy_percent=24.91, occupancy_limit_percent=25.0,
            time_ms=pytest.approx(1.02048), dram_bytes_read=12_648_448, dram_bytes_written=4_194_304, l2_bytes=290_455_552,
            sm_bytes_read=281_018_368, sm_bytes_written=4_456_448, shared_bytes=128_000, tensor_percent=55.98,
        ),
    )  # fmt: skip
    assert repr(counted.launches[0]) == (
        "forward_kernel: 12,648,448 bytes read from DRAM, 4,194,304 written, 290,455,552 through the L2, 1.02 ms, tensor cores busy 56"
        " percent of the time"
    )
    assert repr(counted) == (
        "triton forward, n 1,024, head_dim 64, full: 1 launch, 12,648,448 bytes read from DRAM, 4,194,304 written, 290,455,552 through"
        " the L2, 1.02 ms (counted here, on the NVIDIA H200)"
    )


def test_totals_add_up_the_launches():
    (row,) = fake.rows([("a", 1)])
    counted = Counted("triton", "backward", SMALL.with_(n_k=7), (launch(row),) * 3)
    assert (counted.dram_bytes_read, counted.dram_bytes_written, counted.dram_bytes) == (37_945_344, 12_582_912, 50_528_256)
    assert (counted.l2_bytes, counted.shared_bytes, counted.time_ms) == (871_366_656, 384_000, pytest.approx(3.06144))
    assert counted.total("registers") == 384
    assert repr(counted).startswith("triton backward, n_q 1,024, n_k 7, head_dim 64, full: 3 launches, 37,945,344 bytes")


@pytest.mark.parametrize("field", METRICS)
def test_a_counter_that_the_gpu_lacks(field):
    (row,) = fake.rows([("k", 1)], values=fake.VALUES | {field: "n/a"})
    if field in OPTIONAL:
        one = launch(row)
        assert getattr(one, field) is None and "k: " in repr(one)
        assert Counted("triton", "forward", SMALL, (one,)).total(field) == 0
    else:
        with pytest.raises(ERRORS["ncu_metric"][0]) as caught:
            launch(row)
        assert str(caught.value) == f"ncu has no {METRICS[field][0]} of k on this GPU, so there is nothing to show. Count on another GPU."


def test_threads_and_programs_have_three_sides():
    text = fake.table([("k", 6)]).replace("(128, 1, 1)", "(32, 4, 2)").replace("(6, 1, 1)", "(6, 5, 4)")
    (row,) = ncu.parse(text, fake.METRIC_NAMES)
    assert (launch(row).threads, launch(row).grid) == (256, (6, 5, 4))


def test_the_child_finds_this_flashlab_and_numbers_have_points(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    environment = counters._environment()
    assert environment["PYTHONPATH"].split(":") == [str(Path(counters.__file__).parents[2]), "/elsewhere"] and environment["LC_ALL"] == "C"
    monkeypatch.delenv("PYTHONPATH")
    assert counters._environment()["PYTHONPATH"] == str(Path(counters.__file__).parents[2])


# -- whose launch it is -----------------------------------------------------------------------------------------------------
def test_launches_follow_their_marker(gpu):
    kernels = [("stray", 1), (MARK, 1), ("a", 5), ("b", 6), (MARK, 3), ("c", 7), (MARK, 4)]
    requests = [("triton", "backward", SMALL), ("sdpa-cudnn", "forward", SMALL), ("triton", "forward", LARGE), ("mine.py:f", "forward", SMALL)]
    events = {0: fake.event(0), 1: fake.event(1, "skipped", "it cannot"), 2: fake.event(2), 3: fake.event(3)}
    one, two, three, four = assign(requests, fake.rows(kernels), events)
    assert [x.kernel for x in one.launches] == ["a", "b"] and [x.kernel for x in three.launches] == ["c"]
    assert (three.workload, three.problem) == ("triton", LARGE)
    assert two == Uncounted("sdpa-cudnn", "forward", SMALL, "it cannot")
    assert four.failed and four.why == (
        "mine.py:f launched no kernel on the GPU. Pass a function that computes with q, k, v where they are."
    )


def test_what_a_failed_call_launched_does_not_count(gpu):
    (one,) = assign([("triton", "forward", SMALL)], fake.rows([(MARK, 1), ("a", 5)]), {0: fake.event(0, "failed", "RuntimeError: no")})
    assert one == Uncounted("triton", "forward", SMALL, "RuntimeError: no", failed=True)


def test_what_came_before_a_fault_of_ncu_is_kept(gpu, tmp_path, monkeypatch):
    log = "==ERROR== Failed to profile \"b\" in process 7\n" + fake.table([(MARK, 1), ("a", 5), (MARK, 2), ("b", 6)])
    fake.install(tmp_path, monkeypatch, {"log": log, "events": [fake.event(0), fake.event(1)], "status": 1})
    one, two, three = count_many([("triton", "forward", SMALL), ("triton", "forward", LARGE), ("sdpa-math", "forward", SMALL)], compile_first=False)
    assert [x.kernel for x in one.launches] == ["a"]
    assert two.failed and three.failed and 'Failed to profile "b"' in two.why and two.why == three.why


# -- the process --------------------------------------------------------------------------------------------------------------
def test_one_process_counts_a_list_and_tells_as_it_goes(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(counters, "compile_kinds", lambda *arguments: None)
    calls = fake.install(tmp_path, monkeypatch, plan([(MARK, 1), ("a", 1), (MARK, 2), ("b", 1)], [fake.event(0), fake.event(1)]))
    told, log = [], tmp_path / "kept" / "log"
    requests = [("triton", "forward", SMALL), ("sdpa-flash", "backward", LARGE)]
    assert all(isinstance(one, Counted) for one in count_many(requests, told=told.append, log=log, budget_s=50))
    assert told == ["[1/2, 0 s] workload 0: counted", "[2/2, 2 s] workload 1: counted"]
    (call,) = calls()
    assert call[-5:-2] == ["-m", "flashlab.workloads", "count"]
    asked = call[call.index("--metrics") + 1].split(",")
    assert asked == [metric for metric, _ in METRICS.values()]
    assert ncu.parse(log.read_text(), asked)[1]["Kernel Name"] == "a"


def test_the_job_says_what_the_child_must_know(tmp_path):
    job = json.loads(counters._write(tmp_path, "job", [("triton", "backward", LARGE)], 17.5).read_text())
    (item,) = job["items"]
    assert (item["workload"], item["pass"], job["until"]) == ("triton", "backward", 17.5)
    assert AttentionProblem(**item["problem"]) == LARGE


def test_a_half_written_event_waits(tmp_path):
    path, told = tmp_path / "events", []
    follow = Follow(path, 2, told.append)
    follow()
    path.write_text(json.dumps(fake.event(0)) + "\n" + json.dumps(fake.event(1, "failed", "why"))[:20])
    follow()
    assert list(follow.events) == [0] and len(told) == 1
    path.write_text(json.dumps(fake.event(0)) + "\n" + json.dumps(fake.event(1, "failed", "why")) + "\n")
    follow()
    follow()
    assert list(follow.events) == [0, 1] and told[1:] == ["[2/2, 2 s] workload 1: failed: why"]


def test_nothing_asked_is_nothing_counted(gpu, tmp_path, monkeypatch):
    calls = fake.install(tmp_path, monkeypatch, {})
    assert count_many([]) == [] and calls() == []


def test_a_counter_that_ncu_does_not_know_is_done_without(gpu, tmp_path, monkeypatch):
    bare = [field for field in METRICS if field not in OPTIONAL]
    unknown = {"log": "==ERROR== Failed to find metric l1tex__m_xbar2l1tex_read_bytes.sum\n", "events": [], "status": 1}
    second = {"log": fake.table([(MARK, 1), ("a", 1)], fields=bare), "events": [fake.event(0)]}
    calls = fake.install(tmp_path, monkeypatch, unknown, second)
    (launch,) = count("triton", SMALL).launches
    assert launch.tensor_percent is None and launch.dram_bytes_read == 12_648_448
    first, again = (call[call.index("--metrics") + 1] for call in calls())
    assert "xbar2l1tex" in first and "xbar2l1tex" not in again
    calls = fake.install(tmp_path, monkeypatch, unknown)
    with pytest.raises(RuntimeError, match="Failed to find metric"):
        count("triton", SMALL)
    assert len(calls()) == 2


# -- kinds and checks -----------------------------------------------------------------------------------------------------------
def test_one_of_each_kind_is_compiled_and_other_peoples_are_not():
    long, half = SMALL.with_(n_q=4096, n_k=4096), SMALL.with_(dtype="float16")
    requests = [("triton", "forward", p) for p in (long, SMALL, LARGE, half)] + [("standard", "forward", SMALL), ("sdpa-math", "forward", SMALL)]
    requests += [("triton", "backward", long), ("mine.py:f", "forward", SMALL)]
    assert set(kinds(requests)) == {
        *(("triton", "forward", p) for p in (SMALL, LARGE, half)), ("triton", "backward", long), ("mine.py:f", "forward", SMALL)
    }  # fmt: skip


def test_a_kernel_that_is_compiled_for_each_length_is_run_once_at_each():
    wide = {n: SMALL.with_(n_q=n, n_k=n, head_dim=128) for n in (1024, 2048, 4096)}
    requests = [("unfused", "forward", p) for n in wide for p in (wide[n], wide[n].with_(causal=True))]
    assert [(p.n_q, p.causal) for _, _, p in kinds(requests)] == [(1024, False), (1024, True), (2048, False), (4096, False)]


def test_a_list_of_kinds_is_compiled_before_it_is_counted(gpu, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(counters, "compile_kinds", lambda requests, seconds: compiled.append((list(requests), seconds)))
    fake.install(tmp_path, monkeypatch, plan([(MARK, 1), ("a", 1)], [fake.event(0)]))
    requests = [("triton", "forward", SMALL)]
    count_many(requests, budget_s=40)
    count_many(requests, compile_first=False)
    assert compiled == [(requests, 20)]


def test_kinds_are_compiled_in_processes_of_their_own(gpu, tmp_path, monkeypatch):
    script = tmp_path / "child.py"
    script.write_text(f"import json, sys, pathlib\njob = json.loads(open(sys.argv[2]).read())\nassert sys.argv[1] == 'compile'\n"
                      f"[pathlib.Path({str(tmp_path)!r}, item['pass']).write_text('x') for item in job['items']]")  # fmt: skip
    monkeypatch.setattr(counters, "CHILD", [counters.sys.executable, str(script)])
    counters.compile_kinds([("triton", "forward", SMALL)], 20)
    assert not (tmp_path / "forward").exists()  # one kind: the child compiles it as it warms up
    counters.compile_kinds([("triton", "forward", SMALL), ("triton", "backward", SMALL)], 20)
    assert (tmp_path / "forward").exists() and (tmp_path / "backward").exists()


def test_a_computer_of_many_cores_is_not_filled_with_compilers(monkeypatch):
    started = []
    monkeypatch.setattr(counters.os, "cpu_count", lambda: 128)
    monkeypatch.setattr(counters.subprocess, "Popen", lambda *a, **o: started.append(a) or types.SimpleNamespace(wait=lambda s: 0, poll=lambda: 0))
    counters.compile_kinds([(f"steps/{name}", "forward", SMALL) for name in counters.STEPS], 20)
    assert len(started) == counters.MOST_COMPILERS < len(counters.STEPS)


def test_compiling_that_takes_too_long_is_ended(gpu, tmp_path, monkeypatch):
    started = []
    popen = counters.subprocess.Popen
    monkeypatch.setattr(counters.subprocess, "Popen", lambda *a, **o: started.append(popen(*a, **o)) or started[-1])
    monkeypatch.setattr(counters, "CHILD", [counters.sys.executable, "-c", "import time; time.sleep(60)"])
    counters.compile_kinds([("triton", "forward", SMALL), ("triton", "backward", SMALL)], 0.2)
    assert len(started) >= 1 and all(process.poll() is not None for process in started)


@pytest.mark.parametrize(
    "workload, pass_, line, text",
    [
        ("tritn", "forward", "workload", "no workload is called 'tritn'; there are: standard, unfused, flash1, triton, triton/fused, sdpa-flash,"),
        ("flash1", "backward", "workload_pass", "flash1 has no pass 'backward' to count; it has: forward. Pass one of these."),
        ("triton", "sideways", "workload_pass", "triton has no pass 'sideways' to count; it has: forward, backward. Pass one of these."),
        ("missing.py:f", "forward", "count_file", "there is no file missing.py."),
    ],
)
def test_what_is_no_workload(workload, pass_, line, text):
    with pytest.raises(ERRORS[line][0]) as caught:
        check(workload, pass_)
    assert str(caught.value).startswith(text)


def test_every_named_workload_passes_the_check():
    for workload, passes in WORKLOADS.items():
        assert [check(workload, pass_) for pass_ in passes] == [None] * len(passes)


# -- where nothing can be counted -------------------------------------------------------------------------------------------------
def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    with pytest.raises(ERRORS["no_gpu"][0], match="^Counting with Nsight Compute needs a CUDA GPU that Triton can use. "):
        count("triton", SMALL)


def test_without_ncu_it_says_so(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ERRORS["ncu_missing"][0], match="^there is no ncu on PATH"):
        count("triton", SMALL)


def test_closed_counters_are_said(gpu, tmp_path, monkeypatch):
    log = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0.\n"
    fake.install(tmp_path, monkeypatch, {"log": log, "events": [], "status": 1})
    with pytest.raises(ERRORS["ncu_closed"][0], match=r"^the GPU's counters are closed to you \(ERR_NVGPUCTRPERM\)\. "):
        count("triton", SMALL)


def test_a_child_that_fails_is_quoted(gpu, tmp_path, monkeypatch):
    fake.install(tmp_path, monkeypatch, {"log": "", "events": [], "status": 1, "output": "ImportError: libcudart.so.13"})
    with pytest.raises(ERRORS["ncu_failed"][0], match="it said: ImportError: libcudart.so.13"):
        count("triton", SMALL)


def test_a_timeout_is_said(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(counters, "SPARE_S", 0.5)
    fake.install(tmp_path, monkeypatch, plan([], [], seconds=30))
    with pytest.raises(ERRORS["ncu_timeout"][0]):
        count("triton", SMALL, budget_s=0.2)


def test_one_that_was_not_counted_says_why(gpu, tmp_path, monkeypatch):
    fake.install(tmp_path, monkeypatch, plan([], [fake.event(0, "skipped", "one call takes 9.0 s")]))
    with pytest.raises(ERRORS["count_not"][0]) as caught:
        count("triton", LARGE)
    assert str(caught.value) == (
        "triton forward, n 2,048, head_dim 64, causal was not counted: one call takes 9.0 s. Mend that or choose another problem."
    )


@pytest.mark.gpu
def test_what_the_gpu_counts_is_near_what_must_move():
    """On a GPU with ncu and open counters: inputs are read once or more, o is written, and the child's own marker is not among them."""
    problem = AttentionProblem(2048, 2048, 64, heads=8, dtype="bfloat16")
    try:
        forward, backward, math = count_many([("triton", "forward", problem), ("triton", "backward", problem), ("sdpa-math", "forward", problem)])
    except RuntimeError as why:
        if "no ncu on PATH" in str(why) or "closed to you" in str(why):
            pytest.skip(str(why))
        raise
    qkv = 3 * 8 * 2048 * 64 * 2
    assert [one.kernel for one in forward.launches] == ["forward_kernel"]
    assert 0.9 * qkv < forward.dram_bytes_read < 1.5 * qkv
    assert [one.kernel for one in backward.launches] == ["delta_kernel", "keys_kernel", "queries_kernel"]
    assert len(math.launches) > 1 and math.l2_bytes > 4 * 8 * 2048 * 2048 * 2
    for one in forward.launches + backward.launches:
        assert one.time_ms > 0 and one.registers > 0 and 0 < one.occupancy_percent <= one.occupancy_limit_percent <= 100
    assert 1 < forward.launches[0].tensor_percent < 100
