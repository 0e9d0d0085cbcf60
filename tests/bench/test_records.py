"""records.py: lines go out and come back, digests follow code and nothing else, and a ratio stays within one run."""

import ast
import datetime
import json
import os
import re
from dataclasses import replace

import pytest

from flashlab import provenance
from flashlab.bench import records
from flashlab.bench.records import KERNELS, SOURCES, Record, append, digest, growing, latest, load, on_grid, pairs, path_for, record, stale, to_resume
from flashlab.bench.timing import Timing
from flashlab.errors import ERRORS
from flashlab.problem import AttentionProblem

PROBLEM = AttentionProblem(1024, 1024, 64, batch=16, heads=32, dtype="bfloat16")
TIMING = Timing(2.0, 1.9, 2.2, 30, "a GPU")
ONE = record("triton", "forward", PROBLEM, TIMING, date="2026-01-01T00:00:00+00:00", device="cpu", extra_bytes=7)


# -- a record -----------------------------------------------------------------------------------------------------------
def test_a_record_has_the_fields_of_the_contract():
    given = json.loads(ONE.to_json())
    problem, times = "kernel pass dtype batch heads kv_heads n_q n_k head_dim causal", "time_ms p20_ms p80_ms tflops extra_bytes"
    assert list(given) == f"{problem} {times} device driver torch triton date digest".split()
    assert [given[name] for name in ("pass", "dtype", "heads", "time_ms", "p20_ms", "p80_ms")] == ["forward", "bfloat16", 32, 2, 1.9, 2.2]
    assert all(isinstance(given[name], str) and given[name] for name in ("device", "driver", "torch", "triton", "digest"))


def test_tflops_by_hand():
    flops = 4 * 16 * 32 * 1024 * 1024 * 64
    assert ONE.tflops == pytest.approx(flops / 2e-3 / 1e12)
    causal = record("triton", "backward", PROBLEM.with_(causal=True), TIMING, date="", device="cpu")
    assert causal.tflops == pytest.approx(2.5 * flops / 2 * (1025 / 1024) / 2e-3 / 1e12)


def test_lines_come_back_as_they_went(tmp_path):
    path = tmp_path / "new" / "gpu.jsonl"
    two = replace(ONE, kernel="sdpa-flash", digest=None, extra_bytes=None)
    append(ONE, path)
    append(two, path)
    assert load(path) == [ONE, two]


@pytest.mark.parametrize(
    "line, why", [("{", "Expecting"), ("[]", "list"), ('{"kernel": "x"}', "batch, "), (ONE.to_json()[:-1] + ', "colour": 1}', "colour")]
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, why):
    path = tmp_path / "gpu.jsonl"
    path.write_text(f"{ONE.to_json()}\n{line}\n")
    text = f"^{re.escape(str(path))}, line 2, is not a record: .*{why}.*\\. Delete the line or measure again\\.$"
    with pytest.raises(ERRORS["not_a_record"][0], match=text):
        load(path)


@pytest.mark.parametrize(
    "name, value, why",
    [
        ("time_ms", None, "time_ms is None, which is no float"),
        ("time_ms", "0.1", "time_ms is '0.1', which is no float"),
        ("time_ms", True, "time_ms is True, which is no float"),
        ("time_ms", 0.0, "time_ms is 0.0, which is no number above 0"),
        ("p20_ms", -1, "p20_ms is -1, which is no number above 0"),
        ("p80_ms", float("inf"), "p80_ms is inf, which is no number above 0"),
        ("tflops", float("nan"), "tflops is nan, which is no number above 0"),
        ("n_q", 512.0, "n_q is 512.0, which is no int"),
        ("batch", False, "batch is False, which is no int"),
        ("causal", 1, "causal is 1, which is no bool"),
        ("date", None, "date is None, which is no str"),
        ("extra_bytes", "7", "extra_bytes is '7', which is no int or None"),
        ("budget_ms", [], "budget_ms is [], which is no float or None"),
        ("pass", "sideways", "pass is 'sideways', which is none of forward, backward"),
    ],
)
def test_what_no_clock_can_have_told_is_named(tmp_path, name, value, why):
    path = tmp_path / "gpu.jsonl"
    path.write_text(f"{ONE.to_json()}\n{json.dumps({**json.loads(ONE.to_json()), name: value})}\n")
    with pytest.raises(ERRORS["not_a_record"][0]) as caught:
        load(path)
    assert str(caught.value) == f"{path}, line 2, is not a record: {why}. Delete the line or measure again."


def test_without_a_path_every_recorded_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RECORDED", tmp_path / "recorded")
    assert load() == []
    assert path_for("NVIDIA H200") == tmp_path / "recorded" / "nvidia-h200.jsonl"
    assert path_for("CPU (2 threads)").name == "cpu-2-threads.jsonl"
    for name in ("NVIDIA H200", "Tesla"):
        append(replace(ONE, device=name), path_for(name))
    assert [one.device for one in load()] == ["NVIDIA H200", "Tesla"]


def test_what_is_recorded_in_the_repository_can_be_read():
    assert all(isinstance(one, Record) for one in load())


# -- digests --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def kernels(tmp_path):
    """A copy of the kernels' folder."""
    for path in KERNELS.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    return tmp_path


def change(folder, name, old, new):
    path = folder / f"{name}.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))


def test_comments_docstrings_and_layout_change_no_digest(kernels):
    before = digest("forward", kernels), digest("backward", kernels)
    assert before == (digest("forward"), digest("backward")) and before[0] != before[1]
    for name in SOURCES["backward"]:
        tree = ast.parse((kernels / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) and len(node.body) > 1:
                node.body[0].value.value = "Another text."
        (kernels / f"{name}.py").write_text("# A comment.\n\n" + ast.unparse(tree))  # unparse drops comments and lays lines out anew
    assert digest("backward", kernels) == before[1]


def test_code_changes_its_digest(kernels):
    forward, backward = digest("forward", kernels), digest("backward", kernels)
    change(kernels, "backward", "fused=False", "fused=True")
    assert digest("forward", kernels) == forward and digest("backward", kernels) != backward
    change(kernels, "tiles", "Tile(128, 64, 8, 2)", "Tile(128, 64, 8, 3)")
    assert digest("forward", kernels) != forward


@pytest.mark.parametrize("pass_", SOURCES)
def test_the_digest_covers_every_module_that_the_kernel_is_made_of(pass_):
    reached, todo = set(), [pass_]
    while todo:
        name = todo.pop()
        reached.add(name)
        imported = re.findall(r"from flashlab\.kernels(?:\.(\w+))? import (\w+)", (KERNELS / f"{name}.py").read_text())
        todo += [found for found in (module or what for module, what in imported) if found not in reached]
    assert reached <= set(SOURCES[pass_])


def test_only_our_records_grow_stale():
    assert not stale(ONE)
    assert stale(replace(ONE, digest="0" * 12)) and stale(replace(ONE, pass_="backward"))
    assert record("triton/fused", "backward", PROBLEM, TIMING, date="", device="cpu").digest == digest("backward")
    assert record("sdpa-math", "forward", PROBLEM, TIMING, date="", device="cpu").digest is None
    assert not stale(replace(ONE, kernel="sdpa-math", digest=None))


# -- which of them --------------------------------------------------------------------------------------------------------
def day(number, **changes):
    return replace(ONE, date=f"2026-01-{number:02}T00:00:00+00:00", **changes)


def test_the_latest_of_each_kernel_problem_and_device():
    kept = [day(2), day(1, causal=True), day(1, kernel="sdpa-math"), day(1, device="another"), day(1, pass_="backward")]
    assert latest([day(1), *kept, day(1)]) == kept


def test_a_ratio_stays_within_one_run():
    flash = {"kernel": "sdpa-flash"}
    both = [day(1), day(1, **flash), day(2, time_ms=1.0), day(2, time_ms=4.0, **flash)]
    alone = [day(3, time_ms=9.0), day(4, **flash)]
    assert [(a.time_ms, b.time_ms) for a, b in pairs(alone + both, "triton", "sdpa-flash")] == [(1, 4)]
    assert pairs(alone, "triton", "sdpa-flash") == []


def test_the_grid_and_the_growing_sequence_are_told_apart():
    one = {"batch": 1, "heads": 16, "head_dim": 128}
    line = [replace(ONE, n_q=n, n_k=n, **one) for n in (2048, 1024)]
    other = [replace(ONE, kernel="sdpa-math", n_q=16384, n_k=16384, **one), replace(ONE, n_q=512, n_k=512, **one, extra_bytes=None)]
    assert on_grid([ONE, *line]) == [ONE]
    assert growing([ONE, *line, *other], "forward") == {"triton": line[::-1]}
    assert growing(line, "backward") == growing(line, "forward", causal=True) == {}


def test_a_growing_sequence_is_of_one_run_whatever_was_timed_of_it_since():
    """The grid shares one length with it: timed anew, that one would stand between two lengths of another run."""
    run = [replace(ONE, batch=1, n_q=n, n_k=n, extra_bytes=4 * n, date="2026-01-01") for n in (8, 16, 32)]
    shared, shorter = replace(run[1], date="2026-01-02"), [replace(one, date="2026-01-03") for one in run[:2]]
    found = {"heads": ONE.heads, "head_dim": ONE.head_dim}
    assert growing([*run, shared, *shorter], "forward", **found) == {"triton": run}
    again = [replace(one, date="2026-01-04") for one in run]
    assert growing([*again, *run], "forward", **found) == {"triton": again}


def test_an_interrupted_run_is_found_again(monkeypatch):
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    earlier = replace(ONE, date=f"{today}T00:00:00+00:00")
    newest = replace(ONE, date=f"{today}T00:00:01+00:00")
    cells = [("triton", PROBLEM), ("sdpa-math", PROBLEM)]
    others = [
        replace(newest, device="another"), replace(newest, torch="0"), replace(newest, driver="0"), replace(newest, triton="0"),
        replace(newest, digest="0" * 12), replace(newest, causal=True), replace(newest, pass_="backward"), replace(newest, kernel="flex"),
        replace(newest, date="2020-01-01T00:00:00+00:00"),
    ]  # fmt: skip
    assert to_resume([earlier, newest, *others], "forward", cells, "cpu") == [newest]  # of one run, the newest
    assert to_resume(others, "forward", cells, "cpu") == []
    both = [newest, replace(newest, kernel="sdpa-math", digest=None)]
    assert to_resume(both, "forward", cells, "cpu") == both and to_resume(both, "forward", [], "cpu") == []


def test_a_later_run_that_shares_a_cell_hides_none(monkeypatch):
    """`flashlab bench growth` times one cell of the grid, too: resuming the grid goes on with the grid's run."""
    today = provenance.now()[:10]
    problems = [PROBLEM, PROBLEM.with_(n_q=2048, n_k=2048), PROBLEM.with_(n_q=4096, n_k=4096)]
    grid = [record("triton", "forward", p, TIMING, date=f"{today}T00:00:01+00:00", device="cpu") for p in problems[:2]]
    growth = record("triton", "forward", problems[2], TIMING, date=f"{today}T00:00:02+00:00", device="cpu")
    assert to_resume([*grid, growth], "forward", [("triton", p) for p in problems], "cpu") == grid
    assert to_resume([growth], "forward", [("triton", p) for p in problems], "cpu") == []


def test_a_quicker_runs_cells_are_not_taken_as_done(monkeypatch):
    """--quick repeats a kernel for half as long as the whole grid does: its numbers are not the whole grid's."""
    today = provenance.now()
    unknown, quick, whole = (replace(ONE, date=today, budget_ms=given) for given in (None, 30, 60))
    for had, budget_ms, done in ((quick, 60, []), (unknown, 60, []), (whole, 60, [whole]), (quick, 30, [quick]), (whole, 30, [whole])):
        assert to_resume([had], "forward", [("triton", PROBLEM)], "cpu", budget_ms) == done
    later = replace(quick, date=f"{today[:10]}T23:59:59+00:00")  # a later run, which timed less, hides none before it
    assert to_resume([whole, later], "forward", [("triton", PROBLEM)], "cpu", 60) == [whole]


def test_a_record_keeps_its_budget_and_an_old_line_stays_as_it_is():
    one = record("triton", "forward", PROBLEM, TIMING, date="", device="cpu", budget_ms=0)
    assert json.loads(one.to_json())["budget_ms"] == 0 and Record.from_json(one.to_json()) == one
    lines = [line for file in records.RECORDED.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) > 400 and all(Record.from_json(line).to_json() == line for line in lines)


def test_a_file_of_ones_own_where_this_one_may_not_be_written(tmp_path, monkeypatch):
    path = tmp_path / "recorded" / "new" / "gpu.jsonl"
    assert records.own_file(path) == path  # folders are made
    allowed = {tmp_path}
    monkeypatch.setattr(records.os, "access", lambda where, mode: where in allowed)
    assert records.own_file(path) == path and records.own_file(tmp_path / "gpu.jsonl") == tmp_path / "gpu.jsonl"
    (tmp_path / "gpu.jsonl").touch()
    assert records.own_file(tmp_path / "gpu.jsonl").parts == ("gpu.jsonl",)  # another's file in a folder that all may write to
    allowed.clear()
    assert records.own_file(path).parts == ("gpu.jsonl",) and records.own_file(path, "steps").parts == ("steps", "gpu.jsonl")


def test_the_version_of_a_package_is_kept_where_there_is_one():
    assert "package" not in json.loads(ONE.to_json()) and Record.from_json(ONE.to_json()).package is None
    one = record("flash-attn", "forward", PROBLEM, TIMING, date="", device="cpu", package="2.8")
    assert json.loads(one.to_json())["package"] == "2.8" and Record.from_json(one.to_json()) == one
