"""Lesson 04: what happens to the n × n matrix, which memory is exploited, and what the order of loops costs."""

from flashlab.hardware import gpu
from flashlab.problem import AttentionProblem
from flashlab.traffic.model import flash2_sram_bytes
from flashlab.widgets.quiz import multiple, number, single, true_false

_A100 = gpu("A100 40GB")
_TILE = AttentionProblem(n_q=1024, n_k=1024, head_dim=64, dtype="float16")

QUESTIONS = [
    single(
        "In FlashAttention, the n × n matrix is …",
        right="avoided by tiling",
        wrong={
            "always stored in HBM": "That is standard attention. In the traces you played, the square stayed a ghost.",
            "replaced by an FFT": "There is no Fourier transform anywhere: every score is computed.",
        },
        because="Every score exists once, in a tile in SRAM, for one step.",
    ),
    single(
        "Which part of the hardware does tiling exploit?",
        right="SRAM: the small fast memory on each multiprocessor",
        wrong={
            "HBM": "That is where the bytes should *not* go.",
            "the L2 cache": "It helps, but nobody puts tiles there: it fills by itself.",
            "the CPU's memory": "Nothing leaves the GPU.",
        },
        because="A tile is loaded once and used for many multiplications before it goes.",
    ),
    number(
        f"On an {_A100.name}, how many times the bandwidth of HBM has SRAM, all multiprocessors together?",
        round(_A100.sram_to_hbm_ratio, 1),
        tolerance=0.15,
        because=f"{_A100.sram_bytes_per_s / 1e12:.1f} TB/s against {_A100.hbm_bytes_per_s / 1e12:.2f} TB/s. On other GPUs it is"
        " another number: print `GPUS`.",
    ),
    number(
        "SRAM for 64 × 64 tiles at head_dim 64 in float16, by lesson 04's count?",
        flash2_sram_bytes(_TILE, block_q=64, block_k=64),
        unit="bytes",
        tolerance=0.01,
        because="Tiles of q, k, v in 2 bytes; acc, scores, row_max and row_sum in 4.",
        hints={3 * 64 * 64 * 2: "That is q, k and v. acc, the scores and the statistics are held as well."},
    ),
    multiple(
        "Queries in the outer loop (FlashAttention-2) rather than keys (FlashAttention-1). What follows?",
        right={
            "o is written once": "A query's acc stays on the chip until it is final.",
            "k and v are read once for each tile of queries": "That is the price, and taller query tiles lower it.",
            "tiles of queries can run beside each other": "None needs a result of another: one program each.",
        },
        wrong={
            "fewer scores are computed": "The same n × n (or, causal, the same half).",
            "row_max and row_sum go to HBM on each pass": "That is FlashAttention-1, with keys outside.",
        },
    ),
    single(
        "Which loop order must load o again and again?",
        right="keys in the outer loop (FlashAttention-1)",
        wrong={
            "queries in the outer loop (FlashAttention-2)": "There a tile of o is stored once, when it is final.",
            "both": "One of the two keeps acc on the chip until a query has seen all keys.",
            "neither": "Look for `o.load` in the two listings.",
        },
        because="Every tile of keys meets every tile of queries, so no query is finished before the last tile of keys.",
    ),
    true_false(
        "FlashAttention changes the definition of attention.",
        False,
        "Lesson 04 compared it with standard attention in float64: the same up to rounding.",
    ),
]
