"""launch.py without a GPU: Triton's own launch is a stand-in that counts what it was asked."""

import pytest
import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.kernels import launch
from flashlab.kernels.launch import Plan, by_triton, planned
from flashlab.traffic import triton_hooks


@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    pass


class Compiled:
    """Stands for a compiled kernel: kernel[grid](*arguments)."""

    def __init__(self, launched):
        self.launched = launched

    def __getitem__(self, grid):
        return lambda *arguments: self.launched.append(("compiled", grid, arguments))


@pytest.fixture
def launched(monkeypatch):
    """What reached Triton (through its lookup) or a compiled kernel (past it), in order."""
    seen = []

    def run(kernel, *arguments, grid, warmup, **options):
        seen.append(("triton", grid, arguments))
        return Compiled(seen)

    run.__module__ = "triton.runtime.jit"  # as Triton's own
    monkeypatch.setattr(type(kernel), "run", run)
    monkeypatch.setattr(launch, "COMPILED", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return seen


def plan(n=32, programs=2):
    return Plan(kernel, programs, (n,), {"BLOCK": 16}, {"num_warps": 4})


def test_triton_is_asked_once_for_a_kind_of_arguments(launched):
    x, first = torch.zeros(32), plan()
    first.launch((x,))
    first.launch((x,))
    plan(48, programs=3).launch((x,))  # another size, not another kind
    plan(48, programs=3).launch((x.half(),))
    plan(47, programs=3).launch((x,))
    assert [where for where, *_ in launched] == ["triton", "compiled", "compiled", "triton", "triton"]
    assert launched[1][1:] == ((2, 1, 1), (x, 32, 16)) and launched[2][1:] == ((3, 1, 1), (x, 48, 16))


def test_what_one_gpu_compiled_is_not_run_on_another(launched, monkeypatch):
    x, at = torch.zeros(32), [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: at[0])
    for at[0] in (0, 1, 0, 1):
        plan().launch((x,))
    assert [where for where, *_ in launched] == ["triton", "triton", "compiled", "compiled"]


def test_a_number_that_needs_64_bits_is_another_kind(launched):
    """Compiled for 32 bits, a kernel would take its lower half; all four are multiples of 16, so of one kind otherwise."""
    x = torch.zeros(32)
    for n in (2**31 - 16, 2**31, 2**31 + 16, 2**31 - 32):
        plan(n).launch((x,))
    assert [where for where, *_ in launched] == ["triton", "triton", "compiled", "compiled"]
    assert [launch.fact(n)[2] for n in (2**31 - 1, 2**31)] == [True, False]


def test_open_hooks_see_every_launch_and_leave_nothing_behind(launched):
    x, known = torch.zeros(32), plan()
    known.launch((x,))
    known.launch((x,))
    seen = []
    with triton_hooks.launches(seen.append):
        known.launch((x,))
        known.launch((x,))
        plan(47).launch((x,))
    known.launch((x,))
    assert [one.args for one in seen] == [(x, 32), (x, 32), (x, 47)] and [one.meta["BLOCK"] for one in seen] == [16] * 3
    assert [where for where, *_ in launched] == ["triton", "compiled", "compiled"] and len(launch.COMPILED) == 1


def test_a_hook_may_go_on_with_the_launch(launched):
    with triton_hooks.launches(triton_hooks.Launch.__call__):
        plan().launch((torch.zeros(32),))
    assert [where for where, *_ in launched] == ["triton"]


def test_triton_s_own_launch_is_known_from_what_stands_before_it():
    assert by_triton(kernel) == (runtime.mode() == "cuda")
    with triton_hooks.launches(lambda one: None):
        assert not by_triton(kernel)


def test_a_plan_is_made_once_for_tensors_that_look_alike():
    made = []

    @planned
    def make(x, flag, params):
        made.append((x, flag, params))
        return len(made)

    x, aligned = torch.zeros(4, 4), torch.zeros(17)
    assert make(x, True, ()) == make(torch.ones(4, 4), True, ()) == 1
    others = [(x.mT, True, ()), (x[:2], True, ()), (x.half(), True, ()), (x.to("meta"), True, ()), (None, True, ()), (x, False, ())]
    assert [make(*given) for given in others] == [2, 3, 4, 5, 6, 7]
    assert make(aligned[:16], True, ()) != make(aligned[1:], True, ())
    # Parameters of masks travel with each launch, so only what Triton compiles for counts.
    assert make(x, True, ((7, 0.5),)) == make(x, True, ((9, 0.25),)) != make(x, True, ((16, 0.5),)) != make(x, True, ((1, 0.5),))


def test_plans_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(launch, "MOST_PLANS", 2)
    made = []
    make = planned(lambda n: made.append(n) or n)
    assert [make(n) for n in (1, 2, 1, 3, 1)] == [1, 2, 1, 3, 1] and made == [1, 2, 3, 1]
