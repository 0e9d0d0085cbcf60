"""command.py: what `flashlab bench` times, keeps, resumes, splits and shows, with a clock and a GPU that are stand-ins."""

import csv
import itertools
import os
from dataclasses import replace

import pytest
import torch
from length_runs import made, made_run
from matplotlib.figure import Figure

from flashlab import cli, provenance, runtime
from flashlab.bench import ceilings, command, gallery, lengths, records, sweep
from flashlab.bench.ceilings import Ceilings
from flashlab.bench.instructor_page import MARK
from flashlab.bench.peers import PEERS, Peer
from flashlab.bench.records import load, on_grid
from flashlab.bench.sweep import GROWTH, grid
from flashlab.bench.timing import Timing
from flashlab.errors import error
from flashlab.runtime import device

ALL = [name for name in PEERS if name != "triton/fused"]


def fake_clock(function, **options):
    """Runs the call once; the n-th one takes n milliseconds."""
    function()
    return Timing(*[float(next(fake_clock.numbers))] * 3, 5, "fake")


def peer(name, fault=None):
    """A peer that adds, or raises."""

    def attend(q, k, v, *, is_causal, scale):
        if fault:
            raise fault
        return q + k + v

    return Peer(name, attend)


@pytest.fixture
def as_on_a_gpu(monkeypatch, tmp_path):
    """`flashlab bench` believes in a GPU; problems are tiny, the clock is fake, and results go to a folder of their own."""
    calls, original = [], sweep.sweep
    fake_clock.numbers = itertools.count(1)

    def tiny(problems, pass_, peers, **options):
        problems = list(problems)
        calls.append((problems, pass_, [one.name for one in peers], options))
        stand_ins = [peer(one.name, ZeroDivisionError("a bug") if one.name == "sdpa-math" else None) for one in peers]
        small = [p.with_(n_q=8 + i, n_k=8 + i, head_dim=4, heads=1, batch=1) for i, p in enumerate(problems)]
        yield from original(small, pass_, stand_ins, device="cpu", clock=fake_clock, date=options["date"])

    monkeypatch.setattr(sweep, "sweep", tiny)
    monkeypatch.setattr(runtime, "device", lambda: "cuda")
    monkeypatch.setattr(runtime, "describe", lambda: "GPU: one.")
    monkeypatch.setattr(command, "device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda device: Ceilings("NVIDIA H200", "bfloat16", 4e12, 7e14))
    monkeypatch.setattr(records, "RECORDED", tmp_path)
    monkeypatch.setattr(sweep, "free", lambda device: None)  # it collects garbage, which takes its time
    return calls


def test_the_command_times_the_whole_grid_and_keeps_it(as_on_a_gpu, tmp_path, capsys):
    assert cli.main(["bench", "forward", "--peers", "triton,sdpa-flash"]) == 0
    [(problems, pass_, names, options)] = as_on_a_gpu
    assert (problems, pass_, names, options["budget_ms"], options["device"]) == (grid(), "forward", ["triton", "sdpa-flash"], sweep.BUDGET_MS, "cuda")
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
        (["forward"], 36, ALL),
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


@pytest.mark.parametrize("arguments, sizes", [([], 21), (["--quick"], 9), (["--part", "1/2"], 11)])
def test_lab_1s_grid_is_timed_in_one_run(as_on_a_gpu, tmp_path, capsys, arguments, sizes):
    assert cli.main(["bench", "lengths", *arguments]) == 1  # its stand-in for math fails
    [(problems, pass_, names, options)] = as_on_a_gpu
    assert (len(problems), pass_, sorted(names)) == (sizes, "forward", ["sdpa-flash", "sdpa-math", "triton"])
    assert options["budget_ms"] == 30 and f"{2 * sizes} records were added" in capsys.readouterr().out


def test_lab_1s_csv_and_figures_keep_the_run_that_timed_most():
    again = [made(p, lengths.OURS, 0.5, date="2026-01-03T00:00:00+00:00") for p in lengths.problems()]
    assert lengths.recorded(command._about("lengths", [*made_run(), *again])).speedup(512, kernel=lengths.OURS) == 12


@pytest.fixture
def lab_1(as_on_a_gpu, monkeypatch):
    """`flashlab bench lengths` gives round numbers on the real grid: an H200 whose math has room up to 40 GB."""

    def timed(problems, pass_, peers, **options):
        for p in problems:
            for one in peers:
                full = one.name == lengths.MATH and lengths.extra_by_formula(one.name, p) > 40e9
                yield sweep.Missing(one.name, pass_, p, "out of memory, asking for 32 GiB") if full else made(p, one.name, 2, date=options["date"])

    monkeypatch.setattr(sweep, "sweep", timed)


def test_what_lab_1_lacks_is_said_to_be_what_it_was(lab_1, tmp_path, capsys):
    assert cli.main(["bench", "lengths", "--quick", "--figures", str(tmp_path / "figures")]) == 0
    shown = capsys.readouterr().out.split("\n\n\n")[1]
    lines = shown.partition("\ndrawn")[0].splitlines()
    assert lines[0].startswith("measured on NVIDIA H200, 20") and len(lines) == 2 + 9 + 1
    assert lines[-1] == "sdpa-math: batch 4, n 16,384; batch 16, n 16,384: out of memory, asking for 32 GiB"  # and none that was not tried
    assert sum("no room" in line for line in lines) == 2 and "not recorded" not in shown


def test_lab_1s_figures_are_of_what_was_measured(lab_1, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(gallery, "time_against_length", lambda run: drawn.append(run) or Figure())
    assert cli.main(["bench", "lengths", "--quick", "--figures", str(tmp_path / "figures")]) == 0
    assert [run.how for run in drawn] == ["measured"] and sum(map(lengths.too_large, drawn[0].cells)) == 2


@pytest.mark.parametrize("arguments", [["--quick"], ["--part", "1/2"], ["--peers", "triton"]])
def test_lab_1s_page_keeps_what_was_not_timed_this_time(lab_1, tmp_path, arguments):
    for one in [*made_run(device="NVIDIA A100"), *made_run()]:
        records.append(one, tmp_path / "kept.jsonl")
    page = tmp_path / "page.md"
    page.write_text(f"{MARK}{MARK}")
    assert cli.main(["bench", "lengths", *arguments, "--out", str(tmp_path / "elsewhere"), "--page", str(page)]) == 0
    table = page.read_text()
    assert table.count("| NVIDIA A100 |") == 3 and "| NVIDIA A100 | 1 | 6.0 × | 6.0 × |" in table
    rows = [line.split(" | ") for line in table.splitlines() if "NVIDIA H200" in line]
    assert len(rows) == 3 and not [row for row in rows if "-" in row[2:-1]]
    assert ("1.0 ×" in str(rows)) == (arguments != ["--peers", "triton"])  # where math was timed beside it, the new run is what counts


def test_the_place_of_a_cell_names_what_the_grid_varies():
    assert command._name(grid((64,), (4096,))[1]) == "head_dim 64, n 4,096, batch 4, causal"
    assert command._name(lengths.decode_problems()[0]) == "head_dim 64, n 1 to 16,384, full"


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["steps", "--head-dim", "64"], "flashlab: steps can do nothing with --head-dim, which is for forward, backward; it takes --out, --device. Leave --head-dim out.\n"),
        (["growth", "--head-dim", "64"], "flashlab: growth can do nothing with --head-dim"),
        (["forward", "--page", "x.md"], "flashlab: forward can do nothing with --page, which is for lengths; it takes --quick, "),
        *((["steps", f"--{option}", *value], f"flashlab: steps can do nothing with --{option}") for option, *value in (["quick"], ["part", "9/2"], ["resume"], ["csv", "x"], ["figures", "x"], ["peers", "triton"])),
        (["compare", "a", "b"], "flashlab: there is no file a to compare. Results are written by flashlab bench --out a.\n"),
        (["compare", "a", "b", "--quick"], "flashlab: compare can do nothing with --quick, which is for forward, backward, growth, lengths; it takes two files. Leave --quick out.\n"),
        (["forward", "--peers", "triton,fa3"], "flashlab: no peer is called 'fa3'; there are: triton, "),
        (["lengths", "--peers", "triton,sdpa-cudnn"], "flashlab: lab 1 does not compare 'sdpa-cudnn'; its table has a column for each of sdpa-math, "),
        (["forward", "--head-dim", "96"], "flashlab: the grid has no head_dim 96; it has 64, 128, 256."),
        (["forward", "--part", "3/2"], "flashlab: part '3/2' is none: it is which of how many, such as 1/2. Pass --part 1/2 on one GPU and 2/2 on another.\n"),
        (["forward", "--part", "0/2"], "flashlab: part '0/2' is none"),
        (["forward", "--part", "half"], "flashlab: part 'half' is none"),
        (["forward", "--device", "cuda:2"], "flashlab: no GPU 'cuda:2' is here; there are: cuda, cuda:0, cuda:1. Pass e.g. --device cuda:0.\n"),
        (["compare", "a"], "flashlab: compare takes two files of records, and was given 1: flashlab bench compare OLD.jsonl NEW.jsonl.\n"),
        (["forward", "a", "b"], "flashlab: forward takes no files, and was given a b. Results go to --out FILE; two files are for compare.\n"),
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


@pytest.fixture
def two_gpus_recorded(monkeypatch, tmp_path):
    """No GPU here, and a folder with one cell of two kernels and head_dims, of two devices with ceilings of their own."""
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    monkeypatch.setattr(records, "RECORDED", tmp_path)
    for device_, flops in (("NVIDIA H200", 7e14), ("NVIDIA A100-SXM4-80GB", 2e14)):
        ceilings.keep(Ceilings(device_, "bfloat16", 2e12, flops))
        for kernel, d in (("triton", 64), ("sdpa-flash", 64), ("triton", 128)):
            one = records.record(kernel, "forward", grid((d,), (4096,))[0], Timing(1, 1, 1, 5, ""), date=sweep.now(), device="cpu")
            records.append(replace(one, device=device_), records.path_for(device_))
    return tmp_path


@pytest.mark.parametrize("arguments, text", [(["--peers", "fa3"], "no peer is called 'fa3'"), (["--head-dim", "96"], "the grid has no head_dim 96"), (["--part", "3/2"], "part '3/2' is none")])
def test_without_a_gpu_a_wrong_name_is_said_too(two_gpus_recorded, capsys, arguments, text):
    assert cli.main(["bench", "forward", *arguments]) == 2 and text in capsys.readouterr().err


def test_without_a_gpu_what_was_asked_for_is_shown_and_options_without_use_are_named(two_gpus_recorded, capsys):
    assert cli.main(["bench", "--peers", "sdpa-flash", "--head-dim", "64", "--quick", "--device", "cuda:7", "--part", "1/2", "--resume"]) == 0
    shown = capsys.readouterr().out
    assert "Nothing was timed, so --quick, --device, --part, --resume changed nothing; these" in shown
    assert "sdpa-flash" in shown and "triton" not in shown and "\n128 " not in shown
    assert cli.main(["bench", "--peers", "sdpa-flash", "--head-dim", "256"]) == 2
    assert "flashlab bench of what is not recorded needs a CUDA GPU" in capsys.readouterr().err
    assert cli.main(["bench", "lengths", "--peers", "triton"]) == 0 and "so --peers changed nothing" in capsys.readouterr().out


def test_without_a_gpu_a_file_that_is_not_there_is_no_fault_of_the_file(two_gpus_recorded, capsys):
    assert cli.main(["bench", "--out", str(two_gpus_recorded / "new.jsonl")]) == 2
    assert f"flashlab bench, to fill {two_gpus_recorded / 'new.jsonl'}, needs a CUDA GPU" in capsys.readouterr().err


def test_two_devices_stand_apart_each_beside_its_own_ceilings(two_gpus_recorded, monkeypatch, capsys):
    drawn = {}
    monkeypatch.setattr(gallery, "_figures", lambda here, what, ceiling, run: drawn.update({here[0].device: ceiling.device}) or ())
    made = two_gpus_recorded / "made"
    assert cli.main(["bench", "--csv", str(made / "x.csv"), "--figures", str(made)]) == 0
    assert len(drawn) == 2 and all(device_ == of for device_, of in drawn.items())
    shown = capsys.readouterr().out
    assert shown.count("beside what is possible there") == 2 and "NVIDIA A100-SXM4-80GB, beside" in shown
    with (made / "x.csv").open() as file:
        lines = list(csv.DictReader(file))
    ratio = {one["device"]: float(one["tflops"]) / float(one["matmul_share"]) for one in lines}
    assert ratio == {"NVIDIA H200": pytest.approx(700), "NVIDIA A100-SXM4-80GB": pytest.approx(200)} and len(lines) == 6


# -- a part, another GPU, resuming ----------------------------------------------------------------------------------------
def test_parts_are_the_whole_grid_and_do_not_overlap(as_on_a_gpu):
    for part in ("1/3", "2/3", "3/3"):
        assert cli.main(["bench", "forward", "--peers", "triton", "--part", part, "--device", "cuda:1"]) == 0
    parts = [problems for problems, *_ in as_on_a_gpu]
    assert sorted(map(repr, itertools.chain(*parts))) == sorted(map(repr, grid())) and {len(part) for part in parts} == {12}
    assert {options["device"] for *_, options in as_on_a_gpu} == {"cuda:1"}


def test_resuming_hands_on_what_is_there_and_keeps_the_runs_date(as_on_a_gpu, tmp_path, monkeypatch, capsys):
    path = tmp_path / "nvidia-h200.jsonl"
    monkeypatch.setattr(records, "device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(provenance, "versions", lambda: {"driver": "1", "torch": "2", "triton": "3"})
    date = sweep.now()
    budgets = (sweep.BUDGET_MS, 2 * sweep.BUDGET_MS, command.QUICK_BUDGET_MS, None)  # --quick times less: that is not done
    cells = zip(grid((64,)), [ms for ms in budgets for _ in range(2)])
    had = [records.record("triton", "forward", p, Timing(1, 1, 1, 5, ""), date=date, device="cuda", budget_ms=ms) for p, ms in cells]
    for one in had:
        records.append(one, path)
    assert cli.main(["bench", "forward", "--peers", "triton", "--head-dim", "64", "--resume"]) == 0
    assert as_on_a_gpu[0][3]["done"] == had[:4] and as_on_a_gpu[0][3]["date"] == date
    assert f"forward: 4 cells are there from {date}." in capsys.readouterr().out
    assert cli.main(["bench", "backward", "--peers", "triton", "--head-dim", "64", "--resume"]) == 0
    assert as_on_a_gpu[1][3]["done"] == [] and "backward: nothing of today to resume." in capsys.readouterr().out


def test_what_was_done_is_not_kept_twice(as_on_a_gpu, tmp_path, monkeypatch):
    one = records.record("triton", "forward", grid((64,))[0], Timing(1, 1, 1, 5, ""), date=sweep.now(), device="cpu")
    records.append(one, tmp_path / "x")
    monkeypatch.setattr(records, "to_resume", lambda *_: [one])
    monkeypatch.setattr(sweep, "sweep", lambda *_, **__: iter([one, replace(one, time_ms=2.0)]))
    assert cli.main(["bench", "forward", "--peers", "triton", "--out", str(tmp_path / "x"), "--resume"]) == 0
    assert [found.time_ms for found in load(tmp_path / "x")] == [1, 2]


def test_an_interrupted_run_says_how_to_go_on(as_on_a_gpu, tmp_path, monkeypatch, capsys):
    original = sweep.sweep

    def interrupted(*arguments, **options):
        yield from itertools.islice(original(*arguments, **options), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "sweep", interrupted)
    assert cli.main(["bench", "forward", "--peers", "triton"]) == 130
    path = tmp_path / "nvidia-h200.jsonl"
    assert f"Interrupted; 3 records are in {path}. The same command with --resume goes on." in capsys.readouterr().out and len(load(path)) == 3


def test_a_gpu_that_stays_taken_gives_recorded_results(as_on_a_gpu, tmp_path, monkeypatch, capsys):
    def busy(*_, **__):
        raise error("gpu_busy", device="GPU-1", waited=300, ahead=2)
        yield

    one = records.record("triton", "forward", grid((64,))[0], Timing(1, 1, 1, 5, ""), date=sweep.now(), device="cpu")
    records.append(one, tmp_path / "recorded.jsonl")
    monkeypatch.setattr(sweep, "sweep", busy)
    assert cli.main(["bench", "forward"]) == 0
    printed = capsys.readouterr().out
    assert "GPU-1 was still taken after 300 s, with 2 before you." in printed and "Recorded results instead:" in printed and "TFLOP/s, CPU" in printed


def test_ceilings_are_measured_once_and_kept(as_on_a_gpu, tmp_path, monkeypatch):
    assert cli.main(["bench", "forward", "--quick", "--peers", "triton"]) == 0
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda device: 1 / 0)
    assert cli.main(["bench", "forward", "--quick", "--peers", "triton"]) == 0
    assert ceilings.kept("NVIDIA H200") == Ceilings("NVIDIA H200", "bfloat16", 4e12, 7e14) and ceilings.kept("Tesla") is None
    assert {path.name for path in tmp_path.iterdir()} == {"nvidia-h200.ceilings.json", "nvidia-h200.jsonl"}
    assert len(load()) == 24  # what is no record is not read as one


# -- where it is written, looked at before anything is timed ----------------------------------------------------------------
@pytest.mark.parametrize(
    "what, option, place, text",
    [
        ("forward", "csv", "", "--csv cannot be written: {tmp} is a folder. Pass a file that you may write to.\n"),
        ("forward", "out", "", "--out cannot be written: {tmp} is a folder."),
        ("steps", "out", "", "--out cannot be written: {tmp} is a folder."),
        ("forward", "csv", "file/x.csv", "--csv cannot be written: {tmp}/file is no folder. Pass a file that you may write to.\n"),
        ("forward", "figures", "file", "--figures cannot be written: {tmp}/file is no folder. Pass a folder that you may write to.\n"),
        ("lengths", "page", "none.md", "--page cannot be written: {tmp}/none.md is not there."),
        ("lengths", "page", "file", "{tmp}/file has no line '<!-- recorded -->'"),
    ],
)
def test_a_place_that_will_not_do_is_found_before_anything_is_timed(as_on_a_gpu, tmp_path, capsys, what, option, place, text):
    (tmp_path / "file").write_text("x")
    assert cli.main(["bench", what, f"--{option}", str(tmp_path / place)]) == 2
    assert capsys.readouterr().err.startswith(f"flashlab: {text.format(tmp=tmp_path)}") and as_on_a_gpu == []


def test_a_closed_place_is_found_but_a_file_that_is_only_read_may_be_closed(two_gpus_recorded, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cli.main(["bench", "--csv", str(two_gpus_recorded / "x.csv")]) == 2
    assert f"--csv cannot be written: {two_gpus_recorded} is closed to you." in capsys.readouterr().err
    assert cli.main(["bench", "--out", str(two_gpus_recorded / "nvidia-h200.jsonl")]) == 0


def test_that_records_were_added_is_said_before_they_are_shown(as_on_a_gpu, monkeypatch, capsys):
    monkeypatch.setattr(command, "_show", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["bench", "--quick", "--peers", "triton"])
    assert "12 records were added to " in capsys.readouterr().out


# -- what is written ------------------------------------------------------------------------------------------------------
def test_who_may_not_write_to_a_shared_installation_gets_a_file_of_their_own(as_on_a_gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records.os, "access", lambda path, mode: False)
    monkeypatch.setattr(records, "RECORDED", tmp_path / "shared")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "forward", "--peers", "triton", "--head-dim", "64"]) == 0
    assert "records were added to nvidia-h200.jsonl" in capsys.readouterr().out
    assert load(tmp_path / "nvidia-h200.jsonl") and not (tmp_path / "shared").exists()


def test_csv_and_figures_of_what_is_recorded(tmp_path, capsys):
    if device() != "cpu":
        pytest.skip("a GPU would time")
    assert cli.main(["bench", "forward", "--csv", str(tmp_path / "x.csv"), "--figures", str(tmp_path / "figures")]) == 0
    with (tmp_path / "x.csv").open() as file:
        lines = list(csv.DictReader(file))
    cells = [(one["device"], one["kernel"], one["head_dim"], one["n_q"], one["causal"]) for one in lines]
    assert len(set(cells)) == len(cells) == len({(one.device, one.kernel, one.problem) for one in on_grid(load()) if one.pass_ == "forward"})
    assert {"kernel", "pass", "bytes_per_s", "roofline_share", "peak_bytes", "stale"} <= set(lines[0]) and "pass_" not in lines[0]
    names = {path.stem.removeprefix("nvidia-h200-forward-") for path in (tmp_path / "figures").iterdir()}
    kinds, masks = ("tflops", "speedup", "memory", "roofline"), ("full", "causal")
    counted = {f"bytes-{d}-{mask}" for d in (64, 128) for mask in masks}
    assert names == {f"{kind}-{d}-{mask}" for kind in kinds for d in (64, 128, 256) for mask in masks} | counted


def test_csv_of_growth_holds_growth_alone(tmp_path, capsys):
    if device() != "cpu":
        pytest.skip("a GPU would time")
    assert cli.main(["bench", "growth", "--csv", str(tmp_path / "x.csv")]) == 0
    with (tmp_path / "x.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert lines and {(one["batch"], one["heads"], one["head_dim"], one["causal"]) for one in lines} == {("1", "16", "128", lines[0]["causal"])}
    assert {int(one["n_q"]) for one in lines} <= set(GROWTH) and len(lines) < 30


def test_without_a_word_it_is_the_forward_pass(as_on_a_gpu):
    assert cli.main(["bench", "--quick"]) == 0
    assert [pass_ for _, pass_, *_ in as_on_a_gpu] == ["forward"]


def test_compare_says_what_got_slower_and_exits_1(tmp_path, capsys):
    one = records.record("triton", "forward", grid((64,))[0], Timing(1.0, 0.99, 1.01, 5, ""), date="2026", device="cpu")
    for name, time in (("old", 1.0), ("new", 1.5)):
        records.append(replace(one, time_ms=time, p20_ms=time, p80_ms=time), tmp_path / name)
    assert cli.main(["bench", "compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    assert "1 cells in both: 1 slower, 0 faster, 0 the same within the noise." in capsys.readouterr().out
    assert cli.main(["bench", "compare", str(tmp_path / "new"), str(tmp_path / "old")]) == 0


def test_a_terminal_shows_a_bar_and_what_is_left(monkeypatch, capsys):
    one = records.record("triton", "forward", grid((64,))[0], Timing(1, 1, 1, 5, ""), date="", device="cpu")
    monkeypatch.setattr(command.sys.stdout, "isatty", lambda: True, raising=False)
    command._follow(iter([one] * 4), 4, 1, [], [], lambda _: None)
    printed = capsys.readouterr().out
    assert "[#####               ] about 0 s left" in printed and printed.count("s left") == 3 and command._bar(1) == f"[{'#' * 20}]"
