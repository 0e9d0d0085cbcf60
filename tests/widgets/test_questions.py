"""The quiz answers, typed here by hand: a formula or a table behind a quiz may not change them unnoticed."""

from importlib import import_module

import pytest

QUIZZES = ("start_here", "standard_attention", "roofline", "online_softmax", "tiling", "triton_primer", "triton_forward", "backward", "triton_backward", "making_it_fast")

RIGHT = [
    ("start_here", "Why was flash faster", ["It moved fewer bytes between memory and processor."]),
    ("start_here", "What did you time", ["How long it takes to queue the work."]),
    ("start_here", "usually crashes", ["False"]),
    ("standard_attention", "What does standard attention store", ["The scores and the weights, n × n numbers each: they grow as n²."]),
    ("standard_attention", "at n = 4096 in float16", 33_554_432),
    ("standard_attention", "How many times do n × n elements pass", 4),
    (
        "standard_attention",
        "n doubles",
        ["the bytes that the three operators move, for large n", "the peak memory beyond q, k, v and o", "the scores"],
    ),
    ("standard_attention", "the four passes are how many times", 64),
    ("roofline", "Where does its speed-up come from", ["From moving fewer bytes to and from HBM."]),
    ("roofline", "Which resource", ["traffic to HBM (and so memory for n × n numbers)"]),
    ("roofline", "The ridge of an A100", 153.0),
    ("roofline", "Which are memory-bound", ["fused attention, n = 128", "standard attention, n = 512", "standard attention, n = 65536"]),
    ("roofline", "Twice the memory bandwidth", ["False"]),
    ("online_softmax", "Why does tiled attention need", ["Softmax divides by a sum over the whole row, and a tile has only part of it."]),
    ("online_softmax", "Does it change the result", ["No, except for rounding, as any other order of adding would."]),
    ("online_softmax", "What is the technique called", ["online softmax"]),
    ("online_softmax", "rises from 2 to 4", 0.1353),
    ("online_softmax", "What must be kept", ["acc", "row_max", "row_sum"]),
    ("online_softmax", "Which line corrects", ["acc = acc * np.exp(old_max - new_max)[:, None]"]),
    ("tiling", "the n × n matrix is", ["avoided by tiling"]),
    ("tiling", "Which part of the hardware", ["SRAM: the small fast memory on each multiprocessor"]),
    ("tiling", "how many times the bandwidth of HBM", 12.5),
    ("tiling", "SRAM for 64 × 64 tiles", 57_856),
    ("tiling", "Queries in the outer loop", ["k and v are read once for each tile of queries", "o is written once", "tiles of queries can run beside each other"]),
    ("tiling", "must load o again and again", ["keys in the outer loop (FlashAttention-1)"]),
    ("tiling", "changes the definition", ["False"]),
    ("triton_primer", "What does one program", ["one multiprocessor, as a few warps"]),
    ("triton_primer", "How many programs", 128),
    ("triton_primer", "has strides (100, 1)", 702),
    ("triton_primer", "why do masked places hold", ["exp(−∞) is 0, so they add nothing to the sum and never are the maximum."]),
    ("triton_primer", "loads without a mask", ["It reads memory outside its tensor: a trace finds that, values need not."]),
    ("triton_forward", "outer loop", ["The grid: one program for each tile of each head."]),
    ("triton_forward", "2^(x · log₂e)", ["The GPU has an instruction for 2ˣ; and log₂e can be folded into the scale."]),
    ("triton_forward", "How many bytes of k", 131_072),
    ("triton_forward", "runs its loop over all keys", ["Its trace: tiles above the diagonal are loaded, and the bytes are those without causal."]),
    ("triton_forward", "What becomes a quarter", ["the memory that k and v take", "what must come from HBM at least, for k and v"]),
    ("triton_forward", "less than 1e-6", ["False"]),
    ("backward", "What does FlashAttention keep", ["lse: one number a query"]),
    ("backward", "Which is dscores", ["w * (g - (w * g).sum())"]),
    ("backward", "delta of a row equals", ["the row sum of do · o", "the row sum of weights · dweights"]),
    ("backward", "How many matrix products", 5),
    ("backward", "Its FLOPs, in units", 2.5),
    ("backward", "The factor scale is forgotten", ["Nothing at once: the direction is right and the step for k is √head_dim too long."]),
    ("backward", "If dv agrees", ["False"]),
    ("triton_backward", "A program owns a tile of keys", ["dk and dv"]),
    ("triton_backward", "Why are there two kernels", ["So that each row of a gradient has one writer."]),
    ("triton_backward", "How often is each row of dq added to", 8),
    ("triton_backward", "deterministic=False", ["the last bits of dq"]),
    ("triton_backward", "two-kernel backward moved how many bytes", 54_016),
    ("triton_backward", "Key tiles become twice as tall", ["the bytes of q and do that the keys kernel reads"]),
    ("triton_backward", "torch.compile must understand", ["False"]),
    ("making_it_fast", "What limits it on an H200", ["Tensor cores, and whatever keeps them waiting: powers of two, latency, too few programs."]),
    ("making_it_fast", "How many programs of 4 warps fit", 3),
    ("making_it_fast", "Why was the kernel with tl.exp", ["tl.exp keeps results near zero that exp2 may flush to 0: a comparison and two multiplications more for each score."]),
    (
        "making_it_fast",
        "What did FlashAttention-2 change",
        [
            "acc is divided once, not in each step",
            "queries are shared out among programs, and o stays in registers",
            "queries, not keys, are split among a program's warps",
        ],
    ),
    ("making_it_fast", "Why does `place` start", ["So that no long program runs alone at the end while the rest of the GPU stands still."]),
    ("making_it_fast", "What follows from these counters", ["Bytes, DRAM and the number of warps are not what it lacks; why its warps wait must be sampled, or tried out."]),
]


def questions(name):
    return import_module(f"flashlab.widgets.questions.{name}").QUESTIONS


def question_of(name, fragment):
    [question] = [question for question in questions(name) if fragment in question.text]
    return question


@pytest.mark.parametrize("name, fragment, answer", RIGHT, ids=[f"{name}-{fragment[:20]}" for name, fragment, _ in RIGHT])
def test_the_right_answer_is(name, fragment, answer):
    question = question_of(name, fragment)
    if isinstance(answer, list):
        assert sorted(option.text for option in question.options if option.right) == answer
    else:
        assert question.answer == pytest.approx(answer, rel=1e-3)


@pytest.mark.parametrize("name", QUIZZES)
def test_every_question_is_in_the_table(name):
    texts = [question.text for question in questions(name)]
    assert all(any(fragment in text for quiz_name, fragment, _ in RIGHT if quiz_name == name) for text in texts)
