"""Lesson 07: the gradients, delta, and what recomputing costs and saves."""

from flashlab.problem import AttentionProblem
from flashlab.traffic.model import attention_flops, backward_flops
from flashlab.widgets.quiz import multiple, number, single, true_false

_PROBLEM = AttentionProblem(n_q=4096, n_k=4096, head_dim=128, dtype="float16")

QUESTIONS = [
    single(
        "What does FlashAttention keep from the forward pass, so that the backward pass has the weights?",
        right="lse: one number a query",
        wrong={
            "the weights": "Those are n × n numbers: just what it avoids.",
            "the scores": "As many as the weights. Scores are computed again, from q and k.",
            "row_max alone": "The sum is needed too; lse = row_max + log(row_sum) holds both.",
        },
        because="exp(score − lse) is the weight, and scores come from q and k, which are there anyway.",
    ),
    single(
        "Which is dscores, for one row with weights w and dweights g?",
        right="w * (g - (w * g).sum())",
        wrong={
            "w * g": "That leaves out delta: raising one score lowers every other weight.",
            "g - (g * w).sum()": "The weight in front is missing: a key with weight 0 cannot matter.",
            "w * (1 - w) * g": "That is the diagonal of the matrix alone; every weight depends on every score.",
        },
        because="∂w_j/∂s_k = w_j (j = k) − w_j w_k; collect over j.",
    ),
    multiple(
        "delta of a row equals …",
        right={
            "the row sum of do · o": "That is how it is computed: no n × n numbers are needed.",
            "the row sum of weights · dweights": "That is what it is; exchange the two sums to get the other form.",
        },
        wrong={
            "the row sum of dscores": "That is 0, always.",
            "lse of the row": "lse gives the weights back. delta is about the gradient.",
        },
    ),
    number(
        "How many matrix products a tile of scores does FlashAttention's backward need, when all gradients come from one loop?",
        5,
        because="scores again, dv, dweights, dk, dq. With stored weights it would be 4; in two kernels it is 7.",
        hints={4: "That is with stored weights.", 7: "That is in two kernels, which make scores and dweights twice."},
    ),
    number(
        "Its FLOPs, in units of the forward's?",
        backward_flops(_PROBLEM) / attention_flops(_PROBLEM),
        because="Five products against two.",
    ),
    single(
        "The factor scale is forgotten in dk. What does training show?",
        right="Nothing at once: the direction is right and the step for k is √head_dim too long.",
        wrong={
            "nan in the first step": "Every number is finite, just too large.",
            "wrong values of o": "The forward pass is untouched.",
            "dv is wrong as well": "dv = weightsᵀ · do has no scale of its own.",
        },
        because="One factor everywhere. Only a comparison of numbers, such as gradcheck, finds it.",
    ),
    true_false(
        "If dv agrees with float64, dq and dk need no test.",
        False,
        "dv does not pass the softmax: without delta it is right, and dq and dk are wrong.",
    ),
]
