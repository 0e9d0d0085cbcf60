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

import kernel_compile
from flashlab.hardware_table import ROWS
from flashlab.kernels import tiles
from flashlab.kernels.tiles import BACKWARD, FORWARD, FORWARD_SHORT, SHARED, SHORT, can_be_described, heads_at_once, look_up
from kernel_compile import MAX_SHARED, launched

HERE = Path(__file__).parent

HALF = torch.float16
FEW = 16  # registers: with no more than these, the compiler gave up and left a kernel that only traps



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


@pytest.mark.parametrize("table", [FORWARD, BACKWARD], ids=["forward", "backward"])
@pytest.mark.parametrize("head_dim, line", [(5, 64), (64, 64), (80, 128), (256, 256)])
def test_gpus_with_less_shared_memory_take_lines_that_need_less(table, head_dim, line):
    for arch in (80, 86, 87, 89, 120, 121):
        shared = MAX_SHARED[80] if arch in (80, 87) else MAX_SHARED[86]
        assert look_up(table, arch, head_dim, shared) == table[80, line], arch
    for arch in (90, 100, 103):
        known = max(a for a, _ in table if a <= arch)
        assert look_up(table, arch, head_dim, MAX_SHARED[90]) == table[known, line], arch


def test_limits_are_those_of_the_data_sheets():
    sheets = {10 * row["compute_capability"][0] + row["compute_capability"][1]: row["sram_bytes_per_block"] for row in ROWS if row["compute_capability"]}
    assert MAX_SHARED == {arch: most for arch, most in sheets.items() if arch >= 80}
    for a, _ in FORWARD | BACKWARD:
        assert SHARED[a] <= MAX_SHARED[a]


# -- compiled ----------------------------------------------------------------------------------------------------------
DTYPES = {64: "bfloat16", 128: "float16", 256: "bfloat16"}  # of each head_dim; the tile is the same for both
ARCHITECTURES = (80, 90, 100, 120)  # sm_86 and sm_89 take sm_80's lines and compile like it: the last test
POINTERS = [{"kernel_name": name, "arch": 90, "head_dim": 128, "dtype": "bfloat16", "descriptors": False, "ragged": True} for name in ("forward", "fused")]
NARROW = [{"kernel_name": "forward", "arch": 90, "head_dim": 64, "dtype": "bfloat16", "tile": FORWARD_SHORT[90, 64]}]
# The float32 kernels that would spill most; keys and fused spill 24 bytes at most, and take longer to compile.
FLOAT32 = [
    {"kernel_name": name, "arch": arch, "head_dim": head_dim, "dtype": "float32"}
    for arch in (80, 90) for head_dim in (128, 256) for name in ("forward", "queries")
]  # fmt: skip
FLOAT32_SPILLED = {128: 0, 256: 2048}  # bytes; Triton 3.9 and 3.6: at most 1,236 and 1,556 at 256
# Where shared memory is tightest: every mask of the library and a sink at once, rows that end within a tile; and delta's kernel.
JOINED = [
    {"kernel_name": name, "arch": arch, "head_dim": 256, "dtype": "bfloat16", "ragged": True, "names": "causal&window&prefix&softcap&alibi"}
    | ({"sink": "*bf16"} if name == "forward" else {})
    for arch in (80, 90) for name in ("forward", "queries", "fused")
]  # fmt: skip
DELTA = [{"kernel_name": "delta", "arch": arch, "head_dim": 256, "dtype": "float16", "ragged": True} for arch in ARCHITECTURES]
SM_86 = [{"kernel_name": "queries", "arch": 86, "head_dim": head_dim, "dtype": dtype} for head_dim, dtype in DTYPES.items()]


def of_table(arch, head_dim):
    """The kernels that the library launches there, each with its tile of the table."""
    return [{"kernel_name": name, "arch": arch, "head_dim": head_dim, "dtype": DTYPES[head_dim]} for name in launched(arch, head_dim)]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What the compiler says of one kernel, given its dict. All are compiled at once, in processes without the interpreter.

    Triton's cache is this run's own: what another run left would hide what this one finds.
    """
    wanted = [*FLOAT32, *POINTERS, *NARROW, *JOINED, *DELTA, *SM_86] + [one for arch in ARCHITECTURES for head_dim in DTYPES for one in of_table(arch, head_dim)]
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    done = subprocess.run([sys.executable, kernel_compile.__file__], input=json.dumps(wanted), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert len(said) == len(wanted)
    return lambda one: said[wanted.index(one)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("head_dim", DTYPES)
def test_every_tile_fits_the_shared_memory_of_its_gpu(compiled, arch, head_dim):
    most = min(MAX_SHARED[arch], SHARED[80]) if arch == 80 else MAX_SHARED[arch]  # sm_80's lines serve GPUs with less
    for one in of_table(arch, head_dim):
        used = compiled(one)
        assert used["shared"] <= most, (one, used)
        assert used["registers"] > FEW, (one, used)


@pytest.mark.parametrize("one", FLOAT32, ids=lambda one: f"{one['kernel_name']}-sm_{one['arch']}-{one['head_dim']}")
def test_float32_spills_little_and_has_its_registers(compiled, one):
    used = compiled(one)
    assert used["spilled"] <= FLOAT32_SPILLED[one["head_dim"]] and used["registers"] > 128 and used["shared"] <= MAX_SHARED[86], used


def test_dk_and_dv_are_compiled_apart_where_the_table_has_two_tiles():
    assert launched(90, 256) == ["forward", "dk", "dv", "queries", "fused"] and launched(80, 256) == ["forward", "keys", "queries", "fused"]


def test_tiles_fit_where_strides_leave_only_pointers_and_ends_are_ragged(compiled):
    for one in POINTERS + NARROW:
        used = compiled(one)
        assert used["shared"] <= MAX_SHARED[90] and used["registers"] > FEW, (one, used)


def test_tiles_fit_with_all_masks_a_sink_and_ragged_ends(compiled):
    for one in JOINED + DELTA:
        used, most = compiled(one), SHARED[80] if one["arch"] in (80, 120) else MAX_SHARED[90]
        assert used["shared"] <= most and used["registers"] > FEW, (one, used)


def test_a_gpu_that_takes_sm_80_s_tiles_needs_sm_80_s_shared_memory(compiled):
    """For sm_80 and sm_86 Triton makes the same code down to where it lays out shared memory: one kernel stands for all."""
    for one in SM_86:
        assert compiled(one)["shared"] == compiled(one | {"arch": 80})["shared"] and compiled(one)["registers"] > FEW


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
