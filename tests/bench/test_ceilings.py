"""The two ceilings: rates that are consistent with the time they were computed from."""

from contextlib import contextmanager

import pytest
import torch

from flashlab.bench import ceilings
from flashlab.bench.timing import Timing


def test_rates_are_work_over_time(monkeypatch):
    monkeypatch.setattr(ceilings, "time_call", lambda call, device: call() is None or Timing(2.0, 2.0, 2.0, 5, device))
    assert ceilings.copy_rate("cpu") == 2 * 2**27 / 2e-3  # 128 MiB read and 128 MiB written in 2 ms
    assert ceilings.matmul_rate("cpu") == 2 * 1536**3 / 2e-3


def test_the_ridge_is_where_both_take_equally_long():
    found = ceilings.Ceilings("a machine", "float32", bytes_per_s=2e9, flops_per_s=6e10)
    assert found.ridge == 30
    assert repr(found) == "a machine: copies 2 GB/s, multiplies 0.06 TFLOP/s in float32; the two meet at 30 FLOP a byte"


def test_this_machine_has_both():
    found = ceilings.measure_ceilings()
    assert 1e8 < found.bytes_per_s < 1e14 and 1e8 < found.flops_per_s < 1e17
    assert found.ridge == pytest.approx(found.flops_per_s / found.bytes_per_s)


@pytest.mark.parametrize("rate", [ceilings.copy_rate, ceilings.matmul_rate])
def test_a_gpu_too_full_for_the_tensors_is_explained_and_the_turn_given_back(monkeypatch, rate):
    said, held = [], []

    @contextmanager
    def turn(device):
        held.append(device)
        yield
        held.pop()

    def full(*_, **__):
        said.extend(held)
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")

    monkeypatch.setattr(ceilings, "turn", turn)
    monkeypatch.setattr(torch, "zeros", full)
    monkeypatch.setattr(torch, "randn", full)
    with pytest.raises(MemoryError, match="2.00 GiB"):
        rate("cpu")
    assert said == ["cpu"]  # asked for while the GPU was this process's
