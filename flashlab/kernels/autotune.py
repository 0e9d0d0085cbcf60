"""Try a few tiles on this GPU and keep the fastest: what `FLASHLAB_AUTOTUNE=1` does, set before flashlab is imported.

tiles.py holds what was fastest on an H200. On another GPU, or for masks and sizes that nobody timed, another tile may win.
The first call for each (kernel, device, dtype, head_dim, kind of masks, n_q and n_k up to a power of two, heads of all
batches up to a power of two) times the table's tile and the candidates below, which takes seconds, says once what it
chose, and later calls use that. A trial reads the caller's tensors and writes only to outputs of its own. What does not
compile, or needs more shared memory, registers or threads than the device has (Triton asks both before it launches), is
left out.

Unlike triton.autotune: nothing runs on the caller's outputs, and it goes through the same launch as every other call.
Does not handle: float32 and the fused backward pass, which keep the table's tile; the interpreter, whose tile is fixed,
and says so; a stream that is being captured.

A tile chosen by time may differ from process to process, and with it the last bits of the results.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import torch
import triton
from triton.testing import do_bench

from flashlab.kernels.launch import by_triton
from flashlab.kernels.tiles import DESCRIPTORS, Tile, architecture

ON = os.environ.get("FLASHLAB_AUTOTUNE", "0") not in ("", "0")
WARM_UP_MS, TIMED_MS = 10, 50  # of each candidate

# Candidates by kernel and head_dim (up to), besides the table's own tile.
#   warps     4 is one warpgroup, and one tensor-core product of 64 rows at a time; 8 for tiles whose accumulators do not
#             fit one warpgroup's registers
#   stages    3 where shared memory is plenty and latency long; 1 or 2 where two programs shall share a multiprocessor
#   overlap   where one program must fill a multiprocessor alone (forward.attend)
#   small     32 and 64 wide tiles for GPUs with 99 KiB of shared memory, and where n is too short to fill the GPU
# Compiled (bf16, causal, Triton 3.9) for sm_80, sm_90 and sm_100: none is left as a kernel that only traps, which would end the
# process. On sm_90 none spills 300 bytes. What spills more elsewhere is not left out, since the clock judges it, and sm_80's own
# line at 256 spills 716: sm_80's 64 x 64 (872) and 128 x 32 (616) at 256; sm_100's 64 x 64 with 128 registers at 64 (540),
# and at 256 64 x 32 (624), 64 x 64 (1,176) and 128 x 32 (1,544), all forward. Left out is what spills without end: overlap where products
# read registers (candidates), on sm_80 1,000 and 1,648 bytes at 128 and 42 KB at 256; 32 x 32 keys at 256, on sm_90 15 KB.
CANDIDATES: dict[str, dict[int, tuple]] = {
    "forward_kernel": {
        64: (Tile(64, 64, 4, 2, 128), Tile(64, 64, 4, 3), Tile(128, 64, 4, 3), Tile(64, 128, 4, 2), Tile(128, 128, 8, 2)),
        128: (Tile(64, 64, 4, 2), Tile(64, 64, 4, 2, overlap=True), Tile(128, 64, 8, 2), Tile(128, 128, 8, 2, overlap=True)),
        256: (Tile(64, 32, 4, 2), Tile(64, 32, 4, 2, overlap=True), Tile(64, 64, 8, 2), Tile(128, 32, 8, 2)),
    },
    "keys_kernel": {
        64: ((Tile(64, 64, 4, 2),), (Tile(32, 64, 4, 2),), (Tile(64, 128, 8, 2),)),
        128: ((Tile(32, 64, 4, 2),), (Tile(64, 128, 8, 2),), (Tile(32, 64, 4, 2), Tile(32, 64, 4, 2))),
        256: ((Tile(32, 64, 8, 2), Tile(32, 64, 8, 2)), (Tile(64, 64, 8, 1), Tile(64, 64, 8, 1))),
    },
    "queries_kernel": {
        64: (Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(128, 64, 8, 2)),
        128: (Tile(64, 32, 4, 2), Tile(64, 64, 8, 2), Tile(128, 64, 8, 2)),
        256: (Tile(64, 32, 8, 2), Tile(128, 32, 8, 2)),
    },
}
CHOSEN: dict[tuple, object] = {}


def tuned(kernel, q: torch.Tensor, n_k: int, masks, usual, run: Callable[[object], object]):
    """The tile (or tiles) for this launch: `usual`, or the fastest if FLASHLAB_AUTOTUNE is set. run(tile) tries one."""
    if not ON or q.dtype == torch.float32:
        return usual
    if architecture(q.device) == 0:
        say(f"FLASHLAB_AUTOTUNE: Triton's interpreter times nothing; the tile stays {spelt(usual)}.")
        return usual
    batch, heads, n_q, head_dim = q.shape
    sizes = tuple(map(triton.next_power_of_2, (batch * heads, n_q, n_k)))
    key = (kernel.__name__, q.device, q.dtype, head_dim, repr(masks), *sizes)  # repr: another mask's registration makes new objects
    if key not in CHOSEN:
        if not by_triton(kernel) or torch.cuda.is_current_stream_capturing():
            return usual
        dtype = str(q.dtype).removeprefix("torch.")
        where = f"{torch.cuda.get_device_name(q.device)}, {dtype}, head_dim {head_dim}, {spelt_masks(masks)}"
        where += ", heads {} n_q {} n_k {} or fewer".format(*sizes)
        CHOSEN[key] = fastest(f"{kernel.__name__} on {where}", usual, candidates(kernel.__name__, head_dim, architecture(q.device)), run)
    return CHOSEN[key]


def candidates(kernel: str, head_dim: int, arch: int) -> tuple:
    """What to try besides the table's own tile. No overlap where products read registers (DESCRIPTORS): there it spills 1 to 42 KB."""
    table = CANDIDATES[kernel]
    line = table[min(d for d in table if d >= head_dim)]
    return tuple(tile for tile in line if arch in DESCRIPTORS or not getattr(tile, "overlap", False))


def fastest(what: str, usual, others: tuple, run: Callable[[object], object]):
    """The quickest of `usual` and the others that run here, said aloud; `usual` if none does, so that its own error is seen."""
    times, refused = {}, {}
    for tile in dict.fromkeys((usual, *others)):
        try:
            times[tile] = time_ms(lambda: run(tile))
        except (triton.TritonError, RuntimeError) as fault:  # the compiler's passes raise RuntimeError
            refused[tile] = (str(fault) or repr(fault)).splitlines()[0]  # not the fault, which would hold on to tensors
    best = min(times, key=times.get, default=usual)
    took = ", ".join(f"{spelt(tile)} {times[tile]:.3f} ms" for tile in sorted(times, key=times.get))
    left_out = "".join(f"; left out: {spelt(tile)}, {why}" for tile, why in refused.items())
    say(f"FLASHLAB_AUTOTUNE: {what}: {spelt(best)}{', as in the table' if best == usual else ''}. Timed: {took or 'nothing'}{left_out}.")
    return best


def time_ms(run: Callable[[], object]) -> float:
    """Median milliseconds of a launch, the L2 emptied before each."""
    return do_bench(run, warmup=WARM_UP_MS, rep=TIMED_MS, return_mode="median")


def spelt(tile) -> str:
    """ "128 x 64, 4 warps, 2 stages", and one after the other for two launches."""
    if not isinstance(tile, Tile):
        return " then ".join(map(spelt, tile))
    cap = f", {tile.registers} registers" if tile.registers else ""
    stages = f"{tile.stages} stage{'s' if tile.stages > 1 else ''}"
    order = ", overlap" if tile.overlap else ""
    return f"{tile.block_q} x {tile.block_k}, {tile.warps} warps, {stages}{cap}{order}"


def spelt_masks(masks) -> str:
    """The classes that the functions of joined masks were written in."""
    functions = [visible if seen else score for seen, visible, score in zip(masks.limits, masks.visible, masks.score)]
    return " & ".join(f.fn.__qualname__.split(".")[-2] for f in functions) or "no mask"


@cache
def say(sentence: str) -> None:
    """Print it, the first time in a process only."""
    print(sentence)
