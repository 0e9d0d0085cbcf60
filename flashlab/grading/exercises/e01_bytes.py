"""e01_bytes: what each operator of attention moves, as model code writes it: seven operators, not the lesson's three.

Unlike flashlab.traffic.model.standard_traffic: scale and mask are operators of their own, softmax is computed in float32
whatever the inputs are, v may have another width than q and k, and the answer is a row of numbers, one an operator.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flashlab.grading.exercise import Answer, Call, Exercise, Finding, Test
from flashlab.grading.judge import values

OPERATORS = ("q · kᵀ", "times scale", "plus mask", "to float32", "softmax", "back to the type", "weights · v")
RETURNS = ("loaded", "stored", "flops")


def call(case: dict) -> Call:
    """A case is the sizes themselves."""
    return Call(options=case, returns=RETURNS)


def costs(
    *, tensor_bytes=None, float32_bytes=4, mask_times=1, same_type_moves=False, read_again=True, once_per_row=False, flops_a_term=2, keys=None, width=None, each=None
):
    """What the seven operators move and compute, added up tensor by tensor; with an argument, with one thing done wrong.

    Sums over a table of operands, where a student writes products: another way to the same numbers, and a test holds it
    equal to what `count_bytes()` counts in PyTorch.
    """

    def counted(call: Call) -> dict[str, np.ndarray]:
        sizes = call.options
        e = tensor_bytes or sizes["element_bytes"]
        times = sizes["batch"] * sizes["heads"] if each is None else each(sizes)
        n_q, n_k = sizes["n_q"], sizes["n_k"] if keys is None else keys(sizes)
        d, d_v = sizes["head_dim"], sizes["value_dim"] if width is None else width(sizes)
        bytes_of = {"q": times * n_q * d * e, "k": times * n_k * d * e, "v": times * n_k * d_v * e, "o": times * n_q * d_v * e}
        bytes_of |= {"mask": (times if mask_times is None else mask_times) * n_q * n_k * e}
        bytes_of |= {"scores": times * n_q * n_k * e, "exact": times * n_q * n_k * float32_bytes}
        if once_per_row:
            bytes_of |= {"k": n_q * bytes_of["k"], "v": n_q * bytes_of["v"]}
        if sizes["element_bytes"] == 4 and not same_type_moves:
            convert, back = ((), ()), ((), ())
        else:
            convert, back = (("scores",), ("exact",)), (("exact",), ("scores",))
        table = [(("q", "k"), ("scores",)), (("scores",), ("scores",)), (("scores", "mask"), ("scores",)), convert]
        table += [(("exact",), ("exact",)), back, (("scores", "v"), ("o",))]
        if not read_again:
            table = [(tuple(name for name in read if name not in ("scores", "exact")), written) for read, written in table]
        loaded, stored = ([sum(bytes_of[name] for name in row[side]) for row in table] for side in (0, 1))
        return {"loaded": np.array(loaded), "stored": np.array(stored), "flops": np.array(flops_a_term * times * n_q * n_k * (d + d_v))}

    return counted


IMITATIONS = {
    "half the FLOPs": costs(flops_a_term=1),
    "elements instead of bytes": costs(tensor_bytes=1, float32_bytes=1),
    "softmax in the element type": lambda call: costs(float32_bytes=call.options["element_bytes"])(call),
    "converted though nothing changes": costs(same_type_moves=True),
    "mask read once a head": costs(mask_times=None),
    "mask not read": costs(mask_times=0),
    "written but not read again": costs(read_again=False),
    "operand read once a row": costs(once_per_row=True),
    "batch or heads left out": costs(each=lambda sizes: sizes["heads"]),
    "n_k taken for n_q": costs(keys=lambda sizes: sizes["n_q"]),
    "value_dim taken for head_dim": costs(width=lambda sizes: sizes["head_dim"]),
}
BY_HALVES = {
    "batch or heads left out": costs(each=lambda sizes: sizes["batch"]),
    "elements instead of bytes": costs(tensor_bytes=1),
}
NEITHER = {"batch or heads left out": costs(each=lambda sizes: 1)}
EVERY = [(name, way) for ways in (IMITATIONS, BY_HALVES, NEITHER) for name, way in ways.items()]

EXACT = values(costs(), atol=0, rtol=0, imitations=IMITATIONS)
HINTS = {
    "bytes": "An operator reads each of its operands once and writes its result once: elements times the bytes of one, in the type they have there.",
    "shape": "Return three things: loaded and stored with seven whole numbers each, one for each operator of the code, and flops, one number.",
    "flops": "A dot product of d terms is 2 · d FLOPs. How many dot products does each of the two products take, and how long are they?",
}


def equals(call: Call, answer: Answer) -> Finding | None:
    """Equality, number by number; the finding says of which operator, and what its first wrong number usually means."""
    finding = EXACT(call, answer)
    if finding is None:
        return None
    wanted = costs()(call)
    kind = "shape" if "shape" in finding.what or "came back" in finding.what else "flops" if finding.what.startswith("flops") else "bytes"
    finding = replace(finding, hint=HINTS[kind])
    for name in RETURNS:
        got = answer.arrays.get(name)
        if got is None or got.shape != wanted[name].shape or got.dtype.kind not in "iuf":
            return finding
        wrong = np.flatnonzero(np.atleast_1d(got != wanted[name]))
        if len(wrong):
            break
    if wanted[name].ndim:
        finding = replace(finding, what=f"operator {wrong[0] + 1}, {OPERATORS[wrong[0]]}: {finding.what}")
    theirs = np.atleast_1d(got)[wrong[0]]
    whole = {"elements instead of bytes"}  # one number may be that by chance: a mask that was forgotten, with 4 queries and keys
    alike = (
        known for known, way in EVERY
        if theirs == np.atleast_1d(way(call)[name])[wrong[0]] and (known not in whole or np.array_equal(got, way(call)[name]))
    )  # fmt: skip
    return replace(finding, misconception=finding.misconception or next(alike, None))


def case(n_q, n_k, head_dim, value_dim=None, *, batch=1, heads=1, element_bytes=2) -> dict:
    """One case: the sizes as the student's function gets them."""
    return {
        "batch": batch, "heads": heads, "n_q": n_q, "n_k": n_k, "head_dim": head_dim, "value_dim": value_dim or head_dim, "element_bytes": element_bytes,
    }  # fmt: skip


TESTS = {
    "one head": (3, [case(4, 4, 2), case(5, 5, 3), case(64, 64, 16)]),
    "two lengths": (2, [case(2, 5, 3), case(3, 4, 2, 5), case(1, 4096, 128), case(7, 6, 192, 128)]),
    "batch, heads": (2, [case(2, 3, 2, heads=3), case(2, 3, 2, batch=3), case(4, 6, 8, 5, batch=2, heads=3)]),
    "types": (2, [case(2, 3, 2, element_bytes=4), case(2, 3, 2, element_bytes=8), case(6, 9, 4, 3, batch=2, heads=2, element_bytes=4)]),
    "large": (1, [case(8192, 8192, 128, heads=32), case(131072, 131072, 128, batch=4, heads=64), case(8192, 8192, 64, element_bytes=4)]),
}

EXERCISE = Exercise(
    name="e01_bytes",
    title="Bytes and FLOPs, operator by operator",
    lesson="01_standard_attention",
    tests=tuple(Test(name, points, "attention_costs", tuple(cases), call, (equals,)) for name, (points, cases) in TESTS.items()),
)
