"""Time every peer on a grid of problems, one problem after the other and all peers on each: a ratio compares like with like.

The grid is that of the FlashAttention papers: batch · n = 16384 and heads · head_dim = 2048. A peer that cannot do a cell
is named with the reason, and so is one that runs out of memory or fails; the others go on.
"""

from __future__ import annotations

import datetime
import gc
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flashlab import runtime
from flashlab.bench import peers, records
from flashlab.bench.memory import extra_bytes
from flashlab.bench.peers import PASSES, PEERS, Peer
from flashlab.bench.records import TOKENS, WIDTH, Record
from flashlab.bench.report import growth_table, report
from flashlab.bench.timing import Timing, device_name, time_call
from flashlab.errors import error
from flashlab.problem import AttentionProblem

HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
GROWTH = tuple(2**power for power in range(10, 18))  # 1,024 to 131,072
BUDGET_MS, WARMUP_MS, LEAST = 60, 20, 5
# What answers within a minute, compiling included.
QUICK_HEAD_DIMS, QUICK_LENGTHS, QUICK_BUDGET_MS = (64, 128), (1024, 4096, 16384), 30
QUICK_PEERS = ("triton", "triton/fused", "sdpa-flash", "sdpa-cudnn")
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
) -> Iterator[Record | Missing]:
    """A Record or a Missing for each problem and peer, as they come. One `date` marks what belongs to one run."""
    device, date = device or runtime.device(), date or now()
    for problem in problems:
        for peer in peers:
            why = peer.can(problem, pass_, device)
            yield Missing(peer.name, pass_, problem, why) if why else _cell(peer, problem, pass_, device, budget_ms, date, clock)
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()  # what one peer leaves must not crowd out the next


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
    problems = [AttentionProblem(n, n, head_dim, heads=heads, causal=causal, dtype="bfloat16") for n in ns]
    for pass_ in passes:
        yield from sweep(problems, pass_, peers, **options)


def now() -> str:
    """The time of day in UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _cell(peer, problem, pass_, device, budget_ms, date, clock) -> Record | Missing:
    missing = None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with peer.chosen():
                call = _call(peer, problem, pass_, device)
                timing = clock(call, device=device, warmup_ms=WARMUP_MS, budget_ms=budget_ms, least=LEAST)
                extra = extra_bytes(call, device)
        except torch.OutOfMemoryError as fault:
            asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(fault))
            missing = Missing(peer.name, pass_, problem, "out of memory" + (f", asking for {asked[1]}" if asked else ""))
        except Exception as fault:  # whatever it is, it is this peer's: it is named, and the others go on
            reason = " ".join(str(fault).split())[:200]
            nothing = re.search(NO_KERNEL, reason)
            missing = Missing(peer.name, pass_, problem, _told(told) if nothing else f"{type(fault).__name__}: {reason}", failed=not nothing)
    if missing:
        call = None  # noqa: F841, with it go the tensors that did not fit
        if torch.device(device).type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        return missing
    return records.record(peer.name, pass_, problem, timing, date=date, device=device, extra_bytes=extra)


def _call(peer: Peer, problem: AttentionProblem, pass_: str, device: str) -> Callable[[], object]:
    """What the clock repeats, on the same random tensors for each peer."""
    q, k, v = problem.tensors(seed=0, device=device)
    options = {"causal": bool(problem.causal), "scale": problem.scale}
    if pass_ == "forward":
        return peer.forward(q, k, v, **options)
    return peer.backward(q, k, v, problem.tensors(seed=1, device=device)[0], **options)


def _told(told: list[warnings.WarningMessage]) -> str:
    """SDPA gives its reasons as warnings: those that are about the backend asked for."""
    texts = [str(one.message).partition(" (Triggered internally")[0].strip() for one in told]
    reasons = [text for text in texts if not text.endswith("because:") and "runtime disabled" not in text]
    return "SDPA has no such kernel here: " + (" ".join(dict.fromkeys(reasons)) or "it gives no reason")


# -- the command ------------------------------------------------------------------------------------------------------
def bench(
    what: str, *, quick: bool = False, out: Path | None = None, names: Sequence[str] | None = None, head_dims: Sequence[int] | None = None
) -> int:
    """Run `flashlab bench forward`, `backward` or `growth`; returns the exit status, 1 if a peer failed.

    Without a GPU it says so and shows what was recorded.
    """
    if runtime.device() == "cpu":
        return _show_recorded(what, out)
    device, budget_ms = runtime.device(), QUICK_BUDGET_MS if quick else BUDGET_MS
    path = out or records.path_for(device_name(device))
    if what == "growth":
        chosen = peers.find(names or ("triton",))
        ns = [n for n in GROWTH if n <= TOKENS or not quick]
        results, total = growth(ns, PASSES, chosen, budget_ms=budget_ms, device=device), len(ns) * len(PASSES)
    else:
        chosen = peers.find(names or (QUICK_PEERS if quick else PEERS))
        chosen = [peer for peer in chosen if names or what in peer.passes]
        problems = grid(head_dims or (QUICK_HEAD_DIMS if quick else HEAD_DIMS), QUICK_LENGTHS if quick else LENGTHS)
        results, total = sweep(problems, what, chosen, budget_ms=budget_ms, device=device), len(problems)
    print(runtime.describe())
    taken, missing = _follow(results, total, len(chosen), lambda one: records.append(one, path))
    for kernel, pass_, why in dict.fromkeys((one.kernel, one.pass_, one.why) for one in missing):
        cells = [one.problem for one in missing if (one.kernel, one.pass_, one.why) == (kernel, pass_, why)]
        print(f"not timed: {kernel} {pass_}, {len(cells)} of {total} cells, first {_name(cells[0])}: {why}")
    _show(taken, what)
    print(f"\n{len(taken)} records were added to {path}")
    return int(any(one.failed for one in missing))


def _follow(results: Iterator[Record | Missing], total: int, width: int, keep: Callable[[Record], None]) -> tuple[list[Record], list[Missing]]:
    """Keep each record as it comes, and print a line for each problem; on a terminal, where it is meanwhile."""
    taken, missing, texts, start = [], [], [], time.monotonic()
    live = sys.stdout.isatty()
    for number, one in enumerate(results, 1):
        if isinstance(one, Record):
            keep(one)
            taken.append(one)
            texts.append(f"{one.kernel} {one.tflops:,.0f}")
        else:
            missing.append(one)
            texts.append(f"{one.kernel} {'failed' if one.failed else '-'}")
        full = number % width == 0
        line = f"[{-(-number // width)}/{total}, {time.monotonic() - start:.0f} s] {one.pass_}, {_name(one)}: {', '.join(texts)} TFLOP/s"
        if live or full:
            print(f"\r\x1b[K{line}" if live else line, end="\n" if full else "", flush=True)
        if full:
            texts = []
    return taken, missing


def _name(one: Record | Missing | AttentionProblem) -> str:
    problem = one.problem if isinstance(one, Missing) else one
    return f"head_dim {problem.head_dim}, n {problem.n_q:,}, {'causal' if problem.causal else 'full'}"


def _show_recorded(what: str, out: Path | None) -> int:
    found = records.load(out)
    if not found:
        runtime.need_gpu("flashlab bench")
    print(runtime.describe(), "Nothing was timed; these results were recorded before.")
    _show(found, what)
    return 0


def _show(found: list[Record], what: str) -> None:
    texts = [growth_table(found, pass_) for pass_ in PASSES] if what == "growth" else [report(found, what)]
    print("", *texts, sep="\n\n" if len(texts) > 1 else "\n")
