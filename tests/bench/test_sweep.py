"""sweep.py: every cell is timed or named, each problem with all peers in turn, and the command keeps and shows the results."""

import gc
import itertools
import warnings
from contextlib import contextmanager

import pytest
import torch

from flashlab.bench import sweep
from flashlab.bench.lengths import too_large
from flashlab.bench.peers import PEERS, Peer
from flashlab.bench.records import Record
from flashlab.bench.sweep import GROWTH, LENGTHS, Missing, grid, growth
from flashlab.bench.timing import Timing
from flashlab.errors import ERRORS
from flashlab.problem import AttentionProblem
from flashlab.runtime import device

TINY = [AttentionProblem(16, 16, 8, heads=2, causal=causal, dtype="float32") for causal in (False, True)]


def fake_clock(function, **options):
    """Runs the call once; the n-th one takes n milliseconds."""
    function()
    fake_clock.options = options
    return Timing(*[float(next(fake_clock.numbers))] * 3, 5, "fake")


@pytest.fixture(autouse=True)
def clock():
    fake_clock.numbers = itertools.count(1)


def peer(name, fault=None):
    """A peer that adds, or raises."""

    def attend(q, k, v, *, is_causal, scale):
        if fault:
            raise fault
        return q + k + v

    return Peer(name, attend)


def run(problems, pass_, peers, **options):
    return list(sweep.sweep(problems, pass_, peers, device="cpu", clock=fake_clock, date="today", **options))


# -- the grid -------------------------------------------------------------------------------------------------------------
def test_the_grid_is_that_of_the_papers():
    problems = grid()
    assert len(problems) == 3 * 6 * 2 and LENGTHS == (512, 1024, 2048, 4096, 8192, 16384)
    for problem in problems:
        assert problem.batch * problem.n_q == 16384 and problem.heads * problem.head_dim == 2048
        assert problem.n_q == problem.n_k and problem.kv_heads == problem.heads and problem.dtype == "bfloat16"
    assert {(p.head_dim, p.n_q, p.causal) for p in problems} == set(itertools.product((64, 128, 256), LENGTHS, (False, True)))
    with pytest.raises(ERRORS["grid_head_dim"][0]) as caught:
        grid((64, 96))
    assert str(caught.value) == "the grid has no head_dim 96; it has 64, 128, 256."


# -- the sweep ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_all_peers_take_turns_on_each_problem(pass_):
    found = run(TINY, pass_, [peer("a"), peer("b")], budget_ms=33)
    assert [(one.kernel, one.causal, one.time_ms) for one in found] == [("a", False, 1), ("b", False, 2), ("a", True, 3), ("b", True, 4)]
    assert {(one.date, one.pass_, one.budget_ms) for one in found} == {("today", pass_, 33)}
    fresh = fake_clock.options.pop("fresh")
    assert fake_clock.options == {"device": "cpu", "warmup_ms": sweep.WARMUP_MS, "budget_ms": 33, "least": sweep.LEAST} and callable(fresh)


def test_all_peers_get_the_same_numbers():
    seen = []
    peers = [Peer(name, lambda q, k, v, **_: seen.append((q, k, v)) or q) for name in "ab"]
    run(TINY[:1], "forward", peers)
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)
    assert seen[0][0].std() > 0.5 and seen[0][0].shape == (1, 2, 16, 8)


@pytest.mark.parametrize("pass_, new", [("forward", "qkv"), ("backward", "d")])
def test_new_numbers_are_the_same_for_each_peer_and_leave_the_backwards_inputs_alone(pass_, new):
    made = []
    for name in "ab":
        given = {}

        def attend(q, k, v, *, is_causal, scale, given=given):
            given.update(q=q, k=k, v=v)
            return q * k * v

        call, fresh = sweep.call_of(Peer(name, attend), TINY[0], pass_, "cpu")
        before = call() if pass_ == "backward" else (call(),)
        inputs = {key: x.clone() for key, x in given.items()}
        fresh()
        after = call() if pass_ == "backward" else (call(),)
        assert {key for key in given if not torch.equal(given[key], inputs[key])} == set(new) & set("qkv")
        assert not any(torch.equal(x, y) for x, y in zip(before, after))
        made.append(after)
    torch.testing.assert_close(*made, rtol=0, atol=0)


def test_what_is_done_is_handed_on_and_not_timed_again():
    first = run(TINY, "forward", [peer("a"), peer("b")])
    again = run(TINY, "forward", [peer("a"), peer("b")], done=first[:3])
    assert again[:3] == first[:3] and again[3].kernel == "b" and again[3].time_ms == 5
    assert [one.time_ms for one in run(TINY[:1], "backward", [peer("a")], done=first)] == [6]  # another pass is not done


def test_all_peers_of_a_problem_share_a_turn_on_the_device_named(monkeypatch):
    log = []

    @contextmanager
    def turn(device):
        log.append(device)
        yield
        log.append("end")

    monkeypatch.setattr(sweep, "turn", turn)
    run(TINY, "forward", [Peer(name, lambda q, k, v, **_: log.append("call") or q) for name in "ab"])
    assert log == ["cpu", "call", "call", "end"] * 2


def test_a_record_that_cannot_be_is_refused(monkeypatch):
    monkeypatch.setattr(sweep, "impossible", lambda one: "impossible: so fast")
    (missing,) = run(TINY[:1], "forward", [peer("a")])
    assert (missing.why, missing.failed) == ("impossible: so fast", True)


def test_a_peer_that_keeps_its_result_is_refused_by_the_real_clock():
    kept = {}
    peers = [Peer("liar", lambda q, k, v, **_: kept.setdefault(q.data_ptr(), q + k)), Peer("honest", lambda q, k, v, **_: q + k)]
    liar, honest = sweep.sweep(TINY[:1], "forward", peers, device="cpu", budget_ms=1)
    assert liar.failed and liar.why.startswith("RuntimeError: the call gave the same result for new inputs") and honest.kernel == "honest"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu_is_used_and_the_first_left_alone():
    gc.collect()  # what an earlier test left in a cycle may be freed meanwhile
    before = torch.cuda.memory_allocated(0)
    found = list(sweep.sweep([TINY[0].with_(n_q=1024, n_k=1024, head_dim=64, dtype="bfloat16")], "forward", [PEERS["triton"], PEERS["sdpa-flash"]], device="cuda:1"))
    assert all(isinstance(one, Record) for one in found) and torch.cuda.memory_allocated(0) == before


def test_a_peer_that_cannot_is_skipped_with_its_reason():
    skipped, timed = run(TINY[:1], "forward", [PEERS["sdpa-cudnn"], peer("a")])
    assert skipped == Missing("sdpa-cudnn", "forward", TINY[0], "runs on a CUDA GPU only") and timed.kernel == "a"


@pytest.mark.parametrize(
    "fault, why, failed",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 34.00 GiB. GPU 0 has"), "out of memory, asking for 34.00 GiB", False),
        (torch.OutOfMemoryError("no words"), "out of memory, asking for an unknown amount", False),
        (RuntimeError("DefaultCPUAllocator: you tried to allocate 3221225472 bytes."), "out of memory, asking for 3.00 GiB", False),
        (MemoryError("cuda ran out of memory: a call asked for 3 GiB, and so on. What to do."), "cuda ran out of memory: a call asked for 3 GiB, and so on", False),
        (ZeroDivisionError("a\n  bug"), "ZeroDivisionError: a bug", True),
        (RuntimeError("No available kernel. Aborting execution."), "SDPA has no such kernel here: it gives no reason", False),
    ],
)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_a_peer_that_fails_is_named_and_the_others_go_on(fault, why, failed, pass_):
    missing, timed = run(TINY[:1], pass_, [peer("bad", fault), peer("good")])
    assert (missing.kernel, missing.why, missing.failed) == ("bad", why, failed) and isinstance(timed, Record)


def test_a_problem_too_large_for_a_cpu_is_out_of_memory_and_no_failure():
    """Math's scores alone are 400 TB: more than any process can address, so that none is really taken."""
    (missing,) = sweep.sweep([AttentionProblem(10**7, 10**7, 1, dtype="float32")], "forward", [PEERS["sdpa-math"]], device="cpu", budget_ms=0)
    assert missing.why == "the CPU ran out of memory: a call asked for 372,529.03 GiB" and too_large(missing) and not missing.failed


@pytest.mark.skipif(device() != "cpu", reason="asks the CPU for a kernel that only a GPU has")
def test_sdpa_says_why_it_has_no_such_kernel():
    (missing,) = run(TINY[:1], "forward", [Peer("sdpa-efficient", PEERS["sdpa-efficient"].attend, backend=PEERS["sdpa-efficient"].backend)])
    assert missing.why.startswith("SDPA has no such kernel here: ") and not missing.failed


def test_sdpas_reasons_are_the_warnings_about_the_backend_asked_for():
    triggered = " (Triggered internally at sdp_utils.cpp:1.)"
    texts = (f"Flash attention kernel not used because:{triggered}", f"Flash has been runtime disabled.{triggered}", f"too wide.{triggered}")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for text in texts:
            warnings.warn(text, stacklevel=1)
    assert sweep._told(told) == "SDPA has no such kernel here: too wide."


def test_real_peers_on_a_tiny_problem():
    found = list(sweep.sweep(TINY, "backward", [PEERS["sdpa-flash"], PEERS["sdpa-math"]], device="cpu", budget_ms=1))
    assert [one.kernel for one in found] == ["sdpa-flash", "sdpa-math"] * 2
    assert all(one.time_ms > 0 and one.extra_bytes is None and one.digest is None for one in found)


def test_growth_doubles_one_sequence_to_131072():
    assert GROWTH[0] == 1024 and GROWTH[-1] == 131072
    found = list(growth((8, 16), peers=[peer("a")], head_dim=4, heads=2, device="cpu", clock=fake_clock))
    assert [(one.pass_, one.n_q, one.batch, one.heads) for one in found] == [(p, n, 1, 2) for p in ("forward", "backward") for n in (8, 16)]
    assert len({one.date for one in found}) == 1


@pytest.mark.gpu
def test_our_extra_memory_is_one_number_a_query():
    for pass_ in ("forward", "backward"):
        found = list(growth((1024, 2048), (pass_,), head_dim=64, heads=2, budget_ms=1))
        assert [one.extra_bytes for one in found] == [4 * 2 * 1024, 4 * 2 * 2048]  # lse forward, delta backward: float32


def test_who_stops_listening_does_not_keep_the_gpu(monkeypatch):
    held = []

    @contextmanager
    def turn(device):
        held.append(device)
        yield
        held.pop()

    monkeypatch.setattr(sweep, "turn", turn)
    results = sweep.sweep(TINY, "forward", [PEERS["sdpa-math"], PEERS["sdpa-flash"]], device="cpu", clock=lambda *a, **o: held[0] and fake_clock(*a, **o))
    assert isinstance(next(results), Record) and held == []
