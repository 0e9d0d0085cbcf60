"""Time every peer on a grid of problems, one problem after the other and all peers on each: a ratio compares like with like.

The grid is that of the FlashAttention papers: batch · n = 16384 and heads · head_dim = 2048. A peer that cannot do a cell
is named with the reason, and so is one that runs out of memory or fails; the others go on.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from flashlab import runtime
from flashlab.bench import records
from flashlab.bench.derived import impossible
from flashlab.bench.memory import asked_for, extra_bytes, free, ran_out
from flashlab.bench.peers import PASSES, PEERS, Peer
from flashlab.bench.records import TOKENS, WIDTH, Record
from flashlab.bench.timing import Timing, current, time_call
from flashlab.bench.turn import turn
from flashlab.errors import error
from flashlab.problem import AttentionProblem
from flashlab.provenance import now

HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
GROWTH = tuple(2**power for power in range(10, 18))  # 1,024 to 131,072
BUDGET_MS, WARMUP_MS, LEAST = 60, 20, 5
NO_KERNEL = "No available kernel|No viable backend"  # SDPA's words for "not this backend"


@dataclass(frozen=True)
class Missing:
    """A cell that a peer did not time, and why. `failed`: it should have."""

    kernel: str
    pass_: str
    problem: AttentionProblem
    why: str
    failed: bool = False


def grid(head_dims: Iterable[int] = HEAD_DIMS, lengths: Iterable[int] = LENGTHS) -> list[AttentionProblem]:
    """The problems: for each head_dim and n one without a mask and one causal, bfloat16. Raises LookupError for another head_dim.

    >>> len(grid()), grid((64,), (4096,))[1].batch, grid((64,), (4096,))[1].heads
    (36, 4, 32)
    """
    head_dims, lengths = tuple(head_dims), tuple(lengths)
    for d in head_dims:
        if d not in HEAD_DIMS:
            raise error("grid_head_dim", given=d, allowed=", ".join(map(str, HEAD_DIMS)))
    return [
        AttentionProblem(n, n, d, batch=TOKENS // n, heads=WIDTH // d, causal=causal, dtype="bfloat16")
        for d in head_dims
        for n in lengths
        for causal in (False, True)
    ]


def sweep(
    problems: Iterable[AttentionProblem],
    pass_: str,
    peers: Sequence[Peer],
    *,
    device: str | None = None,
    budget_ms: float = BUDGET_MS,
    date: str | None = None,
    clock: Callable[..., Timing] = time_call,
    done: Iterable[Record] = (),
) -> Iterator[Record | Missing]:
    """A Record or a Missing for each problem and peer, as each problem is done. One `date` marks what belongs to one run.

    What is in `done` is handed on and not timed again. All peers of a problem are timed in one turn on the GPU (turn.py).
    """
    device, date = device or runtime.device(), date or now()
    kept = {(one.kernel, one.problem): one for one in done}
    for problem in problems:
        cells = []
        with turn(device), current(device):
            for peer in peers:
                had = kept.get((peer.name, records.key_of(pass_, problem)))
                why = None if had else peer.can(problem, pass_, device)
                cells.append(had or (Missing(peer.name, pass_, problem, why) if why else _cell(peer, problem, pass_, device, budget_ms, date, clock)))
            if torch.device(device).type == "cuda":
                torch.cuda.empty_cache()  # what one peer leaves must not crowd out the next
        yield from cells  # after the turn: whoever stops listening here must not keep the GPU from others


def growth(
    ns: Iterable[int] = GROWTH,
    passes: Iterable[str] = PASSES,
    peers: Sequence[Peer] = (PEERS["triton"],),
    *,
    head_dim: int = 128,
    heads: int = 16,
    causal: bool = False,
    **options: object,
) -> Iterator[Record | Missing]:
    """One sequence that grows: its time, which grows as n², and its memory beyond inputs and results, which grows as n."""
    options.setdefault("date", now())
    problems = growth_problems(ns, head_dim=head_dim, heads=heads, causal=causal)
    for pass_ in passes:
        yield from sweep(problems, pass_, peers, **options)


def growth_problems(ns: Iterable[int] = GROWTH, *, head_dim: int = 128, heads: int = 16, causal: bool = False) -> list[AttentionProblem]:
    """The problems of one growing sequence, bfloat16."""
    return [AttentionProblem(n, n, head_dim, heads=heads, causal=causal, dtype="bfloat16") for n in ns]


def _cell(peer, problem, pass_, device, budget_ms, date, clock) -> Record | Missing:
    missing = None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with peer.chosen():
                call, fresh = call_of(peer, problem, pass_, device)
                timing = clock(call, device=device, fresh=fresh, warmup_ms=WARMUP_MS, budget_ms=budget_ms, least=LEAST)
                extra = extra_bytes(call, device)
        except MemoryError as fault:  # explained by the clock
            missing = Missing(peer.name, pass_, problem, str(fault).partition(". ")[0])
        except Exception as fault:  # whatever it is, it is this peer's: it is named, and the others go on
            reason = " ".join(str(fault).split())[:200]
            nothing = re.search(NO_KERNEL, reason)
            missing = Missing(peer.name, pass_, problem, _told(told) if nothing else f"{type(fault).__name__}: {reason}", failed=not nothing)
            if ran_out(fault):  # outside the clock
                missing = Missing(peer.name, pass_, problem, f"out of memory, asking for {asked_for(fault)}")
    if missing:
        call = fresh = None  # noqa: F841, with them go the tensors that did not fit
        free(device)
        return missing
    one = records.record(peer.name, pass_, problem, timing, date=date, device=device, extra_bytes=extra, package=peer.version, budget_ms=budget_ms)
    why = impossible(one)
    return Missing(peer.name, pass_, problem, why, failed=True) if why else one


def call_of(peer: Peer, problem: AttentionProblem, pass_: str, device: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """What the clock repeats, and what it does before: new numbers, the same ones for each peer.

    A backward gets a new do only, since q, k and v belong to the forward that was run once.
    """
    q, k, v = problem.tensors(seed=0, device=device)
    options = {"causal": bool(problem.causal), "scale": problem.scale}
    if pass_ == "forward":
        return peer.forward(q, k, v, **options), refill(q, k, v)
    do = problem.tensors(seed=1, device=device)[0]
    return peer.backward(q, k, v, do, **options), refill(do)


def refill(*tensors: torch.Tensor) -> Callable[[], object]:
    """A call that puts new random numbers into the same tensors, the same sequence each time it is made."""
    numbers = torch.Generator(tensors[0].device).manual_seed(2)
    return lambda: [x.normal_(generator=numbers) for x in tensors]


def _told(told: list[warnings.WarningMessage]) -> str:
    """SDPA gives its reasons as warnings: those that are about the backend asked for."""
    texts = [str(one.message).partition(" (Triggered internally")[0].strip() for one in told]
    reasons = [text for text in texts if not text.endswith("because:") and "runtime disabled" not in text]
    return "SDPA has no such kernel here: " + (" ".join(dict.fromkeys(reasons)) or "it gives no reason")
