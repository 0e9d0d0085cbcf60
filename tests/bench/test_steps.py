"""The ladder's runner: what is wrong is not timed, what is recorded is shown, and what explains a step is worked out."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text

from flashlab import cli, runtime
from flashlab.bench import ladder, peers, records, steps
from flashlab.bench.ladder import Ladder, idle, through
from flashlab.bench.ladder_figure import APART, draw, place, spread_out
from flashlab.bench.records import Record
from flashlab.bench.sweep import Missing
from flashlab.errors import ERRORS, error
from flashlab.problem import AttentionProblem
from flashlab.traffic import counter_records, counters
from flashlab.traffic.launches import Counted, Launch
from flashlab.traffic.model import attention_flops, flash2_traffic

SMALL = AttentionProblem(48, 48, 16, batch=2, heads=2, causal=True, dtype="float32")
DATE, LATER = "2026-11-29T10:00:00+00:00", "2026-11-30T10:00:00+00:00"


def made(kernel, time_ms, head_dim=128, date=DATE):
    p = steps.problem(head_dim)
    digest = records.digest_of(kernel, "forward") if records.is_ours(kernel) else None
    sizes = (p.dtype, p.batch, p.heads, p.kv_heads, p.n_q, p.n_k, p.head_dim, p.causal)
    return Record(kernel, "forward", *sizes, time_ms, time_ms, time_ms, 275 / time_ms, 0, "NVIDIA H200", "580", "2.11", "3.6", date, digest)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """recorded/steps/ with two runs: the newer one is shown."""
    monkeypatch.setattr(steps, "RECORDED", tmp_path)
    lines = [made("steps/tiles", 9.0), made("sdpa-flash", 1.0), made("steps/tiles", 2.0, date=LATER), made("steps/warps", 1.0, date=LATER), made("sdpa-flash", 1.5, date=LATER)]
    for one in lines:
        records.append(one, tmp_path / "nvidia-h200.jsonl")
    return tmp_path


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "RECORDED", tmp_path)


def test_without_a_gpu_the_newest_run_is_shown_and_said_to_be(kept, capsys, monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    table = steps.measure(["warps", "tiles"], head_dim=128)
    assert capsys.readouterr().out == "recorded on NVIDIA H200, 2026-11-30 (there is no GPU here)\n"
    assert table.names == ["tiles", "warps"] and table["warps"].gain == 2.0 and table["warps"].against_sdpa == 1.5
    assert table["tiles"].gain is None  # `small` was not timed
    lines = repr(table).splitlines()
    assert len(lines) == 4 and "2.00 tiles" in lines[3] and "<td" in table._repr_html_()


def test_an_interrupted_run_does_not_hide_a_whole_one(kept):
    records.append(made("steps/tiles", 7.0, date="2026-12-01T10:00:00+00:00"), kept / "nvidia-h200.jsonl")
    assert [one.time_ms for one in steps.recorded(["tiles", "warps"])] == [2.0, 1.0, 1.5]
    records.append(made("sdpa-flash", 7.5, date="2026-12-01T10:00:00+00:00"), kept / "nvidia-h200.jsonl")
    assert [one.time_ms for one in steps.recorded(["tiles"])] == [7.0, 7.5]  # of these steps it is whole, and newer


def test_without_a_gpu_what_has_no_use_is_named(kept, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    assert cli.main(["bench", "steps", "--device", "cuda:7"]) == 0 and "so --device changed nothing;" in capsys.readouterr().out
    assert cli.main(["bench", "steps", "--out", str(tmp_path / "new.jsonl")]) == 2
    assert "flashlab bench steps, to fill" in capsys.readouterr().err and not (tmp_path / "new.jsonl").exists()


def test_before_anything_is_recorded_the_table_has_what_is_known(nothing, capsys, monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    table = steps.measure(head_dim=64)
    assert "recorded on no machine yet" in capsys.readouterr().out
    assert "not measured yet" in repr(table) and len(table.rows()) == 1 + len(counters.STEPS)
    ((name, intensity, rate),) = Ladder(["l2"], table.problem, []).points()  # by the L2 model, and not timed
    assert name == "l2" and 500 < intensity < 900 and rate is None
    assert cli.main(["bench", "steps"]) == 2 and "flashlab bench steps needs a CUDA GPU" in capsys.readouterr().err.replace("\n", " ")


def test_the_command_shows_what_is_recorded(kept, capsys, monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    assert cli.main(["bench", "steps"]) == 0
    said = capsys.readouterr().out
    assert "Nothing was timed" in said and "2.00 tiles" in said and "head_dim 64" in said


def test_changed_code_makes_a_record_stale(kept):
    fresh = made("steps/tiles", 2.0)
    assert not records.stale(fresh) and records.stale(replace(fresh, digest="0" * 12))
    assert records.digest_of("steps/tiles", "forward") != records.digest_of("triton", "forward")
    assert not records.stale(made("sdpa-flash", 1.0))


@pytest.mark.parametrize(
    "line, call, text",
    [
        ("steps_name", lambda: steps.measure("tails"), "the ladder has no step 'tails'; its steps are: flash1, small, .*Pass one or more"),
        ("steps_head_dim", lambda: steps.measure("tiles", head_dim=96), "the steps are timed at head_dim 64, 128, not 96. Pass one of these"),
    ],
)
def test_what_there_is_not(line, call, text):
    with pytest.raises(ERRORS[line][0], match=text):
        call()


# -- measuring -----------------------------------------------------------------------------------------------------------
def test_a_wrong_result_is_named_and_not_timed(monkeypatch):
    """On a CPU, with clocks that take no time: the broken step fails, the others and SDPA go on."""

    def broken(name, q, k, v, *, is_causal, scale):
        return steps._step(name, q, k, v, is_causal=False, scale=scale)

    right = {name: replace(peer, cuda_only=False) for name, peer in steps.PEERS.items()}
    right["steps/warps"] = peers.Peer("steps/warps", partial(broken, "warps"), passes=("forward",))
    monkeypatch.setattr(steps, "PEERS", right)
    device = runtime.device()
    problem = SMALL if device == "cpu" else SMALL.with_(dtype="bfloat16", head_dim=64)
    found = list(steps.timed(["tiles", "warps"], [problem], device=device, budget_ms=0, date=DATE))
    assert [(type(one), one.kernel) for one in found] == [(Missing, "steps/warps"), (Record, "sdpa-flash"), (Record, "steps/tiles")]
    assert found[0].failed and found[0].why.startswith("wrong result: it differs from float64 by ")
    assert all(one.date == DATE for one in found[1:])


def test_a_step_that_raises_is_named():
    def raises(q, k, v, **options):
        raise RuntimeError("out of resource: shared memory")

    assert steps._fault(peers.Peer("steps/x", raises), SMALL, runtime.device()) == "RuntimeError: out of resource: shared memory"


def test_a_step_is_checked_in_its_turn_and_on_its_own_gpu(monkeypatch):
    """A launch without a device of its own goes to the current GPU: for cuda:1 that must be cuda:1, or it gets another GPU's addresses."""
    held = []

    @contextmanager
    def holding(what, device):
        held.append((what, device))
        yield
        held.pop()

    def fault(peer, p, device):
        assert held == [("turn", "cuda:1"), ("current", "cuda:1")]
        return "not run"

    for what in ("turn", "current"):
        monkeypatch.setattr(steps, what, partial(holding, what))
    monkeypatch.setattr(steps, "_fault", fault)
    monkeypatch.setattr(steps.sweep, "sweep", lambda *_, **__: iter(()))
    assert [one.why for one in steps.timed(["library"], [SMALL], device="cuda:1")] == ["not run"] * 2 and held == []


def test_nan_is_wrong():
    nan = peers.Peer("steps/x", lambda q, k, v, **options: q * torch.nan)
    assert "differs from float64 by nan" in steps.wrong(nan, SMALL, runtime.device())


def test_with_a_gpu_the_steps_are_timed_and_what_is_missing_is_named(nothing, capsys, monkeypatch):
    found = [Missing("steps/warps", "forward", steps.problem(128), "no"), made("steps/tiles", 2.0)]
    monkeypatch.setattr(runtime, "device", lambda: "cuda")
    monkeypatch.setattr(steps, "device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(steps, "timed", lambda names, problems: found)
    table = steps.measure(["warps", "tiles"])
    assert list(table.records.values()) == found[1:]
    first, second = capsys.readouterr().out.splitlines()
    assert first == "not timed: steps/warps: no" and second.startswith("measured on NVIDIA H200, 20")
    found.pop()
    assert steps.measure(["warps"]).records == {} and capsys.readouterr().out.endswith("\nnothing could be measured\n")


def test_a_gpu_that_stays_taken_gives_the_recorded_steps_and_stale_ones_say_so(kept, capsys, monkeypatch):
    def busy(*_):
        raise error("gpu_busy", device="GPU-1", waited=5, ahead=1)

    monkeypatch.setattr(runtime, "device", lambda: "cuda")
    monkeypatch.setattr(steps, "timed", busy)
    why = "recorded on NVIDIA H200, 2026-11-30 (GPU-1 was still taken after 5 s, with 1 before you)"
    assert steps.measure(["tiles"])["tiles"].record.time_ms == 2.0 and capsys.readouterr().out == f"{why}\n"
    monkeypatch.setattr(records, "stale", lambda one: one.kernel == "steps/tiles")
    steps.measure(["tiles"])
    assert capsys.readouterr().out == f"{why}; stale, its code has changed since\n"


# -- what explains a step ----------------------------------------------------------------------------------------------------
def test_bytes_are_the_closed_forms_and_the_order_changes_only_dram():
    p = steps.problem(128)
    moved = {name: through(name, p) for name in ("fit", "l2", "all-heads")}
    formula = flash2_traffic(p, block_q=128, block_k=64)
    assert {one.requested_bytes_read + one.requested_bytes_written for one in moved.values()} == {formula.bytes_moved}
    inputs = 3 * 64 * 4096 * 128 * 2
    assert moved["fit"].dram_bytes_read == inputs < moved["l2"].dram_bytes_read < 2 * inputs < moved["all-heads"].dram_bytes_read


def test_how_much_of_the_gpu_stands_idle():
    p = steps.problem(128)
    assert idle("flash1", p) == pytest.approx(1 - 64 / 132)  # 64 programs of one length on 132 multiprocessors
    assert idle("l2", p) < 0.02 < 0.1 < idle("longest", p) <= idle("whole", p)


def test_counters_join_the_table_where_they_are_recorded(kept, monkeypatch):
    launch = Launch("step_kernel", (2048, 1, 1), 256, 176, 131_072, 12.0, 12.5, 1.0, 200_000_000, 60_000_000, 10, 10, 10, 10, 44.0)
    p = steps.problem(128)
    flops = attention_flops(p)
    digest = counter_records.digest("steps/warps", "forward")
    machine = {"device": "NVIDIA H200", "driver": "580", "torch": "2.11", "triton": "3.6", "ncu": "2025", "date": DATE}
    one = counter_records.CounterRecord(Counted("steps/warps", "forward", p, (launch,)), **machine, digest=digest)
    monkeypatch.setattr(counter_records, "load", lambda: [one, replace(one, digest="0" * 12)])
    table = Ladder(["tiles", "warps"], p, steps.recorded(["tiles", "warps"]))
    (_, modelled, _), (name, intensity, rate) = table.points()
    assert name == "warps" and intensity == pytest.approx(flops / 260e6) and rate == 275e12 and modelled != intensity
    assert table["warps"].counted == launch and table["tiles"].counted is None and table.rows()[2][-2:] == ("260", "44%")


def test_the_counters_grid_of_the_ladder():
    parts = counter_records.ladder()
    assert [len(part) for part in parts] == [len(counters.STEPS)] * 2
    assert {(p.batch, p.heads, p.n_q, p.head_dim, p.causal) for part in parts for _, _, p in part} == {(4, 16, 4096, 64, True), (4, 16, 4096, 128, True)}
    assert counter_records.digest("steps/fit", "forward") and ladder.BESIDE == steps.BESIDE


def test_gains_of_both_head_dims_say_once_where_they_are_from(kept, capsys, monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    records.append(made("steps/tiles", 6.0, 64, LATER), kept / "nvidia-h200.jsonl")
    records.append(made("steps/warps", 5.0, 64, LATER), kept / "nvidia-h200.jsonl")
    assert steps.gains("warps") == {"head_dim 64": 1.2, "head_dim 128": 2.0}
    assert capsys.readouterr().out == "recorded on NVIDIA H200, 2026-11-30 (there is no GPU here)\n"
    assert steps.gains("fold") == {"head_dim 64": "not timed", "head_dim 128": "not timed"}


def test_the_figure_has_a_bar_for_each_step_and_a_line_for_sdpa(kept):
    figure = draw(Ladder(["tiles", "wide", "warps"], steps.problem(128), steps.recorded(["tiles", "wide", "warps"])))
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [275 / 2, 0, 275]
    assert [bool(bar.get_hatch()) for bar in axes.patches] == [False, True, False]  # `wide` was left
    assert [text.get_text() for text in axes.texts] == ["138", "not timed", "275"]
    assert axes.get_legend().get_texts()[0].get_text().endswith(": 183") and "H200" in axes.get_title()


def test_every_timed_step_is_a_mark_under_the_roof_and_losers_are_hollow(kept):
    table = Ladder(["tiles", "wide", "warps"], steps.problem(128), steps.recorded(["tiles", "wide", "warps"]))
    (axes,) = place(table).axes
    roof, *marks = axes.get_lines()
    assert roof.get_ydata().tolist()[1:] == [989.4, 989.4]  # an H200's
    expected = {name: (x, rate / 1e12) for name, x, rate in table.points() if rate}
    assert [(mark.get_xdata()[0], mark.get_ydata()[0]) for mark in marks] == list(expected.values()) and list(expected) == ["tiles", "warps"]
    assert all(mark.get_markerfacecolor() == mark.get_color() for mark in marks)
    assert {text.get_text() for text in axes.texts} >= {"tiles 138", "warps 275"}
    records.append(made("steps/wide", 4.0), kept / "nvidia-h200.jsonl")
    again = place(Ladder(["wide"], steps.problem(128), steps.recorded(["wide"]))).axes[0]
    assert again.get_lines()[1].get_markerfacecolor() == "white" != again.get_lines()[1].get_color()


def test_no_name_covers_the_mark_of_another_step(kept):
    """`all-heads` pays twice the DRAM bytes of `mixed` at nearly its rate: its mark lies where the name of `mixed` would."""
    times = {"flash1": 7.48, "stages": 0.802, "l2": 0.591, "all-heads": 0.603, "mixed": 0.618, "overlap": 0.683}
    table = Ladder(list(times), steps.problem(128), [made(f"steps/{name}", ms) for name, ms in times.items()])
    assert table.dram_bytes("all-heads") > 2 * table.dram_bytes("mixed")
    (axes,) = place(table).axes
    axes.figure.draw_without_rendering()
    marks = axes.transData.transform([(x, rate / 1e12) for _, x, rate in table.points()])
    covered = [text.get_text() for text in axes.texts if Text.get_window_extent(text).padded(4).count_contains(marks)]
    assert len(axes.texts) == 2 + len(times) and covered == []


def test_a_step_of_ones_own_joins_the_table_and_the_figures(kept, monkeypatch):
    from flashlab.kernels.steps import STEPS

    monkeypatch.setitem(STEPS, "mine", STEPS["l2"]._replace(name="mine", after="l2"))
    table = Ladder(["l2", "mine"], steps.problem(128), [made("steps/l2", 2.0), made("steps/mine", 1.0)])
    assert table.rows()[-1][5:] == ("2.00 l2", "–", "–", "–", "–", "–", "–") and [name for name, *_ in table.points()] == ["l2"]
    assert "mine" in repr(table) and len(draw(table).axes[0].patches) == 2 and place(table).axes


def test_names_at_one_height_are_spread_and_keep_their_order():
    placed = spread_out({"c": 100.0, "a": 99.0, "b": 99.5, "alone": 10.0})
    assert sorted(placed, key=placed.get) == ["alone", "a", "b", "c"] and placed["alone"] == pytest.approx(10)
    assert placed["b"] / placed["a"] == pytest.approx(APART) == placed["c"] / placed["b"] and placed["b"] == pytest.approx(99.5, rel=1e-3)


def test_what_the_parts_of_a_gpu_need_at_least():
    """At head_dim 64 powers of two take nearly as long as products, at 128 half as long; DRAM a fifth of either."""
    for head_dim, share in ((64, 0.924), (128, 0.462)):
        least = ladder.least_ms(steps.problem(head_dim))
        assert least["exponentials"] / least["tensor cores"] == pytest.approx(share, abs=1e-3)
        assert least["DRAM"] / least["tensor cores"] == pytest.approx(0.201, abs=1e-3)


def test_who_may_not_write_to_a_shared_installation_gets_a_file_of_their_own(kept, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cuda")
    for name, instead in (("compile_kinds", lambda *_: None), ("timed", lambda *_, **__: [made("steps/fold", 1.25)]), ("device_name", lambda device: "NVIDIA H200")):
        monkeypatch.setattr(steps, name, instead)
    before = (kept / "nvidia-h200.jsonl").read_text()
    monkeypatch.setattr(records.os, "access", lambda path, mode: False)
    monkeypatch.chdir(tmp_path)
    assert steps.run(device="cuda") == 0 and (kept / "nvidia-h200.jsonl").read_text() == before
    said = capsys.readouterr().out
    own = Path("steps", "nvidia-h200.jsonl")  # not where `flashlab bench forward` keeps its own: these are of another grid
    assert f"1 records were added to {own}" in said and "2.00 tiles" not in said.partition("added")[2] and "steps/fold, head_dim 128: 1.250 ms" in said and [one.time_ms for one in records.load(own)] == [1.25]
    monkeypatch.setattr(records.os, "access", lambda path, mode: True)
    assert steps.run(device="cuda") == 0 and (kept / "nvidia-h200.jsonl").read_text() != before


def test_the_command_shows_what_is_recorded_where_the_gpu_stays_taken_and_knows_its_gpus(kept, capsys, monkeypatch):
    def busy(*_, **__):
        raise error("gpu_busy", device="GPU-1", waited=5, ahead=1)
        yield

    monkeypatch.setattr(runtime, "device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, instead in (("compile_kinds", lambda *_: None), ("timed", busy), ("device_name", lambda device: "NVIDIA H200")):
        monkeypatch.setattr(steps, name, instead)
    assert cli.main(["bench", "steps", "--out", str(kept / "new" / "x.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "GPU-1 was still taken after 5 s" in said and "Recorded results instead:" in said and "2.00 tiles" in said
    assert cli.main(["bench", "steps", "--device", "cuda:3"]) == 2 and "cuda:3" in capsys.readouterr().err
