"""Lesson 03: why online softmax is needed, what it is called, and what it does not change."""

import math

from flashlab.widgets.quiz import multiple, number, single

QUESTIONS = [
    single(
        "Why does tiled attention need online softmax?",
        right="Softmax divides by a sum over the whole row, and a tile has only part of it.",
        wrong={
            "exp is too slow for a whole row.": "The same exponentials are taken, a tile at a time.",
            "The weights must be sparse.": "All weights are kept; none is set to zero.",
            "Rows are too long for float32.": "The length does not matter to a float32. Large *scores* do, with or without tiles.",
        },
        because="Maximum and sum of what was seen so far are kept, and corrected when a larger score turns up.",
    ),
    single(
        "Does it change the result?",
        right="No, except for rounding, as any other order of adding would.",
        wrong={
            "Yes, it approximates the softmax.": "You measured about 1e-16 against float64. An approximation would not agree so well.",
            "Yes, for rows whose maximum comes last.": "Then every sum is corrected once more: by exactly the right factor.",
        },
        because="Merging states adds the true sums, and addition does not care about the order.",
    ),
    single(
        "What is the technique called that updates row_max and row_sum tile by tile?",
        right="online softmax",
        wrong={
            "flash softmax": "A fair guess, but the idea is older than FlashAttention (Milakov and Gimelshein 2018).",
            "log-softmax": "That is the logarithm of the weights.",
            "softmax with temperature": "That divides scores by a number.",
            "recomputation": "That is how the backward pass gets the weights back (lesson 07).",
        },
        because="The maximum and the sum are those of the row *so far*.",
    ),
    number(
        "The maximum of a row rises from 2 to 4. By what are row_sum and acc multiplied?",
        math.exp(-2),
        tolerance=0.02,
        because="exp(old − new) = exp(−2).",
        hints={math.exp(2): "That is exp(new − old): the wrong way round, the sums would grow.", 0.5: "The factor is exponential: exp(2 − 4)."},
    ),
    multiple(
        "What must be kept of all keys seen so far, for one query, to go on and to get o in the end?",
        right={"row_max": "To know what the sums are relative to.", "row_sum": "To divide at the end.", "acc": "The weighted values so far: it becomes o."},
        wrong={"the scores seen so far": "They are worked into row_sum and acc and forgotten.", "the weights seen so far": "Never needed again in the forward pass."},
    ),
    single(
        "Which line corrects what was summed before, when a row's maximum rises?",
        right="acc = acc * np.exp(old_max - new_max)[:, None]",
        wrong={
            "acc = acc * np.exp(new_max - old_max)[:, None]": "That makes the old sums larger. They are too large already.",
            "acc = acc - np.exp(old_max - new_max)[:, None]": "Every term is off by a factor, not by an amount.",
            "acc = acc / row_sum[:, None]": "That is the division at the end. It does not bring old and new terms to one maximum.",
        },
        because="exp(x − new) = exp(x − old) · exp(old − new), for each term at once. row_sum gets the same factor.",
    ),
]
