"""Every misconception the tests know by name, and what a student is told when a difference looks like it.

The names are those that authors, reports and tests use. An exercise's own module says how each is recognised.
"""

MEANS: dict[str, str] = {
    "no running max": "exp overflows for scores above about 88 in float32. Subtract the largest score of the row seen so far before exp.",
    "row_sum not rescaled": "When a larger score turns up, row_sum was summed relative to the old row_max. Multiply it by exp(old_max - new_max) before adding.",
    "acc not rescaled": "When a larger score turns up, acc was summed relative to the old row_max. Multiply it by exp(old_max - new_max) before adding.",
    "rescale by the wrong factor": "The factor is exp(old_max - new_max), at most 1. With new and old swapped it is above 1.",
    "divided inside the loop": "acc was divided by row_sum in every step, so that earlier tiles are divided again. Divide once, after the last tile.",
    "scale forgotten": "The scores were not multiplied by scale = 1/sqrt(head_dim).",
    "scale applied twice": "The scores were multiplied by scale twice; once is enough.",
    "causal mask off by one": "A query may see its own key: key j is visible where j <= i + n_k - n_q, with <=, not <, and not one more.",
    "mask with a finite number": "A masked score must be -inf, whose exp is exactly 0. A large negative number wins where every other score is even lower, or a row has no key at all.",
    "last ragged tile dropped": "The last tile is smaller than the others where the size is no multiple of the block. It was left out.",
    "padded keys not masked": "Places after the last key hold no keys. They were counted as if they did.",
    "top-left causal alignment": "With n_q not equal to n_k the mask is aligned to the bottom right: the last query sees the last key. Add n_k - n_q.",
    "fully masked row gives NaN": "A row that sees no key has row_max = -inf, and -inf - (-inf) is NaN. Such a row gives 0, and lse = -inf.",
    "full n×n matrix built": "More memory was asked for than tiles need: scores for all keys at once, n_q × n_k of them or a stripe block_q × n_k. Keep one tile of scores at a time.",
    "K/V read once per row": "k and v were read more often than once for each tile of queries. Load one tile of k and v, use it for all rows of the q tile.",
    "tiles above the diagonal visited": "A causal tile in which no query sees any key needs no load at all. Skip it.",
    "low-precision accumulator": "row_sum and acc add up many terms: in float16 they lose digits. Keep them in float32.",
    "lse in base 2": "lse is off by the factor log2(e) = 1.4427: it is asked for as a natural logarithm.",
    "lse without the max": "lse is log(row_sum) + row_max. The row_max is missing.",
    "delta left out": "dscores = weights · (dweights - delta), with delta = rowsum(do · o). The delta is missing.",
    "dS without weights factor": "dscores = weights · (dweights - delta). The factor weights is missing.",
    "dK without scale": "scores = scale · q·kᵀ, so dq and dk both carry the factor scale.",
    "backward ignores the mask": "The mask of the forward pass holds in the backward pass too: a masked weight is 0, and so is its gradient.",
    "backward masks when it should not": "Without causal no score is masked, in the backward pass neither.",
    "grouped heads mapped by modulo": "Neighbouring query heads share a key head: kv_head = head // (heads // kv_heads), not head % kv_heads.",
    "grouped gradients not summed": "Every query head of a group adds to the same dk and dv. Sum them.",
    "stride assumed contiguous": "Rows need not lie head_dim apart. Use the strides that are passed.",
    "out-of-bounds load": "An address outside the tensor was read; that it went well was luck. Mask the load.",
    "empty split gives NaN": "A split that holds no key has row_max = -inf and row_sum = 0. Its weight in the merge is 0.",
    "merge weights not normalised": "The states are merged with weights exp(lse_i - lse) that add up to 1.",
    "time without synchronisation": "A CUDA launch returns before the work is done. Synchronise before the clock is read.",
    "warm cache timed as cold": "The second run finds its data in the L2 cache. Flush it before each run.",
}
