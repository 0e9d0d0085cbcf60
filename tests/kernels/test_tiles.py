"""The tile tables and what a kernel is told of its tensors: chosen without a GPU, and compiled for those that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from flashlab import runtime  # before triton

import pytest
import torch

from flashlab.kernels import tiles
from flashlab.kernels.tiles import FORWARD, FORWARD_SHORT, SHORT, can_be_described, heads_at_once

HERE = Path(__file__).parent


HALF = torch.float16


@pytest.mark.parametrize(
    "dtype, shape, strides, fits",
    [
        (HALF, (2, 3, 50, 64), (9600, 3200, 64, 1), True),
        (torch.float32, (2, 3, 50, 64), (9600, 3200, 64, 1), False),  # TMA would do, but float32 has small tiles of its own
        (HALF, (2, 3, 50, 63), (9450, 3150, 63, 1), False),  # rows start where 16 bytes do not
        (HALF, (2, 3, 50, 80), (12000, 4000, 80, 1), True),
        (HALF, (2, 3, 50, 64), (9600, 3200, 1, 50), False),  # the last dimension is strided
        (HALF, (2, 3, 50, 64), (0, 3200, 64, 1), False),  # expanded
        (HALF, (1, 3, 50, 64), (0, 3200, 64, 1), True),  # a dimension of one: its stride is never used
        (HALF, (2, 3, 0, 64), (9600, 3200, 64, 1), False),
        (HALF, (2, 3, 50, 64), (9600, 64, 192, 1), True),  # packed
    ],
)
def test_what_tma_can_read(dtype, shape, strides, fits):
    assert can_be_described(torch.empty_strided(shape, strides, dtype=dtype, device="meta")) == fits


def test_heads_at_once_share_the_l2_and_are_never_none():
    def at_once(n, group=1):
        return heads_at_once(torch.empty(1, 1, n, 128, dtype=HALF, device="meta"), group)

    assert [at_once(n) for n in (0, 16, 4096, 2**20)] == [128, 128, 16, 1] and at_once(4096, 4) == 4


POINTERS = """
import json, sys
sys.path.insert(0, {here!r})
from kernel_compile import MAX_SHARED, compile_for
for kernel in ("forward", "fused"):
    used = compile_for(kernel, 90, 128, "bfloat16", "causal", descriptors=False, ragged=True)[1]
    print(json.dumps([kernel, used["shared"], MAX_SHARED[90], used["registers"]]))
"""


def test_tiles_fit_where_strides_leave_only_pointers_and_ends_are_ragged():
    code = POINTERS.format(here=str(HERE))
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 2 and all(shared <= most and registers > 16 for _, shared, most, registers in lines), lines


INT64 = """
import json, sys
sys.path.insert(0, {here!r})
import triton, triton.language as tl
from flashlab.kernels import backward, forward
from flashlab.kernels.masks import decode, register
from flashlab.kernels.tiles import Tile
from kernel_compile import arguments, compile_kernel
import torch

sys.path.insert(0, {here!r} + "/..")
from kernels.test_attention import padded_to

functions, _ = decode(*padded_to(torch.ones(2, dtype=torch.int64)).encode())
both = dict(FUSED=False, DK=True, DV=True, dq=None)
for kernel, more in ((forward.forward_kernel, {{}}), (backward.queries_kernel, {{"dq": "*bf16"}}), (backward.keys_kernel, both)):
    given = arguments(kernel, 64, "bfloat16", "window", Tile(64, 64, 4, 2), True, True, **more)
    given |= {{"MASKS": functions, "mask_params": (("*i64",),)}}
    given |= {{name: () for name in ("q_strides", "k_strides", "v_strides", "do_strides") if name in given}}
    compile_kernel(kernel, given, 90, 4, 2)
    print("compiled", kernel.fn.__name__)
"""


def test_ranges_from_an_int64_tensor_compile_where_tma_wants_32_bits():
    code = INT64.format(here=str(HERE))
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("compiled") == 3, done.stderr[-2000:]


def q_of(head_dim, n=64, dtype=HALF):
    return torch.empty(1, 1, n, head_dim, dtype=dtype, device="meta")


def test_short_masked_rows_take_a_narrower_tile_on_sm_90(monkeypatch):
    monkeypatch.setattr(tiles, "architecture", lambda device: 90)
    monkeypatch.setattr(tiles, "shared_memory", lambda device: 227 * 1024)
    usual, narrow = FORWARD[90, 64], FORWARD_SHORT[90, 64]
    assert usual != narrow and narrow.block_k < usual.block_k
    given = {(n_k, limited): tiles.forward_tile(q_of(64), n_k, limited) for n_k in (SHORT, SHORT + 1) for limited in (True, False)}
    assert given == {(SHORT, True): narrow, (SHORT, False): usual, (SHORT + 1, True): usual, (SHORT + 1, False): usual}
    assert tiles.forward_tile(q_of(128), 1, True) == FORWARD[90, 128] and tiles.forward_tile(q_of(64, dtype=torch.float32), 1, True) == tiles.FORWARD_FLOAT32[64]
