"""What the library's own kernels move, by the tracer: the closed forms to the byte, hidden tiles absent, real watched values."""

from __future__ import annotations

import math
from collections import Counter

from flashlab import runtime  # before triton

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from flashlab.kernels import backward as backward_file
from flashlab.kernels import masks
from flashlab.kernels.forward import forward
from flashlab.kernels.masks import Mask, decode, register
from flashlab.kernels.tiles import BackwardTiles, Tile
from flashlab.problem import AttentionProblem
from flashlab.reference.flash2 import flash2
from flashlab.traffic.interpreter import trace
from flashlab.traffic.memory import Memory
from flashlab.traffic.model import backward_traffic, flash2_traffic, fused_backward_traffic
from flashlab.traffic.triton_hooks import launches
from flashlab.widgets.faults import WATCH
from flashlab.widgets.reading import noted
from flashlab.widgets.tile_loop import TileLoop

DEVICE = runtime.device()
WARPS = 1  # of nobody else's tile: a launch whose compiled kernel is already known passes the hooks by


def recorded(problem, *, mask=None, block_q=16, block_k=16, watch=(), fused=None, overlap=False):
    """{kernel: Trace} of the forward pass, or of the backward pass where `fused` is given."""
    mask = (masks.causal() if problem.causal else Mask()) & (mask or Mask())
    functions, params = decode(*mask.encode())
    q, k, v = problem.tensors(device=DEVICE)
    tile, traces = Tile(block_q, block_k, WARPS, 1, overlap=overlap), {}

    def follow(launch):
        names = watch if launch.kernel.__name__ == "forward_kernel" else ()
        traces[launch.kernel.__name__] = trace(launch.kernel, launch.grid, *launch.args, watch=names, **launch.meta)

    with launches(follow):
        o, lse = forward(q, k, v, functions, params, problem.scale, tile=tile)
        if fused is not None:
            traces.clear()
            tiles = BackwardTiles(tile, (tile,), tile, tile)
            backward_file.backward(q, k, v, o, lse, torch.ones_like(q), None, functions, params, problem.scale, fused=fused, tiles=tiles)
    return traces


SIZES = [
    ({"n_q": 48, "n_k": 48, "head_dim": 16, "batch": 2}, (16, 16)),
    ({"n_q": 37, "n_k": 53, "head_dim": 20, "heads": 4, "kv_heads": 2, "dtype": "float32"}, (16, 32)),
    ({"n_q": 53, "n_k": 20, "head_dim": 8, "heads": 3, "kv_heads": 1}, (32, 16)),
]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sizes, blocks", SIZES, ids=["even", "ragged", "few_keys"])
def test_the_forward_kernel_moves_what_the_closed_form_says(sizes, blocks, causal):
    problem, blocks = AttentionProblem(**sizes, causal=causal), dict(zip(("block_q", "block_k"), blocks))
    moved = recorded(problem, **blocks)["forward_kernel"].bytes_by_tensor()
    assert moved == flash2_traffic(problem, **blocks).by_tensor


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("fused, form", [(False, backward_traffic), (True, fused_backward_traffic)], ids=["two_kernels", "fused"])
def test_the_backward_kernels_move_what_the_closed_forms_say_where_tiles_are_ragged(fused, form, causal):
    sizes, (block_q, block_k) = SIZES[1]
    problem = AttentionProblem(**sizes, causal=causal)
    counted = sum((Counter(one.bytes_by_tensor()) for one in recorded(problem, fused=fused, block_q=block_q, block_k=block_k).values()), Counter())
    expected = dict(form(problem, block_q=block_q, block_k=block_k).by_tensor)
    if fused:  # the sum's rows are padded to 32 columns; its zeros and the copy into dq are torch's
        read, written = expected.pop(("dq_sum", "load")), expected.pop(("dq_sum", "store"))
        zeros = expected.pop(("dq", "store")) * 4 // problem.element_bytes
        assert read == written
        expected["dq", "atomic"] = (read - zeros) // 20 * 32
    assert counted == expected


SEE = {
    "causal": (masks.causal(), lambda i, j: j <= i),
    "window": (masks.window(9, 5), lambda i, j: (j >= i - 9) & (j <= i + 5)),
    "window of one": (masks.window(0, 0), lambda i, j: j == i),
    "prefix": (masks.prefix(20), lambda i, j: (j < 20) | (j <= i)),
    "causal & window": (masks.causal() & masks.window(16, 99), lambda i, j: (j <= i) & (j >= i - 16)),
}


@pytest.mark.parametrize("n_q, n_k", [(33, 60), (60, 33)])
@pytest.mark.parametrize("name", SEE)
def test_each_kernel_works_on_the_tiles_that_somebody_sees_and_on_no_other(name, n_q, n_k):
    mask, see = SEE[name]
    problem = AttentionProblem(n_q, n_k, 16, dtype="float32")
    seen = see(np.arange(n_q)[:, None] + n_k - n_q, np.arange(n_k)[None, :])
    tiles = sorted((row, col) for row in range(0, n_q, 16) for col in range(0, n_k, 16) if seen[row : row + 16, col : col + 16].any())
    traces = recorded(problem, mask=mask) | recorded(problem, mask=mask, fused=False)
    for kernel in ("forward_kernel", "keys_kernel", "queries_kernel"):
        assert sorted((e.row0, e.col0) for e in traces[kernel] if e.op == "compute") == tiles, kernel
    for kernel, once, again in (("forward_kernel", "q", ("k", "v")), ("keys_kernel", "k", ("q", "do")), ("queries_kernel", "q", ("k", "v"))):
        assert len([e for e in traces[kernel] if e.tensor == once and e.op == "load"]) == -(-(n_k if once == "k" else n_q) // 16)
        assert all(len([e for e in traces[kernel] if e.tensor == x and e.op == "load"]) == len(tiles) for x in again), kernel


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_row_max_row_sum_and_rescale_of_the_kernel_are_those_of_the_reference(causal):
    problem = AttentionProblem(37, 53, 16, causal=causal, scale=1.0, dtype="float32")
    traced = recorded(problem, block_k=32, watch=WATCH)["forward_kernel"]
    memory = Memory("FlashAttention-2", watch=WATCH)
    flash2(*(x[0, 0].cpu().numpy() for x in problem.tensors(device=DEVICE)), block_q=16, block_k=32, causal=causal, scale=1.0, memory=memory)
    for name in WATCH:
        right = {row0: [value for _, first, value in noted(memory.trace, name) if first == row0] for row0 in (0, 16, 32)}
        for row0, values in right.items():
            given = [value for _, first, value in noted(traced, name) if first == row0]
            assert len(given) == len(values) > 0, (name, row0)
            for mine, theirs in zip(given, values):
                unit = math.log2(math.e) if name == "row_max" else 1  # the kernel's row_max is an exponent of two
                np.testing.assert_allclose(mine, unit * theirs, rtol=2e-5, atol=2e-5, err_msg=f"{name} of rows from {row0}")


def test_the_tile_loop_plays_the_kernels_traces():
    problem = AttentionProblem(37, 53, 16, dtype="float32")
    traces = recorded(problem, watch=WATCH) | recorded(problem, fused=False)
    for kernel, computes in (("forward_kernel", 12), ("keys_kernel", 12), ("queries_kernel", 12)):
        widget = TileLoop(traces[kernel])
        assert repr(widget).startswith(f"Tile loop at step 0 of {len(traces[kernel])}: {kernel} moves ")
        assert len(traces[kernel].select("compute")) == computes and widget.data[0]["title"] == kernel
    assert set(TileLoop(traces["forward_kernel"]).data[0]["values"]) == set(WATCH)


def test_atomics_are_the_fused_kernel_s_only():
    problem = AttentionProblem(32, 32, 16)
    two, one = recorded(problem, fused=False), recorded(problem, fused=True)
    assert not any(len(x.select("atomic")) for x in two.values())
    assert {e.tensor for e in one["keys_kernel"] if e.op == "atomic"} == {"dq"} and "queries_kernel" not in one

@register
class looked_up:
    """Indexes a tensor by both places, as a mask given as a table does."""

    @triton.jit
    def visible(batch, head, i, j, table, width):
        return tl.load(table + i * width + j) > 0


@pytest.mark.parametrize("n", [17, 32, 39])
def test_a_mask_that_is_a_table_is_never_read_past_its_end(n):
    """The tracer checks each address: i and j stay within the table in the tiles that pass the end."""
    table = torch.ones(n, n, device=DEVICE).tril(2)
    problem = AttentionProblem(n, n, 8, dtype="float32")
    traces = recorded(problem, mask=looked_up(table, n)) | recorded(problem, mask=looked_up(table, n), fused=False)
    assert all(any("table" in name or "mask" in name for name in one.tensor_names) for kernel, one in traces.items() if kernel != "delta_kernel")


# -- the other order of the loop ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sizes, blocks", SIZES, ids=["even", "ragged", "few_keys"])
def test_the_overlapped_loop_gives_the_same_and_moves_the_same(sizes, blocks, causal):
    """Tiles with overlap=True run on a GPU at head_dim 256 alone; here they are held to the plain loop's numbers and bytes."""
    problem, (block_q, block_k) = AttentionProblem(**sizes, causal=causal), blocks
    q, k, v = problem.tensors(device=DEVICE)
    encoded = ((masks.causal() if causal else Mask()) & masks.window(25, 60)).encode()
    outputs, moved = [], []

    def follow(launch):
        moved.append(trace(launch.kernel, launch.grid, *launch.args, **launch.meta).bytes_by_tensor())

    for overlap in (False, True):
        with launches(follow):
            outputs.append(forward(q, k, v, *decode(*encoded), problem.scale, tile=Tile(block_q, block_k, WARPS, 1, overlap=overlap)))
    (o, lse), (other, other_lse) = outputs
    torch.testing.assert_close(other, o)
    torch.testing.assert_close(other_lse, lse)
    assert moved[0] == moved[1]


@pytest.mark.parametrize("overlap, order", [(False, "q k v k v k v k v"), (True, "q k k v k v k v v")], ids=["plain", "overlapped"])
def test_each_step_takes_the_next_tile_s_keys_after_its_own_values_or_before_them(overlap, order):
    """Only this order tells the two loops apart: their numbers and their bytes are the same."""
    traced = recorded(AttentionProblem(16, 64, 16, dtype="float32"), overlap=overlap)["forward_kernel"]
    assert " ".join(e.tensor for e in traced if e.op == "load") == order
