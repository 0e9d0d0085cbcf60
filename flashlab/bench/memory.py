"""Memory of a GPU that several people share: a cap for each process, and running out of it explained.

    FLASHLAB_GPU_FRACTION=0.25 flashlab lab      each process may hold a quarter of the GPU's memory

The cap is set before flashlab's first timed call; what a program allocates before that is not stopped.
"""

from __future__ import annotations

import gc
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from flashlab.errors import error

VARIABLE = "FLASHLAB_GPU_FRACTION"
CPU_FULL = "DefaultCPUAllocator"  # in torch's words; on a CPU it has no exception of its own for this


def fraction() -> float | None:
    """What FLASHLAB_GPU_FRACTION allows, None where it is not set. Raises ValueError for what is no number above 0 and up to 1."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return None
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise error("gpu_fraction", given=given)
    return number


def cap(device: str) -> None:
    """Hold this process to its share of the device's memory; does nothing on a CPU or where no share is set."""
    share = fraction()
    if share is not None and torch.device(device).type == "cuda":
        number = torch.device(device).index  # torch wants one here, and "cuda" has none
        torch.cuda.set_per_process_memory_fraction(share, torch.cuda.current_device() if number is None else number)


def free(device: str) -> None:
    """Give back what nothing holds any more: garbage first, then torch's own reserve."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def ran_out(fault: BaseException) -> bool:
    """Whether torch says with this that memory did not suffice, a GPU's or the CPU's."""
    return isinstance(fault, torch.OutOfMemoryError) or (isinstance(fault, RuntimeError) and CPU_FULL in str(fault))


def asked_for(fault: BaseException) -> str:
    """How much a call that ran out of memory wanted, as torch says it, a CPU's bytes in GiB or MiB; "an unknown amount" where it does not say.

    >>> asked_for(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 3221225472 bytes."))
    '3.00 GiB'
    """
    found = re.search(r"[Tt]ried to allocate ([\d.]+) (\w+)", str(fault))
    if not found:
        return "an unknown amount"
    number, unit = found.groups()
    if unit != "bytes":
        return f"{number} {unit}"
    size, unit = (2**30, "GiB") if float(number) >= 2**30 else (2**20, "MiB")
    return f"{float(number) / size:,.2f} {unit}"


@contextmanager
def out_of_memory_explained(device: str) -> Iterator[None]:
    """Turn torch's out-of-memory into one sentence of what to do, with everything freed: a notebook goes on from there.

    Raises MemoryError. The traceback of the fault is emptied first: IPython keeps it, and with it the tensors of every
    function on the way.
    """
    try:
        yield
        return
    except RuntimeError as fault:
        if not ran_out(fault):
            raise
        # A call that is timed on a GPU may fill the CPU's memory, too: the fault says which it was, and a CPU's has no cap.
        asked, on_gpu = asked_for(fault), torch.device(device).type == "cuda" and isinstance(fault, torch.OutOfMemoryError)
        traceback.clear_frames(fault.__traceback__)
        fault.__traceback__ = None
    free(device)
    if not on_gpu:
        raise error("cpu_memory", asked=asked)
    unused, total = torch.cuda.mem_get_info(device)
    share = fraction()
    limit = f"; {VARIABLE} lets this process hold {share:.0%} of it" if share is not None else ""
    raise error("gpu_memory", device=device, asked=asked, unused=unused / 2**30, total=total / 2**30, limit=limit)


def extra_bytes(call: Callable[[], object], device: str) -> int | None:
    """The most memory that a call holds beyond what it was given and what it returns; None where torch does not count it."""
    if torch.device(device).type != "cuda":
        return None
    # What keeps a call's result after its caller (autograd has a thread of its own) lets it go in the midst of the next call, at
    # times, on a busy machine. So of the calls before it is rid when this one is done, and this one's result is held to the end.
    held = call()  # noqa: F841
    torch.cuda.synchronize(device)
    with _no_collection():
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = call()
        peak = torch.cuda.max_memory_allocated(device) - before
    return peak - sum(x.nbytes for x in (result if isinstance(result, tuple) else (result,)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Tensors that an earlier call left in a cycle stay where they are: freed meanwhile, they would count as less than nothing."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
