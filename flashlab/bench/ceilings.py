"""This machine's two ceilings, measured: how fast it copies, and how fast it multiplies.

A data sheet promises more than any program sees. These are the rates that a plain copy and a large matrix product
reach on the machine in front of you, so "80 % of the ceiling" means 80 % of what was shown to be possible.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from flashlab import runtime
from flashlab.bench import records
from flashlab.bench.memory import out_of_memory_explained
from flashlab.bench.timing import device_name, time_call
from flashlab.bench.turn import turn


@dataclass(frozen=True)
class Ceilings:
    """bytes_per_s of a copy (bytes read and written) and flops_per_s of a matrix product in `dtype`, on `device`."""

    device: str
    dtype: str
    bytes_per_s: float
    flops_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP per byte where the two ceilings meet: below it, memory is what holds a kernel back."""
        return self.flops_per_s / self.bytes_per_s

    def __repr__(self) -> str:
        return (
            f"{self.device}: copies {self.bytes_per_s / 1e9:,.0f} GB/s, multiplies {self.flops_per_s / 1e12:,.2f} TFLOP/s"
            f" in {self.dtype}; the two meet at {self.ridge:,.0f} FLOP a byte"
        )


def copy_rate(device: str | None = None) -> float:
    """Bytes per second, read and written, of copying a tensor far larger than any cache (2 GB on a GPU, 128 MiB on a CPU)."""
    device = device or runtime.device()
    elements = 2**30 if torch.device(device).type == "cuda" else 2**26
    with turn(device), out_of_memory_explained(device):
        source = torch.zeros(elements, dtype=torch.float16, device=device)
        target = torch.ones_like(source)
        timing = time_call(lambda: target.copy_(source), device=device)
    return 2 * source.nbytes / (timing.time_ms / 1e3)


def matmul_rate(device: str | None = None, dtype: str | None = None) -> float:
    """FLOP per second of a square matrix product on random numbers: 8192³ on a GPU (bfloat16), 1536³ on a CPU (float32)."""
    device = device or runtime.device()
    on_gpu = torch.device(device).type == "cuda"
    n, dtype = (8192, dtype or "bfloat16") if on_gpu else (1536, dtype or "float32")
    with turn(device), out_of_memory_explained(device):
        left, right = (torch.randn(n, n, device=device).to(getattr(torch, dtype)) for _ in range(2))
        timing = time_call(lambda: left @ right, device=device)
    return 2 * n**3 / (timing.time_ms / 1e3)


def measure_ceilings(device: str | None = None) -> Ceilings:
    """Both ceilings of one device, in about two seconds."""
    device = device or runtime.device()
    dtype = "bfloat16" if torch.device(device).type == "cuda" else "float32"
    return Ceilings(device_name(device), dtype, copy_rate(device), matmul_rate(device, dtype))


def keep(found: Ceilings) -> Path:
    """Write the ceilings beside the device's records, for readers who do not have it: recorded/nvidia-h200.ceilings.json."""
    path = path_for(found.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(found)) + "\n")
    return path


def kept(device: str) -> Ceilings | None:
    """The ceilings recorded for a device of this name, None where there are none."""
    path = path_for(device)
    return Ceilings(**json.loads(path.read_text())) if path.exists() else None


def path_for(device: str) -> Path:
    """Where the ceilings of a device are kept."""
    return records.path_for(device).with_suffix(".ceilings.json")
