"""memory.py: a student's share is checked and set, and running out of memory ends in one sentence with everything freed."""

import gc
import weakref

import pytest
import torch

from flashlab.bench import memory
from flashlab.bench.memory import asked_for, cap, extra_bytes, fraction, out_of_memory_explained, ran_out
from flashlab.bench.timing import time_call
from flashlab.errors import ERRORS

FULL = "CUDA out of memory. Tried to allocate 34.00 GiB. GPU 0 has a total capacity of"
CPU_FULL = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes. Error code 12"
GO_ON = "What the call held was freed, so you can go on: take a smaller n or batch, or del tensors you no longer need."


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
    monkeypatch.setenv(memory.VARIABLE, "0.25")  # of a GPU: on a CPU nothing is said of it
    held = []

    def greedy():
        mine = torch.zeros(10)
        held.append(weakref.ref(mine))
        return mine, torch.empty(10**14)

    with pytest.raises(ERRORS["cpu_memory"][0]) as caught:
        time_call(greedy, device="cpu")
    gc.collect()
    assert held[0]() is None  # although the exception, as in IPython, is still there
    assert str(caught.value) == f"the CPU ran out of memory: a call asked for 372,529.03 GiB. {GO_ON}"


@pytest.fixture
def played_gpu(monkeypatch):
    """Of 8 GiB, 2 are free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 2**30, 8 * 2**30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


@pytest.mark.parametrize("share, limit", [("0.25", "; FLASHLAB_GPU_FRACTION lets this process hold 25% of it"), ("", "")])
@pytest.mark.parametrize("words, asked", [(FULL, "34.00 GiB"), ("no words", "an unknown amount")])
def test_on_a_gpu_the_sentence_says_what_is_free_and_the_share(played_gpu, monkeypatch, words, asked, share, limit):
    monkeypatch.setenv(memory.VARIABLE, share)
    with pytest.raises(ERRORS["gpu_memory"][0]) as caught, out_of_memory_explained("cuda"):
        raise torch.OutOfMemoryError(words)
    assert str(caught.value) == f"cuda ran out of memory: a call asked for {asked}, and 2.0 of 8.0 GiB are free now{limit}. {GO_ON}"


def test_a_call_on_a_gpu_that_fills_the_cpus_memory_is_not_the_gpus_fault(played_gpu):
    with pytest.raises(MemoryError, match="^the CPU ran out of memory: a call asked for 3.00 GiB"), out_of_memory_explained("cuda"):
        raise RuntimeError(CPU_FULL.format(3 * 2**30))


@pytest.mark.parametrize("size, asked", [(3 * 2**30, "3.00 GiB"), (2**30 - 2**20, "1,023.00 MiB"), (2**19, "0.50 MiB"), (4 * 10**14, "372,529.03 GiB")])
def test_bytes_are_said_in_a_readable_unit(size, asked):
    assert asked_for(RuntimeError(CPU_FULL.format(size))) == asked


@pytest.mark.parametrize("fault", [ZeroDivisionError(), RuntimeError("shapes differ"), RuntimeError(), ValueError(CPU_FULL)], ids=repr)
def test_other_faults_pass_unchanged(fault):
    with pytest.raises(type(fault)) as caught, out_of_memory_explained("cpu"):
        raise fault
    assert caught.value is fault and fault.__cause__ is fault.__context__ is None and not ran_out(fault)


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
