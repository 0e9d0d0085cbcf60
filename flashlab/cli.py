"""The `flashlab` command: lab, doctor, reset, record, count, bench, check, progress, grade.

Each subcommand imports what it needs when it is called. A fault that the course knows (flashlab.errors.ERRORS) is one
line on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from flashlab.errors import error, is_known
from flashlab.killed import when_killed

BROKEN_PIPE = 141  # what a shell says of a command that SIGPIPE ended
COUNTED_FILE = "FILE.py:kernel"
WORK = "work/ in your clone of the course, elsewhere work/ in the folder you are in"


def port(text: str) -> int:
    """`text` as a port number; argparse prints the error."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(str(error("port_number", given=text)))
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The argument parser; each subcommand sets `call`."""
    root = argparse.ArgumentParser(prog="flashlab", description="FlashAttention, with live kernels and every byte counted.")
    commands = root.add_subparsers(required=True, metavar="COMMAND")

    lab = commands.add_parser("lab", help="open JupyterLab at lesson 00, on your own copies in work/")
    lab.add_argument("--port", type=port, help="the port to listen on (default: the first free one from 8888)")
    lab.add_argument("--no-browser", action="store_true", help="print the address and open no browser")
    lab.add_argument("--in-place", action="store_true", help="open the course's own notebooks, for authors")
    lab.add_argument("--work", type=Path, help=f"where your copies go (default: {WORK})")
    lab.add_argument("jupyter", nargs="*", help="after --: options for JupyterLab itself, e.g. -- --ip=0.0.0.0")
    lab.set_defaults(call=run_lab)

    doctor = commands.add_parser("doctor", help="what this machine has, what works and what to do")
    doctor.add_argument("--gpu", action="store_true", help="only say whether kernels run on a GPU; exit status 0 if so")
    doctor.set_defaults(call=run_doctor)

    reset = commands.add_parser("reset", help="put a lesson's original back and keep yours beside it")
    reset.add_argument("lesson", help="04, lab1, e04 or a file name")
    reset.add_argument("--work", type=Path, help=f"where your copies are (default: {WORK})")
    reset.set_defaults(call=run_reset)

    record = commands.add_parser("record", help="run lessons on a GPU and store what they show, for authors")
    record.add_argument("notebooks", nargs="*", type=Path, help="default: every lesson and lab")
    record.set_defaults(call=run_record)

    count = commands.add_parser("count", help="count the bytes of a Triton kernel in your own file, by tracing or by the GPU's counters")
    count.add_argument("target", nargs="?", default="", metavar="TARGET", help="FILE.py:kernel; with --measured FILE.py:function or a name, e.g. triton")
    count.add_argument("arguments", nargs="*", help="after --: the file's own command line")
    count.add_argument("--measured", action="store_true", help="by the GPU's counters, under Nsight Compute; the function is called with q, k, v")
    count.add_argument("--record", action="store_true", help="count the whole grid, or with TARGET steps lesson 09's ladder, and keep it, for authors")
    measured = count.add_argument_group("with --measured", argument_default=argparse.SUPPRESS)  # only what is given, so that it can be refused
    measured.add_argument("--pass", dest="pass_", choices=("forward", "backward"), help="default: forward")
    measured.add_argument("--n", type=_whole_numbers, metavar="N,N", help="queries and keys (default: 4096)")
    measured.add_argument("--head-dim", type=_whole_numbers, metavar="D,D", help="default: 128")
    measured.add_argument("--batch", type=int, help="default: 1")
    measured.add_argument("--heads", type=int, help="default: 16")
    measured.add_argument("--dtype", help="default: bfloat16")
    measured.add_argument("--causal", action="store_true")
    kept = count.add_argument_group("with --record", argument_default=argparse.SUPPRESS)
    kept.add_argument("--out", type=Path, metavar="FILE", help="where records are added (default: the GPU's file in flashlab/traffic/recorded/)")
    kept.add_argument("--budget", type=float, metavar="SECONDS", help="begin nothing new after this long (default: 110)")
    kept.add_argument("--anew", action="store_true", help="count again what is there, too")
    kept.add_argument("--log", type=Path, metavar="FILE", help="where ncu's own text is added")
    count.set_defaults(call=run_count)

    bench = commands.add_parser("bench", help="time our kernels beside PyTorch's and others on this GPU, or compare two results")
    what = "a pass on the grid, time and memory up to n = 131,072, lesson 09's ladder, lab 1's lengths, or two files of results (default: forward)"
    bench.add_argument("what", nargs="?", default="forward", choices=("forward", "backward", "growth", "steps", "lengths", "compare"), help=what)
    bench.add_argument("files", nargs="*", type=Path, metavar="FILE", help="for compare: OLD.jsonl NEW.jsonl")
    bench.add_argument("--quick", action="store_true", help="fewer sizes and peers: an answer within a minute")
    bench.add_argument("--out", type=Path, metavar="FILE", help="where results are added (default: the GPU's file in flashlab/bench/recorded/, else here)")
    bench.add_argument("--peers", dest="names", type=lambda text: text.split(","), metavar="A,B", help="e.g. triton,sdpa-flash (default: all)")
    bench.add_argument("--head-dim", dest="head_dims", type=_whole_numbers, metavar="D,D", help="e.g. 64,128 (default: 64,128,256)")
    bench.add_argument("--device", metavar="cuda:N", help="which GPU (default: the first)")
    bench.add_argument("--part", default="1/1", metavar="K/N", help="time only the K-th of N parts of the grid, so that N GPUs share it")
    bench.add_argument("--resume", action="store_true", help="go on with an interrupted run of today")
    bench.add_argument("--csv", type=Path, metavar="FILE", help="write the results as CSV too, with what follows from them")
    bench.add_argument("--figures", type=Path, metavar="FOLDER", help="draw the figures as PNG files")
    bench.add_argument("--page", type=Path, metavar="FILE", help="with lengths, for authors: fill the table of lab 1's instructor page")
    bench.set_defaults(call=run_bench)

    check = commands.add_parser("check", help="run an exercise's tests on your notebook; stops at the first failure")
    check.add_argument("exercise", help="e04, 04 or its whole name")
    check.add_argument("--file", type=Path, metavar="NOTEBOOK", help="another notebook than your copy of the exercise")
    check.set_defaults(call=run_check)

    progress = commands.add_parser("progress", help="lessons you opened and exercises you passed")
    progress.set_defaults(call=run_progress)

    grade = commands.add_parser("grade", help="mark a class: CSV, a report for each student, a summary; for instructors")
    grade.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help="a folder of notebooks, nbgrader's submitted/, or a zip of Canvas or Moodle")
    grade.add_argument("--exercise", required=True, help="e04, 04 or its whole name")
    grade.add_argument("--out", type=Path, default=Path("grades"), metavar="FOLDER", help="where results go (default: grades/)")
    grade.add_argument("--roster", type=Path, metavar="CANVAS.csv", help="Canvas's gradebook export; also writes grades_canvas.csv")
    grade.add_argument("--gradebook", type=Path, metavar="gradebook.db", help="nbgrader's: marks given by hand come from it, ours go into it")
    grade.add_argument("--submitted", type=Path, metavar="FOLDER", help="also write the notebooks as nbgrader wants them: FOLDER/STUDENT/EXERCISE/")
    grade.add_argument("--jobs", type=int, default=2, help="submissions marked at once (default: 2)")
    grade.add_argument("--unsafe", action="store_true", help="mark without a sandbox where bwrap does not work")
    grade.set_defaults(call=run_grade)
    return root


def run_lab(options: argparse.Namespace) -> int:
    from flashlab.lab import lab

    return lab(
        port=options.port,
        browser=not options.no_browser,
        in_place=options.in_place,
        work=options.work,
        extra=tuple(options.jupyter),
    )


def run_doctor(options: argparse.Namespace) -> int:
    from flashlab import doctor, runtime

    if options.gpu:
        runtime.need_gpu("This")
        print(runtime.describe())
        return 0
    return doctor.report()


def run_reset(options: argparse.Namespace) -> int:
    from flashlab.copies import find_course, reset, work_folder

    course = find_course()
    print(*reset(options.lesson, course, work_folder(course, options.work)), sep="\n")
    return 0


def run_record(options: argparse.Namespace) -> int:
    from flashlab.record import record

    record(options.notebooks)
    return 0


def run_count(options: argparse.Namespace) -> int:
    way = "--record" if options.record else "--measured" if options.measured else COUNTED_FILE
    given = {name: value for name, value in vars(options).items() if name not in ("call", "target", "arguments", "measured", "record")}
    for name in given:
        option, taker = name.strip("_").replace("_", "-"), "--record" if name in ("out", "budget", "anew", "log") else "--measured"
        if way != taker:
            hint = "Leave it out, or write -- before your file's own options" if way == COUNTED_FILE else "Leave it out"
            raise error("count_option", way=way, given=f"--{option}", taker=taker, hint=hint)
    if way == COUNTED_FILE:
        from flashlab.count import report

        return report(options.target, options.arguments)
    if options.arguments:
        raise error("count_option", way=way, given=" ".join(options.arguments), taker=COUNTED_FILE, hint="Leave it out")
    from flashlab import count_measured

    if way == "--record":
        return count_measured.record(given.pop("out", None), given.pop("budget", None), what=options.target, **given)
    pass_, ns, head_dims = given.pop("pass_", "forward"), given.pop("n", [4096]), given.pop("head_dim", [128])
    return count_measured.report(options.target, pass_, count_measured.problems(ns, head_dims, **given))


def run_bench(options: argparse.Namespace) -> int:
    from flashlab.bench.command import bench

    return bench(**{name: value for name, value in vars(options).items() if name != "call"})


def run_check(options: argparse.Namespace) -> int:
    from flashlab.grading.checking import check_file

    checked = check_file(options.exercise, options.file)
    print(checked)
    return 0 if checked else 1


def run_progress(options: argparse.Namespace) -> int:
    from flashlab.grading import progress

    print(*progress.lines(), sep="\n")
    return 0


def run_grade(options: argparse.Namespace) -> int:
    from flashlab.grading.grade import grade

    return grade(
        options.submissions, options.exercise, options.out, roster=options.roster, gradebook=options.gradebook, tree=options.submitted,
        jobs=options.jobs, unsafe=options.unsafe,
    )  # fmt: skip


def _whole_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        with when_killed(signal.default_int_handler):  # KeyboardInterrupt, as by Ctrl-C: what it started, ncu or a sandbox, ends too
            status = options.call(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads, such as head, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at the end
        return BROKEN_PIPE
    except Exception as problem:
        if not is_known(problem) and not isinstance(problem, (OSError, LookupError, MemoryError, RuntimeError, ValueError)):
            raise
        print(f"flashlab: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
