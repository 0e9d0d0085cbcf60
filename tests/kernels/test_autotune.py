"""autotune.py: timings, device and Triton's launch are stand-ins, but for one test that times real tiles on a GPU."""

import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch
import triton
from triton.runtime.errors import OutOfResources

from flashlab import runtime
from flashlab.kernels import autotune, masks
from flashlab.kernels.api import attention
from flashlab.kernels.autotune import CANDIDATES, fastest, tuned
from flashlab.kernels.backward import keys_kernel
from flashlab.kernels.forward import forward_kernel
from flashlab.kernels.tiles import Tile
from kernel_oracle import check_gradients, standard, tensors

USUAL = Tile(128, 64, 4, 2)
CAUSAL = masks.decode(*masks.causal().encode())[0]


@pytest.fixture
def on(monkeypatch):
    """A GPU that runs nothing: a trial takes as long as times[tile] says, 1 ms by default, or raises it."""
    times = {}

    def time_ms(run):
        took = times.get(run(), 1.0)
        if isinstance(took, Exception):
            raise took
        return took

    monkeypatch.setattr(autotune, "ON", True)
    monkeypatch.setattr(autotune, "CHOSEN", {})
    monkeypatch.setattr(autotune, "architecture", lambda device: 90)
    monkeypatch.setattr(autotune, "by_triton", lambda kernel: True)
    monkeypatch.setattr(autotune, "time_ms", time_ms)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    autotune.say.cache_clear()
    return times


def q(n=1000, dtype=torch.bfloat16, heads=4):
    return torch.empty(2, heads, n, 128, dtype=dtype)


def test_off_the_table_decides():
    assert not autotune.ON and tuned(forward_kernel, q(), 64, CAUSAL, USUAL, None) is USUAL


def test_the_fastest_is_kept_and_said_once(on, capsys):
    best, ran = Tile(64, 64, 4, 2), []
    on[best] = 0.25

    def run(tile):
        ran.append(tile)
        return tile

    assert tuned(forward_kernel, q(), 1000, CAUSAL, USUAL, run) == best
    assert ran == list(dict.fromkeys((USUAL, *CANDIDATES["forward_kernel"][128])))
    said = capsys.readouterr().out
    where = "forward_kernel on a GPU, bfloat16, head_dim 128, causal, heads 8 n_q 1024 n_k 1024 or fewer"
    assert said.startswith(f"FLASHLAB_AUTOTUNE: {where}: 64 x 64, 4 warps, 2 stages. Timed: 64 x 64, 4 warps, 2 stages 0.250 ms, ")
    assert said.count("\n") == 1 and "left out" not in said
    assert tuned(forward_kernel, q(700), 600, CAUSAL, USUAL, None) == best  # the same powers of two: no trial
    kinds = ((q(2000), 1000), (q(), 2000), (q(heads=8), 1000), (q(dtype=torch.float16), 1000))
    for given, n_k in kinds:  # each is another kind
        tuned(forward_kernel, given, n_k, CAUSAL, USUAL, run)
    assert len(ran) == (1 + len(kinds)) * len(set(ran))
    assert capsys.readouterr().out.count("\n") == 4


def test_what_does_not_fit_or_compile_is_left_out(on, capsys):
    small = Tile(64, 64, 4, 2)
    for tile in CANDIDATES["forward_kernel"][128]:
        on[tile] = OutOfResources(131072, 101376, "shared memory")
    on[small], on[USUAL] = RuntimeError("PassManager::run failed"), 0.5
    assert tuned(forward_kernel, q(), 1000, CAUSAL, USUAL, lambda tile: tile) == USUAL
    said = capsys.readouterr().out
    assert "128 x 64, 4 warps, 2 stages, as in the table. Timed: 128 x 64, 4 warps, 2 stages 0.500 ms; left out: " in said
    assert "128 x 128, 8 warps, 2 stages, overlap, out of resource: shared memory, Required: 131072, Hardware limit: 101376." in said
    assert "64 x 64, 4 warps, 2 stages, PassManager::run failed" in said


def test_where_nothing_runs_the_table_s_tile_is_left_to_fail_itself(on):
    fault = OutOfResources(2, 1, "shared memory")
    on.update({tile: fault for tile in (USUAL, *CANDIDATES["forward_kernel"][128])})
    assert tuned(forward_kernel, q(), 1000, CAUSAL, USUAL, lambda tile: tile) == USUAL


def test_tiles_of_two_launches_are_one_candidate(on, capsys):
    pair = (Tile(32, 64, 4, 2), Tile(32, 64, 4, 2))
    on[pair] = 0.5
    assert tuned(keys_kernel, q(), 1000, CAUSAL, (USUAL,), lambda tiles: tiles) == pair
    assert ": 32 x 64, 4 warps, 2 stages then 32 x 64, 4 warps, 2 stages. Timed" in capsys.readouterr().out


@pytest.mark.parametrize("why", ["float32", "hooks", "capture"])
def test_where_it_must_not_time_it_does_not_and_remembers_nothing(on, monkeypatch, why):
    if why == "hooks":
        monkeypatch.setattr(autotune, "by_triton", lambda kernel: False)
    if why == "capture":
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    given = q(dtype=torch.float32 if why == "float32" else torch.bfloat16)
    assert tuned(forward_kernel, given, 1000, CAUSAL, USUAL, None) is USUAL and autotune.CHOSEN == {}


def test_trials_write_to_nothing_of_the_caller(on, monkeypatch):
    """The whole of attention with its trials, in the interpreter: inputs are as before, and each trial makes its own o."""
    if runtime.mode() == "cuda":
        pytest.skip("there a trial is a real one")
    outputs = []
    monkeypatch.setattr(autotune, "time_ms", lambda run: outputs.append(run()) or float(len(outputs)))
    tile = Tile(32, 16, 4, 1)
    monkeypatch.setattr(autotune, "candidates", lambda kernel, head_dim, arch: ((tile,),) if kernel == "keys_kernel" else (tile,))
    given = [torch.randn(1, 2, 40, 16, dtype=torch.float16).requires_grad_() for _ in range(3)]
    before = [x.detach().clone() for x in given]
    o = attention(*given, causal=True)
    gradients = torch.autograd.grad(o, given, torch.ones_like(o))
    assert len(outputs) == 6 and all(torch.equal(a, b) for a, b in zip(given, before))
    mine = {x.data_ptr() for x in (o, *gradients, *given)}
    made = [x for out in outputs for x in (out if isinstance(out, tuple) else (out,)) if x is not None]
    assert len(made) == 10 and not mine & {x.data_ptr() for x in made}
    monkeypatch.setattr(autotune, "ON", False)
    again = attention(*given, causal=True)
    for ours, plain in zip((o, *gradients), (again, *torch.autograd.grad(again, given, torch.ones_like(o)))):
        torch.testing.assert_close(ours, plain)


def test_overlap_is_tried_only_where_products_leave_their_operands_in_shared_memory(on, monkeypatch):
    def tried(arch):
        ran = []
        monkeypatch.setattr(autotune, "architecture", lambda device: arch)
        monkeypatch.setattr(autotune, "CHOSEN", {})
        tuned(forward_kernel, q(), 1000, CAUSAL, USUAL, ran.append)
        return set(ran)

    line = CANDIDATES["forward_kernel"][128]
    every, plain = {USUAL, *line}, {USUAL, *(tile for tile in line if not tile.overlap)}
    assert every != plain and [tried(arch) for arch in (80, 86, 89, 90, 100, 120)] == [plain, plain, plain, every, every, plain]


@pytest.mark.gpu
def test_on_a_gpu_results_are_right_and_a_tile_too_large_for_shared_memory_is_left_out(monkeypatch, capsys):
    large, fits = Tile(64, 64, 4, 8), Tile(64, 64, 4, 2)  # at head_dim 128 two tiles in flight eight times are 256 KiB
    monkeypatch.setattr(autotune, "ON", True)
    monkeypatch.setattr(autotune, "CHOSEN", {})
    monkeypatch.setattr(autotune, "candidates", lambda kernel, head_dim, arch: ((large,), (fits,)) if kernel == "keys_kernel" else (large, fits))
    autotune.say.cache_clear()
    given = tensors(200, 300, 128, dtype="float16")
    do, dlse = torch.randn_like(given[0]), torch.randn(1, 2, 200, device="cuda")

    def ours(q, k, v):
        return attention(q, k, v, causal=True, return_lse=True)

    def theirs(q, k, v):
        return standard(q, k, v, causal=True, scale=128**-0.5)

    check_gradients(ours, theirs, given, do, dlse)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in said] == ["forward_kernel", "keys_kernel", "queries_kernel"] and len(autotune.CHOSEN) == 3
    assert all("; left out: 64 x 64, 4 warps, 8 stages, out of resource: shared memory, Required: " in line for line in said), said
    check_gradients(ours, theirs, given, do, dlse)
    assert capsys.readouterr().out == "" and len(autotune.CHOSEN) == 3  # what it chose is kept


def test_every_candidate_is_a_tile_that_a_product_takes():
    for kernel, table in CANDIDATES.items():
        assert list(table) == [64, 128, 256]
        for line in table.values():
            assert len(set(line)) == len(line)
            for tile in line:
                for one in (tile,) if isinstance(tile, Tile) else tile:
                    assert min(one.block_q, one.block_k) >= 16 and one.warps in (4, 8) and one.stages in (1, 2, 3), (kernel, one)


def test_the_variable_is_read_once_and_the_interpreter_says_what_it_does():
    if runtime.mode() == "cuda":
        pytest.skip("there it times tiles")
    code = "import torch, flashlab; q = torch.ones(1, 1, 3, 16, dtype=torch.float16); [flashlab.attention(q, q, q) for _ in range(2)]"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"FLASHLAB_AUTOTUNE": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "FLASHLAB_AUTOTUNE: Triton's interpreter times nothing; the tile stays 16 x 16, 4 warps, 1 stage.\n"


def test_another_mask_s_registration_times_nothing_again(on):
    ran = []
    tuned(forward_kernel, q(), 64, masks.decode(*masks.causal().encode())[0], USUAL, lambda tile: ran.append(tile))
    times = len(ran)

    @masks.register
    class another:
        @triton.jit
        def visible(batch, head, i, j):
            return j < i

    tuned(forward_kernel, q(), 64, masks.decode(*masks.causal().encode())[0], USUAL, lambda tile: ran.append(tile))
    assert times == len(ran) > 1


def test_a_refused_tile_holds_on_to_no_tensor(on):
    x = torch.empty(4)
    gone = weakref.ref(x)

    def run(tile):
        mine = x  # noqa: F841: a frame of the traceback holds it
        raise RuntimeError("no")

    tuned(forward_kernel, q(), 64, CAUSAL, USUAL, run)
    gc.disable()
    try:
        del x, run
        assert gone() is None
    finally:
        gc.enable()
