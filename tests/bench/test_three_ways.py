"""three_ways.py: formula and trace are one number, each column holds what its name says, and what is missing is told."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "traffic"))
import fake_ncu as fake

from flashlab import runtime
from flashlab.bench import three_ways as module
from flashlab.bench.three_ways import TRACED, Bytes, Row, bytes_three_ways, predicted, row_of, three_ways
from flashlab.bench.three_ways_figure import BARS, look_of, recorded_bytes
from flashlab.bench.three_ways_table import ThreeWays
from flashlab.driver import GpuFound
from flashlab.hardware import gpu
from flashlab.problem import AttentionProblem
from flashlab.traffic import counter_records, counters
from flashlab.traffic.launches import Counted, Uncounted, launch
from flashlab.traffic.model import standard_traffic

PROBLEM = AttentionProblem(4096, 4096, 128, heads=16, dtype="bfloat16")
RECORDS = counter_records.load()
OURS = [
    one.counted
    for one in RECORDS
    if (one.counted.workload, one.counted.pass_) in TRACED and one.counted.problem.n_q <= 4096 and not counter_records.stale(one)
]
ROW = Row("triton", 30, Bytes(20, 10), Bytes(21, 10), Bytes(5, 3), Bytes(6, 2), 0.1, "NVIDIA H200", gpu("H200"), "measured: somewhere. More words")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cpu")


@pytest.mark.parametrize("one", OURS, ids=lambda one: f"{one.workload}-{one.pass_}-{one.problem.n_q}-{one.problem.head_dim}-{one.problem.causal}")
def test_formula_and_trace_are_equal_and_the_counters_near(one):
    """What the multiprocessors got and sent is what the formula says, to 2 percent, or 10 where flash1's tiles spill registers."""
    row = row_of(one, RECORDS)
    assert row.predicted_bytes == row.traced.moved
    assert row.measured_sm.moved == pytest.approx(row.traced.moved, rel=0.1 if one.workload == "flash1" else 0.02)
    assert row.measured_dram.moved <= row.measured_sm.moved


def test_there_is_something_to_compare():
    assert {(one.workload, one.pass_) for one in OURS} == set(TRACED)


def test_the_numbers_of_a_row_are_those_of_the_record():
    (row,) = three_ways(PROBLEM, ["triton"])
    (launch,) = counter_records.recall("triton", PROBLEM).counted.launches
    assert row.measured_sm == (launch.sm_bytes_read, launch.sm_bytes_written) and row.measured_dram == (launch.dram_bytes_read, launch.dram_bytes_written)
    assert row.time_ms == launch.time_ms and row.device == "NVIDIA H200" and row.gpu == gpu("H200") and row.where.startswith("measured: recorded on NVIDIA H200, ")
    tensor = 16 * 4096 * 128 * 2
    assert row.traced == (33 * 2 * tensor - tensor, tensor + 16 * 4096 * 4)  # q, and k and v for each of 32 tiles of 128 queries; o and lse
    assert 3 * tensor <= row.modelled_dram.read < row.traced.read


def test_torch_s_own_launches_are_left_out_and_said():
    table = three_ways(PROBLEM, ["flash1"])
    everything = counter_records.recall("flash1", PROBLEM).counted
    assert table[0].left_out == 3 and table[0].measured_dram.moved < everything.dram_bytes
    assert "flash1: without 3 launches of torch's own" in repr(table)


def test_other_people_s_kernels_have_what_was_measured_and_no_more():
    standard, flash = three_ways(PROBLEM, ["standard", "sdpa-flash"])
    assert standard.predicted_bytes == standard_traffic(PROBLEM).bytes_moved and standard.traced is standard.modelled_dram is None
    assert flash.predicted_bytes is None and flash.measured_dram.moved < 2**26 < flash.measured_sm.moved
    text = repr(three_ways(PROBLEM, ["standard", "sdpa-flash"]))
    assert "traced" not in text and "modelled" not in text and "2,214.6" in text and text.splitlines()[4].split()[1] == "-"


def test_the_backward_has_tiles_of_its_own_for_queries():
    row = row_of(next(one for one in OURS if one.pass_ == "backward" and one.problem == PROBLEM))
    assert row.predicted_bytes == row.traced.moved == predicted("triton", "backward", PROBLEM, gpu("H200")).bytes_moved
    (row,) = three_ways(PROBLEM.with_(head_dim=256), ["triton"], "backward")  # dk and dv apart
    assert row.traced is row.predicted_bytes is row.modelled_dram is None


def test_what_was_not_measured_is_modelled_as_on_an_h200_and_says_so():
    table = three_ways(PROBLEM.with_(n_q=512, n_k=512))
    assert all(row.traced and row.modelled_dram and row.measured_dram is row.measured_sm is None for row in table)
    assert repr(table).splitlines()[-1] == (
        "not measured: Counting with Nsight Compute needs a CUDA GPU that Triton can use; traced and modelled as on an H200, one program a multiprocessor"
    )
    assert "measured" not in repr(table).splitlines()[2]


def test_count_false_counts_nothing(monkeypatch):
    monkeypatch.setattr(module, "count_or_recall_many", lambda requests: pytest.fail("it counts"))
    table = three_ways(PROBLEM, count=False)
    assert [row.workload for row in table] == ["unfused", "flash1", "triton"] and all(row.measured_dram for row in table)
    assert three_ways(PROBLEM.with_(n_q=512), ["triton"], count=False)[0].where == "not measured: not recorded"


@pytest.mark.parametrize("count", [True, False])
def test_a_workload_or_a_pass_that_there_is_not_is_refused(count):
    with pytest.raises(LookupError, match="no workload is called 'nonsense'; there are: standard, "):
        three_ways(PROBLEM, ["triton", "nonsense"], count=count)
    with pytest.raises(LookupError, match="triton has no pass 'sideways' to count; it has: forward, backward"):
        three_ways(PROBLEM, ["triton"], "sideways", count=count)
    with pytest.raises(LookupError, match="flash1 has no pass 'backward'"):
        three_ways(PROBLEM, pass_="backward", workloads=["flash1"], count=count)


def test_one_workload_may_be_a_plain_string():
    assert [row.workload for row in three_ways(PROBLEM, "triton", count=False)] == ["triton"]


@pytest.mark.parametrize("count", [True, False])
def test_what_our_kernels_do_not_take_is_refused_before_anything_is_counted(monkeypatch, count):
    monkeypatch.setattr(module, "count_or_recall_many", lambda requests, **_: pytest.fail("it counts"))
    for workload, pass_ in TRACED:
        with pytest.raises(ValueError, match="head_dim is 512; the kernels take at most 256"):
            three_ways(PROBLEM.with_(head_dim=512), workload, pass_, count=count)
        with pytest.raises(ValueError, match="dtype is 'float64'; it must be one of float16, bfloat16, float32"):
            three_ways(PROBLEM.with_(dtype="float64"), workload, pass_, count=count)
    (standard,) = three_ways(PROBLEM.with_(head_dim=512, dtype="float64"), "standard", count=False)  # PyTorch's takes both
    assert standard.predicted_bytes and standard.traced is None


def test_with_a_gpu_that_counts_its_own_tiles_and_l2_are_taken(monkeypatch):
    monkeypatch.setattr(runtime, "device", lambda: "cuda")
    monkeypatch.setattr(runtime, "gpu_found", lambda: GpuFound(True, name="NVIDIA A100-SXM4-80GB"))
    monkeypatch.setattr(module, "this_gpu", lambda: gpu("A100-80GB"))
    monkeypatch.setattr(module, "turn", nullcontext)  # which would ask CUDA for the GPU's own name
    launches = tuple(launch(row) for row in fake.rows([("forward_kernel", 512)]))
    here = Counted("triton", "forward", PROBLEM, launches, "counted here, on the NVIDIA A100-SXM4-80GB")
    monkeypatch.setattr(counter_records, "count_many", lambda requests, **options: [here])
    (row,) = three_ways(PROBLEM, ["triton"])
    assert (row.device, row.where) == ("NVIDIA A100-SXM4-80GB", "measured: counted here, on the NVIDIA A100-SXM4-80GB")
    assert row.measured_dram == (launches[0].dram_bytes_read, launches[0].dram_bytes_written)
    assert row.predicted_bytes == row.traced.moved == predicted("triton", "forward", PROBLEM, gpu("A100-80GB")).bytes_moved


def test_a_launch_without_a_counter_has_no_number():
    one = counter_records.recall("unfused", PROBLEM).counted
    first, *others = one.launches
    row = row_of(replace(one, launches=(replace(first, sm_bytes_read=None), *others)))
    assert row.measured_sm is None and row.measured_dram


@pytest.mark.parametrize("workloads, text", [(["tritn"], "no workload is called 'tritn'"), (["flash1"], "flash1 has no pass 'backward'")])
def test_what_there_is_not_is_told(workloads, text):
    with pytest.raises(LookupError, match=text):
        three_ways(PROBLEM, workloads, "backward")


# -- the table ---------------------------------------------------------------------------------------------------------------
def table(*rows):
    return ThreeWays(rows, PROBLEM, "forward")


def test_the_table_keeps_what_is_asked_for_and_dram_apart():
    big = Row("unfused", *(None,) * 3, None, Bytes(5_000_000, 2_500_000), 0.1, "NVIDIA H200", gpu("H200"), "measured: elsewhere", 2)
    one = replace(ROW, predicted_bytes=31_000_000, traced=Bytes(20_000_000, 10_000_000), measured_sm=None)
    assert repr(table(one, big)) == (
        "forward, n 4,096, head_dim 128, full, batch 1, 16 heads, bfloat16; q, k, v and o once are 67.1 MB\n"
        "          asked for (MB)       DRAM (MB)\n"
        "workload  predicted  traced    modelled  measured  read  written\n"
        "triton         31.0    30.0         0.0       0.0   0.0      0.0\n"
        "unfused           -       -           -       7.5   5.0      2.5\n"
        "predicted and traced differ: triton\n"
        "triton: measured: somewhere\n"
        "unfused: measured: elsewhere\n"
        "unfused: without 2 launches of torch's own"
    )


def test_html_has_the_same_cells():
    html = table(replace(ROW, workload="<a>"))._repr_html_()
    assert html.count("<td") == 1 + 7 and html.count("<tr>") == 3 and "&lt;a&gt;" in html and "<a>" not in html
    assert '<th colspan="3" style="text-align: center">asked for (MB)</th><th colspan="4"' in html
    assert "predicted and traced agree to the byte<br>measured: somewhere</p>" in html


# -- the figure --------------------------------------------------------------------------------------------------------------
def widths(figure):
    return [round(bar.get_width() * 1e6) for bar in figure.axes[0].patches]


def test_bars_are_the_numbers_of_the_table():
    figure = table(ROW, replace(ROW, workload="sdpa-cudnn", predicted_bytes=None, traced=None, modelled_dram=None)).figure()
    assert widths(figure) == [30, 30, 31, 5, 3, 6, 2, 31, 6, 2]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == [name for name, _, _ in BARS] + ["asked for, counters", "DRAM, counters"]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "flashlab, Triton" in texts and "torch SDPA, cuDNN" in texts and figure.axes[0].get_xlabel().startswith("MB")
    hatched = [bar for bar in figure.axes[0].patches if bar.get_hatch()]
    assert [round(bar.get_width() * 1e6) for bar in hatched] == [3, 2, 2]  # written: by more than colour
    assert look_of(replace(ROW, workload="mine.py:f")).label == "mine.py:f"


def test_the_figure_of_a_problem_is_that_of_its_table():
    assert widths(bytes_three_ways(PROBLEM, ["triton"])) == widths(three_ways(PROBLEM, ["triton"]).figure())


def test_the_gallery_s_figure_counts_nothing_and_is_of_one_device(monkeypatch):
    monkeypatch.setattr(counters, "count_many", lambda *given, **options: pytest.fail("it counts"))
    assert recorded_bytes("NVIDIA H200", "backward").axes[0].get_title() == "backward, n 4,096, head_dim 128, full, 16 heads: NVIDIA H200"
    for device, head_dim, those in (("Tesla", 128, "NVIDIA H200"), ("NVIDIA H200", 256, "none")):
        with pytest.raises(LookupError, match=f"counter records of {device}, head_dim {head_dim}, full, of one device; there are those of {those}"):
            recorded_bytes(device, "backward", head_dim=head_dim)


def test_uncounted_says_why():
    assert row_of(Uncounted("sdpa-flash", "forward", PROBLEM, "no permission")).where == "not measured: no permission"
