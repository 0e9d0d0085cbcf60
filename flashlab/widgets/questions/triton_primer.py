"""Lesson 05: where a program runs, where a number lies, what a mask is for, and what values do not show."""

from flashlab.widgets.quiz import number, single

QUESTIONS = [
    single(
        "What does one program of a Triton kernel run on?",
        right="one multiprocessor, as a few warps",
        wrong={
            "one thread": "A program is written for a whole tile; its threads share the tile's numbers.",
            "one warp": "A program has several warps, 4 unless you say otherwise.",
            "the whole GPU": "That is the grid: all programs together.",
        },
        because="It stays there until it is done, and may share that multiprocessor with other programs.",
    ),
    number(
        "8 heads of 1,000 queries, one program for a tile of 64 queries. How many programs?",
        128,
        because="1000 / 64 rounded up is 16 tiles, for each of 8 heads. The last tile of a head has 40 queries.",
        hints={
            125: "That is 8 · 1000 / 64 = 125: but a tile does not reach into the next head. Round up for each head.",
            120: "Rounded down, so the last 40 queries of each head get no program.",
            16: "That is one head.",
        },
    ),
    number(
        "A tensor has strides (100, 1). How many elements after its first one is row 7, column 2?",
        702,
        because="7 · 100 + 2 · 1.",
        hints={207: "Rows and columns are exchanged.", 9: "Each index is multiplied by its stride first."},
    ),
    single(
        "In the fused softmax, why do masked places hold −∞ and not 0?",
        right="exp(−∞) is 0, so they add nothing to the sum and never are the maximum.",
        wrong={
            "Triton cannot load a 0 there.": "It can: `other=0.0`. The q·kᵀ kernel does.",
            "−∞ is not read from memory, 0 would be.": "Nothing is read in masked places, whatever `other` is.",
            "It is faster.": "It takes as long. It is about the value that softmax sees.",
        },
        because="With 0 every place past the end would count as a key with a score of 0. (For a sum or a product, 0 is right.)",
    ),
    single(
        "A kernel loads without a mask and stores with one. Its results pass every test. What is wrong?",
        right="It reads memory outside its tensor: a trace finds that, values need not.",
        wrong={
            "Nothing: the results are right.": "Today. At another size, or beside another tensor, it may end in an illegal memory access.",
            "It writes memory outside its tensor.": "The store has its mask, so nothing is written there.",
            "It loads each number twice.": "Each program loads its own block, once.",
        },
        because="What was read past the end is thrown away by the masked store, so no value shows it.",
    ),
]
