"""Lesson 02: where the speed-up comes from, which resource is saved, and which side of the ridge a kernel is on."""

from flashlab.hardware import gpu
from flashlab.widgets.quiz import multiple, number, single, true_false

_H200, _A100 = gpu("H200"), gpu("A100 80GB")

QUESTIONS = [
    single(
        "FlashAttention does the same FLOPs as standard attention in the forward pass. Where does its speed-up come from?",
        right="From moving fewer bytes to and from HBM.",
        wrong={
            "From using more multiprocessors.": "Both fill the GPU. Standard attention's multiprocessors mostly wait.",
            "From a faster matrix instruction.": "Both use the same tensor cores.",
            "From lower precision.": "Same types, and the same numbers up to rounding.",
        },
        because="Standard attention does about head_dim / 2 FLOP a byte, far below the ridge: its time is its bytes.",
    ),
    single(
        "Which resource does FlashAttention use less of, above all?",
        right="traffic to HBM (and so memory for n × n numbers)",
        wrong={
            "FLOPs": "The forward's matrix products are the same.",
            "parameters": "Attention itself has none, and the model around it does not change.",
            "SRAM": "On the contrary: it uses SRAM on purpose.",
        },
        because="IO-aware is the paper's word for it: what is counted is input and output between memories.",
    ),
    number(
        f"The ridge of an {_A100.name} in float16, by its data sheet ({_A100.peak_flops_per_s('float16') / 1e12:.0f} TFLOP/s,"
        f" {_A100.hbm_bytes_per_s / 1e12:.3f} TB/s)? In FLOP a byte.",
        round(_A100.ridge("float16"), 1),
        tolerance=0.02,
        because="Peak FLOP/s over bytes/s. Below it, memory is the bound.",
        hints={round(_H200.ridge("float16")): "That is the H200, whose arithmetic and memory are both faster."},
    ),
    multiple(
        "Which are memory-bound on an H200?",
        right={
            "standard attention, n = 512": "About head_dim / 2 FLOP a byte at any length.",
            "standard attention, n = 65536": "Its intensity does not grow with n.",
            "fused attention, n = 128": "n/2 = 64 FLOP a byte, below 206.",
        },
        wrong={"fused attention, n = 8192": "n/2 = 4096 FLOP a byte, far beyond the ridge: bound by arithmetic."},
    ),
    true_false(
        "Twice the memory bandwidth would make every attention kernel about twice as fast.",
        False,
        "Only those on the memory side of the ridge. A fused prefill of a few thousand tokens would hardly notice.",
    ),
]
