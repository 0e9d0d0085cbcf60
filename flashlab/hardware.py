"""What a GPU can do at best, by its data sheet, and which of its two ceilings an attention problem meets first.

    gpu("H200").ridge("bfloat16")            206 FLOP for each byte from HBM: below it, memory is the bound
    roofline(problem, gpu("H200"))           the time that memory and arithmetic each need at least

Source of the roofline: Williams, Waterman & Patterson 2009, "Roofline: An Insightful Visual Performance Model". The
numbers and their documents are in hardware_table.py. What it does not know: caches, latency, launch overhead, the
exponentials of softmax, power limits. So every time here is a lower bound, and what a GPU reaches is measured elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from flashlab import runtime
from flashlab.errors import error
from flashlab.hardware_table import ROWS
from flashlab.problem import AttentionProblem, check_size
from flashlab.traffic.model import attention_flops, fused_traffic


FEWER_WARPS = {(7, 5): 32, (8, 6): 48, (8, 7): 48, (8, 9): 48, (12, 0): 48, (12, 1): 48}  # compute capability: warps of a multiprocessor


@dataclass(frozen=True)
class Gpu:
    """One row of the table, in bytes, hertz, and FLOP or bytes a second.

    `registers_bytes` and `sram_bytes` are those of one multiprocessor. SRAM here is shared memory: on the chip it shares
    one block with the L1 cache (an H100 has 256 KiB of both, of which 228 can be shared memory), and one program may
    use `sram_bytes_per_block` of it. `hbm_bytes` is the memory of the card, whether it is HBM, GDDR or DDR.
    `flops_per_s` maps a dtype to its dense peak. `sources` are pairs (document, address); `note` says what to know.
    """

    name: str
    product: str
    device_names: tuple[str, ...]
    architecture: str
    year: int
    compute_capability: tuple[int, int] | None
    multiprocessors: int
    registers_bytes: int
    sram_bytes: int
    sram_bytes_per_block: int
    sram_bytes_per_clock: int
    l2_bytes: int
    hbm_bytes: int
    hbm_bytes_per_s: float
    boost_clock_hz: float
    flops_per_s: dict[str, float] = field(hash=False)
    sources: tuple[tuple[str, str], ...]
    note: str = ""

    @property
    def warps(self) -> int:
        """The most warps that a multiprocessor holds (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""
        return FEWER_WARPS.get(self.compute_capability, 64)

    @property
    def sram_bytes_per_s(self) -> float:
        """Bytes a second from the SRAM of all multiprocessors together: derived, no data sheet gives it.

        multiprocessors · sram_bytes_per_clock · boost clock. 128 bytes a clock are 32 banks of 4 bytes (NVIDIA, CUDA C++
        Programming Guide, "Shared Memory" of each compute capability); Turing moves 64 (NVIDIA, Ampere GA102 GPU
        Architecture, 2020, which says that Ampere doubled it).
        """
        return self.multiprocessors * self.sram_bytes_per_clock * self.boost_clock_hz

    @property
    def sram_to_hbm_ratio(self) -> float:
        """How many times faster SRAM is than HBM."""
        return self.sram_bytes_per_s / self.hbm_bytes_per_s

    def peak_flops_per_s(self, dtype: str) -> float:
        """The dense peak of a dtype. Raises ValueError for one that this chip has no units for."""
        if dtype not in self.flops_per_s:
            raise error("gpu_dtype", gpu=self.name, given=dtype, allowed=", ".join(self.flops_per_s))
        return self.flops_per_s[dtype]

    def ridge(self, dtype: str) -> float:
        """FLOP a byte at which memory and arithmetic take equally long: below it memory binds, above it arithmetic."""
        return self.peak_flops_per_s(dtype) / self.hbm_bytes_per_s

    def attainable_flops_per_s(self, intensity: float, dtype: str) -> float:
        """The roofline: the lower of the two ceilings at `intensity` FLOP a byte."""
        return min(self.peak_flops_per_s(dtype), intensity * self.hbm_bytes_per_s)

    def __repr__(self) -> str:
        return (
            f"{self.product} ({self.architecture}, {self.year}): {self.multiprocessors} multiprocessors with"
            f" {self.sram_bytes // 2**10} KiB of SRAM each, {self.hbm_bytes / 2**30:.0f} GiB of memory at"
            f" {self.hbm_bytes_per_s / 1e9:,.0f} GB/s; SRAM is {self.sram_to_hbm_ratio:.0f} times as fast"
        )


GPUS: dict[str, Gpu] = {row["name"]: Gpu(**row) for row in ROWS}
LAPTOP = "laptop CPU"


def _spelling(name: str) -> str:
    """A name without its maker, case and punctuation: "NVIDIA GeForce RTX 4090" and "rtx-4090" are the same."""
    return re.sub(r"nvidia|geforce|tesla|amd|gpu|[^a-z0-9]", "", name.lower())


_BY_SPELLING = {_spelling(name): row for row in GPUS.values() for name in (row.name, row.product, *row.device_names)}


def gpu(name: str | Gpu) -> Gpu:
    """The GPU of that name, however it is spelt; a Gpu is returned as it is. Raises KeyError for one that is not known.

    Variants with other rates (an H100 PCIe, a laptop's RTX 4090) are not taken for the ones in the table.

    >>> gpu("nvidia h200").name, gpu("NVIDIA GeForce RTX 4090").multiprocessors
    ('H200', 128)
    """
    return _found(name)


def _found(name: str | Gpu) -> Gpu:
    row = name if isinstance(name, Gpu) else _BY_SPELLING.get(_spelling(str(name)))
    if row is None:
        raise error("gpu_unknown", given=name, allowed=", ".join(GPUS))
    return row


def this_gpu() -> Gpu:
    """The GPU that flashlab runs on (runtime.device()), or the laptop CPU where kernels are interpreted.

    A GPU that is not in the table is estimated from its device properties; its `note` says so.
    """
    import torch

    if runtime.device() == "cpu":
        return GPUS[LAPTOP]
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return _BY_SPELLING.get(_spelling(properties.name)) or estimated(properties)


def estimated(properties) -> Gpu:
    """A GPU that is not in the table, from torch's device properties and the row of the table that is most like it.

    Like means the nearest compute capability not above its own, and GeForce or not, since GeForce halves the tensor
    cores. Its rates are that row's, scaled by multiprocessors times clock; its memory's rate is that row's where torch
    does not tell the memory clock. Raises KeyError for a GPU older than all of the table.
    """
    capability, geforce = (properties.major, properties.minor), "GeForce" in properties.name
    like = [row for row in GPUS.values() if row.compute_capability and row.compute_capability <= capability]
    like.sort(key=lambda row: (row.compute_capability, ("GeForce" in row.product) == geforce), reverse=True)
    if not like:
        raise error("gpu_unknown", given=properties.name, allowed=", ".join(GPUS))
    memory_khz, bus_bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    told = memory_khz and bus_bits
    clock_hz = getattr(properties, "clock_rate", 0) * 1e3 or like[0].boost_clock_hz
    faster = properties.multi_processor_count * clock_hz / (like[0].multiprocessors * like[0].boost_clock_hz)
    return replace(
        like[0],
        name=properties.name,
        product=properties.name,
        device_names=(),
        multiprocessors=properties.multi_processor_count,
        boost_clock_hz=clock_hz,
        l2_bytes=properties.L2_cache_size,
        hbm_bytes=properties.total_memory,
        hbm_bytes_per_s=2 * memory_khz * 1e3 * bus_bits / 8 if told else like[0].hbm_bytes_per_s,  # two transfers a clock
        flops_per_s={dtype: rate * faster for dtype, rate in like[0].flops_per_s.items()},
        note=f"Not in flashlab's table: estimated from its device properties and the rates of {like[0].product}.",
    )


@dataclass(frozen=True)
class Bound:
    """The least time that `flops` of arithmetic and `bytes_moved` through HBM can take on `gpu`, if they overlap fully."""

    gpu: Gpu
    dtype: str
    flops: int
    bytes_moved: int

    @property
    def intensity(self) -> float:
        """FLOP a byte; infinite where nothing moves."""
        return self.flops / self.bytes_moved if self.bytes_moved else float("inf")

    @property
    def memory_time_s(self) -> float:
        """Seconds to move the bytes at the full HBM rate."""
        return self.bytes_moved / self.gpu.hbm_bytes_per_s

    @property
    def compute_time_s(self) -> float:
        """Seconds to do the arithmetic at the dense peak."""
        return self.flops / self.gpu.peak_flops_per_s(self.dtype)

    @property
    def time_s(self) -> float:
        """The longer of the two, in seconds: a lower bound."""
        return max(self.memory_time_s, self.compute_time_s)

    @property
    def binds(self) -> str:
        """ "memory" or "compute": the one that takes longer."""
        return "memory" if self.memory_time_s > self.compute_time_s else "compute"

    @property
    def attainable_flops_per_s(self) -> float:
        """FLOP/s at the roofline."""
        return self.gpu.attainable_flops_per_s(self.intensity, self.dtype)

    def __repr__(self) -> str:
        return (
            f"{self.binds}-bound on {self.gpu.name}: {self.intensity:,.0f} FLOP a byte against a ridge of"
            f" {self.gpu.ridge(self.dtype):,.0f}, so at best {self.attainable_flops_per_s / 1e12:,.1f} TFLOP/s,"
            f" {self.time_s * 1e3:.3g} ms"
        )


def roofline(problem: AttentionProblem, gpu: Gpu | str, bytes_moved: int | None = None) -> Bound:
    """The bound of one attention forward on a GPU; `bytes_moved` is by default q, k, v and o once.

    Raises ValueError for a dtype that the chip lacks.

    >>> from flashlab.traffic.model import standard_traffic
    >>> problem = AttentionProblem(n_q=4096, n_k=4096, head_dim=128)
    >>> roofline(problem, "H200").binds, roofline(problem, "H200", standard_traffic(problem).bytes_moved).binds
    ('compute', 'memory')
    """
    row = _found(gpu)
    row.peak_flops_per_s(problem.dtype)  # refuse a dtype here, not when the bound is first read
    moved = fused_traffic(problem).bytes_moved if bytes_moved is None else check_size("bytes_moved", bytes_moved, 0)
    return Bound(row, problem.dtype, attention_flops(problem), moved)
