"""`flashlab bench`: time the peers on the grid, keep the results, and show them as tables, CSV and figures.

    flashlab bench --quick                             the forward pass, an answer within a minute
    flashlab bench backward --device cuda:1 --part 2/2     the second half of the grid, on the second GPU
    flashlab bench forward --resume                    goes on where an interrupted run of today stopped
    flashlab bench steps                               lesson 09's ladder, in under a minute
    flashlab bench lengths --figures figures/          lab 1: math, flash and ours against the length, batch 1, 4 and 16
    flashlab bench compare OLD.jsonl NEW.jsonl         what got faster or slower beyond the noise

Without a GPU, or where it stays taken, the recorded results are shown and said to be: those that --peers and --head-dim ask for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from flashlab import runtime
from flashlab.bench import ceilings, length_lab, lengths, peers, records, steps, sweep
from flashlab.bench.compare import comparison
from flashlab.bench.derived import write_csv
from flashlab.bench.instructor_page import fill
from flashlab.bench.outputs import check_outputs
from flashlab.bench.peers import PASSES, PEERS
from flashlab.bench.records import TOKENS, Record
from flashlab.bench.report import growth_table, report, shares
from flashlab.bench.sweep import BUDGET_MS, GROWTH, HEAD_DIMS, LENGTHS, Missing, grid
from flashlab.bench.timing import device_name
from flashlab.errors import error
from flashlab.problem import AttentionProblem

# What answers within a minute, compiling included.
QUICK_HEAD_DIMS, QUICK_LENGTHS, QUICK_BUDGET_MS = (64, 128), (1024, 4096, 16384), 30
QUICK_PEERS = ("triton", "triton/fused", "sdpa-flash", "sdpa-cudnn")
_SWEEP = ("quick", "out", "peers", "device", "part", "resume", "csv", "figures")
TAKES = {  # the options of each
    "forward": (*_SWEEP, "head-dim"), "backward": (*_SWEEP, "head-dim"), "growth": _SWEEP, "lengths": (*_SWEEP, "page"), "steps": ("out", "device"), "compare": (),
}  # fmt: skip


def bench(
    what: str,
    *,
    files: Sequence[Path] = (),
    quick: bool = False,
    out: Path | None = None,
    names: Sequence[str] | None = None,
    head_dims: Sequence[int] | None = None,
    device: str | None = None,
    part: str = "1/1",
    resume: bool = False,
    csv: Path | None = None,
    figures: Path | None = None,
    page: Path | None = None,
) -> int:
    """Run one `flashlab bench`; returns the exit status, 1 if a peer failed or, for compare, if a cell got slower or none is in both."""
    given = {"quick": quick, "out": out, "peers": names, "head-dim": head_dims, "device": device, "part": part != "1/1", "resume": resume, "csv": csv, "figures": figures, "page": page}
    for option in [option for option, value in given.items() if value and option not in TAKES[what]]:
        takers = ", ".join(one for one in TAKES if option in TAKES[one])
        raise error("bench_option", what=what, given=option, takers=takers, allowed=", ".join(f"--{one}" for one in TAKES[what]) or "two files")
    if what == "compare":
        return _compare(files)
    if files:
        raise error("bench_files", what=what, given=" ".join(map(str, files)))
    check_outputs(out, csv, figures, page)
    if what == "steps":
        return steps.run(out, device=device if runtime.device() == "cpu" else _checked(device or runtime.device()))
    runs, chosen = _runs(what, quick, names, head_dims, part)  # before anything else: what was asked for may be wrong

    def asked(one: Record) -> bool:
        """Of lab 1's table no kernel can be left out."""
        return what == "lengths" or ((not names or one.kernel in names) and (not head_dims or one.head_dim in head_dims))

    if runtime.device() == "cpu":
        idle = ["quick", "device", "part", "resume"] + ["peers"] * (what == "lengths")
        unused = ", ".join(f"--{option}" for option in idle if given[option])
        why = f"{runtime.describe()} Nothing was timed{unused and f', so {unused} changed nothing'}; these results were recorded before."
        return _show_recorded(what, out, asked, csv, figures, page, why)
    device = _checked(device or runtime.device())
    path = out or records.own_file(records.path_for(device_name(device)))
    print(runtime.describe() if device == "cuda" else f"GPU: {device_name(device)} ({device}).")
    taken, missing, added = [], [], []
    try:
        ceiling = ceilings.kept(device_name(device))
        if ceiling is None:
            ceiling = ceilings.measure_ceilings(device)
            if records.may_record(records.RECORDED):
                ceilings.keep(ceiling)
        for pass_, problems in runs:
            budget_ms = QUICK_BUDGET_MS if quick else lengths.BUDGET_MS if what == "lengths" else BUDGET_MS
            cells = [(peer.name, p) for p in problems for peer in chosen]
            done = records.to_resume(records.load(path), pass_, cells, device, budget_ms) if resume and path.exists() else []
            if resume:
                print(f"{pass_}: {len(done)} cells are there from {done[0].date}." if done else f"{pass_}: nothing of today to resume.")
            options = {"device": device, "budget_ms": budget_ms, "date": done[0].date if done else sweep.now(), "done": done}
            results = sweep.sweep(problems, pass_, chosen, **options)
            _follow(results, len(problems), len(chosen), taken, missing, lambda one: one in done or (records.append(one, path), added.append(one)))
    except TimeoutError as busy:
        print(f"{busy}\n{len(added)} records were added to {path} before that.")
        return _show_recorded(what, None, asked, csv, figures, page, "Recorded results instead:")
    except KeyboardInterrupt:
        print(f"\nInterrupted; {len(added)} records are in {path}. The same command with --resume goes on.")
        raise
    for kernel, pass_, why in dict.fromkeys((one.kernel, one.pass_, one.why) for one in missing):
        cells = [one.problem for one in missing if (one.kernel, one.pass_, one.why) == (kernel, pass_, why)]
        total = sum(len(problems) for name, problems in runs if name == pass_)
        print(f"not timed: {kernel} {pass_}, {len(cells)} of {total} cells, first {_name(cells[0])}: {why}")
    print(f"{len(added)} records were added to {path}")  # before they are shown: whatever happens there, they are kept
    run = lengths.Run("measured", device_name(device), (*taken, *missing)) if what == "lengths" else None
    _show(taken, what, csv, figures, page, {ceiling.device: ceiling}, run)
    return int(any(one.failed for one in missing))


def _runs(what: str, quick: bool, names, head_dims, part: str) -> tuple[list[tuple[str, list[AttentionProblem]]], list[peers.Peer]]:
    """[(pass, its problems)] and the peers."""
    if what == "growth":
        problems = sweep.growth_problems([n for n in GROWTH if n <= TOKENS or not quick])
        return [(pass_, _share(problems, part)) for pass_ in PASSES], peers.find(names or ("triton",))
    if what == "lengths":
        lengths.check_names(names or ())
        problems = lengths.problems(ns=QUICK_LENGTHS) if quick else [*lengths.problems(), *lengths.decode_problems()]
        return [("forward", _share(problems, part))], peers.find(names or lengths.NAMES)
    chosen = peers.find(names or (QUICK_PEERS if quick else PEERS))
    problems = grid(head_dims or (QUICK_HEAD_DIMS if quick else HEAD_DIMS), QUICK_LENGTHS if quick else LENGTHS)
    return [(what, _share(problems, part))], [peer for peer in chosen if names or what in peer.passes]


def _share(problems: list[AttentionProblem], part: str) -> list[AttentionProblem]:
    """Every second problem for 1/2 and 2/2, and so on: each part has small and large ones. Raises LookupError."""
    number, _, of = part.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise error("bench_part", given=part)
    return problems[int(number) - 1 :: int(of)]


def _checked(device: str) -> str:
    """`device`, if it is a GPU of this machine. Raises LookupError."""
    allowed = ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if device not in allowed:
        raise error("bench_device", given=device, allowed=", ".join(allowed))
    return device


def _follow(
    results: Iterator[Record | Missing], total: int, width: int, taken: list[Record], missing: list[Missing], keep: Callable[[Record], object]
) -> None:
    """Keep each record as it comes, and print a line for each problem; on a terminal, a bar and what is left meanwhile."""
    texts, start, live = [], time.monotonic(), sys.stdout.isatty()
    for number, one in enumerate(results, 1):
        if isinstance(one, Record):
            keep(one)
            taken.append(one)
            texts.append(f"{one.kernel} {one.tflops:,.0f}")
        else:
            missing.append(one)
            texts.append(f"{one.kernel} {'failed' if one.failed else '-'}")
        full, row = number % width == 0, -(-number // width)
        passed = time.monotonic() - start
        line = f"[{row}/{total}, {passed:.0f} s] {one.pass_}, {_name(one)}: {', '.join(texts)} TFLOP/s"
        if full or live:
            print(f"\r\x1b[K{line}" if live else line, end="\n" if full else "", flush=True)
        if full:
            texts = []
            if live and row < total:
                print(f"{_bar(row / total)} about {passed / row * (total - row):.0f} s left", end="", flush=True)


def _bar(share: float, width: int = 20) -> str:
    return f"[{'#' * round(share * width):{width}}]"


def _name(one: Record | Missing | AttentionProblem) -> str:
    problem = one.problem if isinstance(one, Missing) else one
    length = f"n {problem.n_q:,}" if problem.n_q == problem.n_k else f"n {problem.n_q:,} to {problem.n_k:,}"
    batch = f"batch {problem.batch}, " if problem.batch > 1 else ""
    return f"head_dim {problem.head_dim}, {length}, {batch}{'causal' if problem.causal else 'full'}"


def _compare(files: Sequence[Path]) -> int:
    if len(files) != 2:
        raise error("bench_compare", given=len(files))
    for file in files:
        if not file.exists():
            raise error("bench_missing", given=file)
    text, status = comparison(*map(records.load, files))
    print(text)
    return status


def _show_recorded(
    what: str, out: Path | None, asked: Callable[[Record], bool], csv: Path | None, figures: Path | None, page: Path | None, why: str
) -> int:
    """What is recorded, in `out` or anywhere, of what was `asked` for. Raises RuntimeError where that is nothing and no GPU is here."""
    there = records.load(out) if out is None or out.exists() else []
    found = [one for one in there if asked(one)]
    if not found:
        runtime.need_gpu("flashlab bench of what is not recorded" if there else f"flashlab bench, to fill {out}," if out else "flashlab bench")
    print(why)
    known = [ceilings.kept(device) for device in dict.fromkeys(one.device for one in found)]
    _show(found, what, csv, figures, page, {one.device: one for one in known if one})
    return 0


def _show(
    found: list[Record], what: str, csv: Path | None, figures: Path | None, page: Path | None, known: dict[str, ceilings.Ceilings], run: lengths.Run | None = None
) -> None:
    """Everything that was asked for, of all devices; `known` are their ceilings.

    `run` is what lengths has just measured, with why cells are missing: records alone do not tell out of memory from not tried.
    """
    mine = _about(what, found)
    if what == "lengths":
        texts = [length_lab.table(run) if run else length_lab.report(found)]
    elif what == "growth":
        texts = [growth_table(found, pass_) for pass_ in PASSES]
    else:
        texts = [report(found, what), shares([one for one in mine if records.is_ours(one.kernel)], known)]
    print("", *filter(None, texts), sep="\n\n")
    if csv:
        write_csv(mine, csv, known)
        print(f"\n{len(mine)} lines were written to {csv}")
    if page:
        fill(page, [*records.load(), *found])  # the kept ones too: the page has rows of other GPUs, and of cells not timed this time
        print(f"\nthe table of {page} was filled")
    if figures:
        from flashlab.bench.gallery import draw_all  # not at the top: matplotlib is slow to load

        for path in draw_all(mine, what, figures, known, run):
            print(f"drawn: {path}")


def _about(what: str, found: list[Record]) -> list[Record]:
    """The records of that grid alone that its tables show: a file holds those of all."""
    if what == "lengths":
        return lengths.chosen(found)
    if what == "growth":
        devices = dict.fromkeys(one.device for one in found)
        lines = [records.growing([one for one in found if one.device == device], pass_) for device in devices for pass_ in PASSES]
        return [one for line in lines for kernel in line.values() for one in kernel]
    return records.latest(one for one in records.on_grid(found) if one.pass_ == what)
