"""Each schedule is the traced kernel's own, event by event, at sizes small enough to interpret."""

from __future__ import annotations

import time

from flashlab import runtime  # before triton

import numpy as np
import pytest
import torch

from flashlab.kernels import backward as backward_file
from flashlab.kernels import masks
from flashlab.kernels.flash1 import flash1 as flash1_of_triton
from flashlab.kernels.forward import forward
from flashlab.kernels.masks import Mask, decode
from flashlab.kernels.tiles import BackwardTiles, Tile
from flashlab.kernels.unfused import unfused
from flashlab.problem import AttentionProblem
from flashlab.reference.flash1 import flash1
from flashlab.traffic import schedule as schedules
from flashlab.traffic.interpreter import trace
from flashlab.traffic.memory import Memory
from flashlab.traffic.model import flash1_traffic, fused_traffic, standard_traffic
from flashlab.traffic.triton_hooks import launches

DEVICE = runtime.device()
WARPS = 2  # of nobody else's tile: a launch whose compiled kernel is already known passes the hooks by
PROMISED = ("program", "op", "tensor", "batch", "head", "row0", "col0", "rows", "cols", "bytes")

SIZES = {
    "even": ({"n_q": 64, "n_k": 64, "head_dim": 16, "batch": 2}, (16, 16), 8),
    "ragged": ({"n_q": 37, "n_k": 53, "head_dim": 20, "heads": 4, "kv_heads": 2, "dtype": "float32"}, (16, 32), 3),
    "few_keys": ({"n_q": 53, "n_k": 20, "head_dim": 8, "heads": 3, "kv_heads": 1}, (32, 16), 1),
    "wide_tiles": ({"n_q": 70, "n_k": 70, "head_dim": 16, "heads": 2, "batch": 2}, (16, 64), 3),
    "one_key_of_a_tile": ({"n_q": 48, "n_k": 65, "head_dim": 16}, (16, 16), 1),  # causal: a tile's last query sees one more tile's first key
}
each_size = pytest.mark.parametrize("sizes, blocks, at_once", SIZES.values(), ids=SIZES)
each_mask = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def events(one) -> list[tuple]:
    """What a schedule promises of a trace: all but compute events and bytes_requested, with names for tensors."""
    columns = one.select("load", "store", "atomic")
    names = np.array(one.tensor_names)[columns["tensor"]]
    return list(zip(names.tolist(), *(columns[name].tolist() for name in PROMISED if name != "tensor")))


def recorded(problem, block_q, block_k, at_once, *, overlap=False, fused=None, apart=False):
    """[Trace] of the launches of the forward pass, or of the backward pass where `fused` is given; `at_once` is put in their place."""
    functions, params = decode(*(masks.causal() if problem.causal else Mask()).encode())
    q, k, v = problem.tensors(device=DEVICE)
    tile, traces = Tile(block_q, block_k, WARPS, 1, overlap=overlap), []

    def follow(launch):
        args, parameters = list(launch.args), launch.kernel.arg_names
        if "at_once" in parameters:
            args[parameters.index("at_once")] = at_once
        traces.append(trace(launch.kernel, launch.grid, *args, **launch.meta))

    with launches(follow):
        o, lse = forward(q, k, v, functions, params, problem.scale, tile=tile)
        if fused is not None:
            traces.clear()
            tiles = BackwardTiles(tile, (tile, tile) if apart else (tile,), tile, tile)
            backward_file.backward(q, k, v, o, lse, torch.ones_like(q), None, functions, params, problem.scale, fused=fused, tiles=tiles)
    return traces


def same(scheduled, traced):
    """Hold the two equal: title, tensors, and every event that moves bytes."""
    assert scheduled.title == traced.title
    assert scheduled.tensors.items() <= traced.tensors.items()
    mine, theirs = events(scheduled), events(traced)
    assert mine == theirs and len(mine) > 5
    assert scheduled.bytes_by_tensor() == traced.bytes_by_tensor()


@each_mask
@each_size
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_forward(sizes, blocks, at_once, causal, overlap):
    problem, (block_q, block_k) = AttentionProblem(**sizes, causal=causal), blocks
    (traced,) = recorded(problem, block_q, block_k, at_once, overlap=overlap)
    same(schedules.forward_schedule(problem, block_q=block_q, block_k=block_k, heads_at_once=at_once, overlap=overlap), traced)


@each_mask
@each_size
def test_backward_in_two_kernels(sizes, blocks, at_once, causal):
    problem, tiles = AttentionProblem(**sizes, causal=causal), dict(zip(("block_q", "block_k"), blocks))
    delta, keys, queries = recorded(problem, *blocks, at_once, fused=False)
    same(schedules.delta_schedule(problem, block_q=tiles["block_q"]), delta)
    same(schedules.keys_schedule(problem, **tiles, heads_at_once=at_once), keys)
    same(schedules.queries_schedule(problem, **tiles, heads_at_once=at_once), queries)


@each_mask
@each_size
def test_backward_fused(sizes, blocks, at_once, causal):
    problem, tiles = AttentionProblem(**sizes, causal=causal), dict(zip(("block_q", "block_k"), blocks))
    _, keys = recorded(problem, *blocks, at_once, fused=True)
    same(schedules.keys_schedule(problem, **tiles, heads_at_once=at_once, fused=True), keys)
    assert keys.select("atomic").size


def test_backward_with_dk_and_dv_apart():
    sizes, blocks, _ = SIZES["ragged"]
    problem, tiles = AttentionProblem(**sizes), dict(zip(("block_q", "block_k"), blocks))
    _, dk, dv, _ = recorded(problem, *blocks, 2, fused=False, apart=True)
    for name, traced in (("dk", dk), ("dv", dv)):
        same(schedules.keys_schedule(problem, **tiles, heads_at_once=2, stores=(name,)), traced)


# -- the kernels that lose -------------------------------------------------------------------------------------------------
def launched(run):
    """[Trace] of every launch that `run` makes."""
    traces = []
    with launches(lambda launch: traces.append(trace(launch.kernel, launch.grid, *launch.args, **launch.meta))):
        run()
    return traces


@each_mask
@each_size
def test_unfused(sizes, blocks, at_once, causal):
    problem, tiles = AttentionProblem(**sizes, causal=causal), dict(zip(("block_q", "block_k"), blocks))
    tile, tensors = Tile(*blocks, WARPS, 1), problem.tensors(device=DEVICE)
    scores, softmax, product = launched(lambda: unfused(*tensors, causal=causal, tiles=(tile, tile)))
    same(schedules.scores_schedule(problem, **tiles), scores)
    same(schedules.softmax_schedule(problem), softmax)
    same(schedules.product_schedule(problem, **tiles), product)


@each_mask
@each_size
def test_flash1(sizes, blocks, at_once, causal):
    problem, tiles = AttentionProblem(**sizes, causal=causal), dict(zip(("block_q", "block_k"), blocks))
    (traced,) = launched(lambda: flash1_of_triton(*problem.tensors(device=DEVICE), causal=causal, tile=Tile(*blocks, WARPS, 1)))
    same(schedules.flash1_schedule(problem, **tiles), traced)


@each_mask
@each_size
def test_the_unfused_kernels_move_what_the_closed_form_says(sizes, blocks, at_once, causal):
    """One read of q and of k for each tile of scores, one of v for each tile of queries; each score four times."""
    problem, (block_q, block_k) = AttentionProblem(**sizes, causal=causal), blocks
    tiles_q, tiles_k = -(-problem.n_q // block_q), -(-problem.n_k // block_k)
    group = problem.heads // problem.kv_heads
    form = standard_traffic(problem).by_tensor
    times = {("q", "load"): tiles_k, ("k", "load"): tiles_q * group, ("v", "load"): tiles_q * group}
    scores = schedules.scores_schedule(problem, block_q=block_q, block_k=block_k)
    softmax = schedules.softmax_schedule(problem)
    product = schedules.product_schedule(problem, block_q=block_q, block_k=block_k)
    moved = {key: size for one in (scores, softmax, product) for key, size in one.bytes_by_tensor().items()}
    assert moved == {key: size * times.get(key, 1) for key, size in form.items()}


@each_mask
@each_size
def test_flash1_is_the_reference_s_order(sizes, blocks, at_once, causal):
    sizes = {name: n for name, n in sizes.items() if name not in ("batch", "heads", "kv_heads")} | {"dtype": "float32"}
    problem, tiles = AttentionProblem(**sizes, causal=causal), dict(zip(("block_q", "block_k"), blocks))
    memory = Memory("FlashAttention-1")
    flash1(*problem.arrays(), **tiles, causal=causal, memory=memory)
    mine = schedules.flash1_schedule(problem, **tiles)
    assert [e[:1] + e[2:] for e in events(mine)] == [e[:1] + e[2:] for e in events(memory.trace)]
    assert mine.bytes_by_tensor() == flash1_traffic(problem, **tiles).by_tensor


def test_a_schedule_of_many_heads_repeats_that_of_one():
    one = schedules.flash1_schedule(AttentionProblem(64, 64, 16), block_q=16, block_k=16)
    six = schedules.flash1_schedule(AttentionProblem(64, 64, 16, batch=2, heads=3), block_q=16, block_k=16)
    assert len(six) == 6 * len(one) and np.unique(six.columns["program"]).tolist() == list(range(6))
    assert [tuple(x) for x in np.unique(six.columns[["batch", "head"]]).tolist()] == [(b, h) for b in range(2) for h in range(3)]


# -- the pieces ---------------------------------------------------------------------------------------------------------------
def test_nothing_to_do_gives_an_empty_trace():
    for n_q, n_k in ((0, 16), (16, 0), (0, 0)):
        problem = AttentionProblem(n_q, n_k, 16)
        one = schedules.forward_schedule(problem, block_q=16, block_k=16, heads_at_once=1)
        assert one.bytes_by_tensor() == {key: size for key, size in fused_traffic(problem).by_tensor.items() if n_q and size} | (
            {("lse", "store"): 4 * n_q} if n_q else {}
        )


def test_a_size_that_cannot_be_is_named():
    problem = AttentionProblem(16, 16, 16)
    for name in ("block_q", "block_k", "heads_at_once"):
        with pytest.raises(ValueError, match=f"^{name} is 0; it must be a whole number of at least 1"):
            schedules.forward_schedule(problem, **{"block_q": 16, "block_k": 16, "heads_at_once": 1} | {name: 0})


def test_a_million_events_are_scheduled_in_seconds():
    problem, start = AttentionProblem(16384, 16384, 64, heads=16), time.process_time()
    assert len(schedules.forward_schedule(problem, block_q=64, block_k=128, heads_at_once=8)) > 1_000_000
    assert time.process_time() - start < 5
