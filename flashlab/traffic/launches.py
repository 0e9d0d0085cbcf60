"""What Nsight Compute counts of a kernel, in whose words, and what that means.

What is counted, kernel by kernel, with empty caches before each:
    dram_bytes_read, dram_bytes_written   what passed between L2 and the GPU's memory (dram__bytes_read, _write). What a kernel
                                          wrote and the L2 still holds when it ends is not in it.
    l2_bytes                              what passed the L2's tag stage, in sectors of 32 bytes (lts__t_bytes): loads, stores and
                                          atomics of all units, hits and misses alike; on GPUs whose L2 is in two halves (A100,
                                          H100, H200) what crosses between them too. Equal reads of neighbouring multiprocessors
                                          can be merged before they get there, so it may be less than what the kernel asked for.
    sm_bytes_read, sm_bytes_written       what the multiprocessors got from the L2 and sent to it (l1tex__m_xbar2l1tex_read_bytes,
                                          l1tex__m_l1tex2xbar_write_bytes): what a trace counts, TMA's loads and stores included.
                                          None where a GPU has no such counter.
    shared_bytes                          128 bytes for each wavefront that load and store instructions took through shared memory
                                          (l1tex__data_pipe_lsu_wavefronts_mem_shared), bank conflicts included. What TMA and the
                                          tensor cores (wgmma) move there by themselves is not in it.
    time_ms                               with empty caches and clocks as they are (gpu__time_duration): not a benchmark's time.
    tensor_percent                        cycles in which the tensor cores worked (sm__pipe_tensor_cycles_active), of all cycles.
    occupancy_percent, _limit_percent     warps at work, of those that the multiprocessors can hold: on average while they were
                                          busy, and at most, given registers, shared memory and threads.

Checked on an H200, on 160 launches of our kernels (tests/bench/test_dram_counted.py). sm_bytes_written is what the schedule
stores, to the byte, and sm_bytes_read what it loads, within 0.3 percent, but for two things. Registers that a thread has no room for
go the same way: at head_dim 128 causal they add 3 percent to the bytes that forward_kernel and keys_kernel store, and 8 to
10 to those that flash1_kernel loads. And scores_kernel at head_dim 64 gets up to 6 percent less than it loads; why is not known.
l2_bytes is 0.66 to 1.62 times what is requested: 1.51 to 1.62 in kernels that read all once (each byte, and half of them cross
between the halves), and least in keys_kernel at head_dim 128, whose many programs read the same tiles at about the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashlab.errors import error
from flashlab.problem import AttentionProblem

# {field of Launch: (what ncu calls it, how many of the field one of it is)}.
METRICS = {
    "registers": ("launch__registers_per_thread", 1),
    "sram_bytes": ("launch__shared_mem_per_block", 1),
    "occupancy_percent": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "occupancy_limit_percent": ("sm__maximum_warps_per_active_cycle_pct", 1),
    "time_ms": ("gpu__time_duration.sum", 1),
    "dram_bytes_read": ("dram__bytes_read.sum", 1),
    "dram_bytes_written": ("dram__bytes_write.sum", 1),
    "l2_bytes": ("lts__t_bytes.sum", 1),
    "sm_bytes_read": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1),
    "sm_bytes_written": ("l1tex__m_l1tex2xbar_write_bytes.sum", 1),
    "shared_bytes": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 128),
    "tensor_percent": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
}
OPTIONAL = {"sm_bytes_read", "sm_bytes_written", "shared_bytes", "tensor_percent"}  # None where a GPU does not have it
FRACTIONS = {"occupancy_percent", "occupancy_limit_percent", "time_ms", "tensor_percent"}  # the others are whole numbers


@dataclass(frozen=True)
class Launch:
    """One kernel as the hardware counted it; the module's docstring says what each number is."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    registers: int
    sram_bytes: int
    occupancy_percent: float
    occupancy_limit_percent: float
    time_ms: float
    dram_bytes_read: int
    dram_bytes_written: int
    l2_bytes: int
    sm_bytes_read: int | None
    sm_bytes_written: int | None
    shared_bytes: int | None
    tensor_percent: float | None

    def __repr__(self) -> str:
        busy = "" if self.tensor_percent is None else f", tensor cores busy {self.tensor_percent:.0f} percent of the time"
        return (
            f"{self.kernel}: {self.dram_bytes_read:,} bytes read from DRAM, {self.dram_bytes_written:,} written,"
            f" {self.l2_bytes:,} through the L2, {self.time_ms:.3g} ms{busy}"
        )


@dataclass(frozen=True, repr=False)
class Counted:
    """The launches of one workload on one problem, in order; `where` says where and when they were counted."""

    workload: str
    pass_: str
    problem: AttentionProblem
    launches: tuple[Launch, ...]
    where: str = ""

    def total(self, field: str) -> float:
        """The sum of a field over the launches: total("l2_bytes"). A launch that has no such counter counts as nothing."""
        return sum(getattr(one, field) or 0 for one in self.launches)

    @property
    def dram_bytes_read(self) -> int:
        return self.total("dram_bytes_read")

    @property
    def dram_bytes_written(self) -> int:
        return self.total("dram_bytes_written")

    @property
    def dram_bytes(self) -> int:
        """Read and written."""
        return self.dram_bytes_read + self.dram_bytes_written

    @property
    def l2_bytes(self) -> int:
        return self.total("l2_bytes")

    @property
    def shared_bytes(self) -> int:
        return self.total("shared_bytes")

    @property
    def time_ms(self) -> float:
        return self.total("time_ms")

    def __repr__(self) -> str:
        many = len(self.launches)
        return (
            f"{name(self)}: {many} launch{'es' * (many != 1)}, {self.dram_bytes_read:,} bytes read from DRAM,"
            f" {self.dram_bytes_written:,} written, {self.l2_bytes:,} through the L2, {self.time_ms:.3g} ms"
            + (f" ({self.where})" if self.where else "")
        )


@dataclass(frozen=True)
class Uncounted:
    """A workload that was not counted, and why. `failed`: it should have been."""

    workload: str
    pass_: str
    problem: AttentionProblem
    why: str
    failed: bool = False


def name(one: Counted | Uncounted) -> str:
    """Such as "triton forward, n 4,096, head_dim 128, causal"."""
    p = one.problem
    n = f"n {p.n_q:,}" if p.n_q == p.n_k else f"n_q {p.n_q:,}, n_k {p.n_k:,}"
    return f"{one.workload} {one.pass_}, {n}, head_dim {p.head_dim}, {'causal' if p.causal else 'full'}"


def launch(row: dict) -> Launch:
    """A row of ncu's table as a Launch."""
    values = {}
    for field, (metric, factor) in METRICS.items():
        value = row.get(metric)
        if value is None and field not in OPTIONAL:
            raise error("ncu_metric", given=metric, kernel=row["Kernel Name"])
        values[field] = value if value is None else value * factor if field in FRACTIONS else round(value * factor)
    x, y, z = triple(row["Block Size"])
    return Launch(row["Kernel Name"], triple(row["Grid Size"]), x * y * z, **values)


def triple(text: str) -> tuple[int, int, int]:
    """(2048, 1, 1) from ncu's "(2048, 1, 1)"."""
    return tuple(int(number) for number in text.strip("()").split(","))
