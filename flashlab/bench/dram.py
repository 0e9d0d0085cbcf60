"""The DRAM bytes of one launch of our kernels by the cache model: the tiles and the order of programs that it really has.

    accuracy(by_launch(records), modelled)          the model beside the counters, launch by launch

traffic/schedule.py knows no kernel, so what it must be told is looked up here: the tiles that the kernel takes on the record's
GPU, and how many heads run at once (tiles_taken.py).

Does not handle: tuned tiles (FLASHLAB_AUTOTUNE), and head_dim over 128 in the backward, where dk and dv are two launches of
one name.
"""

from __future__ import annotations

from collections.abc import Mapping

from flashlab.bench.tiles_taken import blocks, heads_taken, tile_taken
from flashlab.hardware import Gpu
from flashlab.hardware import gpu as gpu_called
from flashlab.problem import AttentionProblem
from flashlab.traffic import schedule as schedules
from flashlab.traffic.cache import DramTraffic, through_l2
from flashlab.traffic.trace import Trace

WARP = 32  # threads
# Bytes that are dirty in the L2 before a kernel that Nsight Compute counts, and are written to DRAM during it: PyTorch's sums in
# recorded/nvidia-h200.jsonl read 268 MB, write 0.5 MB, and 2.2 to 2.5 MB reach DRAM; delta_kernel writes 1.0 MB, and 2.8 do.
DIRTY_BEFORE = 2_400_000


def programs_at_once(occupancy_limit_percent: float, threads: int, gpu: Gpu | str = "H200") -> int:
    """Programs of `threads` threads that share a multiprocessor, from the occupancy that their registers and shared memory allow."""
    return max(round(occupancy_limit_percent / 100 * gpu_called(gpu).warps / -(-threads // WARP)), 1)


def scheduled(kernel: str, problem: AttentionProblem, gpu: Gpu | str = "H200") -> Trace | None:
    """The schedule of one launch of `kernel` on this problem, on this GPU; None for kernels that are not ours."""
    if kernel == "softmax_kernel":
        return schedules.softmax_schedule(problem)
    tile = tile_taken(kernel, problem, gpu_called(gpu))
    if tile is None:
        return None
    if kernel == "forward_kernel":
        return schedules.forward_schedule(problem, **blocks(tile), heads_at_once=heads_taken(problem), overlap=tile.overlap)
    if kernel == "delta_kernel":
        return schedules.delta_schedule(problem, block_q=tile.block_q)
    if kernel == "keys_kernel":
        return schedules.keys_schedule(problem, **blocks(tile), heads_at_once=heads_taken(problem, of_queries=True))
    if kernel == "queries_kernel":
        return schedules.queries_schedule(problem, **blocks(tile), heads_at_once=heads_taken(problem))
    simple = {"scores_kernel": schedules.scores_schedule, "product_kernel": schedules.product_schedule, "flash1_kernel": schedules.flash1_schedule}
    return simple[kernel](problem, **blocks(tile))


def modelled(record: Mapping, *, gpu: Gpu | str | None = None, **options: object) -> DramTraffic | None:
    """The model of a counter record of one launch (traffic/accuracy.py says what it holds), or None for other kernels.

    A record may also hold n_k, kv_heads, dtype, device (an H200 without it; `gpu` overrules it), and occupancy_limit_percent
    and threads, from which follows how many programs share a multiprocessor; without these it is one. `options` are
    through_l2's; the L2 is as Nsight Compute leaves it, with DIRTY_BEFORE bytes to be written.
    """
    device = gpu_called(gpu or record.get("device", "H200"))
    problem = AttentionProblem(
        record["n"], record.get("n_k", record["n"]), record["head_dim"], batch=record["batch"], heads=record["heads"], kv_heads=record.get("kv_heads"),
        causal=record["causal"], dtype=record.get("dtype", "float16"),
    )  # fmt: skip
    trace = scheduled(record["kernel"], problem, device)
    together = programs_at_once(record["occupancy_limit_percent"], record["threads"], device) if "threads" in record else 1
    return trace and through_l2(trace, device, **{"programs_per_multiprocessor": together, "dirty_before": DIRTY_BEFORE} | options)
