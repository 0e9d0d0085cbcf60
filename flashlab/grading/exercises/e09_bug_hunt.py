"""e09_bug_hunt: eight kernels with one fault each; the student gives the input that shows it, and its name.

Unlike the other exercises, no code of the student's is judged: bug_1() to bug_8() return settings (sizes, heads, mask)
and a name. Our own copy of the kernels runs under the tracer on tensors made from the settings, and is compared with
standard attention in float64, with the closed form of its bytes, and with the tensors' edges.

An answer is a pair of inputs that differ in **one** setting: on one the kernel is wrong, on the other it is right. One
odd input with everything ragged, grouped and masked would show every fault and explain none.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flashlab.copies import find_course
from flashlab.grading.exercise import Answer, Call, Exercise, Finding, Test
from flashlab.grading.exercises.e08_triton_backward import HEAD_DIM, arrays_of, gradients, laid, visible
from flashlab.grading.judge import differs
from flashlab.grading.misconceptions import MEANS
from flashlab.grading.runner import Limits, Session

NAME = "e09_bug_hunt"
BLOCK = 16
LARGEST = 48  # rows: enough for three tiles
TOLERANCE = 1e-4  # float32's rounding is below it in every kernel here
DEFAULTS = {"n_q": 16, "n_k": 16, "heads": 1, "kv_heads": 1, "causal": False, "together": False, "scale": 0.25}
OURS = Limits(cpu_s=3600, wall_s=86400, memory_bytes=2 << 30)  # the kernels in that child are ours
STORES = {1: ("lse",), 7: ("dk", "dv"), 8: ("dq",)}  # the others store o and lse
NAMES = {  # digests, so that reading this file does not name them
    1: "c7ce267c4941", 2: "50b22b7e9b6b", 3: "e72bf533a4f0", 4: "a604c257a22a",
    5: "9c37c68e25c4", 6: "05c0488fd27b", 7: "9c1b47ed71fe", 8: "91757a85b9d1",
}  # fmt: skip
BROKEN = range(1, 1 + len(NAMES))


@dataclass(frozen=True)
class Hunt(Call):
    """A call of bug_1() to bug_8(), which take nothing; the numbers in the tensors come from `seed`."""

    kernel: int = 0
    seed: int = 0

    def __str__(self) -> str:
        return f"kernel_{self.kernel}, on random numbers from seed {self.seed}"


def call(case: dict) -> Hunt:
    """What one case asks for."""
    return Hunt(returns=("answer",), **case)


def digest(kernel: int, name: str) -> str:
    """What NAMES keeps of a name."""
    return hashlib.sha256(f"flashlab {NAME} {kernel} {name}".encode()).hexdigest()[:12]


# -- what a student may ask ------------------------------------------------------------------------------------------------
def look(kernel: int, **settings: object) -> str:
    """What `kernel` does on this input: "right", or what is wrong. look(3, n_k=20, causal=True)

    Raises ValueError that says what is allowed.
    """
    if kernel not in BROKEN:
        raise ValueError(f"kernel is {kernel}; it must be 1 to {len(NAMES)}")
    made = settings_of(settings)
    if isinstance(made, str):
        raise ValueError(made)
    return fault_of(kernel, tuple(made.items()), 1) or "right: values, bytes and addresses"


def settings_of(given: Mapping[str, object]) -> dict | str:
    """The settings with the defaults filled in, or a sentence on what is not allowed."""
    made = dict(DEFAULTS)
    for name, value in given.items():
        if name not in DEFAULTS:
            return f"there is no setting {str(name)[:40]!r}; there are {', '.join(DEFAULTS)}"
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = np.nan
        kind = type(DEFAULTS[name])
        if not np.isfinite(number) or kind is not float and number != int(number) or kind is bool and number not in (0, 1):
            return f"{name} is {str(value)[:40]}; it must be a {'number' if kind is float else 'truth value' if kind is bool else 'whole number'}"
        made[name] = kind(number)
    for name, (low, high) in {"n_q": (1, LARGEST), "n_k": (1, LARGEST), "heads": (1, 4), "kv_heads": (1, 4), "scale": (0.05, 2.0)}.items():
        if not low <= made[name] <= high:
            return f"{name} is {made[name]}; it must be {low} to {high}"
    if made["heads"] % made["kv_heads"]:
        return f"heads is {made['heads']} and kv_heads {made['kv_heads']}; each key head must have as many query heads"
    return made


# -- running a kernel ------------------------------------------------------------------------------------------------------
@functools.cache
def kernels() -> Path:
    """Our copy of the kernels: an instructor's, else the one that students read."""
    course = find_course(Path(__file__).parent)
    return next(path for path in (course / "solutions" / NAME / "files" / "kernels.py", course / "exercises" / NAME / "kernels.py") if path.is_file())


_sessions: dict[tuple[int, str], Session] = {}
_one_at_a_time = threading.Lock()  # a class is marked by threads


def _run(kernel: int, launch: Call, source: str) -> Answer:
    """One traced launch, in one child for all kernels and all submissions that this process marks."""
    key = os.getpid(), source
    with _one_at_a_time:
        if key not in _sessions or _sessions[key].dead:
            _sessions[key] = Session([source], OURS, module="kernel_child")
            atexit.register(_sessions[key].__exit__)
        return _sessions[key].call(f"kernel_{kernel}", launch)


@functools.lru_cache(4096)
def fault_of(kernel: int, settings: tuple, seed: int, source: str = "") -> str:
    """What that kernel does wrong on this input, or "": an address, a value, or its bytes."""
    launch, right = launch_of(kernel, dict(settings), seed)
    answer = _run(kernel, launch, source or kernels().read_text())
    if answer.fault:
        if answer.fault.kind != "IndexError":
            raise RuntimeError(f"kernel_{kernel} could not be run: {answer.fault}")
        return f"an access outside a tensor: {answer.fault.text}"
    for name in launch.stores:
        what = differs(name, answer.arrays.get(name), right[name], TOLERANCE, TOLERANCE)
        if what:
            return f"a wrong value: {what}"
    needed = closed_form(kernel, launch)
    for key, size in sorted(answer.trace.bytes_by_tensor().items()):
        if size != needed.get(key, 0):
            return f"wrong bytes: {size:,} bytes of {key[0]} were {'loaded' if key[1] == 'load' else 'stored'}; it takes {needed.get(key, 0):,}"
    return ""


def launch_of(kernel: int, settings: dict, seed: int) -> tuple[Call, dict[str, np.ndarray]]:
    """(the launch, what it should store)."""
    heads, kv_heads, n_q, n_k = (settings[name] for name in ("heads", "kv_heads", "n_q", "n_k"))
    given = arrays_of({"n_q": n_q, "n_k": n_k, "seed": seed, "heads": heads, "group": heads // kv_heads})
    right = gradients(**given, scale=settings["scale"], causal=settings["causal"])
    stores = STORES.get(kernel, ("o", "lse"))
    reads = ("q", "k") if kernel == 1 else ("q", "k", "v") if kernel < 7 else ("q", "k", "v", "do", "lse", "delta")
    arrays = {name: (given | right)[name].astype(np.float32) for name in reads} | {name: np.zeros(right[name].shape, np.float32) for name in stores}
    (q_row, q_head), (k_row, k_head) = laid(n_q, heads, settings["together"]), laid(n_k, kv_heads, settings["together"])
    strides = {name: (k_head, k_row, 1) if name in ("k", "v", "dk", "dv") else (q_head, q_row, 1) for name, array in arrays.items() if array.ndim == 3}
    options = {"n_q": n_q, "n_k": n_k, "heads": heads, "kv_heads": kv_heads, "q_row": q_row, "q_head": q_head, "k_row": k_row, "k_head": k_head}
    options |= {"scale": settings["scale"], "CAUSAL": settings["causal"], "HEAD_DIM": HEAD_DIM, "BLOCK_Q": BLOCK, "BLOCK_K": BLOCK}
    grid = (-(-n_k // BLOCK), kv_heads) if kernel == 7 else (-(-n_q // BLOCK), heads)
    return Call(arrays=arrays, options=options, stores=stores, grid=grid, strides=strides), right


def closed_form(kernel: int, launch: Call) -> dict[tuple[str, str], int]:
    """The bytes it takes: what a program owns once, what streams past once a visible pair of tiles; kernel_5 reads k twice."""
    pairs, heads, arrays = visible(launch), launch.options["heads"], launch.arrays
    rows, keys = (heads * sum(pair[n].stop - pair[n].start for pair in pairs) * HEAD_DIM * 4 for n in (0, 1))
    stores = {(name, "store"): arrays[name].nbytes for name in launch.stores}
    if kernel == 7:
        streamed = {"q": rows, "do": rows, "lse": rows // HEAD_DIM, "delta": rows // HEAD_DIM}
        return stores | {(name, "load"): size for name, size in streamed.items()} | {(name, "load"): arrays[name].nbytes for name in "kv"}
    owned = {(name, "load"): arrays[name].nbytes for name in (("q", "do", "lse", "delta") if kernel == 8 else ("q",))}
    return stores | owned | {("k", "load"): keys * (2 if kernel == 5 else 1), ("v", "load"): keys if kernel != 1 else 0}


# -- judging an answer -----------------------------------------------------------------------------------------------------
def parts_of(answer: Answer) -> tuple[dict, dict, str] | str:
    """(the input that shows it, the other input, the name) of an answer, or a sentence on what is wrong with its form."""
    given = {name: array.item() if array.size == 1 else None for name, array in answer.arrays.items()}
    for needed in ("right_with", "misconception"):
        if not isinstance(given.get(needed), str):
            return f"the answer has no {needed!r}: return a dict such as {{'n_k': 20, 'right_with': 'n_k=16', 'misconception': '…'}}"
    name, change = given.pop("misconception"), given.pop("right_with")
    shows = settings_of(given)
    if isinstance(shows, str):
        return shows
    setting, _, value = change.replace(" ", "").partition("=")
    value = {"True": "1", "False": "0"}.get(value, value)
    hides = settings_of({**given, setting: value})
    if isinstance(hides, str):
        return f"right_with is {change[:60]!r}: {hides}"
    if hides == shows:
        return f"right_with is {change[:60]!r}, which changes nothing"
    return shows, hides, name


def shown_by_a_pair(call: Hunt, answer: Answer) -> Finding | None:
    """The kernel is wrong on the first input and right on the other."""
    parts = parts_of(answer)
    if isinstance(parts, str):
        return Finding(parts, input=str(call))
    shows, hides, _ = parts
    if not fault_of(call.kernel, tuple(shows.items()), call.seed):
        return Finding(
            f"kernel_{call.kernel} is right on that input: its values, its bytes and every address", input=str(call), theirs=text_of(shows),
            hint="Read it line by line beside the contract at the top of kernels.py. Which line would you write differently? On which input do the two differ?",
        )  # fmt: skip
    still = fault_of(call.kernel, tuple(hides.items()), call.seed)
    if still:
        return Finding(
            f"with right_with, kernel_{call.kernel} is still wrong: {still}", input=str(call), theirs=text_of(hides),
            hint="Your first input shows the fault. Which one setting is the reason? Change that one, and the kernel must be right.",
        )  # fmt: skip
    return None


def named(call: Hunt, answer: Answer) -> Finding | None:
    """The misconception is named."""
    parts = parts_of(answer)
    if isinstance(parts, str):
        return Finding(parts, input=str(call))
    given = parts[2]
    if given not in MEANS:
        return Finding(f"{given[:60]!r} is not one of the names", hint=f"The names are: {' · '.join(MEANS)}.", input=str(call))
    if digest(call.kernel, given) != NAMES[call.kernel]:
        return Finding(
            f"kernel_{call.kernel} does something else wrong than {given!r}", input=str(call),
            hint=f"That would be: {MEANS[given]} Look for the line that makes your first input fail.",
        )  # fmt: skip
    return None


def text_of(settings: dict) -> str:
    """An input on one line."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


EXERCISE = Exercise(
    name=NAME,
    title="What is wrong in eight kernels",
    lesson="08_triton_backward",
    tests=tuple(
        Test(f"kernel {kernel}{said}", 1, f"bug_{kernel}", tuple({"kernel": kernel, "seed": seed} for seed in seeds), call, (judge,))
        for kernel in BROKEN
        for said, judge, seeds in (("", shown_by_a_pair, (1, 2)), (" name", named, (1,)))
    ),
)
