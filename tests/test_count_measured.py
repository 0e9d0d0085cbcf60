"""`flashlab count --measured`: the table, and what is shown where nothing can be counted."""

import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "traffic"))
import fake_ncu as fake

from flashlab import cli, count_measured
from flashlab.bench.three_ways import row_of
from flashlab.errors import error
from flashlab.problem import AttentionProblem
from flashlab.traffic import counter_records
from flashlab.traffic.counter_records import CounterRecord, digest
from flashlab.traffic.launches import Counted, Uncounted, launch

PROBLEM = AttentionProblem(4096, 4096, 128, heads=16, dtype="bfloat16")
LAUNCHES = tuple(launch(row) for row in fake.rows([("forward_kernel", 512), ("cutlass_80_tensorop_bf16_s16816gemm_bf16", 2)]))
HERE = Counted("triton", "forward", PROBLEM, LAUNCHES, "counted here, on the NVIDIA H200")


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch):
    """Nothing is really counted here, so nobody has to wait for the GPU."""
    monkeypatch.setattr("flashlab.bench.turn.turn", lambda device: nullcontext())


def test_the_table():
    lacking = replace(LAUNCHES[1], tensor_percent=None, sm_bytes_read=None)
    dram = row_of(HERE).modelled_dram
    assert count_measured.table(replace(HERE, launches=(LAUNCHES[0], lacking))) == (
        "triton forward, n 4,096, head_dim 128, full: 2 launches, 25,296,896 bytes read from DRAM, 8,388,608 written, 580,911,104 through"
        " the L2, 2.04 ms (counted here, on the NVIDIA H200)\n"
        "by formula: q, k, v and o once are 67,108,864 bytes, standard attention moves 2,214,592,512\n"
        "with its tiles: 1,107,558,400 bytes asked for by formula, 1,107,558,400 traced; by the L2 model of the trace"
        f" {dram.read:,} bytes read from DRAM and {dram.written:,} written\n"
        "kernel                            programs  threads  registers    SRAM  occupancy     ms   DRAM read  DRAM written           L2"
        "       to SMs   from SMs   shared  tensor\n"
        "forward_kernel                         512      128        128  66,568  25 of 25%  1.020  12,648,448     4,194,304  290,455,552"
        "  281,018,368  4,456,448  128,000     56%\n"
        "cutlass_80_tensorop_bf16_s16816…         2      128        128  66,568  25 of 25%  1.020  12,648,448     4,194,304  290,455,552"
        "            -  4,456,448  128,000       -"
    )
    backward = count_measured.table(replace(HERE, pass_="backward"))
    assert "by formula: standard attention's backward moves 3,892,314,112 bytes" in backward
    assert "with its tiles" not in count_measured.table(replace(HERE, workload="sdpa-flash"))


def test_a_problem_for_each_size():
    made = count_measured.problems([1024, 2048], [64, 128], causal=True)
    assert [(p.n_q, p.n_k, p.head_dim) for p in made] == [(n, n, d) for n in (1024, 2048) for d in (64, 128)]
    assert {(p.batch, p.heads, p.causal, p.dtype) for p in made} == {(1, 16, True, "bfloat16")}


@pytest.mark.parametrize("failed, status", [(False, 0), (True, 1)])
def test_what_was_counted_and_what_was_not(monkeypatch, capsys, failed, status):
    other = Uncounted("triton", "forward", PROBLEM.with_(causal=True), "it cannot", failed=failed)
    asked = []
    monkeypatch.setattr(count_measured, "count_many", lambda requests: asked.append(requests) or [HERE, other])
    assert cli.main(["count", "--measured", "triton", "--n", "4096,512", "--head-dim", "64", "--heads", "2", "--batch", "3", "--dtype", "float16"]) == status
    out = capsys.readouterr().out
    assert out == f"{count_measured.table(HERE)}\n\ntriton forward, n 4,096, head_dim 128, causal: {'failed' if failed else 'not counted'}: it cannot\n"
    (requests,) = asked
    assert requests == [("triton", "forward", AttentionProblem(n, n, 64, batch=3, heads=2, dtype="float16")) for n in (4096, 512)]


def test_counting_is_done_in_turn(monkeypatch, capsys, tmp_path):
    held = []

    @contextmanager
    def turn(device):
        held.append(device)
        yield
        held.clear()

    monkeypatch.setattr("flashlab.bench.turn.turn", turn)
    monkeypatch.setattr(count_measured, "count_many", lambda requests: [HERE] if held else None)
    monkeypatch.setattr(counter_records, "record", lambda *_, **__: (tmp_path, len(held), []))
    assert cli.main(["count", "--measured", "triton"]) == 0 and not held
    assert cli.main(["count", "--record"]) == 0 and "\n1 records were added" in capsys.readouterr().out


def test_where_the_gpu_stays_taken_the_recorded_results_are_shown(monkeypatch, capsys):
    @contextmanager
    def busy(device):
        raise error("gpu_busy", device="GPU-1", waited=5, ahead=1)
        yield

    monkeypatch.setattr("flashlab.bench.turn.turn", busy)
    assert cli.main(["count", "--measured", "triton", "--n", "4096"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("GPU-1 was still taken after 5 s") and "Nothing was counted; these results were recorded before." in out


def test_causal_backward_of_a_file_is_passed_on(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text("")
    asked = []
    monkeypatch.setattr(count_measured, "count_many", lambda requests: asked.extend(requests) or [HERE])
    assert cli.main(["count", "--measured", f"{tmp_path}/mine.py:f", "--causal", "--pass", "backward"]) == 0
    assert asked == [(f"{tmp_path}/mine.py:f", "backward", PROBLEM.with_(causal=True))]


@pytest.mark.parametrize("reason", ["no_gpu", "ncu_missing", "ncu_closed"])
def test_where_nothing_can_be_counted_the_recorded_results_are_shown(monkeypatch, capsys, tmp_path, reason):
    told = {
        "no_gpu": error("no_gpu", what="Counting", why="No GPU", hint="Run it elsewhere"),
        "ncu_missing": error("ncu_missing", given="/bin"),
        "ncu_closed": error("ncu_closed", given="ERR_NVGPUCTRPERM"),
    }[reason]

    def refuse(requests):
        raise told

    monkeypatch.setattr(count_measured, "count_many", refuse)
    monkeypatch.setattr(counter_records, "RECORDED", tmp_path)
    assert cli.main(["count", "--measured", "triton"]) == 2
    assert capsys.readouterr().err == (
        f"flashlab: triton forward, n 4,096, head_dim 128, full was not counted here and is not recorded. {told} Recorded are: none.\n"
    )
    record = CounterRecord(HERE, "NVIDIA H200", "580", "2.11", "3.6", "2025", "2026-11-05T10:00:00+00:00", digest("triton", "forward"))
    (tmp_path / "nvidia-h200.jsonl").write_text(record.to_json() + "\n")
    assert cli.main(["count", "--measured", "triton", "--n", "4096,8192"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{told} Nothing was counted; these results were recorded before.\n\ntriton forward, n 4,096")
    assert "(recorded on NVIDIA H200, 2026-11-05)" in out
    assert out.endswith("\n\ntriton forward, n 8,192, head_dim 128, full: not counted: not recorded\n")
    (tmp_path / "nvidia-h200.jsonl").write_text(replace(record, digest="0" * 12).to_json() + "\n")
    assert cli.main(["count", "--measured", "triton"]) == 0
    assert "2026-11-05; stale: the kernel's code has changed since)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["tritn"], "no workload is called 'tritn'"),
        ([], "no workload is called ''"),
        (["flash1", "--pass", "backward"], "flash1 has no pass 'backward'"),
        (["triton", "--head-dim", "0"], "head_dim is 0; it must be a whole number of at least 1."),
        (["triton", "--dtype", "bf16"], "dtype is 'bf16'; it must be one of float16"),
        (["nowhere.py:f"], "there is no file nowhere.py."),
    ],
)
def test_what_cannot_be_counted_is_one_line(capsys, arguments, text):
    assert cli.main(["count", "--measured", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"flashlab: {text}")


def test_recording(monkeypatch, capsys, tmp_path):
    asked = []
    missing = [Uncounted("flash1", "forward", PROBLEM.with_(n_q=n, n_k=n), "slow") for n in (1, 2)] + [Uncounted("triton", "forward", PROBLEM, "no", failed=True)]

    def record(out, *, log, told, **options):
        asked.append((out, log, options))
        told("[1/2, 3 s] one")
        return tmp_path / "gpu.jsonl", 5, missing if len(asked) == 1 else []

    monkeypatch.setattr(counter_records, "record", record)
    assert cli.main(["count", "--measured", "--record", "--out", "x.jsonl", "--log", "ncu.log", "--budget", "90"]) == 1
    assert capsys.readouterr().out == (
        "[1/2, 3 s] one\n"
        "flash1 forward, n 1, head_dim 128, full: not counted: slow (and 1 more)\n"
        "triton forward, n 4,096, head_dim 128, full: failed: no\n"
        f"5 records were added to {tmp_path}/gpu.jsonl; 3 are missing: run it again to go on\n"
    )
    assert cli.main(["count", "--record"]) == 0  # --record is --measured too
    assert capsys.readouterr().out.endswith(f"5 records were added to {tmp_path}/gpu.jsonl\n")
    assert cli.main(["count", "--record", "--anew"]) == 0
    assert asked == [(Path("x.jsonl"), Path("ncu.log"), {"budget_s": 90.0}), (None, None, {}), (None, None, {"anew": True})]


@pytest.mark.parametrize(
    "arguments, way, given, taker, hint",
    [
        (["f.py:kernel", "extra", "--n", "7"], "FILE.py:kernel", "--n", "--measured", "Leave it out, or write -- before your file's own options."),
        (["f.py:kernel", "--head-dim", "64"], "FILE.py:kernel", "--head-dim", "--measured", "Leave it out, or write -- before your file's own options."),
        (["f.py:kernel", "--pass", "forward"], "FILE.py:kernel", "--pass", "--measured", "Leave it out, or write -- before your file's own options."),
        (["f.py:kernel", "--out", "F"], "FILE.py:kernel", "--out", "--record", "Leave it out, or write -- before your file's own options."),
        (["--measured", "triton", "--out", "F"], "--measured", "--out", "--record", "Leave it out."),
        (["--measured", "triton", "--budget", "5"], "--measured", "--budget", "--record", "Leave it out."),
        (["--measured", "triton", "--anew"], "--measured", "--anew", "--record", "Leave it out."),
        (["--measured", "triton", "--log", "F"], "--measured", "--log", "--record", "Leave it out."),
        (["--measured", "triton", "two", "more"], "--measured", "two more", "FILE.py:kernel", "Leave it out."),
        (["--record", "--n", "1024"], "--record", "--n", "--measured", "Leave it out."),
        (["--measured", "--record", "--causal"], "--record", "--causal", "--measured", "Leave it out."),
        (["--record", "steps", "more"], "--record", "more", "FILE.py:kernel", "Leave it out."),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(monkeypatch, capsys, arguments, way, given, taker, hint):
    monkeypatch.setattr(count_measured, "count_many", lambda requests: pytest.fail("it counts"))
    monkeypatch.setattr(counter_records, "record", lambda *_, **__: pytest.fail("it records"))
    assert cli.main(["count", *arguments]) == 2
    assert capsys.readouterr().err == f"flashlab: flashlab count {way} can do nothing with {given}, which is for flashlab count {taker}. {hint}\n"


@pytest.mark.parametrize("given", ["stpes", "triton"])
def test_what_is_recorded_is_the_grid_or_the_steps(monkeypatch, capsys, given):
    monkeypatch.setattr(counter_records, "record", lambda *_, **__: pytest.fail("it records"))
    assert cli.main(["count", "--record", given]) == 2
    assert capsys.readouterr().err == (
        f"flashlab: --record knows no {given!r}: it counts the whole grid, or steps. Pass nothing or steps; for one workload pass --measured instead.\n"
    )


def test_after_two_dashes_options_are_the_file_s_own(monkeypatch):
    asked = []
    monkeypatch.setattr("flashlab.count.report", lambda *given: asked.append(given) or 0)
    assert cli.main(["count", "f.py:kernel", "extra"]) == cli.main(["count", "f.py:kernel", "--", "--n", "7", "--record"]) == 0
    assert asked == [("f.py:kernel", ["extra"]), ("f.py:kernel", ["--n", "7", "--record"])]


def test_without_measured_it_traces_as_before(capsys):
    assert cli.main(["count", "softmax.py"]) == 2
    assert "'softmax.py' names no kernel of a file. Pass FILE.py:kernel" in capsys.readouterr().err
