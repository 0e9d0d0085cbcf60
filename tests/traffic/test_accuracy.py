"""accuracy.py: ratios, what is within the tolerance, and the table."""

from __future__ import annotations

import pytest

from flashlab.traffic.accuracy import accuracy
from flashlab.traffic.cache import DramTraffic


def record(read, written, kernel="forward_kernel", n=1024, head_dim=64):
    sizes = {"n": n, "head_dim": head_dim, "causal": False, "heads": 8, "batch": 1}
    return {"workload": "triton", "kernel": kernel, **sizes, "dram_bytes_read": read, "dram_bytes_written": written}


def model_of(read, written):
    dram = {("q", "read"): read, ("o", "written"): written}
    return DramTraffic("forward_kernel", {}, dram, {}, 100)


def test_the_accuracy_table():
    records = [record(100, 100), record(50, 0), record(0, 0), record(1000, 1, n=2048), record(1, 1, kernel="cublas")]
    models = {100: model_of(120, 70), 50: model_of(50, 10), 0: model_of(0, 0), 1000: model_of(905, 0)}
    table = accuracy(records, lambda r: models[r["dram_bytes_read"]] if r["kernel"] == "forward_kernel" else None)
    assert [case.moved for case in table] == [0.95, 1.2, 1.0, pytest.approx(905 / 1001)]
    assert (table[0].read, table[0].written) == (1.2, 0.7)
    assert (table[1].read, table[1].written) == (1.0, float("inf"))
    assert table.within() == 0.75 and table.within(0.01) == 0.25 and table.within(0.2) == 1
    assert [case.record["dram_bytes_read"] for case in table.misses()] == [50]
    lines = repr(table).splitlines()
    assert len(lines) == 6 and lines[-1] == "3 of 4 within 10% of the counters."
    assert lines[1].split() == ["forward_kernel", "1024", "64", "no", "8", "1", "0.0", "0.95", "1.20", "0.70"]
    assert len({line.index(word) + len(word) for line, word in zip(lines, ("written", "0.70"))}) == 1


def test_the_summary_has_a_line_for_each_kernel_and_head_dim():
    records = [record(100, 100), record(100, 0), record(100, 0, head_dim=128), record(100, 0, kernel="keys_kernel")]
    models = iter([model_of(104, 100), model_of(80, 0), model_of(100, 0), model_of(109, 0)])
    assert accuracy(records, lambda r: next(models)).summary().splitlines()[1:] == [
        "forward_kernel        64    0.80 to 1.02    0.80 to 1.04        1 of 2",
        "forward_kernel       128    1.00 to 1.00    1.00 to 1.00        1 of 1",
        "keys_kernel           64    1.09 to 1.09    1.09 to 1.09        1 of 1",
        "3 of 4 within 10% of the counters.",
    ]


def test_no_records_is_no_fault():
    assert accuracy([], model_of).within() == 1 and repr(accuracy([], model_of)).endswith("0 of 0 within 10% of the counters.")
