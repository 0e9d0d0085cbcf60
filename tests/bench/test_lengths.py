"""lengths.py: lab 1's grid is nobody else's, a run keeps what is missing and why, and what the lab says of an H200 was recorded."""

import pytest
from length_runs import ALL, H200, made, made_run

from flashlab import runtime
from flashlab.bench import lengths, records
from flashlab.bench.derived import derive
from flashlab.bench.lengths import BATCHES, FLASH, MATH, NAMES, OURS, Run, cpu_problems, decode_problems, extra_by_formula, problems, recorded
from flashlab.bench.records import Record, key_of, load
from flashlab.bench.sweep import GROWTH, Missing, grid, growth_problems
from flashlab.errors import error
from flashlab.problem import AttentionProblem

# -- the grid -------------------------------------------------------------------------------------------------------------
def test_the_grid_is_the_issues():
    assert {(p.batch, p.n_q) for p in problems()} == {(b, n) for b in (1, 4, 16) for n in (512, 1024, 2048, 4096, 8192, 16384)}
    assert {(p.n_q, p.n_k, p.batch) for p in decode_problems()} == {(1, 16384, b) for b in BATCHES}
    assert all((p.heads, p.kv_heads, p.head_dim, p.causal, p.dtype) == (16, 16, 64, False, "bfloat16") for p in ALL)
    assert len(ALL) == len(set(map(repr, ALL)))


def test_its_records_are_in_no_other_table():
    mine = {key_of("forward", p) for p in ALL}
    assert not mine & {key_of("forward", p) for p in [*grid(), *growth_problems(GROWTH)]}
    found = made_run()
    assert records.on_grid(found) == [] and records.growing(found, "forward") == {}
    assert lengths.on_grid([*found, made(grid((64,))[0], FLASH, 1)]) == found


def test_a_cpu_gets_both_named_lengths_and_few_scores():
    small = cpu_problems()
    assert {512, 4096} <= {p.n_q for p in small if p.batch == 1} and {p.batch for p in small} == set(BATCHES)
    assert all(p.batch * p.n_q * p.n_k <= 4096**2 and p.dtype == "float32" and p.heads == 2 for p in small)
    assert [(p.n_q, p.n_k, p.batch) for p in small if p.n_q == 1] == [(1, 2048, 1)]


def test_the_formula_of_extra_memory_is_what_was_recorded():
    cells = [one for one in load() if one.kernel in NAMES and one.pass_ == "forward" and not one.causal and one.n_q == one.n_k and one.extra_bytes]
    assert {one.kernel for one in cells} == set(NAMES)
    for one in cells:
        p = AttentionProblem(one.n_q, one.n_k, one.head_dim, batch=one.batch, heads=one.heads, dtype=one.dtype)
        assert one.extra_bytes == pytest.approx(extra_by_formula(one.kernel, p), rel=2e-4 if one.kernel == MATH else 0.05)


# -- a run ----------------------------------------------------------------------------------------------------------------
def test_a_recorded_run_has_every_cell_and_says_what_had_no_room():
    run = recorded(made_run())
    assert (run.how, run.device, len(run.cells)) == ("recorded", H200, 3 * len(ALL)) and run.title == "recorded on NVIDIA H200, 2026-01-01"
    absent = {(lengths.sizes(one)[0], lengths.sizes(one)[2]): one for one in run.cells if isinstance(one, Missing)}
    assert set(absent) == {(4, 16384), (16, 8192), (16, 16384)} and all(map(lengths.too_large, absent.values()))
    assert absent[16, 8192].why == "out of memory: it needs about 158 GB, and there are 151"


def test_what_fits_and_is_not_there_was_not_recorded():
    one = problems()[0]
    run = recorded([made(one, FLASH, 1)])
    missing = run.cell(MATH, 512, 1)
    assert missing.why == "not recorded" and not lengths.too_large(missing)
    assert run.speedup(512) is None and lengths.side_by_side([run], 512) == {"recorded on NVIDIA H200": "not timed"}


def test_the_newest_record_and_the_newest_device_count():
    old, other = made_run(), made_run(device="Tesla", date="2026-01-02T00:00:00+00:00")
    newer = made(problems()[0], FLASH, 4, date="2026-01-03T00:00:00+00:00")
    assert recorded(old + other).device == "Tesla" and recorded(other + old, H200).device == H200
    assert recorded([*old, newer]).cell(FLASH, 512, 1) == newer
    assert recorded([*old, newer]).speedup(512) is None  # a ratio stays within one run
    assert recorded([*old, newer]).speedup(1024) == 6


def test_speedups_by_hand():
    run = recorded(made_run())
    assert run.speedup(512) == 6 and run.speedup(4096, 16, kernel=OURS) == 12 and run.speedup(16384, 4, kernel=OURS, over=FLASH) == 2
    assert run.speedup(16384, 4) is None and run.speedup(16384, 4, queries=1) == 6 and run.decoded() == 16384
    assert lengths.side_by_side([run], 16384, 4) == {"recorded on NVIDIA H200": "does not fit"}
    assert lengths.side_by_side([run], None, 4, kernel=OURS) == {"recorded on NVIDIA H200": 12}
    assert run.lengths(4) == [512, 1024, 2048, 4096, 8192, 16384]


def test_the_table_has_a_row_for_each_problem_and_says_why_cells_are_missing(monkeypatch):
    monkeypatch.setattr(lengths, "stale", lambda one: one.kernel == OURS)
    lines = lengths.table(recorded([*made_run(), made(problems()[1], FLASH, 4, low=0.8)])).splitlines()
    assert lines[0] == "recorded on NVIDIA H200, 2026-01-01" and lines[1].split()[:2] == ["batch", "n"]
    assert lines[2].split() == ["1", "512", "12.000", "2.000", "1.000*", "6.0", "×", "12.0", "×", "0.045", "0.033"]
    assert lines[3].split()[3] == "4.000!"
    assert [line.split()[:4] for line in lines if "no room" in line] == [["4", "16,384", "no", "room"], ["16", "8,192", "no", "room"], ["16", "16,384", "no", "room"]]
    assert lines[-6].split()[:4] == ["16", "1", "to", "16,384"]
    assert lines[-5] == "sdpa-math: batch 4, n 16,384: out of memory: it needs about 156 GB, and there are 151"
    assert lines[-2].startswith("* stale") and lines[-1].startswith("! noisy: p20 to p80 is more than 10%")


def test_the_report_has_a_table_for_each_device():
    assert lengths.report([]) == "lengths: nothing recorded."
    text = lengths.report([*made_run(), *made_run(device="Tesla")])
    assert text.count("recorded on") == 2 and "recorded on Tesla" in text


# -- measured or recorded -------------------------------------------------------------------------------------------------
@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Sets the device and what the sweep gives; returns what the sweep was asked for."""
    monkeypatch.setattr(records, "RECORDED", tmp_path)
    asked = []

    def put(device, fault=None):
        def sweep(todo, pass_, chosen, **options):
            asked.append((list(todo), pass_, [one.name for one in chosen], options))
            if fault:
                raise fault
            where = H200 if device == "cuda" else "CPU (2 threads)"
            yield from (
                Missing(one.name, pass_, p, "out of memory, asking for 64 GiB") if (one.name, p.n_k, p.n_q, p.batch) == (MATH, 16384, 16384, 16) else made(p, one.name, 2.0, device=where)
                for p in todo
                for one in chosen
            )

        monkeypatch.setattr(runtime, "device", lambda: device)
        monkeypatch.setattr(lengths, "sweep", sweep)
        return asked

    return put


def test_on_a_gpu_all_three_are_timed_and_no_record_is_needed(machine, capsys):
    asked = machine("cuda")
    run = lengths.measured()
    assert asked[0][0] == ALL and sorted(asked[0][2]) == sorted(NAMES) and (run.how, run.device) == ("measured", H200)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1 + len(ALL) + 1 and printed.endswith("sdpa-math: batch 16, n 16,384: out of memory, asking for 64 GiB\n")
    assert lengths.with_recorded(run) == [run] and lengths.side_by_side([run], 16384, 16) == {"measured on NVIDIA H200": "does not fit"}


def test_a_cpu_times_sdpa_and_says_what_is_not_timed_and_not_recorded(machine, capsys):
    asked = machine("cpu")
    run = lengths.measured()
    assert asked[0][0] == cpu_problems() and sorted(asked[0][2]) == [FLASH, MATH]
    assert "our Triton kernel is not timed here" in capsys.readouterr().out
    assert lengths.with_recorded(run) == [run] and "has not been recorded on a GPU yet: `flashlab bench lengths`" in capsys.readouterr().out
    assert lengths.side_by_side([run], 4096, 1, kernel=OURS, over=FLASH) == {"measured on CPU (2 threads)": "not timed"}


def test_a_cpu_has_what_was_recorded_beside_it(machine, capsys, tmp_path):
    machine("cpu")
    for one in made_run():
        records.append(one, tmp_path / "x.jsonl")
    here, beside = lengths.with_recorded(lengths.measured())
    assert (here.how, beside.how) == ("measured", "recorded") and "recorded on NVIDIA H200" in capsys.readouterr().out
    assert lengths.side_by_side([here, beside], 512) == {"measured on CPU (2 threads)": 1, "recorded on NVIDIA H200": 6}
    assert lengths.side_by_side([here, beside], None) == {"measured on CPU (2 threads)": 1, "recorded on NVIDIA H200": 6}


def test_a_gpu_that_stays_taken_gives_the_recorded_run_or_nothing(machine, capsys, tmp_path):
    machine("cuda", error("gpu_busy", device="GPU-1", waited=5, ahead=1))
    assert lengths.measured() == Run("recorded", "no machine yet", ())
    assert "GPU-1 was still taken" in capsys.readouterr().out
    for one in made_run():
        records.append(one, tmp_path / "x.jsonl")
    assert lengths.measured().device == H200


@pytest.mark.gpu
def test_a_real_cell_of_each_way_is_timed_and_holds_what_the_formula_says():
    found = list(lengths.sweep(problems((1,), (1024,)), "forward", lengths.peers.find(NAMES), budget_ms=5))
    assert all(isinstance(one, Record) for one in found), found
    for one in found:
        assert one.extra_bytes == pytest.approx(extra_by_formula(one.kernel, problems((1,), (1024,))[0]), rel=0.1)


# -- what the lab and its page say of an H200 ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def h200():
    run = recorded(load(), H200)
    if run is None:
        pytest.skip("LAB 1 IS NOT RECORDED: run `flashlab bench lengths` on an H200; until then what the lab says of it is held by nothing")
    return run


def test_an_h200_gains_less_with_short_sequences_and_small_batches(h200):
    assert h200.speedup(512, 1) < h200.speedup(4096, 1) and h200.speedup(512, 1) < h200.speedup(512, 16)
    assert h200.speedup(512, 1, kernel=OURS) < h200.speedup(4096, 1, kernel=OURS)


def test_at_512_most_of_flashs_time_on_an_h200_is_fixed_cost(h200):
    assert derive(h200.cell(FLASH, 512, 1)).roofline_share < 0.5


def test_on_an_h200_one_query_gains_less_than_prefill(h200):
    assert h200.speedup(16384, 1, queries=1) < h200.speedup(16384, 1)


def test_on_an_h200_math_had_no_room_where_the_formula_says(h200):
    full = {(b, n) for b in BATCHES for n in h200.lengths(b) if lengths.too_large(h200.cell(MATH, n, b))}
    timed = {(b, n) for b in BATCHES for n in h200.lengths(b) if isinstance(h200.cell(MATH, n, b), Record)}
    assert full == {(4, 16384), (16, 8192), (16, 16384)} and len(timed) == 15
