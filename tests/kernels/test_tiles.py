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

from flashlab.kernels.tiles import can_be_described, heads_at_once

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
