"""hardware.py: the table against published numbers and against itself, spelling, the roofline on both sides of the ridge."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flashlab.hardware import GPUS, Gpu, estimated, gpu, roofline, this_gpu
from flashlab.problem import AttentionProblem
from flashlab.traffic.model import attention_flops, fused_traffic, standard_traffic

NVIDIA = [row for row in GPUS.values() if row.compute_capability]
each_gpu = pytest.mark.parametrize("row", GPUS.values(), ids=list(GPUS))
each_nvidia = pytest.mark.parametrize("row", NVIDIA, ids=[row.name for row in NVIDIA])

# Dense TFLOP/s as the vendor prints them (halved where it prints sparsity), and GB/s. Written a second time on purpose.
PUBLISHED = {
    "T4": (65, 320),
    "A10": (125, 600),
    "A100-40GB": (312, 1555),
    "A100-80GB": (312, 2039),
    "L4": (242 / 2, 300),
    "L40S": (362.05, 864),
    "RTX 3090": (71, 936),
    "RTX 4090": (330.3 / 2, 1008),  # the box says 330: accumulating in float16
    "RTX 5090": (419 / 2, 1792),
    "H100": (1979 / 2, 3350),
    "H200": (1979 / 2, 4800),
    "B200": (4500 / 2, 7700),
}


@pytest.mark.parametrize("warps, names", [(32, ["T4"]), (48, ["A10", "RTX 3090", "L4", "RTX 4090", "RTX 5090"]), (64, ["A100-40GB", "H100", "H200", "B200"])])
def test_warps_of_a_multiprocessor(warps, names):
    """CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": maximum number of resident warps."""
    assert {GPUS[name].warps for name in names} == {warps}


@pytest.mark.parametrize("capability, warps", [((7, 5), 32), ((8, 0), 64), ((8, 7), 48), ((9, 0), 64), ((10, 0), 64), ((12, 0), 48), ((12, 1), 48)])
def test_warps_are_the_architectures_also_where_the_table_has_no_such_gpu(capability, warps):
    assert replace(GPUS["H200"], compute_capability=capability).warps == warps


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rates(name):
    tflops, gb_per_s = PUBLISHED[name]
    assert GPUS[name].flops_per_s["float16"] == pytest.approx(tflops * 1e12, rel=0.002)
    assert GPUS[name].hbm_bytes_per_s == gb_per_s * 1e9


def test_every_gpu_named_in_the_course_is_there():
    assert set(GPUS) == {*PUBLISHED, "laptop CPU"}


@each_gpu
def test_every_entry_names_its_documents(row):
    assert row.sources
    for document, address in row.sources:
        assert len(document) > 5 and address.startswith("https://") and " " not in address


@each_nvidia
def test_float32_rate_is_lanes_times_clock(row):
    """Two FLOP a clock from each of 64 or 128 lanes: a typo in any of the three numbers shows here."""
    lanes = row.flops_per_s["float32"] / (2 * row.multiprocessors * row.boost_clock_hz)
    expected = 64 if row.compute_capability in ((7, 5), (8, 0)) else 128
    assert lanes == pytest.approx(expected, rel=0.01)


@each_nvidia
def test_tensor_rate_is_a_power_of_two_a_clock(row):
    """FLOP a clock and multiprocessor; Hopper and B200 lower the clock under tensor load, hence the 8 %."""
    expected = {(7, 5): 1024, (8, 0): 2048, (9, 0): 4096, (10, 0): 8192}.get(row.compute_capability, 1024)
    expected //= 2 if "GeForce" in row.product else 1
    per_clock = row.flops_per_s["float16"] / (row.multiprocessors * row.boost_clock_hz)
    assert 0.92 * expected < per_clock < 1.01 * expected


@each_nvidia
def test_other_dtypes(row):
    assert row.flops_per_s.get("bfloat16", row.flops_per_s["float16"]) == row.flops_per_s["float16"]
    assert ("bfloat16" in row.flops_per_s) == (row.compute_capability >= (8, 0))
    assert ("float8" in row.flops_per_s) == (row.compute_capability >= (8, 9))
    if "float8" in row.flops_per_s:
        assert row.flops_per_s["float8"] == pytest.approx(2 * row.flops_per_s["float16"], rel=0.02)
    half_rate = row.compute_capability in ((8, 0), (9, 0), (10, 0))
    ratio = row.flops_per_s["float32"] / row.flops_per_s["float64"]
    assert ratio == pytest.approx(2, rel=0.03) if half_rate else ratio > 30


@each_nvidia
def test_on_chip_sizes(row):
    per_multiprocessor = {(7, 5): 64, (8, 0): 164, (9, 0): 228, (10, 0): 228}.get(row.compute_capability, 100)
    assert row.registers_bytes == 262144
    assert row.sram_bytes == per_multiprocessor * 1024
    reserved = 0 if row.compute_capability == (7, 5) else 1024  # since Ampere, each block gives up 1 KiB
    assert row.sram_bytes_per_block == row.sram_bytes - reserved
    assert row.sram_bytes * row.multiprocessors < row.l2_bytes * 8 and row.l2_bytes < row.hbm_bytes


@each_gpu
def test_sram_is_several_times_faster_than_hbm(row):
    assert 4 < row.sram_to_hbm_ratio < 60
    assert row.sram_to_hbm_ratio == row.multiprocessors * row.sram_bytes_per_clock * row.boost_clock_hz / row.hbm_bytes_per_s


def test_sram_rates_by_hand():
    assert gpu("A100").sram_bytes_per_s == 108 * 128 * 1.41e9  # 19.5 TB/s, the number that papers quote
    assert gpu("T4").sram_bytes_per_s == 40 * 64 * 1.59e9  # Turing: half as wide
    assert gpu("H200").sram_to_hbm_ratio == pytest.approx(6.97, abs=0.01)


def test_ridge():
    assert gpu("H200").ridge("bfloat16") == pytest.approx(206, abs=0.5)
    assert gpu("A100-40GB").ridge("float16") == pytest.approx(200.6, abs=0.1)
    assert gpu("H100").ridge("float32") == pytest.approx(20, abs=0.1)


@each_gpu
def test_the_two_ceilings_meet_at_the_ridge(row):
    ridge, peak = row.ridge("float16"), row.flops_per_s["float16"]
    assert row.attainable_flops_per_s(ridge, "float16") == pytest.approx(peak)
    assert row.attainable_flops_per_s(ridge / 4, "float16") == pytest.approx(peak / 4)
    assert row.attainable_flops_per_s(ridge * 4, "float16") == peak


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("A100", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A10", "A10"),
        ("l40s", "L40S"),
        ("cpu", "laptop CPU"),
    ],
)
def test_spelling(spelling, name):
    assert gpu(spelling).name == name
    assert gpu(gpu(spelling)) is GPUS[name]


@pytest.mark.parametrize("name", ["NVIDIA A10G", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA L40", "H", "", "B20"])
def test_a_variant_is_not_taken_for_its_neighbour(name):
    with pytest.raises(KeyError, match="no GPU called .* in flashlab.hardware. Known: .*RTX 5090"):
        gpu(name)


def test_a_dtype_that_the_chip_lacks():
    with pytest.raises(ValueError, match="T4 has no data-sheet rate for 'bfloat16'.*float16, float32, float64"):
        gpu("T4").ridge("bfloat16")
    with pytest.raises(ValueError, match="bfloat16"):
        roofline(AttentionProblem(n_q=8, n_k=8, head_dim=8, dtype="bfloat16"), "T4")


# -- roofline() -------------------------------------------------------------------------------------------------------
def test_roofline_below_the_ridge():
    """One query against a long cache: about one FLOP a byte."""
    problem = AttentionProblem(n_q=1, n_k=8192, head_dim=128)
    bound = roofline(problem, "H200")
    assert bound.binds == "memory" and "memory-bound on H200" in repr(bound)
    assert bound.bytes_moved == 2 * 128 * (2 + 2 * 8192) and bound.flops == 4 * 8192 * 128
    assert bound.time_s == bound.memory_time_s == pytest.approx(bound.bytes_moved / 4.8e12)
    assert bound.attainable_flops_per_s == pytest.approx(bound.flops / bound.time_s)
    assert bound.attainable_flops_per_s < gpu("H200").flops_per_s["float16"] / 100


def test_roofline_above_the_ridge():
    problem = AttentionProblem(n_q=4096, n_k=4096, head_dim=128)
    bound = roofline(problem, "H200")
    assert bound.binds == "compute" and bound.intensity == 4096 / 2
    assert bound.time_s == bound.compute_time_s == pytest.approx(4 * 4096**2 * 128 / 989.4e12)
    assert bound.attainable_flops_per_s == 989.4e12


def test_roofline_of_given_bytes():
    problem = AttentionProblem(n_q=4096, n_k=4096, head_dim=128, batch=2, heads=4)
    moved = standard_traffic(problem).bytes_moved
    bound = roofline(problem, gpu("H200"), moved)
    assert bound.binds == "memory" and bound.bytes_moved == moved and bound.flops == attention_flops(problem)
    assert bound.intensity == pytest.approx(128 / 2 / (1 + 128 / 4096))
    assert roofline(problem, "H200").bytes_moved == fused_traffic(problem).bytes_moved
    with pytest.raises(ValueError, match="bytes_moved is -1"):
        roofline(problem, "H200", -1)


def test_roofline_of_nothing():
    bound = roofline(AttentionProblem(n_q=0, n_k=0, head_dim=64), "H200")
    assert bound.time_s == 0 and bound.intensity == float("inf")


# -- this_gpu() -------------------------------------------------------------------------------------------------------
def _properties(name: str, **changes) -> SimpleNamespace:
    known = {"major": 8, "minor": 9, "multi_processor_count": 64, "L2_cache_size": 2**25, "total_memory": 2**34}
    clocks = {"clock_rate": 2_520_000, "memory_clock_rate": 10_501_000, "memory_bus_width": 192}
    return SimpleNamespace(name=name, **(known | clocks | changes))


def _pretend(monkeypatch, properties) -> None:
    import torch

    monkeypatch.setattr("flashlab.runtime.device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def test_this_gpu_without_cuda(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # a GPU that flashlab does not use: too old, say
    monkeypatch.setattr("flashlab.runtime.device", lambda: "cpu")
    assert this_gpu() is GPUS["laptop CPU"] and "approximate" in this_gpu().note


def test_this_gpu_in_the_table(monkeypatch):
    _pretend(monkeypatch, _properties("NVIDIA H200"))
    assert this_gpu() is GPUS["H200"]


def test_this_gpu_not_in_the_table_is_an_estimate(monkeypatch):
    _pretend(monkeypatch, _properties("NVIDIA GeForce RTX 4070 Something"))
    found = this_gpu()
    assert isinstance(found, Gpu) and "estimated" in found.note and "RTX 4090" in found.note
    assert found.flops_per_s["float16"] == pytest.approx(165.2e12 / 2)  # half of its 128 multiprocessors, same clock
    assert found.hbm_bytes_per_s == pytest.approx(504e9, rel=0.001)
    assert found.sram_bytes == 100 * 1024 and found.l2_bytes == 2**25
    assert "L4" in estimated(_properties("NVIDIA RTX 6000 Ada Generation")).note  # not a GeForce: full tensor rate


def test_a_gpu_that_cannot_be_estimated():
    with pytest.raises(KeyError, match="GTX 1080"):
        estimated(_properties("NVIDIA GeForce GTX 1080", major=6, minor=1))


@pytest.mark.parametrize(
    "name, capability, like", [("NVIDIA B300", (10, 3), "B200"), ("NVIDIA GB10", (12, 1), "RTX 5090"), ("Orin", (8, 7), "A10"), ("Tesla V100", (7, 6), "T4")]
)
def test_a_newer_chip_is_estimated_from_the_nearest_older_one(name, capability, like):
    found = estimated(_properties(name, major=capability[0], minor=capability[1], memory_clock_rate=0))
    assert GPUS[like].product in found.note and found.hbm_bytes_per_s == GPUS[like].hbm_bytes_per_s


@pytest.mark.gpu
def test_this_gpu_agrees_with_cuda():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    properties, found = torch.cuda.get_device_properties(torch.cuda.current_device()), this_gpu()
    assert found.multiprocessors == properties.multi_processor_count
    assert found.compute_capability == (properties.major, properties.minor)
    assert found.l2_bytes == properties.L2_cache_size
    assert found.hbm_bytes == pytest.approx(properties.total_memory, rel=0.12)  # ECC and the driver take some
    assert found.sram_bytes == properties.shared_memory_per_multiprocessor


def test_hardware_imports_neither_torch_nor_matplotlib():
    code = "import sys, flashlab.hardware; print([m for m in ('torch', 'triton', 'matplotlib', 'anywidget') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
