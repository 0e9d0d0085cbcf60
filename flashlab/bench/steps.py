"""Lesson 09's ladder on the clock: every step of kernels/steps.py, checked, timed, and SDPA's flash kernel beside it.

    flashlab bench steps             measures (under a minute on an H200) and adds to recorded/steps/, or shows what is there
    measure(["tiles", "warps"])      the same for some steps, measured now or recorded: what a lesson's cell calls

A step's result must be right before it is timed: its error against float64 at most twice that of plain PyTorch in the same
type. All steps of a table come from one run, beside one SDPA flash kernel. The counters' view of the same launches is
`flashlab count --record steps` (traffic/counter_records.py).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import torch

from flashlab import provenance, runtime
from flashlab.bench import peers, records, sweep
from flashlab.bench.ladder import Ladder
from flashlab.bench.records import Record
from flashlab.bench.sweep import Missing
from flashlab.bench.timing import current, device_name
from flashlab.bench.turn import turn
from flashlab.errors import error
from flashlab.problem import AttentionProblem
from flashlab.traffic.counter_records import step_problems
from flashlab.traffic.counters import STEPS, compile_kinds

RECORDED = records.RECORDED / "steps"
BESIDE = "sdpa-flash"
BUDGET_MS, COMPILE_S = 40, 60
ERROR_BUDGET = 2  # times the error of plain PyTorch in the same type
CHECKED_HEADS = ((0, 0), (-1, -1))  # (batch, head): the first and the last one


def _step(name: str, q, k, v, *, is_causal: bool, scale: float) -> torch.Tensor:
    from flashlab.kernels.steps import step  # not at the top: Triton is not everywhere

    return step(name, q, k, v, causal=is_causal, scale=scale)[0]


PEERS = {f"steps/{name}": peers.Peer(f"steps/{name}", partial(_step, name), passes=("forward",), cuda_only=True) for name in STEPS}


def problem(head_dim: int) -> AttentionProblem:
    """What the steps are timed on: bfloat16, causal, 4 batches of 16 heads, n = 4,096. Raises LookupError for another head_dim."""
    for one in step_problems():
        if one.head_dim == head_dim:
            return one
    raise error("steps_head_dim", given=head_dim, allowed=", ".join(str(one.head_dim) for one in step_problems()))


def wrong(peer: peers.Peer, p: AttentionProblem, device: str) -> str | None:
    """Why this peer's result is wrong, or None."""
    from flashlab.kernels.standard import standard

    q, k, v = p.tensors(seed=0, device=device)
    with peer.chosen():
        o = peer.forward(q, k, v, causal=p.causal, scale=p.scale)()
    for b, h in CHECKED_HEADS:
        one = [x[b, h][None, None] for x in (q, k, v)]
        exact = standard(*(x.double() for x in one), causal=p.causal)
        plain = (standard(*one, causal=p.causal).double() - exact).abs().max().item()
        ours = (o[b, h].double() - exact[0, 0]).abs().max().item()
        if not ours <= ERROR_BUDGET * plain:  # nan is wrong too
            return f"wrong result: it differs from float64 by {ours:.2g}, plain PyTorch by {plain:.2g}"
    return None


def timed(names: Sequence[str], problems: Iterable[AttentionProblem], *, device: str | None = None, budget_ms: float = BUDGET_MS, date: str | None = None):
    """A Record or a Missing for each problem and step, and for SDPA's flash kernel, as they come; what is wrong is not timed."""
    device, date = device or runtime.device(), date or provenance.now()
    chosen = [peers.PEERS[BESIDE], *(PEERS[f"steps/{name}"] for name in names)]
    for p in problems:
        with turn(device), current(device):
            faults = {peer.name: _fault(peer, p, device) for peer in chosen}
        yield from (Missing(name, "forward", p, why, failed=True) for name, why in faults.items() if why)
        right = [peer for peer in chosen if not faults[peer.name]]
        yield from sweep.sweep([p], "forward", right, device=device, budget_ms=budget_ms, date=date)


def _fault(peer: peers.Peer, p: AttentionProblem, device: str) -> str | None:
    try:
        return wrong(peer, p, device)
    except Exception as fault:  # whatever it is, it is this step's: it is named, and the others go on
        return f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"


def measure(names: Iterable[str] = STEPS, *, head_dim: int = 128) -> Ladder:
    """These steps' Ladder: timed now where there is a GPU, else as recorded; prints which of the two.

    Raises LookupError for a step or a head_dim that there is not.
    """
    names, p = checked(names), problem(head_dim)
    why = "there is no GPU here"
    if runtime.device() != "cpu":
        try:
            found = list(timed(names, [p]))
        except TimeoutError as busy:
            why = str(busy).partition(". ")[0]
        else:
            for one in found:
                if isinstance(one, Missing):
                    print(f"not timed: {one.kernel}: {one.why}")
            taken = [one for one in found if isinstance(one, Record)]
            print(f"measured on {device_name()}, {provenance.now()[:10]}" if taken else "nothing could be measured")
            return Ladder(names, p, taken)
    found = recorded(names, head_dim)
    old = any(map(records.stale, found))
    where = f"{found[0].device}, {found[0].date[:10]}" if found else "no machine yet"
    print(f"recorded on {where} ({why})" + ("; stale, its code has changed since" if old else ""))
    return Ladder(names, p, found)


def gains(name: str) -> dict[str, float | str]:
    """{"head_dim 64": how many times as fast as the step that it changes, "head_dim 128": …}, as measure() has it; a word where it was not timed.

    Prints once where the numbers are from. Raises LookupError for a step that there is not.
    """
    from flashlab.kernels.steps import STEPS as LADDER

    checked([name])
    said = io.StringIO()
    with redirect_stdout(said):
        found = {f"head_dim {p.head_dim}": measure([LADDER[name].after or name, name], head_dim=p.head_dim)[name].gain for p in step_problems()}
    print(*dict.fromkeys(said.getvalue().splitlines()), sep="\n")
    return {where: "not timed" if gain is None else gain for where, gain in found.items()}


def checked(names: Iterable[str]) -> list[str]:
    """The names, in the ladder's order. Raises LookupError for one that is not there."""
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in STEPS:
            raise error("steps_name", given=name, allowed=", ".join(STEPS))
    return [name for name in STEPS if name in names]


def recorded(names: Iterable[str] = STEPS, head_dim: int = 128, path: Path | None = None) -> list[Record]:
    """One run's records of these steps, the fullest's (records.fullest), and of SDPA's flash kernel beside them; none if there is no run."""
    return _of_ladder(load(path), names, head_dim)


def _of_ladder(found: Iterable[Record], names: Iterable[str], head_dim: int) -> list[Record]:
    wanted = {BESIDE, *(f"steps/{name}" for name in names)}
    key = records.key_of("forward", problem(head_dim))
    run = records.fullest(one for one in found if one.kernel in wanted and one.problem == key)
    return run if any(one.kernel != BESIDE for one in run) else []


def load(path: Path | None = None) -> list[Record]:
    """Every record of a file, or of all files of recorded/steps/."""
    return [one for file in (sorted(RECORDED.glob("*.jsonl")) if path is None else [path]) for one in records.load(file)]


def run(out: Path | None = None, device: str | None = None) -> int:
    """`flashlab bench steps`: time the whole ladder, or show what is recorded; returns the exit status, 1 if a step failed."""
    if runtime.device() == "cpu":
        found = load(out) if out is None or out.exists() else []
        if not found:
            runtime.need_gpu(f"flashlab bench steps, to fill {out}," if out else "flashlab bench steps")
        unused = ", so --device changed nothing" if device else ""
        print(f"{runtime.describe()} Nothing was timed{unused}; these results were recorded before.")
        return _show(found)
    device = device or runtime.device()
    path = out or records.own_file(RECORDED / provenance.file_name(device_name(device)), "steps")
    compile_kinds([(f"steps/{name}", "forward", p) for p in step_problems() for name in STEPS], COMPILE_S)
    taken, failed = [], False
    try:
        for one in timed(STEPS, step_problems(), device=device):
            if isinstance(one, Record):
                records.append(one, path)
                taken.append(one)
                print(f"{one.kernel}, head_dim {one.head_dim}: {one.time_ms:.3f} ms, {one.tflops:,.0f} TFLOP/s", flush=True)
            else:
                failed |= one.failed
                print(f"not timed: {one.kernel}, head_dim {one.problem.head_dim}: {one.why}", flush=True)
    except TimeoutError as busy:
        print(f"{busy}\n{len(taken)} records were added to {path} before that. Recorded results instead:")
        return _show(load()) or int(failed)
    print(f"{len(taken)} records were added to {path}")
    return _show(taken) or int(failed)  # not the file: there an older run may have timed more


def _show(found: list[Record]) -> int:
    for p in step_problems():
        print("", Ladder(list(STEPS), p, _of_ladder(found, STEPS, p.head_dim)), sep="\n")
    return 0
