"""Lesson 06: what becomes of the two loops, why powers of two, what a trace shows of causal tiles and grouped queries."""

from flashlab.problem import AttentionProblem
from flashlab.traffic.model import flash2_traffic
from flashlab.widgets.quiz import multiple, number, single, true_false

_SMALL = AttentionProblem(n_q=256, n_k=256, head_dim=64, dtype="float16")

QUESTIONS = [
    single(
        "What becomes of lesson 04's outer loop, over tiles of queries?",
        right="The grid: one program for each tile of each head.",
        wrong={
            "A loop inside each program.": "That is the inner one, over tiles of keys.",
            "It is gone: a program works on all queries.": "Then acc for all queries would have to fit into registers.",
            "One program for each query.": "A tile of queries shares each tile of k and v; that is where the bytes are saved.",
        },
        because="Tiles of queries share nothing, so they may run at once, in any order.",
    ),
    single(
        "Why does the kernel compute 2^(x · log₂e) for eˣ?",
        right="The GPU has an instruction for 2ˣ; and log₂e can be folded into the scale.",
        wrong={
            "Powers of two are more exact.": "It is the same number, up to rounding.",
            "eˣ would overflow.": "Subtracting row_max sees to that, in any base.",
            "float16 knows no eˣ.": "The weights are computed in float32.",
        },
        because="eˣ = 2^(x · log₂e) exactly; scale · log₂e is one constant, so each score needs one multiplication for both.",
    ),
    number(
        "n_q = n_k = 256, head_dim 64, float16, tiles of 64 × 64, one head, not causal. How many bytes of k does the kernel load?",
        flash2_traffic(_SMALL, block_q=64, block_k=64).by_tensor["k", "load"],
        unit="bytes",
        because="k has 256 · 64 · 2 = 32,768 bytes, and each of 4 programs reads all of it.",
        hints={32_768: "That is k once. How many programs read it?", 262_144: "That is k and v together."},
    ),
    single(
        "A causal kernel masks rightly but runs its loop over all keys. What shows it?",
        right="Its trace: tiles above the diagonal are loaded, and the bytes are those without causal.",
        wrong={
            "A comparison with standard attention.": "o is right: masked keys have weight 0.",
            "lse, which comes out too large.": "exp(−∞) = 0 adds nothing to it.",
            "Nothing does, and it does not matter.": "For long texts it takes about twice the time.",
        },
        because="Only what was loaded tells: the values are those of a kernel that skips.",
    ),
    multiple(
        "Four query heads share one head of keys and values. What becomes a quarter?",
        right={
            "the memory that k and v take": "One head is stored instead of four.",
            "what must come from HBM at least, for k and v": "If L2 serves the other readers.",
        },
        wrong={
            "the bytes of k and v that programs load": "Each program still reads all keys of its head.",
            "the FLOPs": "Every query head meets every key.",
        },
    ),
    true_false(
        "A float16 kernel is right if it differs from float64 by less than 1e-6.",
        False,
        "float16 itself rounds at about 1e-3. A fair bound is what plain PyTorch reaches in the same type: here, at most twice that.",
    ),
]
