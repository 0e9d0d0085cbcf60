"""report.py: the mean by hand, the goals beside it, and what is stale, missing or incomplete said."""

from dataclasses import replace

import pytest

from flashlab.bench.ceilings import Ceilings
from flashlab.bench.records import digest, record
from flashlab.bench.report import GOALS, MEAN_CELLS, fastest, geometric_mean, growth_table, means, report, shares, table
from flashlab.bench.sweep import grid
from flashlab.bench.timing import Timing

DATE = "2026-01-02T03:04:05+00:00"


def run(times, pass_="forward", head_dims=(128,), **changes):
    """One record for each cell and each kernel of {kernel: a time, or a function of the problem that gives one}."""
    made = []
    for problem in grid(head_dims):
        for kernel, time in times.items():
            ms = time(problem) if callable(time) else time
            one = record(kernel, pass_, problem, Timing(ms, ms, ms, 5, ""), date=DATE, device="cpu")
            made.append(replace(one, device="NVIDIA H200", driver="1", torch="2", triton="3", **changes))
    return made


def test_the_geometric_mean_by_hand():
    made = run({"triton": 1.0, "sdpa-flash": lambda p: 8.0 if p.causal else 2.0})
    assert geometric_mean(made, "triton", "sdpa-flash", 128) == (pytest.approx(4.0), MEAN_CELLS, False)  # √(8 · 2)
    once = run({"triton": 1.0, "sdpa-flash": lambda p: 2.0**10 if p.n_q == 1024 and p.causal else 1.0})
    assert geometric_mean(once, "triton", "sdpa-flash", 128).ratio == pytest.approx(2.0)  # the tenth root of 2¹⁰


def test_the_mean_leaves_out_what_is_not_its_own():
    made = run({"triton": 1.0, "sdpa-flash": lambda p: 99.0 if p.n_q == 512 or p.head_dim == 64 else 3.0}, head_dims=(64, 128))
    assert geometric_mean(made, "triton", "sdpa-flash", 128).ratio == pytest.approx(3.0)
    assert geometric_mean(made, "triton", "sdpa-cudnn", 128) is None
    another_run = [replace(one, date="2027") for one in made if one.kernel == "triton"]
    assert geometric_mean(another_run + made[1::2], "triton", "sdpa-flash", 128) is None


def test_goals_are_those_of_the_issue():
    assert GOALS["forward"] == {"sdpa-flash": {64: 1.6, 128: 1.6, 256: 1.4}, "sdpa-cudnn": {64: 1.0, 128: 0.9}}
    assert GOALS["backward"] == {"sdpa-flash": {64: 1.25, 128: 1.4, 256: 1.0}}


def test_goals_stand_beside_the_means_with_their_outcome():
    text = report(run({"triton": 1.0, "sdpa-flash": 1.6, "sdpa-cudnn": 0.8, "sdpa-math": 9.0}), "forward")
    line = text.splitlines()[-1].split("  ")
    assert [part.strip() for part in line if part] == ["128", "triton", "1.60 (goal 1.60: met)", "0.80 (goal 0.90: missed)", "9.00"]
    assert "geometric mean over n = 1,024 to 16,384, full and causal" in text and "*" not in text


def test_the_faster_variant_is_named_and_the_goal_is_its():
    made = run({"triton": 1.0, "triton/fused": lambda p: 0.5 if p.head_dim == 64 else 2.0, "sdpa-flash": 1.5}, "backward", (64, 128))
    assert [fastest(made, ["triton", "triton/fused"], d) for d in (64, 128)] == ["triton/fused", "triton"]
    lines = [" ".join(line.split()) for line in means(made).splitlines()[2:]]
    assert lines == [
        "64 triton 1.50",
        "64 triton/fused (the faster) 3.00 (goal 1.25: met)",
        "128 triton (the faster) 1.50 (goal 1.40: met)",
        "128 triton/fused 0.75",
    ]


@pytest.mark.parametrize("ratio, text", [(1.599, "1.599"), (1.5999, "1.5999"), (1.599996, "1.599996"), (1.58, "1.58")])
def test_a_missed_goal_looks_missed(ratio, text):
    assert f" {text} (goal 1.60: missed)" in means(run({"triton": 1.0, "sdpa-flash": ratio}))


def test_an_incomplete_mean_says_so():
    made = [one for one in run({"triton": 1.0, "sdpa-flash": 2.0}) if one.n_q > 4096]
    assert "2.00 [4 of 10 cells] (goal 1.60: met)" in means(made)


def test_what_is_stale_is_shown_as_stale():
    made = run({"triton": 1.0, "sdpa-flash": 2.0}, digest="0" * 12)
    others = [replace(one, digest=None) if one.kernel == "sdpa-flash" else one for one in made]
    text = report(others, "forward")
    assert "2.00* (goal 1.60: met)" in text and text.endswith("measure again with flashlab bench.")
    row = next(line for line in text.splitlines() if line.startswith("128")).split()
    assert row[-2].endswith("*") and not row[-1].endswith("*")
    assert "*" not in report([replace(one, digest=digest("forward")) for one in made], "forward")


def test_the_table_has_a_line_for_each_cell_and_a_dash_for_what_is_missing():
    made = run({"triton": 1.0, "sdpa-flash": 2.0}, head_dims=(64, 256))
    lines = table(made[:-1]).splitlines()
    assert lines[0] == "forward, TFLOP/s, NVIDIA H200, recorded on 2026-01-02 (torch 2, Triton 3, driver 1)"
    assert lines[1].split() == ["head_dim", "mask", "n", "batch", "triton", "sdpa-flash"]
    assert len(lines) == 2 + 24 and lines[2].split() == ["64", "full", "512", "32", "69", "34"]  # 4·32·32·512²·64 FLOP in 1 ms
    assert lines[-1].split()[:4] == ["256", "causal", "16,384", "1"] and lines[-1].endswith("-")


def test_each_device_has_its_own_table():
    made = run({"triton": 1.0, "sdpa-flash": 2.0})
    text = report(made + [replace(one, device="Tesla", time_ms=1.0) for one in made], "forward")
    assert text.count("TFLOP/s, ") == 2 and "1.00 (goal 1.60: missed)" in text and "2.00 (goal 1.60: met)" in text


def test_nothing_recorded_is_said():
    made = run({"triton": 1.0})
    assert report(made, "backward") == "backward: nothing recorded on the grid."
    assert means(made) == "" and report(made, "forward") == table(made)
    assert growth_table(made, "forward") == "forward: no growing sequence recorded."


def test_growth_stands_beside_its_factors():
    first = replace(run({"triton": 1.0})[0], batch=1, heads=16, head_dim=128, n_q=1024, n_k=1024, time_ms=1.5, extra_bytes=1000)
    second = replace(first, n_q=2048, n_k=2048, time_ms=6.0, extra_bytes=2000)
    title, _, one, two = growth_table([second, first], "forward").splitlines()
    assert title == "forward, one sequence of n, 16 heads, head_dim 128, NVIDIA H200, recorded on 2026-01-02"
    assert one.split() == ["triton", "1,024", "1.500", "1,000"] and two.split() == ["triton", "2,048", "6.000", "4.00", "2,000", "2.00"]
    fourfold = replace(first, n_q=4096, n_k=4096, time_ms=24.0, extra_bytes=4000)  # 2,048 is in the other half of --part
    *_, line, note = growth_table([first, fourfold], "forward").splitlines()
    assert line.split() == ["triton", "4,096", "24.000", "4.00", "4,000", "2.00"] and note.startswith("factor: of each doubling")
    stale = growth_table([replace(second, digest="0"), first], "forward")
    assert "triton*" in stale and stale.endswith("measure again with flashlab bench.")


def test_shares_stand_in_a_table_with_noise_marked():
    steady, noisy = run({"triton": 1.0})[0], replace(run({"triton": 1.0})[1], p20_ms=0.9, p80_ms=1.1, extra_bytes=2**30)
    ceilings = Ceilings("NVIDIA H200", "bfloat16", bytes_per_s=4e12, flops_per_s=5e14)
    title, head, one, two, note = shares([steady, noisy], {"NVIDIA H200": ceilings}).splitlines()
    assert head.split()[:5] == ["kernel", "mask", "head_dim", "n", "ms"] and head.endswith("of roofline  of matmul  of copy  peak GiB  spread")
    assert one.split() == ["triton", "full", "128", "512", "1.000", "69", "268", "6.9%", "14%", "6.7%", "-", "0.0%"]
    assert two.split()[-2:] == ["1.25", "20%!"] and note == "! noisy: p20 to p80 is more than 10% of the median."
    assert title == "NVIDIA H200, beside what is possible there" and "noisy" not in shares([steady]) and shares([]) == ""


def test_shares_of_two_devices_are_two_tables_each_beside_its_own_ceilings():
    here = run({"triton": 1.0})[0]
    there = replace(here, device="NVIDIA A100-SXM4-80GB")
    ceilings = {one.device: Ceilings(one.device, "bfloat16", 4e12, flops) for one, flops in ((here, 5e14), (there, 2.5e14))}
    texts = shares([here, there], ceilings).split("\n\n")
    assert [text.splitlines()[0].partition(",")[0] for text in texts] == [here.device, there.device]
    assert [text.splitlines()[-1].split()[8] for text in texts] == ["14%", "27%"]
