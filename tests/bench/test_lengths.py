"""lengths.py: lab 1's grid is nobody else's, a run keeps what is missing and why, and what the lab says of an H200 was recorded."""

import re
from pathlib import Path

import pytest
from length_runs import ALL, H200, made, made_run

from flashlab.bench import lengths, records, sweep
from flashlab.bench.peers import find
from flashlab.bench.derived import derive
from flashlab.bench.length_lab import side_by_side
from flashlab.bench.lengths import BATCHES, FLASH, MATH, NAMES, OURS, cpu_problems, decode_problems, extra_by_formula, problems, recorded
from flashlab.bench.records import Record, key_of, load
from flashlab.bench.sweep import GROWTH, Missing, grid, growth_problems
from flashlab.errors import ERRORS
from flashlab.hardware import gpu
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
        rows = p.batch * p.heads * p.n_q
        splits = 2 if one.kernel == FLASH and rows < 64 * gpu(H200).multiprocessors else 0  # of the keys: a float32 o and lse each
        assert one.extra_bytes == pytest.approx(extra_by_formula(one.kernel, p) + splits * rows * (p.head_dim + 1) * 4, rel=2e-4 if one.kernel == MATH else 0.05)


def test_what_is_said_of_a_single_query_was_recorded():
    said = re.search(r"For a single query it held\s*# (\d+) times that, twelve bytes an element of k", Path(lengths.__file__).read_text())
    found = [(one, one.batch * one.heads * one.n_k * one.head_dim) for one in load() if one.kernel == MATH and one.n_q == 1]
    formula = {one.batch: extra_by_formula(MATH, one) for one in decode_problems()}
    assert len(found) == len(BATCHES)
    for one, elements in found:
        assert round(one.extra_bytes / formula[one.batch]) == int(said[1]) and round(one.extra_bytes / elements) == 12


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
    assert run.speedup(512) is None and side_by_side([run], 512) == {"recorded on NVIDIA H200": "not timed"}


def test_the_newest_record_and_the_newest_device_count():
    old, other = made_run(), made_run(device="Tesla", date="2026-01-02T00:00:00+00:00")
    newer = made(problems()[0], FLASH, 4, date="2026-01-03T00:00:00+00:00")
    assert recorded(old + other).device == "Tesla" and recorded(other + old, H200).device == H200
    whole = made_run(date="2026-01-04T00:00:00+00:00")
    assert recorded([*whole, *old, newer]).cells[:3] == recorded(whole).cells[:3]
    assert recorded([newer, made(problems()[0], MATH, 12)]).speedup(512) is None  # a ratio stays within one run


def test_a_kernel_timed_again_alone_does_not_take_the_speedups_away():
    old, again = made_run(), [made(p, OURS, 0.5, date="2026-01-03T00:00:00+00:00") for p in ALL]
    run = recorded([*old, *again])
    assert run.cells == recorded(old).cells and sorted(map(repr, lengths.chosen([*old, *again]))) == sorted(map(repr, old))
    assert side_by_side([run], 512, kernel=OURS) == {"recorded on NVIDIA H200": 12}
    without = [one for one in old if one.kernel != OURS]
    both = recorded([*again, *without])
    assert both.cell(OURS, 512, 1) == again[0] and both.speedup(512, kernel=OURS) is None and both.speedup(512) == 6  # shown, and no ratio made of it


def test_other_peers_are_no_part_of_it():
    other = made(problems()[0], "sdpa-cudnn", 1, date="2026-01-09T00:00:00+00:00")
    assert lengths.on_grid([other]) == [] and recorded([*made_run(), other]).cells == recorded(made_run()).cells


@pytest.mark.parametrize("which", [{"kernel": "flash"}, {"over": "math"}])
def test_a_kernel_that_is_not_compared_is_named(which):
    for run, n in ((recorded(made_run()), 512), (recorded(made_run()), None), (lengths.Run("measured", "x", ()), None)):
        with pytest.raises(ERRORS["length_peer"][0]) as caught:
            side_by_side([run], n, **which)
        (given,) = which.values()
        assert str(caught.value) == f"lab 1 does not compare {given!r}; its table has a column for each of sdpa-math, sdpa-flash, triton. Pass one or more of these."


def test_a_device_that_has_no_records_is_told_which_have(capsys):
    assert recorded([*made_run(), *made_run(device="Tesla")], "h200") is None
    assert capsys.readouterr().out == "This grid has not been recorded on 'h200', only on NVIDIA H200, Tesla: pass such a name, or `flashlab bench lengths` there does it.\n"


def test_a_single_query_has_its_own_reason():
    run = recorded([one for one in made_run() if one.n_q > 1 or one.kernel != MATH])  # its math was not recorded, and math's prefill does not fit
    assert side_by_side([run], None, 4) == {"recorded on NVIDIA H200, 16,384 keys": "not timed"} and side_by_side([run], 16384, 4) == {"recorded on NVIDIA H200": "does not fit"}
    assert side_by_side([run], 16384, 4, kernel=MATH, over=FLASH) == {"recorded on NVIDIA H200": "does not fit"}


def test_speedups_by_hand():
    run = recorded(made_run())
    assert run.speedup(512) == 6 and run.speedup(4096, 16, kernel=OURS) == 12 and run.speedup(16384, 4, kernel=OURS, over=FLASH) == 2
    assert run.speedup(16384, 4) is None and run.speedup(16384, 4, queries=1) == 6 and run.decoded() == 16384
    assert side_by_side([run], 16384, 4) == {"recorded on NVIDIA H200": "does not fit"}
    assert side_by_side([run], None, 4, kernel=OURS) == {"recorded on NVIDIA H200, 16,384 keys": 12}
    assert run.lengths(4) == [512, 1024, 2048, 4096, 8192, 16384]


@pytest.mark.gpu
def test_a_real_cell_of_each_way_is_timed_and_holds_what_the_formula_says():
    found = list(sweep.sweep(problems((1,), (1024,)), "forward", find(NAMES), budget_ms=5))
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


def test_the_pages_numbers_of_decode_are_the_h200s(h200):
    said = " ".join((Path(__file__).parents[2] / "notebooks/labs/lab1_speedup_vs_length.md").read_text().split())
    one, four, many = (h200.cell(OURS, 16384, batch, queries=1) for batch in BATCHES)
    assert f"it takes {one.time_ms:.3f} ms with batch 1 and {four.time_ms:.3f} ms with batch 4, and is the slower of the two there." in said
    assert h200.speedup(16384, 1, kernel=OURS, over=FLASH, queries=1) < 1 and h200.speedup(16384, 4, kernel=OURS, over=FLASH, queries=1) < 1
    least_ms = 2 * 16 * 16 * 16384 * 64 * 2 / gpu(H200).hbm_bytes_per_s * 1e3
    assert f"{many.time_ms:.3f} ms, where reading k and v takes {least_ms:.3f} ms at the data sheet's rate." in said
    for batch, parts in ((1, 16), (4, 4)):
        assert h200.cell(FLASH, 16384, batch, queries=1).extra_bytes == pytest.approx(parts * batch * 16 * (64 + 1) * 4, abs=2048)
    ratios = [h200.speedup(n, batch) for batch in BATCHES for n in h200.lengths(batch) if batch * n >= 2048 and h200.speedup(n, batch)]
    assert "on the H200 between 13 and 21 for flash, once batch × n is 2,048" in said and 13 <= min(ratios) and max(ratios) <= 21


def test_on_an_h200_math_had_no_room_where_the_formula_says(h200):
    full = {(b, n) for b in BATCHES for n in h200.lengths(b) if lengths.too_large(h200.cell(MATH, n, b))}
    timed = {(b, n) for b in BATCHES for n in h200.lengths(b) if isinstance(h200.cell(MATH, n, b), Record)}
    assert full == {(4, 16384), (16, 8192), (16, 16384)} and len(timed) == 15
