"""sweep.py: every cell is timed or named, each problem with all peers in turn, and the command keeps and shows the results."""

import itertools
import warnings

import pytest
import torch

from flashlab import cli, runtime
from flashlab.bench import records, sweep
from flashlab.bench.peers import PEERS, Peer
from flashlab.bench.records import Record, load
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
    assert {one.date for one in found} == {"today"} and {one.pass_ for one in found} == {pass_}
    assert fake_clock.options == {"device": "cpu", "warmup_ms": sweep.WARMUP_MS, "budget_ms": 33, "least": sweep.LEAST}


def test_all_peers_get_the_same_numbers():
    seen = []
    peers = [Peer(name, lambda q, k, v, **_: seen.append((q, k, v)) or q) for name in "ab"]
    run(TINY[:1], "forward", peers)
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)
    assert seen[0][0].std() > 0.5 and seen[0][0].shape == (1, 2, 16, 8)


def test_a_peer_that_cannot_is_skipped_with_its_reason():
    skipped, timed = run(TINY[:1], "forward", [PEERS["sdpa-cudnn"], peer("a")])
    assert skipped == Missing("sdpa-cudnn", "forward", TINY[0], "runs on a CUDA GPU only") and timed.kernel == "a"


@pytest.mark.parametrize(
    "fault, why, failed",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 34.00 GiB. GPU 0 has"), "out of memory, asking for 34.00 GiB", False),
        (torch.OutOfMemoryError("no words"), "out of memory", False),
        (ZeroDivisionError("a\n  bug"), "ZeroDivisionError: a bug", True),
        (RuntimeError("No available kernel. Aborting execution."), "SDPA has no such kernel here: it gives no reason", False),
    ],
)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_a_peer_that_fails_is_named_and_the_others_go_on(fault, why, failed, pass_):
    missing, timed = run(TINY[:1], pass_, [peer("bad", fault), peer("good")])
    assert (missing.kernel, missing.why, missing.failed) == ("bad", why, failed) and isinstance(timed, Record)


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


# -- the command ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def as_on_a_gpu(monkeypatch, tmp_path):
    """`flashlab bench` believes in a GPU; problems are tiny, the clock is fake, and results go to a folder of their own."""
    calls, original = [], sweep.sweep

    def tiny(problems, pass_, peers, **options):
        problems = list(problems)
        calls.append((problems, pass_, [one.name for one in peers], options))
        stand_ins = [peer(one.name, ZeroDivisionError("a bug") if one.name == "sdpa-math" else None) for one in peers]
        for one in original([p.with_(n_q=8, n_k=8, head_dim=4, heads=1, batch=1) for p in problems], pass_, stand_ins, device="cpu", clock=fake_clock):
            yield one

    monkeypatch.setattr(sweep, "sweep", tiny)
    monkeypatch.setattr(runtime, "device", lambda: "cuda")
    monkeypatch.setattr(runtime, "describe", lambda: "GPU: one.")
    monkeypatch.setattr(sweep, "device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(records, "RECORDED", tmp_path)
    return calls


def test_the_command_times_the_whole_grid_and_keeps_it(as_on_a_gpu, tmp_path, capsys):
    assert cli.main(["bench", "forward", "--peers", "triton,sdpa-flash"]) == 0
    [(problems, pass_, names, options)] = as_on_a_gpu
    assert (problems, pass_, names, options["budget_ms"]) == (grid(), "forward", ["triton", "sdpa-flash"], sweep.BUDGET_MS)
    assert len(load(tmp_path / "nvidia-h200.jsonl")) == 72
    printed = capsys.readouterr().out
    assert "[36/36, " in printed and f"72 records were added to {tmp_path / 'nvidia-h200.jsonl'}" in printed


def test_a_failing_peer_is_named_and_the_exit_status_is_1(as_on_a_gpu, tmp_path, capsys):
    assert cli.main(["bench", "forward", "--quick", "--out", str(tmp_path / "x"), "--peers", "triton,sdpa-math", "--head-dim", "64"]) == 1
    printed = capsys.readouterr().out
    assert "not timed: sdpa-math forward, 6 of 6 cells, first head_dim 4, n 8, full: ZeroDivisionError: a bug\n" in printed
    assert "sdpa-math failed TFLOP/s" in printed and len(load(tmp_path / "x")) == 6


@pytest.mark.parametrize(
    "arguments, cells, names",
    [
        (["forward"], 36, ["triton", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math"]),
        (["backward"], 36, list(PEERS)),
        (["forward", "--quick"], 12, ["triton", "sdpa-flash", "sdpa-cudnn"]),
        (["backward", "--quick"], 12, ["triton", "triton/fused", "sdpa-flash", "sdpa-cudnn"]),
        (["backward", "--head-dim", "256,64", "--peers", "triton/fused"], 24, ["triton/fused"]),
    ],
)
def test_what_is_timed(as_on_a_gpu, arguments, cells, names):
    cli.main(["bench", *arguments])
    [(problems, pass_, peers, _)] = as_on_a_gpu
    assert (len(problems), pass_, peers) == (cells, arguments[0], names)


def test_growth_is_timed_in_both_passes(as_on_a_gpu, capsys):
    assert cli.main(["bench", "growth"]) == 0
    assert [(pass_, [p.n_q for p in problems]) for problems, pass_, *_ in as_on_a_gpu] == [(p, list(GROWTH)) for p in ("forward", "backward")]
    assert "16 records were added" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["forward", "--peers", "triton,fa3"], "flashlab: no peer is called 'fa3'; there are: triton, "),
        (["forward", "--head-dim", "96"], "flashlab: the grid has no head_dim 96; it has 64, 128, 256."),
    ],
)
def test_a_wrong_name_is_one_line(as_on_a_gpu, capsys, arguments, text):
    assert cli.main(["bench", *arguments]) == 2
    assert capsys.readouterr().err.startswith(text) and as_on_a_gpu == []


@pytest.mark.skipif(device() != "cpu", reason="shows what happens without a GPU")
def test_without_a_gpu_the_recorded_results_are_shown_and_said_to_be(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(records, "RECORDED", tmp_path)
    assert cli.main(["bench", "forward"]) == 2
    assert "flashlab bench needs a CUDA GPU" in capsys.readouterr().err
    one = records.record("triton", "forward", grid((64,))[0], Timing(1, 1, 1, 5, ""), date=sweep.now(), device="cpu")
    records.append(one, tmp_path / "x.jsonl")
    assert cli.main(["bench", "forward"]) == 0
    printed = capsys.readouterr().out
    assert "Nothing was timed; these results were recorded before." in printed and "forward, TFLOP/s, CPU" in printed and "recorded on 20" in printed
