"""Lesson 09: what binds, what decides how many programs share a multiprocessor, and what each step of the ladder was for."""

from flashlab.widgets.quiz import multiple, number, single

QUESTIONS = [
    single(
        "Fused attention at n = 4096, head_dim 128, tiles of 128 × 64. What limits it on an H200?",
        right="Tensor cores, and whatever keeps them waiting: powers of two, latency, too few programs.",
        wrong={
            "DRAM: k and v are read again for each tile of queries.": "They are asked for again; the L2 serves nearly all of it.",
            "The n × n scores in HBM.": "No fused kernel stores them.",
            "The launch of so many programs.": "All of them are one launch.",
        },
        because="By what DRAM pays, the kernel stands far right of the ridge.",
    ),
    number(
        "A multiprocessor has 65,536 registers. How many programs of 4 warps fit, with 168 registers a thread, if nothing else limits them?",
        65_536 // (168 * 32 * 4),
        because="A program takes 168 · 32 · 4 = 21,504 registers; three take 64,512.",
        hints={390: "That is threads. A program has 128 of them.", 12: "That is warps. A program has 4 of them."},
    ),
    single(
        "tl.exp and tl.exp2 both become the instruction ex2. Why was the kernel with tl.exp a third slower?",
        right="tl.exp keeps results near zero that exp2 may flush to 0: a comparison and two multiplications more for each score.",
        wrong={
            "tl.exp moves more bytes.": "The bytes are equal to the last one.",
            "tl.exp is computed by the tensor cores.": "They multiply matrices and nothing else.",
            "tl.exp needs more registers, so fewer programs fit.": "The compiler gives both the same number.",
        },
        because="The PTX says ex2.approx for one and ex2.approx.ftz for the other; ptxas surrounds the first.",
    ),
    multiple(
        "What did FlashAttention-2 change over FlashAttention-1?",
        right={
            "queries are shared out among programs, and o stays in registers": "So a few heads fill the GPU, and o is written once.",
            "acc is divided once, not in each step": "Fewer operations that are no matrix product.",
            "queries, not keys, are split among a program's warps": "So warps need not add up their parts through shared memory.",
        },
        wrong={
            "it computes fewer scores exactly": "Both are exact.",
            "tiles that the causal mask hides are skipped": "FlashAttention-1's kernel skips them, too.",
            "it uses fp8": "That is FlashAttention-3, as an option.",
        },
    ),
    single(
        "Why does `place` start the longest causal programs of several heads first?",
        right="So that no long program runs alone at the end while the rest of the GPU stands still.",
        wrong={
            "So that fewer bytes come from DRAM.": "It takes a few more: heads that run together share the L2.",
            "So that fewer tiles are visited.": "Each program visits the same tiles in any order.",
            "Because the hardware would run them in the wrong order.": "Any order gives the right result.",
        },
        because="Programs start in the order of their numbers; what starts last should be short.",
    ),
    single(
        "A softmax kernel moves as few bytes as another and takes three times as long; more warps are at work in it. What follows from these counters?",
        right="Bytes, DRAM and the number of warps are not what it lacks; why its warps wait must be sampled, or tried out.",
        wrong={
            "Its warps wait at barriers.": "Likely, but these counters do not say what a warp waits for.",
            "DRAM is its limit.": "Then both would take the same time.",
            "It needs still more warps.": "It has more than the faster kernel.",
        },
        because="A counter rules out; it proves a cause only when it counts that cause.",
    ),
]
