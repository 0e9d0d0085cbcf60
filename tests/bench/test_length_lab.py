"""length_lab.py: rows as they are timed, what is missing with its reason, recorded beside measured, and said to be."""

import pytest
from length_runs import ALL, H200, made, made_run

from flashlab import runtime
from flashlab.bench import length_lab, records
from flashlab.bench.lengths import FLASH, MATH, NAMES, OURS, Run, cpu_problems, problems, recorded
from flashlab.bench.sweep import Missing
from flashlab.errors import error


def test_the_table_has_a_row_for_each_problem_and_says_why_cells_are_missing(monkeypatch):
    monkeypatch.setattr(length_lab, "stale", lambda one: one.kernel == OURS)
    lines = length_lab.table(recorded([*made_run(), made(problems()[1], FLASH, 4, low=0.8)])).splitlines()
    assert lines[0] == "recorded on NVIDIA H200, 2026-01-01" and lines[1].split()[:2] == ["batch", "n"]
    assert lines[2].split() == ["1", "512", "12.000", "2.000", "1.000*", "6.0", "×", "12.0", "×", "0.045", "0.033"]
    assert lines[3].split()[3] == "4.000!"
    assert [line.split()[:4] for line in lines if "no room" in line] == [["4", "16,384", "no", "room"], ["16", "8,192", "no", "room"], ["16", "16,384", "no", "room"]]
    assert lines[-6].split()[:4] == ["16", "1", "to", "16,384"]
    assert lines[-5] == "sdpa-math: batch 4, n 16,384: out of memory: it needs about 156 GB, and there are 151"
    assert lines[-2].startswith("* stale") and lines[-1].startswith("! noisy: p20 to p80 is more than 10%")


def test_the_report_has_a_table_for_each_device():
    assert length_lab.report([]) == "lengths: nothing recorded."
    text = length_lab.report([*made_run(), *made_run(device="Tesla")])
    assert text.count("recorded on") == 2 and "recorded on Tesla" in text
    assert length_lab.report([made(problems()[0], "sdpa-cudnn", 1)]) == "lengths: nothing recorded."


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
        monkeypatch.setattr(length_lab, "sweep", sweep)
        return asked

    return put


def test_on_a_gpu_all_three_are_timed_and_no_record_is_needed(machine, capsys):
    asked = machine("cuda")
    run = length_lab.measured()
    assert asked[0][0] == ALL and sorted(asked[0][2]) == sorted(NAMES) and (run.how, run.device) == ("measured", H200)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1 + len(ALL) + 1 and printed.endswith("sdpa-math: batch 16, n 16,384: out of memory, asking for 64 GiB\n")
    assert length_lab.with_recorded(run) == [run] and length_lab.side_by_side([run], 16384, 16) == {"measured on NVIDIA H200": "does not fit"}


def test_a_cpu_times_sdpa_and_says_what_is_not_timed_and_not_recorded(machine, capsys):
    asked = machine("cpu")
    run = length_lab.measured()
    assert asked[0][0] == cpu_problems() and sorted(asked[0][2]) == [FLASH, MATH]
    assert "our Triton kernel is not timed here" in capsys.readouterr().out
    assert length_lab.with_recorded(run) == [run] and "has not been recorded on a GPU yet: `flashlab bench lengths`" in capsys.readouterr().out
    assert length_lab.side_by_side([run], 4096, 1, kernel=OURS, over=FLASH) == {"measured on CPU (2 threads)": "not timed"}


def test_a_cpu_has_what_was_recorded_beside_it(machine, capsys, tmp_path):
    machine("cpu")
    for one in made_run():
        records.append(one, tmp_path / "x.jsonl")
    here, beside = length_lab.with_recorded(length_lab.measured())
    assert (here.how, beside.how) == ("measured", "recorded") and "recorded on NVIDIA H200" in capsys.readouterr().out
    assert length_lab.side_by_side([here, beside], 512) == {"measured on CPU (2 threads)": 1, "recorded on NVIDIA H200": 6}
    assert length_lab.side_by_side([here, beside], None) == {"measured on CPU (2 threads), 2,048 keys": 1, "recorded on NVIDIA H200, 16,384 keys": 6}


def test_a_gpu_that_stays_taken_gives_the_recorded_run_or_nothing(machine, capsys, tmp_path):
    machine("cuda", error("gpu_busy", device="GPU-1", waited=5, ahead=1))
    nothing = length_lab.measured()
    assert nothing == Run("recorded", "no machine yet", ()) and length_lab.with_recorded(nothing) == []
    assert "GPU-1 was still taken" in capsys.readouterr().out and length_lab.side_by_side([], 512) == {}
    for one in made_run():
        records.append(one, tmp_path / "x.jsonl")
    assert length_lab.measured().device == H200 and "recorded on NVIDIA H200, 2026-01-01\nbatch" in capsys.readouterr().out
