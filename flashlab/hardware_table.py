"""Data-sheet values of the GPUs that the course names, and of one laptop CPU. Plain rows: hardware.py makes them Gpu.

Every rate is a peak: dense (no 2:4 sparsity, although data sheets print the doubled number in larger type), at the boost
clock. float16, bfloat16 and float8 are the tensor cores' with float32 accumulation, the one that attention needs:
GeForce cards run it at half the rate that their boxes quote. float32 and float64 are the CUDA cores', because the
course's float32 is IEEE and never TF32. A rate that a chip does not have is left out: a T4 has no bfloat16.

A data sheet's "80 GB" of memory, like every cache size, counts in powers of two; its "GB/s" counts in powers of ten.
"""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30
DOCS = "https://docs.nvidia.com/cuda/"
IMAGES = "https://images.nvidia.com/aem-dam/"
SITE = "https://www.nvidia.com/content/"
RESOURCES = "https://resources.nvidia.com/"

# Document name and address. The tuning guides give each chip's shared memory, per multiprocessor and per block.
TURING_GUIDE = ("NVIDIA, Turing Tuning Guide, section 1.4.3.1", DOCS + "turing-tuning-guide/")
AMPERE_GUIDE = ("NVIDIA, Ampere Tuning Guide, section 1.4.2", DOCS + "ampere-tuning-guide/")
ADA_GUIDE = ("NVIDIA, Ada Tuning Guide, section 1.4.2", DOCS + "ada-tuning-guide/")
HOPPER_GUIDE = ("NVIDIA, Hopper Tuning Guide, section 1.4.2", DOCS + "hopper-tuning-guide/")
BLACKWELL_GUIDE = ("NVIDIA, Blackwell Tuning Guide, section 1.4.2", DOCS + "blackwell-tuning-guide/")
GA100 = ("NVIDIA, A100 Tensor Core GPU Architecture", IMAGES + "en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf")
A100_SHEET = ("NVIDIA, A100 data sheet", SITE + "dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf")
GA102 = ("NVIDIA, Ampere GA102 GPU Architecture", SITE + "PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf")
AD102 = ("NVIDIA, Ada GPU Architecture", IMAGES + "Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf")
GH100 = ("NVIDIA, H100 Tensor Core GPU Architecture", RESOURCES + "en-us-tensor-core/gtc22-whitepaper-hopper")

# What the chips of one architecture share: a register file of 256 KiB, and its shared memory.
NVIDIA = {"registers_bytes": 256 * KIB, "sram_bytes_per_clock": 128}
TURING = NVIDIA | {"architecture": "Turing", "compute_capability": (7, 5), "sram_bytes": 64 * KIB, "sram_bytes_per_block": 64 * KIB}
TURING |= {"sram_bytes_per_clock": 64}  # the GA102 paper: Ampere doubled it
AMPERE_A100 = NVIDIA | {"architecture": "Ampere", "compute_capability": (8, 0), "sram_bytes": 164 * KIB, "sram_bytes_per_block": 163 * KIB}
AMPERE = NVIDIA | {"architecture": "Ampere", "compute_capability": (8, 6), "sram_bytes": 100 * KIB, "sram_bytes_per_block": 99 * KIB}
ADA = NVIDIA | {"architecture": "Ada", "compute_capability": (8, 9), "sram_bytes": 100 * KIB, "sram_bytes_per_block": 99 * KIB}
HOPPER = NVIDIA | {"architecture": "Hopper", "compute_capability": (9, 0), "sram_bytes": 228 * KIB, "sram_bytes_per_block": 227 * KIB}
BLACKWELL_B200 = HOPPER | {"architecture": "Blackwell", "compute_capability": (10, 0)}
BLACKWELL_RTX = ADA | {"architecture": "Blackwell", "compute_capability": (12, 0)}


def tera(*, tensor: float, float32: float, float64: float, float8: float | None = None, bfloat16: bool = True) -> dict[str, float]:
    """FLOP/s by dtype from TFLOP/s; the tensor cores run float16 and, since Ampere, bfloat16 at one rate."""
    rates = {"float16": tensor, "bfloat16": tensor if bfloat16 else None, "float8": float8, "float32": float32, "float64": float64}
    return {dtype: rate * 1e12 for dtype, rate in rates.items() if rate is not None}


A100 = AMPERE_A100 | {"year": 2020, "multiprocessors": 108, "boost_clock_hz": 1.41e9, "l2_bytes": 40 * MIB}
A100 |= {"flops_per_s": tera(tensor=312, float32=19.5, float64=9.7), "sources": (A100_SHEET, GA100, AMPERE_GUIDE)}
H100 = HOPPER | {"multiprocessors": 132, "boost_clock_hz": 1.98e9}  # 1.83 GHz under tensor-core load, where 989 comes from
H100 |= {"flops_per_s": tera(tensor=989.4, float8=1978.9, float32=66.9, float64=33.5)}

ROWS: list[dict] = [
    TURING | {
        "name": "T4", "product": "NVIDIA T4", "device_names": ("Tesla T4",), "year": 2018, "multiprocessors": 40,
        "boost_clock_hz": 1.59e9, "l2_bytes": 4 * MIB, "hbm_bytes": 16 * GIB, "hbm_bytes_per_s": 320e9,
        "flops_per_s": tera(tensor=65, float32=8.1, float64=0.25, bfloat16=False),
        "sources": (("NVIDIA, T4 data sheet", SITE + "dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"), TURING_GUIDE, GA102),
    },
    AMPERE | {
        "name": "A10", "product": "NVIDIA A10", "device_names": (), "year": 2021, "multiprocessors": 72,
        "boost_clock_hz": 1.695e9, "l2_bytes": 6 * MIB, "hbm_bytes": 24 * GIB, "hbm_bytes_per_s": 600e9,
        "flops_per_s": tera(tensor=125, float32=31.2, float64=0.488),
        "sources": (("NVIDIA, A10 data sheet", SITE + "dam/en-zz/Solutions/Data-Center/a10/pdf/datasheet-new/nvidia-a10-datasheet.pdf"), GA102, AMPERE_GUIDE),
    },
    A100 | {
        "name": "A100-40GB", "product": "NVIDIA A100 SXM 40GB", "device_names": ("NVIDIA A100-SXM4-40GB",),
        "hbm_bytes": 40 * GIB, "hbm_bytes_per_s": 1555e9,
    },
    A100 | {
        "name": "A100-80GB", "product": "NVIDIA A100 SXM 80GB", "device_names": ("NVIDIA A100-SXM4-80GB", "A100", "A100 SXM"),
        "hbm_bytes": 80 * GIB, "hbm_bytes_per_s": 2039e9,
    },
    ADA | {
        "name": "L4", "product": "NVIDIA L4", "device_names": (), "year": 2023, "multiprocessors": 58,
        "boost_clock_hz": 2.04e9, "l2_bytes": 48 * MIB, "hbm_bytes": 24 * GIB, "hbm_bytes_per_s": 300e9,
        "flops_per_s": tera(tensor=121, float8=242.5, float32=30.3, float64=0.473),
        "sources": (("NVIDIA, L4 data sheet", RESOURCES + "en-us-data-center-overview/l4-gpu-datasheet"), AD102, ADA_GUIDE),
    },
    ADA | {
        "name": "L40S", "product": "NVIDIA L40S", "device_names": (), "year": 2023, "multiprocessors": 142,
        "boost_clock_hz": 2.52e9, "l2_bytes": 96 * MIB, "hbm_bytes": 48 * GIB, "hbm_bytes_per_s": 864e9,
        "flops_per_s": tera(tensor=362.05, float8=733, float32=91.6, float64=1.43),
        "sources": (("NVIDIA, L40S data sheet", RESOURCES + "en-us-l40s/l40s-datasheet-28413"), AD102, ADA_GUIDE),
    },
    AMPERE | {
        "name": "RTX 3090", "product": "NVIDIA GeForce RTX 3090", "device_names": ("3090",), "year": 2020, "multiprocessors": 82,
        "boost_clock_hz": 1.695e9, "l2_bytes": 6 * MIB, "hbm_bytes": 24 * GIB, "hbm_bytes_per_s": 936e9,
        "flops_per_s": tera(tensor=71, float32=35.6, float64=0.556), "sources": (GA102, AMPERE_GUIDE),
    },
    ADA | {
        "name": "RTX 4090", "product": "NVIDIA GeForce RTX 4090", "device_names": ("4090",), "year": 2022, "multiprocessors": 128,
        "boost_clock_hz": 2.52e9, "l2_bytes": 72 * MIB, "hbm_bytes": 24 * GIB, "hbm_bytes_per_s": 1008e9,
        "flops_per_s": tera(tensor=165.2, float8=330.3, float32=82.6, float64=1.29), "sources": (AD102, ADA_GUIDE),
    },
    BLACKWELL_RTX | {
        "name": "RTX 5090", "product": "NVIDIA GeForce RTX 5090", "device_names": ("5090",), "year": 2025, "multiprocessors": 170,
        "boost_clock_hz": 2.407e9, "l2_bytes": 96 * MIB, "hbm_bytes": 32 * GIB, "hbm_bytes_per_s": 1792e9,
        "flops_per_s": tera(tensor=209.5, float8=419, float32=104.8, float64=1.64),
        "sources": (("NVIDIA, RTX Blackwell GPU Architecture", IMAGES + "Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"), BLACKWELL_GUIDE),
    },
    H100 | {
        "name": "H100", "product": "NVIDIA H100 SXM", "device_names": ("NVIDIA H100 80GB HBM3", "H100 SXM5"), "year": 2022,
        "l2_bytes": 50 * MIB, "hbm_bytes": 80 * GIB, "hbm_bytes_per_s": 3350e9, "sources": (GH100, HOPPER_GUIDE),
    },
    H100 | {
        "name": "H200", "product": "NVIDIA H200 SXM", "device_names": ("NVIDIA H200",), "year": 2023,
        "l2_bytes": 60 * MIB, "hbm_bytes": 141 * GIB, "hbm_bytes_per_s": 4800e9,
        "sources": (("NVIDIA, H200 data sheet", "https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446"), GH100, HOPPER_GUIDE),
        "note": "The L2 size is what the CUDA driver reports on an H200; the data sheet does not give one.",
    },
    BLACKWELL_B200 | {
        "name": "B200", "product": "NVIDIA B200 (HGX)", "device_names": ("NVIDIA B200",), "year": 2024, "multiprocessors": 148,
        "boost_clock_hz": 1.965e9, "l2_bytes": 126 * MIB, "hbm_bytes": 180 * GIB, "hbm_bytes_per_s": 7700e9,
        "flops_per_s": tera(tensor=2250, float8=4500, float32=75, float64=37),
        "sources": (("NVIDIA, Blackwell data sheet, individual B200", RESOURCES + "en-us-blackwell-architecture/datasheet"), BLACKWELL_GUIDE),
        "note": "Multiprocessors and clock are what the CUDA driver and nvidia-smi report on a B200; the data sheet does not give them."
        " Its products use 256 KiB of tensor memory a multiprocessor besides, which the course does not model.",
    },
    {
        "name": "laptop CPU", "product": "AMD Ryzen 7 7840U", "device_names": ("cpu", "laptop", "Ryzen 7 7840U"), "architecture": "Zen 4", "year": 2023,
        "compute_capability": None, "multiprocessors": 8, "registers_bytes": 32 * 64, "boost_clock_hz": 3.3e9,
        "sram_bytes": 1 * MIB, "sram_bytes_per_block": 1 * MIB, "sram_bytes_per_clock": 32, "l2_bytes": 16 * MIB,
        "hbm_bytes": 32 * GIB, "hbm_bytes_per_s": 89.6e9,
        "flops_per_s": {"float16": 845e9, "bfloat16": 1690e9, "float32": 845e9, "float64": 422e9},
        "sources": (
            ("AMD, Ryzen 7 7840U specifications", "https://www.amd.com/en/products/processors/laptop/ryzen/7000-series/amd-ryzen-7-7840u.html"),
            ("A. Fog, The microarchitecture of Intel, AMD and VIA CPUs", "https://www.agner.org/optimize/microarchitecture.pdf"),
        ),
        "note": "A stand-in for your laptop, approximate: a multiprocessor is a core, SRAM its own L2 cache, L2 the shared L3, HBM two channels"
        " of DDR5-5600. Rates are 32 float32 FLOP a clock and core at the base clock, which eight busy cores can hold;"
        " float16 is computed as float32.",
    },
]
