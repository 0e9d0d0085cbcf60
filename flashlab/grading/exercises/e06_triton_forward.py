"""e06_triton_forward: the forward kernel on tensors as a model has them, in three graded steps: plain, causal, grouped.

Unlike lesson 06's kernel: q, k, v and o are (n, heads, head_dim) in memory, one token after the other, or laid out
otherwise still, so every address goes by strides; the tiles of keys are visited from the last to the first, as
FlashAttention's own CUDA kernels do; and a query that sees no key gets o = 0 and lse = -inf.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from flashlab.grading.budget import within_budget
from flashlab.grading.exercise import Answer, Call, Exercise, Finding, Test
from flashlab.grading.exercises.forward_faults import IMITATIONS, expected, inputs
from flashlab.grading.exercises.strides import contiguous, read, written
from flashlab.grading.judge import hinted, tiles_at_most, traffic, values
from flashlab.problem import AttentionProblem
from flashlab.traffic import model
from flashlab.traffic.trace import Trace

UNTOUCHED = 7.0  # what outputs hold before
ROUNDINGS = 8  # of a score, before it is an exponent
FAR = 1e-4  # how near two arrays must be for one to be the other's imitation
NEARLY = 5e-3  # scores and sums in float16 are off by less, with the numbers of these tests


def strides_of(shape: tuple[int, int, int], layout: str) -> tuple[int, int, int]:
    """Strides (head, row, column) of an array (heads, n, head_dim): tokens first, heads first, or tokens first with room between."""
    heads, n, head_dim = shape
    return {"tokens": (head_dim, heads * head_dim, 1), "heads": (n * head_dim, head_dim, 1), "wide": (head_dim + 3, heads * (head_dim + 3) + 5, 1)}[layout]


def call(case: dict) -> Call:
    """q (heads, n_q, head_dim), k and v (heads // group, n_k, head_dim), with the strides of their layouts.

    With `spare`, k and v have that many more heads of NaN: what a kernel finds that takes no notice of GROUP.
    """
    heads, group, n_q, n_k, d = case.get("heads", 1), case.get("group", 1), case["n_q"], case["n_k"], case["head_dim"]
    random = np.random.default_rng(case["seed"])
    dtype, sharp, layout = case.get("dtype", "float32"), case.get("sharp", 1.0), case.get("layout", "tokens")
    q, k, v = (random.standard_normal((h, n, d)) for h, n in ((heads, n_q), (heads // group, n_k), (heads // group, n_k)))
    if case.get("negative"):  # every score far below zero
        q, k = np.abs(q), -np.abs(k)
    v += case.get("shift", 0.0)
    k, v = (np.concatenate([x, np.full((case.get("spare", 0), n_k, d), np.nan)]) for x in (k, v))
    arrays = {"q": sharp * q, "k": k, "v": v, "o": np.full(q.shape, UNTOUCHED)}
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    strides = {name: strides_of(array.shape, layout if name != "v" or layout != "heads" else "tokens") for name, array in arrays.items()}
    options = {f"{name}_{axis}": strides[name][at] for name in arrays for axis, at in (("row", 1), ("head", 0))}
    options |= {"n_q": n_q, "n_k": n_k, "scale": d**-0.5, "GROUP": group, "CAUSAL": case.get("causal", False)}
    options |= {"HEAD_DIM": d, "BLOCK_Q": case["block_q"], "BLOCK_K": case["block_k"]}
    arrays["lse"] = np.full((heads, n_q), UNTOUCHED, np.float32)
    return Call(arrays=arrays, options=options, strides=strides, stores=("o", "lse"), grid=(-(-n_q // case["block_q"]), heads), cast=case.get("cast"), exact=("lse",))


def symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """What NaN, overflow and strange places usually mean, where no imitation gives exactly these numbers."""
    wanted = expected(call)
    o, lse, no_key = got["o"].astype(float), got["lse"], np.isneginf(wanted["lse"])
    if strides_forgotten(call, o):
        return "stride assumed contiguous"
    broken = ~np.isfinite(o).all(axis=2) | np.isnan(lse)
    if broken.any() and not np.isfinite(call.arrays["k"]).all():
        return "grouped heads not mapped"
    if not call.options["CAUSAL"] and np.isnan(o).all() and np.abs(wanted["lse"]).max(initial=0) < 80:
        return "rescale by the wrong factor"  # exp(new_max - old_max) is infinite at the first tile
    if call.options["CAUSAL"] and broken.any() and np.abs(wanted["lse"][~no_key]).max(initial=0) < 80:
        return "fully masked row gives NaN"  # also a row that has seen no key yet: from the last tile on, that is common
    if no_key.any() and not broken.any() and not (np.isneginf(lse[no_key]) | (lse[no_key] == UNTOUCHED)).all():
        return "mask with a finite number"
    if np.abs(wanted["lse"][~no_key]).max(initial=0) > 80:
        return "mask with a finite number" if call.options["CAUSAL"] and not broken.any() else "no running max" if broken.any() else None
    near = np.allclose(o, wanted["o"], atol=NEARLY) and np.allclose(lse, wanted["lse"], atol=NEARLY)
    return "low-precision accumulator" if near else None


def strides_forgotten(call: Call, o: np.ndarray) -> bool:
    """Whether o is what it would be with rows or heads of some of q, k, v and o taken to lie without gaps."""
    arrays, right = call.arrays, expected(call)["o"]
    for kind in range(3):
        taken = {name: contiguous(arrays[name].shape, call.strides[name])[kind] for name in ("q", "k", "v", "o")}
        found = {name: read(arrays[name], call.strides[name], taken[name]) for name in ("q", "k", "v")}
        for wrong in (("q", "k", "v"), ("q",), ("k",), ("v",), ("k", "v"), ()):
            if any(found[name] is None for name in wrong):
                continue
            guess = expected(replace(call, arrays={**arrays, **{name: found[name] for name in wrong}}))["o"]
            for seen in (guess, written(guess, call.strides["o"], taken["o"], UNTOUCHED)):
                if seen is not None and np.allclose(o, seen, atol=FAR) and not np.allclose(seen, right, atol=FAR):
                    return True
    return False


HINTS = {  # by the first output that is wrong
    "o": "Is all of head 0 right, and another head not? Then look at the addresses: head · q_head + row · q_row + column, each tensor with its own strides, and kv_head = head // GROUP for k and v. Else work one row through by hand: at the end o = acc / row_sum.",
    "lse": "o is right. lse is row_max + log(row_sum), a natural logarithm, at lse + head · n_q + row, and -inf for a query that sees no key.",
}


@functools.cache
def values_within(atol: float):
    """The judge of values with that tolerance."""
    judge = values(expected, atol=atol, rtol=2e-5, imitations=IMITATIONS, symptom=symptom)

    def with_hint(call: Call, answer: Answer) -> Finding | None:
        finding = judge(call, answer)
        return finding and replace(finding, hint=HINTS["lse" if finding.what.startswith("lse") else "o"])

    return with_hint


def right_values(call: Call, answer: Answer) -> Finding | None:
    """Values. A score of 1,000 is rounded at the fourth digit after the point, and its weight with it, whoever computes."""
    q, k, _ = inputs(call)
    largest = call.options["scale"] * np.abs(q @ k.repeat(call.options["GROUP"], axis=0).transpose(0, 2, 1)).max(initial=0)
    return values_within(2e-5 if largest < 40 else float(ROUNDINGS * np.finfo(np.float32).eps * largest))(call, answer)


def problem_of(call: Call) -> AttentionProblem:
    """The sizes, for the closed form."""
    q, options = call.arrays["q"], call.options
    return AttentionProblem(options["n_q"], options["n_k"], q.shape[2], heads=len(q), kv_heads=len(q) // options["GROUP"], causal=options["CAUSAL"], dtype=q.dtype.name)


def closed_form(call: Call) -> dict[tuple[str, str], int]:
    """FlashAttention-2's bytes."""
    return model.flash2_traffic(problem_of(call), block_q=call.options["BLOCK_Q"], block_k=call.options["BLOCK_K"]).by_tensor


def read_too_often(call: Call, trace: Trace) -> str | None:
    """What too many bytes of k or v usually mean."""
    needed, every_tile = (closed_form(replace(call, options={**call.options, "CAUSAL": causal})).get(("k", "load"), 0) for causal in (call.options["CAUSAL"], False))
    counted = [trace.bytes_by_tensor().get((name, "load"), 0) for name in ("k", "v")]
    if call.options["CAUSAL"] and counted[0] == counted[1] and needed < counted[0] <= every_tile:
        return "tiles above the diagonal visited"
    return "K/V read once per row" if max(counted) > needed else None


def last_to_first(call: Call, answer: Answer) -> Finding | None:
    """The tiles of keys that each program visits, in order."""
    n_q, n_k, block_q, block_k = (call.options[name] for name in ("n_q", "n_k", "BLOCK_Q", "BLOCK_K"))
    tiles_q, loads = call.grid[0], answer.trace.select("load", tensor="k")
    for program in range(tiles_q * call.grid[1]):
        end = min(n_k, (program % tiles_q + 1) * block_q + n_k - n_q) if call.options["CAUSAL"] else n_k
        needed = list(reversed(range(0, max(end, 0), block_k)))
        visited = loads["row0"][loads["program"] == program].tolist()
        if visited != needed:
            above = call.options["CAUSAL"] and set(visited) > set(needed)
            return Finding(
                f"program {program % tiles_q, program // tiles_q} visits the tiles of keys that begin at {visited}; it is to visit {needed}",
                "tiles above the diagonal visited" if above else None, hint="From the last tile with a key that is seen, back to the first.", input=str(call),
            )  # fmt: skip
    return None


def tile(call: Call) -> dict[str, int]:
    """One tile of each."""
    d, block_q, block_k = (call.options[name] for name in ("HEAD_DIM", "BLOCK_Q", "BLOCK_K"))
    return {"q": block_q * d, "o": block_q * d, "k": block_k * d, "v": block_k * d}


def plain(tensors: dict, options: dict) -> dict:
    """Standard attention in plain PyTorch, in the tensors' dtype."""
    import torch

    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    k, v = (x[: len(q) // options["GROUP"]].repeat_interleave(options["GROUP"], 0) for x in (k, v))
    scores = q @ k.mT * options["scale"]
    if options["CAUSAL"]:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(options["n_k"] - options["n_q"] + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    blind = torch.isneginf(scores).all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
    return {"o": weights @ v, "lse": scores.logsumexp(-1)}


def lost_digits(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """Nearly right, but outside of the budget."""
    return "low-precision accumulator" if np.allclose(got["o"].astype(float), expected(call)["o"], atol=0.2) else as_values_say(call, got)


def as_values_say(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """What the judge of values would call it."""
    finding = right_values(call, Answer(arrays=got))
    return finding.misconception if finding else None


BUDGET = within_budget(plain, symptom=lost_digits)
ONCE = "A program loads its tile of q once and, in each step, the same tile of k and of v once, cut at n_k by the mask; at the end it stores o and lse once."
BYTES = (tiles_at_most(tile), hinted(traffic(closed_form, read_too_often), ONCE), last_to_first)


def case(n_q, n_k, head_dim, block_q, block_k, seed, **more) -> dict:
    """One case: sizes by position, since there are many."""
    return dict(n_q=n_q, n_k=n_k, head_dim=head_dim, block_q=block_q, block_k=block_k, seed=seed, **more)


TESTS = {
    "plain": (2, (right_values,), [case(16, 16, 16, 16, 16, 1), case(32, 48, 16, 16, 16, 2, sharp=3.0), case(16, 32, 16, 16, 16, 3, heads=2)]),
    "plain ragged": (1, (right_values,), [
        case(16, 21, 16, 16, 16, 4), case(5, 16, 16, 16, 16, 5, heads=2), case(3, 5, 16, 16, 16, 6), case(19, 37, 16, 16, 32, 7, heads=2, layout="wide"),
        case(20, 36, 16, 16, 16, 8, sharp=1e3),
    ]),
    "plain bytes": (2, (right_values, *BYTES), [case(32, 32, 16, 16, 16, 9), case(50, 70, 16, 16, 32, 10, heads=2, layout="heads")]),
    "causal": (1, (right_values,), [
        case(16, 16, 16, 16, 16, 11, causal=True), case(16, 40, 16, 16, 16, 12, causal=True), case(24, 10, 16, 16, 16, 13, causal=True, heads=2),
        case(20, 20, 16, 16, 16, 14, causal=True, sharp=3e4, negative=True),
    ]),
    "skipped tiles": (2, (right_values, *BYTES), [case(64, 64, 16, 16, 16, 15, causal=True), case(50, 70, 16, 32, 16, 16, causal=True, heads=2), case(40, 18, 16, 16, 16, 17, causal=True)]),
    "grouped": (1, (right_values, *BYTES), [case(16, 16, 16, 16, 16, 18, heads=4, group=2, spare=2), case(20, 35, 16, 16, 16, 19, heads=6, group=3, causal=True, layout="wide")]),
    "error budget": (1, (BUDGET,), [
        case(32, 40, 32, 16, 16, 20, heads=2, dtype="float16"), case(16, 900, 16, 16, 16, 21, dtype="float16", sharp=0.1, shift=1.0),
        case(48, 48, 64, 32, 16, 22, dtype="float16", causal=True, heads=2, group=2), case(48, 48, 64, 16, 32, 23, sharp=2.0),
    ]),
}  # fmt: skip

# On a reader's GPU, with sizes that the interpreter would take minutes for.
ON_GPU = [
    {**sizes, "cast": cast}
    for cast in ("float16", "bfloat16")
    for sizes in (
        case(500, 500, 64, 64, 64, 30, heads=4), case(300, 700, 64, 64, 32, 31, heads=4, causal=True, layout="wide"),
        case(300, 100, 64, 32, 64, 32, heads=2, causal=True), case(257, 513, 128, 64, 32, 33, heads=6, group=3, causal=True, layout="heads"),
    )
] + [case(200, 300, 64, 32, 32, 34, heads=2, causal=True, cast="float32")]  # tells TF32, which the interpreter does not know  # fmt: skip

EXERCISE = Exercise(
    name="e06_triton_forward",
    title="FlashAttention's forward kernel",
    lesson="06_triton_forward",
    tests=tuple(
        Test(
            name, points, "flash_tokens_kernel", tuple(cases), call, judges, kernel=True,
            gpu_cases=tuple(ON_GPU if name == "error budget" else ()), gpu_judges=(BUDGET,),
        )
        for name, (points, judges, cases) in TESTS.items()
    ),
)  # fmt: skip
