"""honest.py: liars are fed to the clock, and each is refused by its name, or the truth comes out all the same."""

import itertools
import threading
import time
import types

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flashlab.bench import honest, timing
from flashlab.bench.timing import time_call
from flashlab.errors import ERRORS
from flashlab.runtime import device

X = torch.zeros(64, 64)
CLOCK = {"device": "cpu", "warmup_ms": 1, "budget_ms": 5}
CACHED = "the call gave the same result for new inputs, so it did not compute it. Take out what keeps results between calls."


def refused(function, name, **options):
    """The text with which time_call refuses."""
    with pytest.raises(ERRORS[name][0]) as caught:
        time_call(function, **{**CLOCK, **options})
    assert type(caught.value) is ERRORS[name][0]
    return str(caught.value)


@pytest.fixture(autouse=True)
def short_watch(monkeypatch):
    monkeypatch.setattr(honest, "SETTLE_S", 0.05)


# -- an honest function ---------------------------------------------------------------------------------------------------
def test_an_honest_function_is_timed():
    out = torch.empty_like(X)
    for function in (lambda: X @ X, lambda: torch.mm(X, X, out=out), lambda: (X + 1, X.sum())):  # `out` is one place, refilled
        assert time_call(function, fresh=X.normal_, expected=function, **CLOCK).repeats >= 5


def test_inputs_are_new_before_every_call_and_outside_the_clock():
    seen = []

    def slow_fresh():
        time.sleep(0.005)
        X.normal_()

    found = time_call(lambda: seen.append(X.clone()) or X * 2, fresh=slow_fresh, device="cpu", warmup_ms=0, budget_ms=0, least=4)
    assert len(seen) == 2 + 4 and found.time_ms < 4
    assert all(not torch.equal(a, b) for a, b in zip(seen, seen[1:]))


# -- returns before its work is done --------------------------------------------------------------------------------------
class Late:
    """Work that goes on behind a call's back, in a thread of its own, and starts when the test says."""

    def __init__(self):
        self.go, self.threads = threading.Event(), []

    def call(self):
        out = torch.zeros(64, 64)
        self.threads.append(threading.Thread(target=lambda: (self.go.wait(), out.copy_(X @ X)), daemon=True))
        self.threads[-1].start()
        return out

    def end(self):
        self.go.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def late():
    late = Late()
    yield late
    late.end()


def test_a_call_that_goes_on_working_after_its_return_is_refused(monkeypatch, late):
    monkeypatch.setattr(honest, "time", types.SimpleNamespace(sleep=lambda seconds: late.end()))  # it works while it is watched
    text = "the call's result changed after it had returned, so its time is not that of the work. Wait for the work inside the call."
    assert refused(late.call, "timed_unfinished", fresh=X.normal_) == text


def test_work_that_starts_too_late_to_be_watched_is_wrong(late):
    text = refused(late.call, "timed_wrong", fresh=X.normal_, expected=lambda: X @ X)
    assert text == (
        "the result is off by 1 of its norm, above 0.02; the time of a wrong result is not reported. Mend the function, or what"
        " expected() gives."
    )


# -- keeps an old result --------------------------------------------------------------------------------------------------
def test_a_result_kept_from_before_is_refused():
    kept = []
    assert refused(lambda: kept[0] if kept else kept.append(X @ X) or kept[0], "timed_cached", fresh=X.normal_) == CACHED


def test_a_result_kept_by_address_is_refused_and_so_is_a_copy_of_it():
    kept = {}
    assert refused(lambda: kept.setdefault(X.data_ptr(), X @ X), "timed_cached", fresh=X.normal_) == CACHED
    kept.clear()
    assert refused(lambda: kept.setdefault(id(X), X @ X).clone(), "timed_cached", fresh=X.normal_) == CACHED


def test_a_cache_that_starts_late_is_refused():
    calls, kept = [], []

    def late():
        calls.append(None)
        if len(calls) < 6:
            return X @ X
        return kept[0] if kept else kept.append(X @ X) or kept[0]

    assert refused(late, "timed_cached", fresh=X.normal_, warmup_ms=0, least=9) == CACHED


def test_noise_instead_of_a_cache_is_wrong():
    calls = []
    right_once = lambda: calls.append(None) or (X @ X if len(calls) == 1 else torch.randn_like(X))  # noqa: E731
    assert "of a wrong result is not reported" in refused(right_once, "timed_wrong", fresh=X.normal_, expected=lambda: X @ X)


def test_nan_kept_is_found_and_nan_is_no_right_result():
    kept = torch.tensor([1.0, torch.nan, torch.inf])
    assert refused(lambda: kept, "timed_cached", fresh=X.normal_) == CACHED
    assert "off by nan" in refused(lambda: X * torch.nan, "timed_wrong", expected=lambda: X)


def test_nan_alone_is_not_called_a_cache_and_some_nan_hide_no_other_number():
    for value in (torch.nan, torch.inf):
        assert refused(lambda: X.abs() * value, "timed_not_finite", fresh=X.normal_) == (
            "all 4,096 numbers of the result are NaN or infinite, for old and new inputs alike: whether they were computed cannot be seen. Mend it first."
        )
    rows = torch.ones(len(X), 1)
    rows[0] = torch.nan  # as a row without a key would give it
    assert time_call(lambda: X * rows, fresh=X.normal_, **CLOCK).repeats >= 5


# -- works on a GPU, timed as a CPU -----------------------------------------------------------------------------------------
ELSEWHERE = 'the call works on {} and was timed with the CPU\'s clock, which stops before the work is done. Give device="cuda".'


def test_a_result_on_a_gpu_is_not_timed_as_a_cpus():
    with FakeTensorMode():
        there = torch.empty(2, device="cuda")
    for result in (there, (X, there)):
        assert refused(lambda: result, "timed_on_gpu") == ELSEWHERE.format("cuda:0")


@pytest.mark.parametrize("idle, refuses", [([True, False], True), ([True, True], False), ([False, False], False)], ids=["its work", "idle", "work of before"])
def test_work_that_a_call_leaves_on_a_gpu_is_not_timed_as_a_cpus(monkeypatch, idle, refuses):
    answers = itertools.cycle(idle)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(query=lambda: next(answers)))
    if refuses:
        assert refused(lambda: None, "timed_on_gpu") == ELSEWHERE.format("a GPU")
    else:
        assert time_call(lambda: None, **CLOCK).repeats >= 5


def test_without_new_inputs_the_same_result_is_no_fault():
    assert time_call(lambda: X, expected=lambda: X, **CLOCK).repeats >= 5


@pytest.mark.parametrize("result, name", [(None, "NoneType"), ((), "tuple"), (3.0, "float"), ((X, None), "tuple")])
def test_a_call_that_hides_its_result_is_refused(result, name):
    assert refused(lambda: result, "timed_nothing", fresh=X.normal_) == (
        f"the call returned {name}; with fresh= or expected= it must return its result, a tensor or a tuple of tensors. Return it."
    )


@pytest.mark.parametrize("right, name", [(None, "NoneType"), ((), "tuple"), (X.numpy(), "ndarray"), ((X, None), "tuple")])
def test_an_expected_that_gives_nothing_is_not_blamed_on_the_call(right, name):
    assert refused(lambda: X, "timed_expected", expected=lambda: right) == (
        f"expected() returned {name}; it must give what the call must return, a tensor or a tuple of tensors. Return it, or leave expected= out."
    )


@pytest.mark.parametrize(
    "result, right, given, needed",
    [
        (X, (X, X), "(64, 64)", "(64, 64), (64, 64)"),
        ((X, X.sum()), X, "(64, 64), ()", "(64, 64)"),
        (X[:, :3], X, "(64, 3)", "(64, 64)"),
        (X[:1], X, "(1, 64)", "(64, 64)"),  # broadcast, it would be right
    ],
)
def test_a_result_of_another_number_or_shape_of_tensors_is_refused(result, right, given, needed):
    assert refused(lambda: result, "timed_shapes", expected=lambda: right) == (
        f"the call returned shape {given}, and expected() gives {needed}; they must be the same, tensor for tensor. Mend the function, or what expected() gives."
    )


def test_distance_by_hand():
    assert honest._distance(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)
    assert honest._distance(torch.zeros(2), torch.zeros(2)) == 0 and honest._distance(torch.ones(4), torch.zeros(4)) == 2
    assert honest.fingerprint(torch.tensor([True, False])) == honest.fingerprint(torch.tensor([1, 0])) == ((1.0).hex(),)


# -- replaces the timer ---------------------------------------------------------------------------------------------------
def test_a_timer_replaced_after_import_changes_nothing(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    assert time_call(lambda: time.sleep(0.01), device="cpu", warmup_ms=0, budget_ms=0).time_ms >= 10


@pytest.mark.parametrize("lie", [lambda: 0.0, lambda: 1.5 * time.perf_counter(), lambda: time.perf_counter() / 1.5])
def test_a_timer_that_lies_is_refused(monkeypatch, lie):
    monkeypatch.setattr(timing, "perf_counter", lie)
    text = refused(lambda: time.sleep(0.01), "timed_clocks", warmup_ms=0, budget_ms=0)
    assert text.startswith("the timer says ") and text.endswith(
        "so nothing is reported. Something replaced the timer, or the work does not start when the call does."
    )


def test_two_clocks_may_differ_a_little():
    honest.check_clocks(0.1, 1.0)  # a microsecond for each of a thousand calls
    honest.check_clocks(100, 119)
    for told in (79, 121):
        with pytest.raises(RuntimeError):
            honest.check_clocks(told, 100)


# -- a GPU's work, by numbers ---------------------------------------------------------------------------------------------
def test_work_on_another_stream_is_told_from_a_replaced_timer():
    honest.check_work(1.0, worked_ms=1.2, late_ms=0.05)
    honest.check_work(0.002, worked_ms=0.09, late_ms=0.01)  # waiting takes time too
    honest.check_work(15.0, worked_ms=15.2, late_ms=0.17)  # and more after long work
    with pytest.raises(RuntimeError) as caught:
        honest.check_work(0.002, worked_ms=5.0, late_ms=5.0)
    assert str(caught.value) == (
        "the GPU was busy for 5 ms after the call's own stream was done, and the timer had seen 0.002 ms: work runs on another stream."
        " Let the call wait for it: torch.cuda.current_stream().wait_stream(stream)."
    )
    with pytest.raises(RuntimeError, match="the timer says 0.002 ms where a second clock says 5 ms"):
        honest.check_work(0.002, worked_ms=5.0, late_ms=0.01)


# -- on a GPU -------------------------------------------------------------------------------------------------------------
gpu = pytest.mark.gpu
GPU_CLOCK = {"device": "cuda", "warmup_ms": 5, "budget_ms": 50}


def _large():
    return torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)


@gpu
def test_on_a_gpu_work_on_another_stream_is_refused():
    a, side = _large(), torch.cuda.Stream()

    def elsewhere():
        with torch.cuda.stream(side):
            return a @ a

    assert "work runs on another stream" in refused(elsewhere, "timed_elsewhere", **GPU_CLOCK)


@gpu
def test_on_a_gpu_another_stream_that_is_waited_for_is_timed():
    a, side = _large(), torch.cuda.Stream()

    def joined():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out = a @ a
        torch.cuda.current_stream().wait_stream(side)
        return out

    alone = time_call(lambda: a @ a, **GPU_CLOCK).time_ms
    assert time_call(joined, **GPU_CLOCK).time_ms == pytest.approx(alone, rel=0.2)


@gpu
def test_on_a_gpu_a_replaced_event_changes_nothing_and_a_lying_one_is_refused(monkeypatch):
    a = _large()
    truth = time_call(lambda: a @ a, **GPU_CLOCK).time_ms
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_: 1e-3)
    assert time_call(lambda: a @ a, **GPU_CLOCK).time_ms == pytest.approx(truth, rel=0.2)
    monkeypatch.setattr(honest, "_elapsed", lambda *_: 1e-3)
    assert "Something replaced the timer" in refused(lambda: a @ a, "timed_clocks", **GPU_CLOCK)


@gpu
def test_on_a_gpu_a_cache_is_refused_and_an_honest_call_is_not():
    a, kept = _large(), []
    assert time_call(lambda: a @ a, fresh=a.normal_, expected=lambda: a @ a, **GPU_CLOCK).repeats >= 5
    assert refused(lambda: kept[0] if kept else kept.append(a @ a) or kept[0], "timed_cached", fresh=a.normal_, **GPU_CLOCK) == CACHED


@gpu
@pytest.mark.skipif(device() == "cpu", reason="needs a CUDA GPU")
def test_on_a_gpu_new_inputs_do_not_stay_in_the_l2():
    half = torch.ones(torch.cuda.get_device_properties().L2_cache_size // 8, device="cuda")  # float32: half of the L2
    old, new = (time_call(lambda: half.sum(), fresh=fresh, **GPU_CLOCK).time_ms for fresh in (None, half.normal_))
    assert new == pytest.approx(old, rel=0.1)
