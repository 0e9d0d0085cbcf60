"""counter_records.py: lines go out and come back, stale ones say so, and a recording that was cut short goes on."""

import json
import re
from dataclasses import replace

import fake_ncu as fake
import pytest

from flashlab import provenance, runtime
from flashlab.driver import GpuFound
from flashlab.errors import ERRORS
from flashlab.problem import AttentionProblem
from flashlab.traffic import counter_records as records
from flashlab.traffic import counters, ncu
from flashlab.traffic.counter_records import CounterRecord, count_or_recall_many, digest, grid, held, load, measure_or_recall_many, recall, record, stale
from flashlab.traffic.launches import Counted, Uncounted, launch

PROBLEM = AttentionProblem(1024, 1024, 64, heads=16, dtype="bfloat16")
LAUNCHES = tuple(launch(row) for row in fake.rows([("forward_kernel", 512), ("other", 2)]))
MACHINE = {"device": "NVIDIA H200", "driver": "580.1", "torch": "2.11.0+cu130", "triton": "3.6.0", "ncu": "2025.3.1.0"}


def made(workload="triton", pass_="forward", problem=PROBLEM, date="2026-11-05T10:00:00+00:00", **changes):
    fields = {**MACHINE, "date": date, "digest": digest(workload, pass_), **changes}
    return CounterRecord(Counted(workload, pass_, problem, LAUNCHES), **fields)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RECORDED", tmp_path / "recorded")
    return tmp_path / "recorded"


# -- a record -----------------------------------------------------------------------------------------------------------
def test_a_record_has_the_fields_that_the_docstring_lists():
    given = json.loads(made().to_json())
    assert list(given) == re.search(r"A line: ([^(]+)", records.__doc__)[1].replace(",", " ").split() + [
        "device", "driver", "torch", "triton", "ncu", "date", "digest"
    ]  # fmt: skip
    assert (given["workload"], given["pass"], given["n_q"], given["causal"]) == ("triton", "forward", 1024, False)
    assert [one["kernel"] for one in given["launches"]] == ["forward_kernel", "other"]
    assert given["launches"][0]["dram_bytes_read"] == 12_648_448 and given["launches"][0]["grid"] == [512, 1, 1]


def test_lines_come_back_as_they_went(folder):
    one, two = made(), made("sdpa-math", problem=PROBLEM.with_(causal=True), digest=None)
    for each in (one, two):
        provenance.append(each.to_json(), folder / "nvidia-h200.jsonl")
    back = load()
    assert [(x.counted.workload, x.counted.launches, x.counted.problem, x.device, x.date) for x in back] == [
        (x.counted.workload, LAUNCHES, x.counted.problem, "NVIDIA H200", x.date) for x in (one, two)
    ]
    assert back[0].counted.where == "recorded on NVIDIA H200, 2026-11-05"
    assert back == load(folder / "nvidia-h200.jsonl") and [x.to_json() for x in back] == [x.to_json() for x in (one, two)]


@pytest.mark.parametrize(
    "line, why",
    [
        ("{", "Expecting"),
        ("[]", "list"),
        ('{"workload": "x"}', "batch"),
        (made().to_json().replace('"grid"', '"gird"', 1), "grid"),
        (made().to_json().replace('"bfloat16"', '"bf16"'), "dtype"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, why):
    path = tmp_path / "gpu.jsonl"
    path.write_text(f"{made().to_json()}\n{line}\n")
    with pytest.raises(ERRORS["not_a_record"][0], match=f"^{re.escape(str(path))}, line 2, is not a record: .*{why}"):
        load(path)


def test_what_is_recorded_in_the_repository_can_be_read():
    assert all(isinstance(one, CounterRecord) for one in load())


# -- digests --------------------------------------------------------------------------------------------------------------
def test_a_record_is_stale_when_the_code_behind_it_has_changed():
    assert not stale(made()) and stale(made(digest="0" * 12))
    assert "stale" in CounterRecord.from_json(made(digest="0" * 12).to_json()).counted.where
    assert not stale(made("sdpa-flash")) and digest("sdpa-flash", "forward") is None and digest("mine.py:f", "forward") is None
    assert digest("triton/fused", "backward") == digest("triton", "backward") != digest("triton", "forward")


def test_digests_of_the_older_kernels_follow_what_they_import(tmp_path):
    (tmp_path / "unfused.py").write_text("from flashlab.kernels.primitives import a\nfrom flashlab.kernels.api import _check\nX = 1\n")
    (tmp_path / "flash1.py").write_text("from flashlab.kernels import primitives\nfrom flashlab.kernels.unfused import checked\n")
    (tmp_path / "primitives.py").write_text("A = 1\n")
    (tmp_path / "api.py").write_text("B = 1\n")
    assert provenance.reached("unfused", tmp_path) == ("primitives", "unfused")
    assert provenance.reached("flash1", tmp_path) == ("flash1", "primitives", "unfused")
    assert provenance.reached("nobody", tmp_path) == ()
    before = digest("unfused", "forward", tmp_path), digest("flash1", "forward", tmp_path)
    (tmp_path / "primitives.py").write_text("A = 2\n")
    after = digest("unfused", "forward", tmp_path), digest("flash1", "forward", tmp_path)
    assert not set(before) & set(after) and len(set(after)) == 2
    (tmp_path / "api.py").write_text("B = 2\n")
    assert (digest("unfused", "forward", tmp_path), digest("flash1", "forward", tmp_path)) == after


# -- recalling --------------------------------------------------------------------------------------------------------------
def test_the_newest_record_of_a_problem_is_recalled():
    old, new = made(date="2026-01-01"), made(date="2026-02-01", device="another")
    others = [made(pass_="backward", date="2027"), made("flash1", date="2027"), made(problem=PROBLEM.with_(causal=True), date="2027")]
    assert recall("triton", PROBLEM, records=[new, old, *others]) == new
    assert recall("triton", PROBLEM.with_(scale=2.0), records=[old]) == old  # a scale moves no byte
    assert recall("triton", PROBLEM.with_(n_q=5), records=[old]) is None


def test_without_a_gpu_the_recorded_one_is_shown_and_says_why(folder, monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    with pytest.raises(ERRORS["count_recorded"][0]) as caught:
        measure_or_recall_many([("triton", "forward", PROBLEM)])
    assert str(caught.value).startswith("triton forward, n 1,024, head_dim 64, full was not counted here and is not recorded. Counting with")
    assert str(caught.value).endswith("Recorded are: none.")
    provenance.append(made().to_json(), folder / "gpu.jsonl")
    (one,) = measure_or_recall_many([("triton", "forward", PROBLEM)])
    assert one.launches == LAUNCHES
    assert one.where.startswith("recorded on NVIDIA H200, 2026-11-05; not counted here: Counting with Nsight Compute needs a CUDA GPU")
    with pytest.raises(LookupError, match="no workload is called 'tritn'"):
        measure_or_recall_many([("tritn", "forward", PROBLEM)])


def test_with_a_gpu_it_is_counted(monkeypatch):
    here = Counted("triton", "forward", PROBLEM, LAUNCHES, "counted here")
    monkeypatch.setattr(records, "count_many", lambda requests, **options: [here for _ in requests])
    assert measure_or_recall_many([("triton", "forward", PROBLEM)]) == [here]


def test_of_a_list_only_what_could_not_be_counted_is_recalled(folder, monkeypatch):
    here = Counted("triton", "forward", PROBLEM, LAUNCHES, "counted here")
    there = Uncounted("flash1", "forward", PROBLEM, "one call takes 9 s")
    asked = []
    monkeypatch.setattr(records, "count_many", lambda requests, **options: asked.append((requests, options)) or [here, there])
    requests = [("triton", "forward", PROBLEM), ("flash1", "forward", PROBLEM)]
    with pytest.raises(LookupError, match="^flash1 forward, n 1,024, head_dim 64, full was not counted here and is not recorded. one call takes 9 s"):
        measure_or_recall_many(requests)
    provenance.append(made("flash1").to_json(), folder / "gpu.jsonl")
    one, two = measure_or_recall_many(requests, budget_s=7)
    assert one.where == "counted here" and two.where == "recorded on NVIDIA H200, 2026-11-05; not counted here: one call takes 9 s"
    assert asked[-1] == (requests, {"budget_s": 7})
    nowhere = [*requests[:1], ("flash1", "forward", PROBLEM.with_(n_q=2048, n_k=2048))]
    there = Uncounted(*nowhere[1], "one call takes 9 s")
    assert count_or_recall_many(nowhere) == [here, there]  # what can be had neither way is told, not raised


def test_what_is_held_in_a_few_words():
    ones = [made(), made(problem=PROBLEM.with_(n_q=16, n_k=16)), made(problem=PROBLEM.with_(causal=True)), made("flash1")]
    assert held(ones) == "triton forward at n 16, 1,024; flash1 forward at n 1,024" and held([]) == "none"


# -- recording --------------------------------------------------------------------------------------------------------------
def test_the_grid_is_that_of_the_cache_models_check():
    first, second = grid()
    asked = first + second
    ours = {(w, p, x.n_q, x.head_dim, x.causal) for w, p, x in asked if w in ("unfused", "flash1", "triton")}
    passes = {("unfused", "forward"), ("flash1", "forward"), ("triton", "forward"), ("triton", "backward")}
    lengths = (1024, 2048, 4096, 8192, 16384)
    assert ours == {(*kernel, n, d, causal) for kernel in passes for n in lengths for d in (64, 128) for causal in (False, True)}
    others = {(w, x.n_q) for w, _, x in asked} - {(w, n) for w, _, n, _, _ in ours}
    assert others == {(w, 4096) for w in ("standard", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math")}
    assert len(asked) == len(set(asked)) == 100
    assert all((x.n_k, x.batch, x.heads, x.dtype) == (x.n_q, 1, 16, "bfloat16") for _, _, x in asked)
    assert {x.n_q for _, _, x in first} == {4096} and [x.n_q for _, _, x in second] == sorted(x.n_q for _, _, x in second)


@pytest.fixture
def gpu(folder, tmp_path, monkeypatch):
    """A GPU and an ncu that seem to be there."""
    monkeypatch.setattr(runtime, "need_gpu", lambda what: None)
    monkeypatch.setattr(runtime, "gpu_found", lambda: GpuFound(True, name="NVIDIA H200"))
    monkeypatch.setattr(provenance, "versions", lambda: {name: MACHINE[name] for name in ("driver", "torch", "triton")})
    return fake.install(tmp_path, monkeypatch, {})


def counter(monkeypatch, fails=(), stops=False):
    """Stands for count_many; returns what it was asked."""
    asked = []
    monkeypatch.setattr(records, "compile_kinds", lambda requests, seconds: asked.append(("compile", list(requests))))

    def count_many(requests, *, budget_s, compile_first, log, told):
        asked.append(("count", list(requests)))
        assert not compile_first
        if stops and len(asked) > 2:
            raise ERRORS["ncu_timeout"][0]("ncu had not ended")
        for number, (workload, pass_, problem) in enumerate(requests):
            if number in fails:
                yield Uncounted(workload, pass_, problem, "slow")
            else:
                yield Counted(workload, pass_, problem, LAUNCHES)

    monkeypatch.setattr(records, "count_many", count_many)
    return asked


def test_recording_goes_on_where_it_ended(gpu, folder, monkeypatch):
    asked = counter(monkeypatch, fails={3})
    path, added, missing = record(told=None)
    assert path == folder / "nvidia-h200.jsonl" and added == 98 and len(missing) == 2
    assert [(what, len(requests)) for what, requests in asked] == [("compile", 100), ("count", 36), ("count", 64)]
    (one, *_) = load(path)
    assert not stale(one) and {name: getattr(one, name) for name in MACHINE} == MACHINE
    assert one.date <= provenance.now() and len({each.date for each in load(path)}) <= 2  # one date a part
    asked.clear()
    assert record(told=None)[1:] == (2, [])  # what was missing is asked for again, and nothing else
    assert [(what, len(requests)) for what, requests in asked] == [("compile", 2), ("count", 1), ("count", 1)]
    asked.clear()
    assert record(told=None)[1:] == (0, []) and [requests for _, requests in asked] == [[], [], []]
    asked.clear()
    assert record(told=None, anew=True)[1] == 98 and [(what, len(requests)) for what, requests in asked][1:] == [("count", 36), ("count", 64)]


def test_a_part_that_fails_leaves_the_one_before_recorded(gpu, folder, monkeypatch):
    counter(monkeypatch, stops=True)
    with pytest.raises(RuntimeError, match="ncu had not ended"):
        record(told=None)
    assert len(load()) == 36


def test_records_of_other_code_or_versions_are_counted_again(gpu, folder, monkeypatch):
    first, second = grid()
    (workload, pass_, problem), *_ = first
    for changes in ({"digest": "0" * 12}, {"triton": "3.5"}, {"device": "another"}, {"ncu": "2020"}):
        provenance.append(replace(made(workload, pass_, problem), **changes).to_json(), folder / "nvidia-h200.jsonl")
    asked = counter(monkeypatch)
    record(told=None)
    assert (workload, pass_, problem) in asked[1][1]


def test_when_the_time_is_over_the_rest_is_named(gpu, monkeypatch):
    asked = counter(monkeypatch)
    path, added, missing = record(budget_s=records.LEAST_S - 1, told=None)
    assert added == 0 and len(missing) == 100 and {one.why for one in missing} == {"the time given was over"}
    assert [what for what, _ in asked] == ["compile"]


def test_recording_through_ncu_end_to_end(gpu, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "compile_kinds", lambda *arguments: None)
    monkeypatch.setattr(records, "grid", lambda: [[("triton", "forward", PROBLEM)], [("sdpa-math", "forward", PROBLEM)]])
    plans = [{"log": fake.table([(counters.MARKER, 1), (kernel, 7)]), "events": [fake.event(0)]} for kernel in "ab"]
    fake.install(tmp_path, monkeypatch, *plans)
    told = []
    path, added, missing = record(tmp_path / "out.jsonl", log=tmp_path / "log", told=told.append)
    assert (added, missing, len(told)) == (2, [], 2) and (tmp_path / "log").read_text().count("==PROF== Connected") == 2
    assert [[x.kernel for x in one.counted.launches] for one in load(path)] == [["a"], ["b"]]
    assert [one.digest is None for one in load(path)] == [False, True]


def test_without_a_gpu_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")
    with pytest.raises(ERRORS["no_gpu"][0], match="^Recording what the counters say needs a CUDA GPU"):
        record()
