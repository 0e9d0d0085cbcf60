"""The clock: waits for the work, warms up, repeats, and tells the spread. No assertion here depends on speed."""

import itertools
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from flashlab.bench import honest, timing
from flashlab.bench.records import load, path_for
from flashlab.bench.timing import Timing, _CudaClock, device_name, time_call
from flashlab.errors import ERRORS
from flashlab.runtime import device


@pytest.fixture
def sleep(monkeypatch):
    """Both of the CPU's clocks, played: only `sleep(seconds)` moves them, so that no busy machine changes what they tell."""
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    for name, told in (("perf_counter", lambda: now[0]), ("perf_counter_ns", lambda: int(now[0] * 1e9)), ("sleep", sleep)):
        monkeypatch.setattr(timing, name, told)
    return sleep


def test_a_call_of_known_length_takes_that_long():
    timing = time_call(lambda: time.sleep(0.02), device="cpu", warmup_ms=1, budget_ms=100)
    assert 20 <= timing.p20_ms <= timing.time_ms <= timing.p80_ms
    assert timing.repeats >= 5 and timing.device == device_name("cpu")


def test_a_slow_first_call_is_not_counted_and_does_not_shorten_the_rest(sleep):
    calls = []

    def slow_once():
        calls.append(None)
        sleep(0.3 if len(calls) == 1 else 0.01)

    found = time_call(slow_once, device="cpu", warmup_ms=45, budget_ms=205)
    assert found.p80_ms == pytest.approx(10) and found.repeats == 20
    assert len(calls) == 1 + 5 + 20  # the first, 5 of 10 ms to warm up for 45, and what fits into 205


def test_repeats_follow_the_budget_within_limits(sleep):
    calls = []
    found = time_call(lambda: calls.append(sleep(0.01)), device="cpu", warmup_ms=0, budget_ms=1, least=7)
    assert found.repeats == 7 and len(calls) == 9
    for budget_ms in (1e9, float("inf")):
        assert time_call(lambda: None, device="cpu", warmup_ms=0, budget_ms=budget_ms).repeats == 1000
    assert time_call(lambda: None, device="cpu", warmup_ms=0, budget_ms=0, least=1200).repeats == 1200  # asked for, so more than the most


def test_reading_the_clocks_is_not_held_against_many_short_calls():
    clock = timing._CpuClock()
    clock.told, clock.other = [1e-4] * 5000, [9e-4] * 5000  # the second clock is read outside of the first
    clock.audit(lambda: None, 1e-4)
    clock.other = [1e-2] * 5000
    with pytest.raises(RuntimeError, match="the timer says 0.1 ms where a second clock says 10 ms"):
        clock.audit(lambda: None, 1e-4)


def test_what_the_call_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        time_call(lambda: 1 / 0, device="cpu")


def test_least_must_be_a_count():
    with pytest.raises(ValueError, match="least is 0; it must be a whole number of at least 1"):
        time_call(lambda: None, device="cpu", least=0)


@pytest.mark.parametrize("given", ["meta", "mps", "gpu", "cuda", "cuda:0", torch.device("mps")])
def test_a_device_without_a_clock_is_refused(monkeypatch, given):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ERRORS["timed_device"][0]) as caught:
        time_call(lambda: None, device=given)
    assert str(caught.value) == f"device is {str(given)!r}; calls are timed on a CPU and on CUDA GPUs, here cpu. Pass one of these, or leave device out."


def test_the_gpus_that_are_here_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="^device is 'cuda:2'; calls are timed on a CPU and on CUDA GPUs, here cpu, cuda:0, cuda:1. Pass"):
        time_call(lambda: None, device="cuda:2")


def test_repr_reads_as_a_sentence():
    assert repr(Timing(1.5, 1.45, 1.55, 9, "a GPU")) == "1.5 ms (p20 1.45, p80 1.55; 9 repeats on a GPU)"
    noisy = "1.5 ms (p20 1.25, p80 2; 9 repeats on a GPU); noisy: the spread is 50% of the median"
    assert repr(Timing(1.5, 1.25, 2.0, 9, "a GPU")) == noisy
    assert Timing(0.0, 0.0, 0.0, 5, "").spread == 0


def test_what_is_said_of_the_recorded_spreads_is_so():
    said = re.search(r"(\d+) of the first (\d+) records passed (0\.\d+), none (0\.\d+)", Path(timing.__file__).read_text())
    wide, first, usual, most = int(said[1]), int(said[2]), float(said[3]), float(said[4])
    spreads = [timing.spread(one.time_ms, one.p20_ms, one.p80_ms) for one in load(path_for("NVIDIA H200"))[:first]]
    assert len(spreads) == first and sum(one > usual for one in spreads) == wide and max(spreads) < most < timing.WIDE


def test_a_spread_too_wide_is_refused_where_asked(sleep):
    lengths = itertools.cycle([0.01, 0.02])
    call, clock = lambda: sleep(next(lengths)), {"device": "cpu", "warmup_ms": 0, "budget_ms": 0, "least": 10}
    with pytest.raises(RuntimeError) as caught:
        time_call(call, **clock, most_spread=0.2)
    assert str(caught.value) == (
        "the spread of 67% is too wide to report, above the 20% asked for: 15 ms (p20 10, p80 20; 10 repeats on "
        f"{device_name('cpu')}); noisy: the spread is 67% of the median. Time again when nothing else runs, or with a larger budget_ms."
    )
    assert time_call(call, **clock, most_spread=0.7).repeats == 10


def test_each_repeat_on_a_gpu_is_in_this_order(monkeypatch):
    """New numbers, the L2 overwritten, the GPU kept busy, and only then the clock started: by a stand-in for a GPU."""
    log = []
    event = lambda **_: SimpleNamespace(record=lambda: log.append("record"), synchronize=lambda: log.append("wait"))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append("sleep"))
    monkeypatch.setattr(honest, "elapsed_ms", lambda start, end: log.append("read") or 2.0)
    clock = _CudaClock.__new__(_CudaClock)
    clock.device, clock.flush = "cuda:1", SimpleNamespace(zero_=lambda: log.append("flush"))
    x = torch.zeros(3)
    witness = honest.Witness("cpu", fresh=lambda: log.append("fresh") or x.normal_())
    assert timing._once(clock, lambda: log.append("call") or x * 2, witness) == 2.0
    assert log == ["fresh", "flush", "sleep", "record", "call", "record", "wait", "read"]


def answers(monkeypatch, *found):
    """A clock whose audit gets these answers, one after the other: ms told by events, worked after the return, and later still."""
    clock, left = _CudaClock.__new__(_CudaClock), list(found)
    monkeypatch.setattr(clock, "_after_return", lambda function: left.pop(0), raising=False)
    return clock, left


HONEST, WOKEN_LATE = (1.0, 1.0, 0.01), (1.0, 9.0, 0.0)
SLOWED_DOWN, SLOWED_ELSEWHERE = (15.0, 15.0, 0.1), (15.0, 15.0, 5.0)  # others had the GPU in between, as their events say


def test_an_audit_asks_again_before_it_refuses(monkeypatch, sleep):
    """Who waits for the GPU on a busy computer is woken late now and then."""
    clock, left = answers(monkeypatch, WOKEN_LATE, (1.0, 1.0, 3.0), HONEST)
    clock.audit(lambda: None, 1.0)
    assert left == []
    clock, left = answers(monkeypatch, *[WOKEN_LATE] * 1000)
    with pytest.raises(RuntimeError, match="the timer says 1 ms where a second clock says 9 ms"):
        clock.audit(lambda: None, 1.0)
    assert 1000 - len(left) in (201, 202)  # one each 10 ms for 2 s, by a clock that counts in floats


def test_alone_on_a_gpu_a_short_call_is_audited_once(monkeypatch):
    """Without a head start its events tell of the launch, too: 0.15 ms on an H200 for a kernel of 0.004 ms."""
    clock, left = answers(monkeypatch, (0.15, 0.03, 0.02))
    clock.audit(lambda: None, 0.004)
    assert left == []


def test_beside_others_one_answer_that_agrees_is_not_enough(monkeypatch, sleep):
    """So a call on another stream once came through: up to half of its answers agreed, where others had the GPU."""
    clock, left = answers(monkeypatch, *[SLOWED_DOWN] * 6, SLOWED_ELSEWHERE, *[SLOWED_DOWN] * 5)  # an honest call, told by its events
    clock.audit(lambda: None, 1.0)
    assert left == []
    clock, _ = answers(monkeypatch, *[SLOWED_DOWN] * 5, *[SLOWED_ELSEWHERE, SLOWED_DOWN, SLOWED_DOWN] * 300)
    with pytest.raises(RuntimeError, match="the GPU was busy for 5 ms after the call's own stream was done"):
        clock.audit(lambda: None, 0.002)
    clock, left = answers(monkeypatch, SLOWED_DOWN, SLOWED_DOWN, HONEST)  # the others have gone
    clock.audit(lambda: None, 1.0)
    assert left == []


def test_a_slow_honest_call_is_not_refused_for_one_answer_of_many(monkeypatch, sleep):
    clock, left = answers(monkeypatch, *[(900.0, 900.0, 0.1)] * 4, (900.0, 2000.0, 0.1), *[(900.0, 900.0, 0.1)] * 7)
    after_return = clock._after_return
    monkeypatch.setattr(clock, "_after_return", lambda function: sleep(0.9) or after_return(function))
    clock.audit(lambda: None, 100.0)
    assert left == []


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_call_runs_with_its_device_current():
    seen = []
    time_call(lambda: seen.append(torch.cuda.current_device()), device="cuda:1", warmup_ms=0, budget_ms=0)
    assert set(seen) == {1} and torch.cuda.current_device() == 0


@pytest.mark.gpu
@pytest.mark.skipif(device() == "cpu", reason="needs a CUDA GPU")
def test_inputs_come_from_hbm_and_not_from_the_l2():
    half = torch.ones(torch.cuda.get_device_properties().L2_cache_size // 8, device="cuda")  # float32: half of the L2
    flushing, leaving = _CudaClock("cuda"), _CudaClock("cuda")
    leaving.flush = SimpleNamespace(zero_=lambda: None)  # leaves the L2 alone
    cold, warm = [], []
    for _ in range(100):  # by turns, and the shortest: what others do on this GPU meanwhile only adds, and evicts what was warm
        cold.append(flushing.measure(lambda: half.sum())[0])
        leaving.measure(lambda: half.sum())
        warm.append(leaving.measure(lambda: half.sum())[0])
    assert min(cold) > 1.1 * min(warm)


@pytest.mark.gpu
@pytest.mark.skipif(device() == "cpu", reason="needs a CUDA GPU")
def test_a_short_kernel_is_not_charged_for_the_python_that_queues_it():
    x = torch.ones(16, device="cuda")

    def call():
        end = time.perf_counter() + 5e-4
        while time.perf_counter() < end:
            pass
        x.add_(1)

    assert time_call(call, budget_ms=50).time_ms < 0.25


@pytest.mark.gpu
@pytest.mark.skipif(device() == "cpu", reason="needs a CUDA GPU")
def test_a_call_that_only_queues_work_is_timed_to_its_end():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    start = time.perf_counter()
    a @ a
    queued_ms = (time.perf_counter() - start) * 1e3
    timing = time_call(lambda: a @ a)
    peak = 1e15  # FLOP/s that no GPU of today passes in one bfloat16 product
    assert timing.time_ms > 2 * 8192**3 / peak * 1e3 > 0.5 and queued_ms < 1e3
