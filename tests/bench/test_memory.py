"""memory.py: a student's share is checked and set, and running out of memory ends in one sentence with everything freed."""

import gc
import weakref
import weakref

import pytest
import torch

from flashlab.bench import memory
from flashlab.bench.memory import cap, extra_bytes, fraction, out_of_memory_explained
from flashlab.bench.timing import time_call
from flashlab.errors import ERRORS

FULL = "CUDA out of memory. Tried to allocate 34.00 GiB. GPU 0 has a total capacity of"


@pytest.mark.parametrize("given, share", [("0.25", 0.25), (" 1 ", 1.0), ("", None), ("1e-1", 0.1)])
def test_a_share_is_a_number_up_to_1(monkeypatch, given, share):
    monkeypatch.setenv(memory.VARIABLE, given)
    assert fraction() == share


@pytest.mark.parametrize("given", ["0", "-0.5", "1.01", "a quarter", "25%", "nan", "inf"])
def test_a_share_that_cannot_be_is_refused(monkeypatch, given):
    monkeypatch.setenv(memory.VARIABLE, given)
    with pytest.raises(ERRORS["gpu_fraction"][0]) as caught:
        fraction()
    assert str(caught.value) == (
        f"FLASHLAB_GPU_FRACTION is {given!r}; it must be a number above 0 and up to 1, such as 0.25 for a quarter of the GPU's memory."
    )


def test_the_share_is_set_for_the_device_that_is_used(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: calls.append((share, device)))
    monkeypatch.delenv(memory.VARIABLE, raising=False)
    cap("cuda:1")
    monkeypatch.setenv(memory.VARIABLE, "0.5")
    cap("cpu")
    assert calls == []
    cap("cuda:1")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    cap("cuda")
    assert calls == [(0.5, 1), (0.5, 3)]


def test_nothing_is_collected_while_memory_is_counted(monkeypatch):
    """A cycle of an earlier call that is freed meanwhile was once counted as -1.5 MB of this one."""
    for name in ("synchronize", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 100)
    seen = []
    assert extra_bytes(lambda: seen.append(gc.isenabled()) or torch.zeros(2), "cuda") == -8 and seen[-1] is False and gc.isenabled()
    results = [torch.zeros(2)]
    with pytest.raises(IndexError):  # in the call that is counted, the second one
        extra_bytes(results.pop, "cuda")
    assert gc.isenabled()
    gc.disable()
    try:
        extra_bytes(lambda: torch.zeros(2), "cuda")
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.gpu
def test_a_share_of_the_default_gpu_can_be_set(monkeypatch):
    monkeypatch.setenv(memory.VARIABLE, "1")
    cap("cuda")
    assert torch.cuda.get_per_process_memory_fraction() == 1


def test_running_out_is_one_sentence_and_frees_what_was_held(monkeypatch):
    monkeypatch.setenv(memory.VARIABLE, "0.25")
    held = []

    def greedy():
        mine = torch.zeros(10)
        held.append(weakref.ref(mine))
        raise torch.OutOfMemoryError(FULL)

    with pytest.raises(ERRORS["gpu_memory"][0]) as caught:
        time_call(greedy, device="cpu")
    gc.collect()
    assert held[0]() is None  # although the exception, as in IPython, is still there
    assert str(caught.value) == (
        "cpu ran out of memory: a call asked for 34.00 GiB, and 0.0 of 0.0 GiB are free now; FLASHLAB_GPU_FRACTION lets this process"
        " hold 25% of it. What the call held was freed, so you can go on: take a smaller n or batch, or del tensors you no longer need."
    )


def test_a_fault_in_other_words_is_explained_too():
    with pytest.raises(MemoryError, match=r"asked for an unknown amount, and 0\.0 of 0\.0 GiB are free now\. What"), out_of_memory_explained("cpu"):
        raise torch.OutOfMemoryError("no words")


def test_other_faults_pass():
    with pytest.raises(ZeroDivisionError), out_of_memory_explained("cpu"):
        1 / 0


@pytest.mark.gpu
def test_on_a_gpu_one_can_go_on_after_running_out():
    kept = torch.ones(2**20, device="cuda")
    before = torch.cuda.memory_allocated()
    with pytest.raises(MemoryError, match="^cuda ran out of memory: a call asked for "):
        time_call(lambda: [torch.empty(2**30, device="cuda") for _ in range(10_000)])
    assert torch.cuda.memory_allocated() == before
    assert time_call(lambda: kept + 1, budget_ms=5).repeats >= 5


@pytest.mark.gpu
def test_on_a_gpu_the_share_holds(monkeypatch):
    monkeypatch.setenv(memory.VARIABLE, "0.01")
    try:
        with pytest.raises(MemoryError, match="FLASHLAB_GPU_FRACTION lets this process hold 1% of it"):
            time_call(lambda: torch.empty(torch.cuda.mem_get_info()[1] // 20, dtype=torch.int8, device="cuda"))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_results_that_autograds_thread_lets_go_late_are_not_counted(monkeypatch):
    """Freed in the midst of the counted call, the results of the call before it were once counted as -3 tensors of this one."""
    live, peak, thread = [0], [0], []

    def allocate(size):
        x = torch.zeros(size, dtype=torch.int8)
        live[0] += size
        peak[0] = max(peak[0], live[0])
        weakref.finalize(x, lambda: live.__setitem__(0, live[0] - size))
        return x

    def backward():
        thread.clear()  # only now does the thread let go of what it computed before
        spare, result = allocate(7), allocate(100)  # noqa: F841
        thread.append(result)
        return result

    for name, told in (("memory_allocated", live), ("max_memory_allocated", peak)):
        monkeypatch.setattr(torch.cuda, name, lambda device, told=told: told[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.__setitem__(0, live[0]))
    backward()
    assert extra_bytes(backward, "cuda") == 7


@pytest.mark.gpu
def test_extra_memory_is_what_a_call_holds_beyond_inputs_and_results():
    x = torch.ones(2**20, device="cuda")
    assert extra_bytes(lambda: x + 1, "cuda") == 0
    assert extra_bytes(lambda: (x + 1) * 2, "cuda") == x.nbytes


def test_on_a_cpu_torch_counts_no_memory():
    assert extra_bytes(lambda: 1 / 0, "cpu") is None
