"""tiles_taken.py chooses what the launchers choose, and what a formula predicts with it is what such a launch moves."""

from __future__ import annotations

from flashlab import runtime  # before triton

import pytest
import torch

from flashlab.bench.three_ways import predicted, row_of
from flashlab.bench.tiles_taken import blocks, heads_taken, tile_taken
from flashlab.hardware import GPUS, gpu
from flashlab.kernels import flash1, tiles, unfused
from flashlab.problem import AttentionProblem
from flashlab.traffic.interpreter import trace
from flashlab.traffic.launches import Uncounted
from flashlab.traffic.triton_hooks import launches

CARDS = [name for name, row in GPUS.items() if row.compute_capability and row.compute_capability >= (8, 0)]


@pytest.fixture
def on(monkeypatch):
    """on(gpu): the launchers look up their tiles as on that GPU."""

    def pretend(row):
        major, minor = row.compute_capability
        for module in (tiles, unfused):
            monkeypatch.setattr(module, "architecture", lambda device: 10 * major + minor)
        monkeypatch.setattr(tiles, "shared_memory", lambda device: row.sram_bytes_per_block)

    return pretend


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
def test_a_launcher_takes_the_same_tile(on, name, dtype, head_dim):
    on(gpu(name))
    for n, causal in ((1024, True), (1024, False), (4096, True)):
        problem = AttentionProblem(n, n, head_dim, heads=4, kv_heads=2, causal=causal, dtype=dtype)
        q, k = (torch.empty(1, heads, n, head_dim, dtype=getattr(torch, dtype), device="meta") for heads in (4, 2))
        backward = tiles.backward_tiles(q)
        launched = {
            "forward_kernel": tiles.forward_tile(q, n, causal),
            "flash1_kernel": flash1.tile_of(q),
            **dict(zip(("scores_kernel", "product_kernel"), unfused.tiles_of(q))),
            "delta_kernel": backward.delta,
            "keys_kernel": backward.keys[0] if len(backward.keys) == 1 else None,
            "queries_kernel": backward.queries,
            "softmax_kernel": None,
        }
        assert {kernel: tile_taken(kernel, problem, gpu(name)) for kernel in launched} == launched
        assert heads_taken(problem) == tiles.heads_at_once(k) and heads_taken(problem, of_queries=True) == tiles.heads_at_once(q, 2)


def test_what_no_kernel_of_ours_takes_has_no_tile():
    large, double = AttentionProblem(64, 64, 512), AttentionProblem(64, 64, 64, dtype="float64")
    for kernel in ("forward_kernel", "keys_kernel", "scores_kernel", "flash1_kernel"):
        with pytest.raises(ValueError) as caught:
            tile_taken(kernel, large, gpu("H200"))
        assert str(caught.value) == "head_dim is 512; the kernels take at most 256. Split the heads into smaller ones."
        with pytest.raises(ValueError) as caught:
            tile_taken(kernel, double, gpu("H200"))
        assert str(caught.value).startswith("dtype is 'float64'; it must be one of float16, bfloat16, float32.")
    assert tile_taken("somebody_else_s", large, gpu("H200")) is tile_taken("somebody_else_s", double, gpu("H200")) is None


def row(workload, problem, name, monkeypatch, pass_="forward"):
    """What three_ways says of a workload that nobody counted, on this GPU."""
    monkeypatch.setattr("flashlab.bench.three_ways._gpu_of", lambda one, records: (name, gpu(name)))
    return row_of(Uncounted(workload, pass_, problem, "no counters"))


@pytest.mark.parametrize(
    "workload, pass_, problem, name, moved",
    [
        ("flash1", "forward", AttentionProblem(1024, 1024, 64, heads=16, dtype="float32"), "H200", 423_755_776),  # 32 x 32, not 128 x 128
        ("unfused", "forward", AttentionProblem(512, 1024, 64, heads=2, dtype="float32"), "H200", None),
        ("triton", "forward", AttentionProblem(512, 1024, 64, heads=2, dtype="float32"), "A100-80GB", None),
        ("triton", "backward", AttentionProblem(512, 512, 128, heads=2, dtype="float32"), "H200", None),
        ("triton", "forward", AttentionProblem(4096, 4096, 64, heads=32, causal=True, dtype="bfloat16"), "RTX 5090", 587_726_848),  # sm_80's
        ("triton", "backward", AttentionProblem(1024, 1024, 64, heads=2, causal=True, dtype="bfloat16"), "RTX 5090", None),
    ],
)
def test_predicted_is_traced_with_the_tiles_that_run(workload, pass_, problem, name, moved, monkeypatch):
    one = row(workload, problem, name, monkeypatch, pass_)
    assert one.predicted_bytes == one.traced.moved and moved in (None, one.predicted_bytes)


def ran(call):
    """The bytes that the launches in call() move, by the tracer, kernel by kernel."""
    found = {}
    with launches(lambda one: found.update({one.kernel.__name__: trace(one.kernel, one.grid, *one.args, **one.meta)})):
        call()
    return sum(one.bytes_loaded + one.bytes_stored for one in found.values())


def test_a_float32_launch_moves_what_is_predicted(monkeypatch):
    """The kernels themselves, traced, with the tiles that they take for float32 on a GPU."""
    problem = AttentionProblem(70, 90, 16, heads=2, causal=True, dtype="float32")
    q, k, v = problem.tensors(device=runtime.device())
    tile = tile_taken("flash1_kernel", problem, gpu("H200"))
    assert blocks(tile) == {"block_q": 32, "block_k": 32}
    assert ran(lambda: flash1.flash1(q, k, v, causal=True, tile=tile)) == predicted("flash1", "forward", problem, gpu("H200")).bytes_moved
    two = tuple(tile_taken(kernel, problem, gpu("H200")) for kernel in ("scores_kernel", "product_kernel"))
    assert ran(lambda: unfused.unfused(q, k, v, causal=True, tiles=two)) == predicted("unfused", "forward", problem, gpu("H200")).bytes_moved
