"""Standard attention as three Triton kernels: its bytes, its order, its resources; and forward_cases.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from flashlab import runtime  # before triton

import pytest
import torch

from flashlab.kernels import unfused as unfused_file
from flashlab.kernels.tiles import FORWARD_FLOAT32, Tile
from flashlab.kernels.unfused import TILES, tiles_of, unfused
from flashlab.problem import AttentionProblem
from flashlab.traffic.interpreter import trace
from flashlab.traffic.model import standard_traffic, unfused_traffic
from flashlab.traffic.triton_hooks import launches
from forward_cases import *  # noqa: F403, the tests
from kernel_compile import MAX_SHARED
from kernel_oracle import check, tensors

DEVICE = runtime.device()
KERNELS = ["scores_kernel", "softmax_kernel", "product_kernel"]


def o_alone(q, k, v, *, tile=None, **options):
    """There is no lse. The third kernel's tiles are of another width than the first's."""
    tiles = tile and (tile, Tile(tile.block_q, 48 - tile.block_k, tile.warps, tile.stages))
    return unfused(q, k, v, tiles=tiles, **options), None


@pytest.fixture(scope="module")
def run():
    return o_alone


def test_what_does_not_fit_is_refused_by_name():
    q, k, v = tensors(3, 5, 8)
    with pytest.raises(ValueError, match="^v has 4 rows, but k has 5; every key needs one value row"):
        unfused(q, k, v[:, :, :4])
    with pytest.raises(TypeError, match="^k has dtype torch.float16, but q has torch.float32"):
        unfused(q, k.half(), v)
    with pytest.raises(TypeError, match="^q has dtype torch.float64; the kernels take"):
        unfused(q.double(), k, v)


def test_tensors_on_the_cpu_are_refused_where_kernels_run_on_the_gpu(monkeypatch):
    monkeypatch.setattr(runtime, "mode", lambda: "cuda")
    with pytest.raises(ValueError, match="^q is on cpu, but Triton kernels run on the GPU here"):
        unfused(*(x.cpu() for x in tensors(3, 5, 8)))


# -- what moves, and in which order -----------------------------------------------------------------------------------
def recorded(problem, block_q=16, block_k=16, product_block_k=16):
    """{kernel: Trace} of one call, in the order of the launches."""
    traces = {}

    def follow(launch):
        traces[launch.kernel.__name__] = trace(launch.kernel, launch.grid, *launch.args, **launch.meta)

    with launches(follow):
        unfused(*problem.tensors(device=DEVICE), causal=problem.causal, tiles=(Tile(block_q, block_k, 1, 1), Tile(block_q, product_block_k, 1, 1)))
    return traces


SIZES = [
    ({"n_q": 48, "n_k": 48, "head_dim": 16, "batch": 2}, (16, 16, 16)),
    ({"n_q": 37, "n_k": 53, "head_dim": 20, "heads": 4, "kv_heads": 2, "dtype": "float32"}, (16, 32, 16)),
    ({"n_q": 53, "n_k": 20, "head_dim": 8, "heads": 3, "kv_heads": 1}, (32, 16, 32)),
]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sizes, blocks", SIZES, ids=["even", "ragged", "few_keys"])
def test_the_kernels_move_what_the_closed_form_says(sizes, blocks, causal):
    problem = AttentionProblem(**sizes, causal=causal)
    traces = recorded(problem, *blocks)
    assert list(traces) == KERNELS
    moved = sum((Counter(one.bytes_by_tensor()) for one in traces.values()), Counter())
    assert moved == unfused_traffic(problem, block_q=blocks[0], block_k=blocks[1]).by_tensor
    ideal = standard_traffic(problem).by_tensor
    assert {key: moved[key] for key in ideal if key[0] in ("scores", "weights", "o")} == {key: ideal[key] for key in ideal if key[0] not in "qkv"}
    assert sum(moved[key] for key in ideal if key[0] in ("scores", "weights")) == 4 * problem.batch * problem.heads * problem.score_matrix_bytes


def test_tiles_as_large_as_the_problem_move_what_standard_attention_must():
    problem = AttentionProblem(30, 60, 16, heads=2)
    moved = sum((Counter(one.bytes_by_tensor()) for one in recorded(problem, 32, 64).values()), Counter())
    assert moved == standard_traffic(problem).by_tensor


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_order_of_programs_and_of_their_accesses(causal):
    """What a model of the L2 builds on: heads outside, in each its tiles of queries, in each the tiles of keys."""
    traces = recorded(AttentionProblem(20, 40, 16, batch=2, heads=4, kv_heads=2, causal=causal), 16, 16, 32)
    moves = {kernel: [(e.program, e.op, e.tensor, e.batch, e.head, e.row0, e.col0) for e in one if e.op in ("load", "store")] for kernel, one in traces.items()}
    every_head = [(b, h) for b in range(2) for h in range(4)]

    scores = []
    for program, (b, h, row, col) in enumerate((b, h, row, col) for b, h in every_head for row in (0, 16) for col in (0, 16, 32)):
        scores += [(program, "load", "q", b, h, row, 0), (program, "load", "k", b, h // 2, col, 0), (program, "store", "scores", b, h, row, col)]
    assert moves["scores_kernel"] == scores

    softmax = []
    for program, (b, h, row) in enumerate((b, h, row) for b, h in every_head for row in range(20)):
        softmax += [(program, "load", "scores", b, h, row, 0), (program, "store", "weights", b, h, row, 0)]
    assert moves["softmax_kernel"] == softmax

    product = []
    for program, (b, h, row) in enumerate((b, h, row) for b, h in every_head for row in (0, 16)):
        for col in (0, 32):
            product += [(program, "load", "weights", b, h, row, col), (program, "load", "v", b, h // 2, col, 0)]
        product += [(program, "store", "o", b, h, row, 0)]
    assert moves["product_kernel"] == product


def test_a_hidden_score_is_stored_as_minus_infinity():
    problem, stored = AttentionProblem(20, 40, 16, heads=1, causal=True, dtype="float32"), {}

    def follow(launch):
        launch()
        stored[launch.kernel.__name__] = launch.args

    with launches(follow):
        unfused(*problem.tensors(device=DEVICE), causal=True)
    hidden = torch.arange(40)[None, :] > torch.arange(20)[:, None] + 20
    _, _, scores, *_ = stored["scores_kernel"]
    assert torch.equal(scores[0, 0].cpu() == -torch.inf, hidden)


# -- compiled ---------------------------------------------------------------------------------------------------------
COMPILE = """
import json, sys
sys.path.insert(0, {here!r})
from kernel_compile import MAX_SHARED, arguments, compile_kernel, resources
from flashlab.kernels.unfused import MOST_WARPS, TILES, product_kernel, scores_kernel, softmax_kernel
arch, head_dim, dtype, causal, ragged = {given!r}
of_scores, of_product = TILES[min(d for d in TILES if d >= head_dim)]
one = {{"heads": 1, "n_k": 1}} if ragged else {{}}  # Triton makes a constant of an int that is 1
for kernel, tile, more in (scores_kernel, of_scores, {{"CAUSAL": causal}}), (product_kernel, of_product, {{}}):
    compiled = compile_kernel(kernel, arguments(kernel, head_dim, dtype, "", tile, False, ragged, **more, **one), arch, tile.warps, tile.stages)
    print(json.dumps(resources(compiled, arch)))
row = compile_kernel(softmax_kernel, {{"scores": "*bf16", "weights": "*bf16", "n_k": "i32:16", "BLOCK": 16384}}, arch, MOST_WARPS, 1)
print(json.dumps(resources(row, arch)))
"""


@pytest.mark.parametrize(
    "given",
    [(90, 64, "bfloat16", True, False), (90, 128, "bfloat16", True, False), (90, 128, "float16", False, True), (90, 256, "bfloat16", True, False), (86, 128, "bfloat16", True, False)],
    ids=lambda given: "-".join(map(str, given)),
)
def test_no_spills_and_shared_memory_of_the_smallest_gpu_is_enough(given):
    code = COMPILE.format(here=str(Path(__file__).parent), given=given)
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 3
    assert all(line["spilled"] == 0 and line["registers"] > 16 and line["shared"] <= MAX_SHARED[86] for line in lines), lines


@pytest.mark.parametrize("head_dim, line", [(5, 128), (64, 128), (128, 128), (129, 256), (256, 256)])
def test_the_tiles_of_a_gpu(monkeypatch, head_dim, line):
    monkeypatch.setattr(unfused_file, "architecture", lambda device: 90)
    of_scores, of_product = tiles_of(torch.empty(1, 1, 1, head_dim, dtype=torch.float16))
    assert (of_scores, of_product) == TILES[line] and of_scores.block_q == of_product.block_q
    assert set(tiles_of(torch.empty(1, 1, 1, head_dim))) == {FORWARD_FLOAT32[min(d for d in FORWARD_FLOAT32 if d >= head_dim)]}


@pytest.mark.gpu
def test_scores_past_two_to_the_31():
    q, k, v = tensors(16384, 16384, 64, heads=9, dtype="float16")  # the last head's scores start at 2**31
    torch.testing.assert_close(unfused(q, k, v)[:, 8:], unfused(q[:, 8:], k[:, 8:], v[:, 8:]), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("n_k", [1, 16384])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_query(n_k, head_dim, dtype):
    check(o_alone, *tensors(1, n_k, head_dim, heads=4, kv_heads=2, dtype=dtype))
