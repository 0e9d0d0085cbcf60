"""e08_triton_backward: the two backward kernels, of which the first makes delta itself, on tensors laid out in any way.

Unlike flashlab.kernels.backward and lesson 08: there is no delta kernel. The kernel that owns queries reads o, makes delta,
stores it and goes on to dq; the kernel that owns keys reads it. So do is read once less. And one pair of strides holds
for q, o, do, dq, another for k, v, dk, dv: heads may lie one after another, or beside each other in a row.

The same bits twice: every gradient is stored once, by one program, without atomics. The interpreter runs programs in
one order, so equal numbers there would prove nothing; the trace does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flashlab.grading.budget import within_budget
from flashlab.grading.exercise import Answer, Call, Exercise, Finding, Judge, Test
from flashlab.grading.judge import differs, tiles_at_most, traffic, values
from flashlab.traffic.trace import Trace

HEAD_DIM = 16  # but on a GPU
BUDGET = 3  # times the error of plain attention in the same type
QUERIES, KEYS = "dq_delta_kernel", "dk_dv_kernel"
OUTPUTS = {QUERIES: ("delta", "dq"), KEYS: ("dv", "dk")}


def arrays_of(case: dict) -> dict[str, np.ndarray]:
    """q, k, v, do of one case: (heads, n, head_dim), in float64 but holding numbers of the case's dtype."""
    random = np.random.default_rng(case["seed"])
    heads, kv_heads = case.get("heads", 1), case.get("heads", 1) // case.get("group", 1)
    q, do = random.standard_normal((2, heads, case["n_q"], case.get("head_dim", HEAD_DIM)))
    k, v = random.standard_normal((2, kv_heads, case["n_k"], case.get("head_dim", HEAD_DIM)))
    if case.get("opposite"):  # every score far below zero, and so is lse
        q, k = np.abs(q), -np.abs(k)
    if case.get("climbing"):  # sums that climb, and dq's and dk's fall again: what is lost at the top is missed at the end
        q, k, v, do = np.abs(q) + 1, np.abs(k) + 1, np.abs(v), np.abs(do) * 4
        v[:, case["n_k"] // 2 :] *= -1
    q = q * case.get("sharp", 1.0)
    return {name: rounded_to(case.get("cast", case.get("dtype", "float32")), array) for name, array in dict(q=q, k=k, v=v, do=do).items()}


def rounded_to(dtype: str, array: np.ndarray) -> np.ndarray:
    """These numbers as that dtype holds them, in float64."""
    if dtype != "bfloat16":  # which NumPy does not have: float32 without its last 16 bits, rounded to even
        return array.astype(dtype).astype(np.float64)
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def gradients(
    q, k, v, do, lse=None, delta=None, *, scale, causal, scored=None, offset=0, topleft=False, base2=False, nan=False,
    modulo=False, ungrouped=False, no_delta=False, no_weights=False, unscaled=False, whole=None,
):  # fmt: skip
    """Everything standard attention has, forward and backward, in float64; the rest of the options do one thing wrong."""
    heads, (n_q, n_k), group = len(q), (q.shape[1], k.shape[1]), len(q) // len(k)
    found = {name: np.zeros(q.shape) for name in ("o", "dq")} | {name: np.zeros(k.shape) for name in ("dk", "dv")}
    found |= {"lse": np.full(q.shape[:2], -np.inf), "delta": np.zeros(q.shape[:2])}
    seen = np.ones((n_q, n_k), bool)
    if causal:
        seen = np.arange(n_k)[None, :] <= np.arange(n_q)[:, None] + (0 if topleft else n_k - n_q) + offset
    if whole:  # the last tile is left out: of queries, or of keys
        axis, block = whole
        seen = seen & (np.arange(n_q)[:, None] < n_q // block * block if axis == "q" else np.arange(n_k)[None, :] < n_k // block * block)
    for head in range(heads):
        at = head % len(k) if modulo else head // group
        scores = scale * (q[head] @ k[at].T) if scored is None else scored * (q[head] @ k[at].T)
        scores = np.where(seen, scores, -np.inf)
        row_max = scores.max(axis=1, initial=-np.inf)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            shift = np.where(np.isneginf(row_max), 0, row_max)
            found["lse"][head] = shift + np.log(np.exp(scores - shift[:, None]).sum(axis=1))
            known = found["lse"][head] if lse is None else lse[head]
            safe = known if nan else np.where(np.isneginf(known), np.inf, known)
            weights = np.exp2(scores - safe[:, None]) if base2 else np.exp(scores - safe[:, None])
        found["o"][head] = weights @ v[at]
        found["delta"][head] = (do[head] * found["o"][head]).sum(axis=1) if delta is None else delta[head]
        dweights = do[head] @ v[at].T
        dscores = (1 if no_weights else weights) * (dweights - (0 if no_delta else found["delta"][head][:, None]))
        found["dq"][head] = (1 if unscaled else scale) * (dscores @ k[at])
        dk, dv = (1 if unscaled else scale) * (dscores.T @ q[head]), weights.T @ do[head]
        if ungrouped:
            found["dk"][at], found["dv"][at] = dk, dv  # the last head of the group has it all
        else:
            found["dk"][at] += dk
            found["dv"][at] += dv
    return found


def laid(n: int, heads: int, rows_together: bool, head_dim: int = HEAD_DIM) -> tuple[int, int]:
    """(row stride, head stride): heads beside each other in each row, or one after another."""
    return (heads * head_dim, head_dim) if rows_together else (head_dim, n * head_dim)


def call_of(function: str):
    """What makes a case into a launch of that kernel."""

    def call(case: dict) -> Call:
        given, dtype, causal = arrays_of(case), case.get("dtype", "float32"), case.get("causal", False)
        head_dim = given["q"].shape[2]
        scale = case.get("scale", head_dim**-0.5)
        right = gradients(**given, scale=scale, causal=causal)
        heads, n_q, kv_heads, n_k = *given["q"].shape[:2], *given["k"].shape[:2]
        block_q, block_k = case.get("block_q", 16), case.get("block_k", 16)
        q_row, q_head = laid(n_q, heads, case.get("rows_together", False), head_dim)
        k_row, k_head = laid(n_k, kv_heads, case.get("rows_together", False), head_dim)
        arrays = {name: given[name].astype(dtype) for name in ("q", "k", "v")}
        queries = function == QUERIES
        if queries:
            arrays["o"] = right["o"].astype(dtype)
        arrays |= {"do": given["do"].astype(dtype), "lse": right["lse"].astype(np.float32)}
        if queries:
            arrays |= {"delta": np.zeros((heads, n_q), np.float32), "dq": np.zeros(given["q"].shape, dtype)}
        else:
            arrays |= {"delta": right["delta"].astype(np.float32), "dk": np.zeros(given["k"].shape, dtype), "dv": np.zeros(given["k"].shape, dtype)}
        strides = {name: (q_head, q_row, 1) for name in ("q", "o", "do", "dq") if name in arrays}
        strides |= {name: (k_head, k_row, 1) for name in ("k", "v", "dk", "dv") if name in arrays}
        options = {"n_q": n_q, "n_k": n_k, "q_row": q_row, "q_head": q_head, "k_row": k_row, "k_head": k_head, "scale": float(scale)}
        options |= {"GROUP": heads // kv_heads, "CAUSAL": causal, "HEAD_DIM": head_dim, "BLOCK_Q": block_q, "BLOCK_K": block_k}
        grid = (-(-n_q // block_q), heads) if queries else (-(-n_k // block_k), kv_heads)
        return Call(
            arrays=arrays, options=options, stores=OUTPUTS[function], grid=grid, strides=strides, cast=case.get("cast"), exact=("lse", "delta"),
        )  # fmt: skip

    return call


def with_fault(**fault):
    """What the kernel's outputs are with that one thing done wrong; with nothing, the right ones."""

    def computed(call: Call) -> dict[str, np.ndarray]:
        given = {name: call.arrays[name].astype(np.float64) for name in ("q", "k", "v", "do", "lse")}
        options, queries = dict(call.options), "dq" in call.arrays
        o = call.arrays["o"].astype(np.float64) if queries else None
        delta = (given["do"] * o).sum(axis=2) if queries else call.arrays["delta"].astype(np.float64)
        more = {"scale": options["scale"], "causal": options["CAUSAL"]} | fault
        if "whole" in more:
            more["whole"] = ("k", options["BLOCK_K"]) if queries else ("q", options["BLOCK_Q"])
        if "scored" in more:
            more["scored"] = more["scored"](options["scale"])
        found = gradients(**given, delta=delta, **more)
        return {name: found[name] for name in OUTPUTS[QUERIES if queries else KEYS]}

    return computed


expected = with_fault()
IMITATIONS = {
    "delta left out": with_fault(no_delta=True),
    "dS without weights factor": with_fault(no_weights=True),
    "dK without scale": with_fault(unscaled=True),
    "scale forgotten": with_fault(scored=lambda scale: 1.0),
    "scale applied twice": with_fault(scored=lambda scale: scale * scale),
    "lse in base 2": with_fault(base2=True),
    "top-left causal alignment": with_fault(topleft=True),
    "causal mask off by one": with_fault(offset=-1),
    "backward ignores the mask": with_fault(causal=False),
    "backward masks when it should not": with_fault(causal=True),
    "last ragged tile dropped": with_fault(whole=True),
    "grouped heads mapped by modulo": with_fault(modulo=True),
    "grouped gradients not summed": with_fault(ungrouped=True),
}


def symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """NaN in rows that saw no key; NaN from keys that are not there, where exp(0 - lse) overflows."""
    broken = ~np.isfinite(got["dq" if "dq" in got else "dk"].astype(float)).all(axis=(1, 2))
    if not broken.any():
        return None
    if np.isneginf(call.arrays["lse"]).any():
        return "fully masked row gives NaN"
    return "padded keys not masked" if call.options["n_k"] % call.options["BLOCK_K"] and call.arrays["lse"].min() < -88 else None


def plain(tensors: dict, options: dict) -> dict:
    """The backward pass of standard attention in plain PyTorch, in the tensors' dtype; what the call does not store it leaves out."""
    import torch

    q, k, v, do = (tensors[name] for name in ("q", "k", "v", "do"))
    group, kv_heads, n_k, d = options["GROUP"], len(k), k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.mT * options["scale"]
    if options["CAUSAL"]:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(n_k - q.shape[1] + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    blind = torch.isneginf(scores).all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
    dscores = torch._softmax_backward_data(do @ v.mT, weights, -1, q.dtype)  # delta inside, in float32, as autograd does it
    if "o" in tensors:
        return {"delta": (do * (weights @ v)).sum(-1), "dq": options["scale"] * (dscores @ k)}
    dk, dv = options["scale"] * (dscores.mT @ q), weights.mT @ do
    return {name: x.view(kv_heads, group, n_k, d).sum(1) for name, x in (("dv", dv), ("dk", dk))}


def lost_digits(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """Nearly right, but outside of the budget."""
    near = all(np.abs(got[name].astype(float) - right).max() < 0.2 * np.abs(right).max() for name, right in expected(call).items())
    return symptom(call, got) or ("low-precision accumulator" if near else None)


def delta_in_float32(call: Call, answer: Answer) -> Finding | None:
    """delta has float32's digits whatever the inputs' dtype."""
    if "o" not in call.arrays:
        return None
    right = expected(call)["delta"]
    terms = np.abs(call.arrays["do"].astype(np.float64) * call.arrays["o"].astype(np.float64)).sum(axis=2).max()
    what = differs("delta", answer.arrays.get("delta"), right, 1e-5 * terms, 0.0)
    return Finding(f"{what}. It is a sum of float32 products in float32", "low-precision accumulator", input=str(call)) if what else None


def visible(call: Call) -> list[tuple[slice, slice]]:
    """The pairs of tiles in which some query sees some key."""
    options = call.options
    n_q, n_k, block_q, block_k = (options[name] for name in ("n_q", "n_k", "BLOCK_Q", "BLOCK_K"))
    tiles_q, tiles_k = ([slice(start, min(start + block, n)) for start in range(0, n, block)] for n, block in ((n_q, block_q), (n_k, block_k)))
    return [(rows, cols) for rows in tiles_q for cols in tiles_k if not options["CAUSAL"] or cols.start <= rows.stop - 1 + n_k - n_q]


def closed_form(call: Call) -> dict[tuple[str, str], int]:
    """What is owned moves once; what streams past moves once for each visible pair of tiles and each query head."""
    pairs, heads, size = visible(call), len(call.arrays["q"]), call.arrays["q"].dtype.itemsize
    rows = heads * sum(r.stop - r.start for r, _ in pairs)
    keys = heads * sum(c.stop - c.start for _, c in pairs)
    wide, (q, k, lse) = call.options["HEAD_DIM"] * size, (call.arrays[name] for name in ("q", "k", "lse"))
    if "dq" in call.arrays:
        owned = {(name, "load"): q.nbytes for name in ("q", "o", "do")} | {("lse", "load"): lse.nbytes}
        return owned | {("k", "load"): keys * wide, ("v", "load"): keys * wide, ("delta", "store"): lse.nbytes, ("dq", "store"): q.nbytes}
    owned = {(name, op): k.nbytes for name, op in (("k", "load"), ("v", "load"), ("dk", "store"), ("dv", "store"))}
    return owned | {("q", "load"): rows * wide, ("do", "load"): rows * wide, ("lse", "load"): rows * 4, ("delta", "load"): rows * 4}


def too_many(call: Call, trace: Trace) -> str | None:
    """What wrong bytes usually mean."""
    streamed = "k" if "dq" in call.arrays else "q"
    counted, needed = trace.bytes_by_tensor().get((streamed, "load"), 0), closed_form(call)[streamed, "load"]
    every = closed_form(Call(arrays=call.arrays, options={**call.options, "CAUSAL": False}))[streamed, "load"]
    return "tiles above the diagonal visited" if counted == every > needed else "K/V read once per row" if counted > 2 * needed else None


def one_writer(call: Call, answer: Answer) -> Finding | None:
    """No atomics, and no program writes where another one did: so the same bits every time, on any GPU."""
    for name in OUTPUTS[QUERIES if "dq" in call.arrays else KEYS]:
        added = answer.trace.select("atomic", tensor=name)
        stored = answer.trace.select("store", tensor=name)
        if len(added):
            what = f"{len(added)} atomic additions to {name}, by {len(set(added['program'].tolist()))} programs"
        elif int(stored["bytes"].sum()) > call.arrays[name].nbytes:
            what = f"{int(stored['bytes'].sum()):,} bytes of {name} were stored, and it has {call.arrays[name].nbytes:,}: some rows are written twice"
        else:
            continue
        return Finding(what, "several writers", input=str(call))
    return None


def most(call: Call) -> dict[str, int]:
    """The largest access of each tensor: one tile of the given size. No n × n memory, then."""
    rows = dict.fromkeys(("q", "o", "do"), call.options["BLOCK_Q"]) | dict.fromkeys(("k", "v"), call.options["BLOCK_K"])
    return {name: rows[name] * call.options["HEAD_DIM"] for name in rows if name in call.arrays}


def case(n_q, n_k, seed, **more) -> dict:
    """One case: sizes by position, since there are many."""
    return dict(n_q=n_q, n_k=n_k, seed=seed, **more)


TESTS = {
    "": [case(16, 16, 1), case(32, 48, 2, heads=2)],
    "ragged": [case(20, 16, 3), case(23, 37, 4, heads=4, group=2), case(17, 21, 5, opposite=True, sharp=40.0), case(9, 50, 6, heads=3, group=3, block_k=32)],
    "layout": [case(32, 16, 7, heads=2, rows_together=True), case(21, 40, 8, heads=4, group=2, rows_together=True)],
    "causal": [
        case(32, 32, 9, causal=True), case(16, 41, 10, causal=True, heads=2), case(44, 24, 11, causal=True),
        case(45, 50, 12, causal=True, heads=4, group=2, rows_together=True, block_q=32),
    ],
    "budget": [case(512, 16, 13, dtype="float16", climbing=True, sharp=0.03), case(16, 256, 14, dtype="float16", climbing=True, sharp=0.1), case(40, 72, 15, dtype="float16", causal=True, heads=2)],
    "bytes": [
        case(48, 48, 16), case(40, 56, 17, heads=4, group=2, block_k=32, rows_together=True), case(64, 64, 18, causal=True), case(61, 40, 19, causal=True, dtype="float16", block_q=32),
    ],
}  # fmt: skip
# On a reader's GPU, with sizes that the interpreter would take minutes for.
ON_GPU = [
    case(n_q, n_k, seed, cast=cast, **more)
    for cast in ("float16", "bfloat16")
    for n_q, n_k, seed, more in (
        (500, 500, 30, {"heads": 4, "head_dim": 64, "block_q": 64, "block_k": 64}),
        (300, 700, 31, {"heads": 4, "group": 2, "head_dim": 64, "block_q": 32, "block_k": 64, "causal": True, "rows_together": True}),
        (300, 100, 32, {"heads": 2, "head_dim": 32, "block_q": 64, "block_k": 32, "causal": True}),
        (257, 513, 33, {"heads": 6, "group": 3, "head_dim": 128, "block_q": 32, "block_k": 32, "causal": True}),
    )
]
POINTS = {"": 2, "ragged": 1, "layout": 1, "causal": 2, "budget": 1, "bytes": 1}
NAMED = {QUERIES: "dq", KEYS: "dk, dv"}

def shortened(judge: Judge) -> Judge:
    """The same judge; its finding gives the input by sizes alone, and says so where only head 0 is right."""

    def judged(call: Call, answer: Answer) -> Finding | None:
        finding = judge(call, answer)
        if finding is None:
            return None
        wanted = expected(call)
        alone = [name for name in wanted if len(wanted[name]) > 1 and not differs(name, answer.arrays[name][:1], wanted[name][:1], 3e-5, 3e-5)]
        hint = f"Of {alone[0]} only head 0 is right. Where does the next head's begin?" if alone and not finding.misconception else finding.hint
        return replace(finding, input=str(call), hint=hint)

    return judged


VALUES = shortened(values(expected, atol=3e-5, rtol=3e-5, imitations=IMITATIONS, symptom=symptom))
LAYOUT = shortened(values(expected, atol=3e-5, rtol=3e-5, imitations=IMITATIONS, symptom=lambda call, got: "stride assumed contiguous"))


WITHIN = within_budget(plain, times=BUDGET, symptom=lost_digits)


def by_dtype(call: Call, answer: Answer) -> Finding | None:
    """Values, within what the dtype allows."""
    return (VALUES if call.arrays["q"].dtype == np.float32 else WITHIN)(call, answer)


def judges_of(test: str) -> tuple:
    """By what a test is judged."""
    return {"layout": (LAYOUT,), "budget": (delta_in_float32, WITHIN), "bytes": (by_dtype, one_writer, tiles_at_most(most), traffic(closed_form, too_many))}.get(test, (VALUES,))


EXERCISE = Exercise(
    name="e08_triton_backward",
    title="The two backward kernels",
    lesson="08_triton_backward",
    tests=tuple(
        Test(
            f"{NAMED[function]} {test}".strip(), POINTS[test], function, tuple(cases), call_of(function), judges_of(test), kernel=True,
            gpu_cases=tuple(ON_GPU if test == "budget" else ()), gpu_judges=(WITHIN,),
        )
        for function in (QUERIES, KEYS)
        for test, cases in TESTS.items()
    ),
)  # fmt: skip
