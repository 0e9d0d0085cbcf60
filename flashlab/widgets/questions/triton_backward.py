"""Lesson 08: who owns which rows, and what atomics buy and cost."""

from flashlab.problem import AttentionProblem
from flashlab.traffic.model import backward_traffic
from flashlab.widgets.quiz import multiple, number, single, true_false

_PROBLEM = AttentionProblem(n_q=64, n_k=64, head_dim=16, dtype="float16")

QUESTIONS = [
    single(
        "A program owns a tile of keys and loops over queries. Which gradients can it store without asking anyone?",
        right="dk and dv",
        wrong={
            "dq": "Every keys program has a share of each row of dq.",
            "all three": "dq's rows are shared with all other keys programs.",
            "none": "No other program touches its rows of dk and dv.",
        },
        because="dk and dv have a row for each key, and its keys are its own.",
    ),
    single(
        "Why are there two kernels, one for dk and dv and one for dq?",
        right="So that each row of a gradient has one writer.",
        wrong={
            "Because dq needs other weights": "The same weights, made a second time.",
            "To save FLOPs": "It costs FLOPs: 7 products instead of 5.",
            "Because lse is not ready": "lse came with the forward pass, and delta has a kernel of its own.",
        },
        because="With one writer there is nothing to add atomically, and the order of additions is fixed.",
    ),
    number(
        "n = 512, key tiles of 64. How often is each row of dq added to in the fused kernel (one head, no mask)?",
        512 // 64,
        because="Once by each keys program: n_k / block_k.",
    ),
    multiple(
        "deterministic=False, the fused kernel. What may change from run to run?",
        right={"the last bits of dq": "Its shares are added in the order in which programs arrive."},
        wrong={
            "dk": "One program sums it, in the order of its own loop.",
            "dv": "One program sums it, in the order of its own loop.",
            "o": "The forward pass has no atomics.",
        },
    ),
    number(
        "Lesson 08's two-kernel backward moved how many bytes (n = 64, head_dim 16, tiles of 16, float16)?",
        backward_traffic(_PROBLEM, block_q=16, block_k=16).bytes_moved,
        unit="bytes",
        tolerance=0.01,
        because="Formula, NumPy loops and Triton kernels say the same.",
    ),
    single(
        "Key tiles become twice as tall (block_k doubles). What halves?",
        right="the bytes of q and do that the keys kernel reads",
        wrong={
            "the bytes of k and v that the queries kernel reads": "Those depend on block_q: there queries are outside.",
            "the FLOPs": "The same scores, in larger tiles.",
            "the registers that dk and dv take": "They double: two sums of block_k · head_dim.",
        },
        because="Half as many keys programs, and each reads all of q and do.",
    ),
    true_false(
        "torch.compile must understand the Triton code to compile a model that uses flashlab.attention.",
        False,
        "It sees an operator with known shapes and a known derivative, and leaves the inside alone.",
    ),
]
