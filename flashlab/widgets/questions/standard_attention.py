"""Lesson 01: what standard attention stores, how it grows, and how often it moves."""

from flashlab.problem import AttentionProblem
from flashlab.traffic.model import fused_traffic, standard_traffic
from flashlab.widgets.quiz import multiple, number, single

_LONG = AttentionProblem(n_q=8192, n_k=8192, head_dim=128, dtype="float16")
_HALF = _LONG.with_(n_q=4096, n_k=4096)

QUESTIONS = [
    single(
        "What does standard attention store in memory, and how does it grow with the length n?",
        right="The scores and the weights, n × n numbers each: they grow as n².",
        wrong={
            "q, k and v, which grow as n.": "Those exist in every kind of attention. Something larger is made between them and o.",
            "The softmax statistics, which grow as n.": "One or two numbers a row are small. Look at what the three operators hand on.",
            "The weights of the model, which do not grow.": "Model weights are another thing; here *weights* are what softmax makes of scores.",
        },
        because="Two n × n matrices for each head. Later lessons compute the same result without storing either.",
    ),
    number(
        "How many bytes are the scores of one head at n = 4096 in float16?",
        _HALF.score_matrix_bytes,
        unit="bytes",
        because="4096 · 4096 · 2: a quarter of what n = 8192 takes.",
        hints={
            _LONG.score_matrix_bytes: "That is n = 8192. Half the length is not half the bytes.",
            _LONG.score_matrix_bytes // 2: "Half of n = 8192? Both sides of the square are halved.",
            4096 * 4096: "That is how many numbers. Each takes two bytes.",
            4096 * 128 * 2: "That is q: n × head_dim. Scores are n × n.",
        },
    ),
    number(
        "How many times do n × n elements pass between processor and memory, in standard attention's forward pass?",
        4,
        because="Scores written, scores read by softmax, weights written, weights read by the last product.",
        hints={2: "Scores *and* weights, each written *and* read.", 1: "That is their size. Each is written and then read."},
    ),
    multiple(
        "n doubles. Which of these become four times as large?",
        right={
            "the scores": "n × n.",
            "the bytes that the three operators move, for large n": "4·n² outgrows q, k, v and o.",
            "the peak memory beyond q, k, v and o": "Scores and weights are alive together.",
        },
        wrong={"q, k and v": "n × head_dim: twice.", "the output o": "It has the shape of q: twice."},
    ),
    number(
        "At n = 8192 and head_dim 128, the four passes are how many times the bytes of q, k, v and o?",
        (standard_traffic(_LONG).bytes_moved - fused_traffic(_LONG).bytes_moved) / fused_traffic(_LONG).bytes_moved,
        because="4·n² over 4·n·head_dim is n / head_dim.",
        hints={65: "That counts q, k, v and o among the passes."},
    ),
]
