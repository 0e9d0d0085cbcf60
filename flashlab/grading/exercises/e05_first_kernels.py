"""e05_first_kernels: two kernels whose matrix of scores has a row for each key, which no lesson and no kernel of ours has.

softmax_keys_kernel: a fused softmax down the keys, several queries a program, any strides on both sides.
scores_by_key_kernel: k·qᵀ, one program a tile of keys, a loop over queries, head_dim that is no power of two.
Run after one another, the second before the first, they give attention's weights, transposed.
"""

from __future__ import annotations

import numpy as np

from flashlab.grading.budget import within_budget
from flashlab.grading.exercise import Answer, Call, Exercise, Finding, Test
from flashlab.grading.judge import tiles_at_most, traffic, values
from flashlab.traffic.trace import Trace

UNTOUCHED = 7.0  # what outputs hold before
LOW = -30_000.0  # scores lower than a finite mask


def power_of_two(n: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (n - 1).bit_length())


def laid_out(shape: tuple[int, int], how: str) -> tuple[int, int]:
    """Strides of a matrix: row by row, column by column ("turned"), or with room after each row ("wide")."""
    rows, cols = shape
    return {"plain": (cols, 1), "turned": (1, rows), "wide": (cols + 5, 1)}[how]


# -- the softmax --------------------------------------------------------------------------------------------------------
def softmax_call(case: dict) -> Call:
    """x (n_k, n_q) with a column for each query; a program takes block_q columns."""
    shape = case["n_k"], case["n_q"]
    random = np.random.default_rng(case["seed"])
    x = (case.get("sharp", 1.0) * random.standard_normal(shape) + case.get("offset", 0.0)).astype(case.get("dtype", "float32"))
    strides = {name: laid_out(shape, case.get(name, "plain")) for name in ("x", "y")}
    options = {f"{name}_{axis}": stride for name in strides for axis, stride in zip(("row", "col"), strides[name])}
    options |= {"n_k": shape[0], "n_q": shape[1], "KEYS": power_of_two(shape[0]), "BLOCK_Q": case["block_q"]}
    return Call(
        arrays={"x": x, "y": np.full_like(x, UNTOUCHED)}, options=options, strides=strides, stores=("y",), grid=(-(-shape[1] // case["block_q"]),), cast=case.get("cast"),
    )  # fmt: skip


def weights_of(call: Call) -> dict[str, np.ndarray]:
    """Softmax down each column, in float64."""
    x = call.arrays["x"].astype(np.float64)
    weights = np.exp(x - x.max(axis=0))
    return {"y": weights / weights.sum(axis=0)}


def without_maximum(call: Call) -> dict[str, np.ndarray]:
    weights = np.exp(call.arrays["x"].astype(np.float32))
    return {"y": weights / weights.sum(axis=0)}


def wrong_axis(*, of_maximum: bool, of_sum: bool, turned: bool = False):
    """Maximum, sum or both over the queries of each program's tile; `turned` where such a row of numbers is laid along the wrong side of a square tile."""

    def imitation(call: Call) -> dict[str, np.ndarray]:
        x, y = call.arrays["x"].astype(np.float64), np.empty(call.arrays["x"].shape)
        for start in range(0, x.shape[1], call.options["BLOCK_Q"]):
            cols = slice(start, start + call.options["BLOCK_Q"])
            tile = x[:, cols]

            def down(reduce, wrong, array):
                reduced = reduce(array, axis=int(wrong), keepdims=True)
                return reduced.T if wrong and turned and array.shape[0] == array.shape[1] else reduced

            weights = np.exp(tile - down(np.max, of_maximum, tile))
            y[:, cols] = weights / down(np.sum, of_sum, weights)
        return {"y": y}

    return imitation


def fewer_keys(call: Call) -> dict[str, np.ndarray]:
    """Both masks compare keys with n_q: later keys are no part of the softmax, and are never stored."""
    x, n_q = call.arrays["x"], call.options["n_q"]
    return {"y": np.concatenate([weights_of(Call(arrays={"x": x[:n_q]}))["y"], np.full(x[n_q:].shape, UNTOUCHED)])}


def padded_with(fill: float):
    """What comes out if the places after the last key hold `fill`."""

    def imitation(call: Call) -> dict[str, np.ndarray]:
        x = call.arrays["x"].astype(np.float64)
        full = np.concatenate([x, np.full((call.options["KEYS"] - len(x), x.shape[1]), fill)])
        weights = np.exp(full - full.max(axis=0))
        return {"y": (weights / weights.sum(axis=0))[: len(x)]}

    return imitation


def strides_forgotten(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """Whether y is what it would be with x, y or both taken to lie row by row."""
    x, shape = call.arrays["x"], call.arrays["x"].shape
    if call.strides["x"] == call.strides["y"] == laid_out(shape, "plain"):
        return None
    read = {False: x, True: in_memory(x, call.strides["x"])}
    for x_plain, y_plain in ((True, True), (True, False), (False, True)):
        wrong = weights_of(Call(arrays={"x": read[x_plain]}))["y"]
        if y_plain:
            wrong = read_back(wrong, call.strides["y"])
        if np.allclose(got["y"], wrong, atol=1e-4):
            return "stride assumed contiguous"
    return None


def in_memory(array: np.ndarray, strides: tuple[int, int]) -> np.ndarray:
    """The numbers of an array without gaps, read as if they lay row by row."""
    return array if strides[1] == 1 else array.T.reshape(array.shape)


def read_back(array: np.ndarray, strides: tuple[int, int]) -> np.ndarray:
    """What a tensor with these strides shows after `array` was written to it row by row."""
    return array if strides[1] == 1 else array.reshape(array.shape[::-1]).T


def softmax_symptom(call: Call, got: dict[str, np.ndarray]) -> str | None:
    """What NaN and zeros usually mean."""
    if call.options["KEYS"] > call.options["n_k"] and call.arrays["x"].max() < LOW / 2 and not got["y"].any():
        return "mask with a finite number"
    if np.isnan(got["y"]).any() and np.abs(call.arrays["x"]).max() > 80:
        return "no running max"
    return strides_forgotten(call, got)


SOFTMAX_IMITATIONS = {
    "no running max": without_maximum,
    "softmax over the wrong axis": wrong_axis(of_maximum=True, of_sum=True),
    "softmax over the wrong axis, the maximum": wrong_axis(of_maximum=True, of_sum=False),
    "softmax over the wrong axis, the sum": wrong_axis(of_maximum=False, of_sum=True),
    "softmax over the wrong axis, the sum along the keys": wrong_axis(of_maximum=False, of_sum=True, turned=True),
    "softmax over the wrong axis, both along the keys": wrong_axis(of_maximum=True, of_sum=True, turned=True),
    "mask with a finite number": padded_with(-1e4),
    "n_q taken for n_k": fewer_keys,
    "padded keys not masked": padded_with(0.0),
}


def softmax_values(call: Call, answer: Answer) -> Finding | None:
    """Values, with the tolerance that the dtype allows."""
    return SOFTMAX_VALUES[call.arrays["x"].dtype.name](call, answer)


SOFTMAX_VALUES = {
    name: values(weights_of, atol=atol, rtol=rtol, imitations=SOFTMAX_IMITATIONS, symptom=softmax_symptom)
    for name, atol, rtol in (("float32", 1e-6, 1e-5), ("float16", 1e-6, 1e-3))
}


def softmax_bytes(call: Call) -> dict[tuple[str, str], int]:
    """Read once, write once."""
    return {("x", "load"): call.arrays["x"].nbytes, ("y", "store"): call.arrays["y"].nbytes}


def not_fused(call: Call, trace: Trace) -> str | None:
    """Any further pass over the matrix."""
    counted, needed = trace.bytes_by_tensor(), softmax_bytes(call)
    return "not fused" if sum(counted.values()) > sum(needed.values()) else None


def softmax_tile(call: Call) -> dict[str, int]:
    """All keys of BLOCK_Q queries."""
    return dict.fromkeys(("x", "y"), call.options["KEYS"] * call.options["BLOCK_Q"])


# -- the scores ---------------------------------------------------------------------------------------------------------
def scores_call(case: dict) -> Call:
    """q (n_q, head_dim) and k (n_k, head_dim); scores (n_k, n_q). A program takes block_k keys and loops over the queries."""
    n_q, n_k, head_dim, dtype = case["n_q"], case["n_k"], case["head_dim"], case.get("dtype", "float32")
    random = np.random.default_rng(case["seed"])
    q, k = (random.standard_normal((n, head_dim)).astype(dtype) for n in (n_q, n_k))
    arrays = {"q": q, "k": k, "scores": np.full((n_k, n_q), UNTOUCHED, dtype)}
    strides = {name: laid_out(array.shape, case.get("layout", "plain")) for name, array in arrays.items()}
    options = {f"{name}_row": rows for name, (rows, _) in strides.items()}
    options |= {"n_q": n_q, "n_k": n_k, "head_dim": head_dim, "scale": head_dim**-0.5, "DIM": power_of_two(head_dim, 16)}
    options |= {"BLOCK_Q": case["block_q"], "BLOCK_K": case["block_k"]}
    return Call(arrays=arrays, options=options, strides=strides, stores=("scores",), grid=(-(-n_k // case["block_k"]),), cast=case.get("cast"))


def scores_of(call: Call, scale: float | None = None) -> dict[str, np.ndarray]:
    """scale · k·qᵀ in float64."""
    q, k = (call.arrays[name].astype(np.float64) for name in ("q", "k"))
    return {"scores": (call.options["scale"] if scale is None else scale) * (k @ q.T)}


def one_tile_dropped(call: Call) -> dict[str, np.ndarray]:
    """The queries after the last whole tile were never written."""
    scores, block = scores_of(call)["scores"], call.options["BLOCK_Q"]
    scores[:, scores.shape[1] // block * block :] = UNTOUCHED
    return {"scores": scores}


def compared_with(wrong: str, *, stored: bool = False):
    """A mask that compares keys with n_q, or queries with n_k: masked rows are loaded as 0, or are never stored."""

    def imitation(call: Call) -> dict[str, np.ndarray]:
        scores = scores_of(call)["scores"]
        masked = (slice(call.options["n_q"], None), slice(None)) if wrong == "n_q" else (slice(None), slice(call.options["n_k"], None))
        scores[masked] = UNTOUCHED if stored else 0
        return {"scores": scores}

    return imitation


def swapped(call: Call) -> dict[str, np.ndarray]:
    """A row for each query; where there are as many queries as keys, else nothing that can be told."""
    scores = scores_of(call)["scores"]
    return {"scores": scores.T if scores.shape[0] == scores.shape[1] else scores}


SCORES_IMITATIONS = {
    "rows and columns swapped": swapped,
    "scale forgotten": lambda call: scores_of(call, 1.0),
    "scale applied twice": lambda call: scores_of(call, call.options["scale"] ** 2),
    "last ragged tile dropped": one_tile_dropped,
    "n_q taken for n_k": compared_with("n_q"),
    "n_q taken for n_k, in the store": compared_with("n_q", stored=True),
    "n_k taken for n_q": compared_with("n_k"),
    "n_k taken for n_q, in the store": compared_with("n_k", stored=True),
}


def scores_values(call: Call, answer: Answer) -> Finding | None:
    """Values, with the tolerance that the dtype allows."""
    return SCORES_VALUES[call.arrays["q"].dtype.name](call, answer)


SCORES_VALUES = {name: values(scores_of, atol=tol, rtol=tol, imitations=SCORES_IMITATIONS) for name, tol in (("float32", 1e-5), ("float16", 2e-3))}


def scores_bytes(call: Call) -> dict[tuple[str, str], int]:
    """k once, q once for each tile of keys, the scores once."""
    arrays = call.arrays
    return {("k", "load"): arrays["k"].nbytes, ("q", "load"): call.grid[0] * arrays["q"].nbytes, ("scores", "store"): arrays["scores"].nbytes}


def loaded_again(call: Call, trace: Trace) -> str | None:
    """k is the tile that stays."""
    return "tile loaded again in every step" if trace.bytes_by_tensor().get(("k", "load"), 0) > call.arrays["k"].nbytes else None


def scores_tile(call: Call) -> dict[str, int]:
    """One tile of each."""
    dim, block_q, block_k = (call.options[name] for name in ("DIM", "BLOCK_Q", "BLOCK_K"))
    return {"q": block_q * dim, "k": block_k * dim, "scores": block_q * block_k}


# -- plain PyTorch, for the extra run on a GPU ----------------------------------------------------------------------------
def plain_softmax(tensors: dict, options: dict) -> dict:
    """In the dtype of x."""
    return {"y": tensors["x"].softmax(0)}


def plain_scores(tensors: dict, options: dict) -> dict:
    """In the dtype of q."""
    return {"scores": tensors["k"] @ tensors["q"].mT * options["scale"]}


def softmax(n_k, n_q, block_q, seed, **more) -> dict:
    """One case of the softmax."""
    return dict(n_k=n_k, n_q=n_q, block_q=block_q, seed=seed, **more)


def scores(n_q, n_k, head_dim, block_q, block_k, seed, **more) -> dict:
    """One case of the scores."""
    return dict(n_q=n_q, n_k=n_k, head_dim=head_dim, block_q=block_q, block_k=block_k, seed=seed, **more)


SOFTMAX = {
    "softmax": [softmax(4, 4, 4, 1), softmax(4, 2, 2, 2, x="turned", y="turned"), softmax(8, 8, 4, 3, y="turned"), softmax(8, 16, 4, 4, dtype="float16")],
    "softmax ragged": [softmax(3, 2, 2, 5), softmax(3, 5, 4, 6), softmax(37, 11, 4, 7, x="turned"), softmax(50, 9, 8, 8, x="wide", y="wide"), softmax(1, 1, 4, 9)],
    "softmax large": [softmax(5, 3, 2, 10, sharp=1e3), softmax(5, 3, 2, 11, offset=LOW), softmax(9, 6, 4, 12, sharp=30.0, offset=6e4)],
    "softmax bytes": [softmax(16, 8, 4, 13, dtype="float16"), softmax(37, 11, 4, 14, x="turned", y="wide"), softmax(70, 13, 8, 15)],
}  # fmt: skip
SCORES = {
    "scores": [scores(16, 16, 16, 16, 16, 16), scores(32, 48, 16, 16, 16, 17), scores(32, 16, 32, 16, 16, 18, dtype="float16")],
    "scores ragged": [
        scores(19, 16, 16, 16, 16, 19), scores(3, 5, 16, 16, 16, 20), scores(16, 16, 20, 16, 16, 21), scores(50, 37, 20, 16, 16, 22),
        scores(50, 21, 20, 16, 16, 23, layout="wide"),
    ],
    "scores bytes": [scores(48, 32, 16, 16, 16, 24), scores(50, 70, 20, 16, 32, 25), scores(37, 50, 40, 32, 16, 26, dtype="float16", layout="wide")],
}  # fmt: skip
POINTS = {"softmax": 2, "softmax ragged": 1, "softmax large": 1, "softmax bytes": 1, "scores": 2, "scores ragged": 1, "scores bytes": 2}
CASTS = ("float16", "bfloat16")  # on a reader's GPU, with sizes that the interpreter would take minutes for
ON_GPU = {
    "softmax": [softmax(500, 300, 4, 30, cast=cast) for cast in CASTS] + [softmax(1000, 77, 8, 31, x="turned", y="wide", sharp=5.0, cast=cast) for cast in CASTS],
    "scores": [scores(500, 300, 64, 64, 64, 32, cast=cast) for cast in ("float32", *CASTS)]  # float32 tells TF32, which the interpreter does not know
    + [scores(333, 200, 80, 32, 64, 33, layout="wide", cast=cast) for cast in CASTS],
}


def tests(cases: dict, function: str, call, judges: tuple, bytes_judge, plain) -> tuple[Test, ...]:
    """The tests of one kernel; the bytes are judged where a test's name ends so."""
    return tuple(
        Test(
            name, POINTS[name], function, tuple(cases[name]), call, judges + ((bytes_judge,) if name.endswith("bytes") else ()), kernel=True,
            gpu_cases=tuple(ON_GPU.get(name, ())), gpu_judges=(within_budget(plain),),
        )
        for name in cases
    )  # fmt: skip


EXERCISE = Exercise(
    name="e05_first_kernels",
    title="A softmax and a matrix of scores, as kernels",
    lesson="05_triton_primer",
    tests=(
        *tests(SOFTMAX, "softmax_keys_kernel", softmax_call, (softmax_values, tiles_at_most(softmax_tile)), traffic(softmax_bytes, not_fused), plain_softmax),
        *tests(SCORES, "scores_by_key_kernel", scores_call, (scores_values, tiles_at_most(scores_tile)), traffic(scores_bytes, loaded_again), plain_scores),
    ),
)
