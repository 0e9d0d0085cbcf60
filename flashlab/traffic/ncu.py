"""Nsight Compute's command line: what it is asked, the text it answers with, and what its errors mean.

ncu runs a program, stops it at each kernel and reads the GPU's counters while that kernel runs alone. One pass of the
hardware holds a few counters, so with many of them ncu puts memory back as it was and runs the kernel again.

  --profile-from-start off   only what runs between cudaProfilerStart and cudaProfilerStop
  --cache-control all        before each pass the caches are written back and emptied: every kernel starts cold
  --clock-control none       the clocks are left alone
  --log-file                 what ncu says goes to a file; what the program prints stays on its own streams

Does not handle: reports (.ncu-rep), graphs, several GPUs.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from flashlab.errors import error

# {unit as ncu writes it: (what it measures, how many of it one is)}. Asked for base units, ncu gives byte, ns and the like;
# its older versions say nsecond.
UNITS = {
    "byte": ("bytes", 1), "Kbyte": ("bytes", 1e3), "Mbyte": ("bytes", 1e6), "Gbyte": ("bytes", 1e9), "Tbyte": ("bytes", 1e12),
    "byte/block": ("bytes", 1), "Kbyte/block": ("bytes", 1e3),
    "ns": ("ms", 1e-6), "nsecond": ("ms", 1e-6), "us": ("ms", 1e-3), "usecond": ("ms", 1e-3),
    "ms": ("ms", 1), "msecond": ("ms", 1), "s": ("ms", 1e3), "second": ("ms", 1e3),
    "%": ("percent", 1), "register/thread": ("registers", 1), "sector": ("sectors", 1), "Ksector": ("sectors", 1e3),
    "Msector": ("sectors", 1e6), "": ("number", 1),
}  # fmt: skip
NAMES = {"Kernel Name", "Block Size", "Grid Size"}
CLOSED = "ERR_NVGPUCTRPERM"
POLL_S, END_S = 0.2, 10


def find() -> str:
    """The path of ncu. Raises RuntimeError if it is not on PATH."""
    path = shutil.which("ncu")
    if path is None:
        raise error("ncu_missing", given=os.environ.get("PATH", ""))
    return path


def version(path: str) -> str:
    """Such as "2025.3.1.0", or "unknown"."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    found = re.search(r"Version (\S+)", said)
    return found[1] if found else "unknown"


def command(path: str, metrics: Sequence[str], log: Path, program: Sequence[str]) -> list[str]:
    """The command line that counts `metrics` while `program` runs, and writes what it found to `log`."""
    options = "--profile-from-start off --target-processes application-only --clock-control none --cache-control all"
    output = "--print-kernel-base function --print-units base --csv --page raw"
    return [path, *options.split(), *output.split(), "--log-file", str(log), "--metrics", ",".join(metrics), *program]


def run(
    arguments: Sequence[str], output: Path, *, timeout_s: float, environment: dict[str, str] | None = None, meanwhile: Callable[[], object] = lambda: None
) -> int:
    """The exit status of a command whose stdout and stderr go to `output`; `meanwhile` is called a few times a second.

    Raises RuntimeError after `timeout_s`, when the command and everything it started has been ended.
    """
    with output.open("w") as file:
        process = subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        start = time.monotonic()
        try:
            while process.poll() is None:
                if time.monotonic() - start > timeout_s:
                    raise error("ncu_timeout", given=f"{timeout_s:,.0f}")
                time.sleep(POLL_S)
                meanwhile()
        finally:
            end(process)
    meanwhile()
    return process.returncode


def end(process: subprocess.Popen) -> None:
    """End a process and what it started in its session, if it still runs: first by asking."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, how)
            process.wait(END_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def keep(text: str, path: Path) -> None:
    """Add ncu's text to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def parse(text: str, metrics: Collection[str]) -> list[dict[str, str | float | None]]:
    """One dict for each kernel in the text that ncu wrote with --csv --page raw: NAMES as text, `metrics` as numbers.

    Metrics are in bytes, ms, percent or as counts, whatever unit ncu chose; None where it has none on this GPU (n/a).
    ncu adds two hundred columns that nobody asked for; they and lines that are not of the table are passed over. Raises
    RuntimeError for a unit that is not known.
    """
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) < 2:
        return []
    header, units = rows[0], rows[1]
    if not NAMES <= set(header) or any(unit for name, unit in zip(header, units) if name in NAMES):
        raise error("ncu_table", given=", ".join(header[:3]))
    wanted = NAMES.union(metrics)
    return [
        {name: _number(name, cell, unit) if name in metrics else cell for name, cell, unit in zip(header, row, units) if name in wanted}
        for row in rows[2:]
        if len(row) == len(header)
    ]


def _number(metric: str, cell: str, unit: str) -> float | None:
    """The cell in the unit's own base: bytes, ms, percent, a count."""
    if unit not in UNITS:
        raise error("ncu_unit", metric=metric, given=unit, allowed=", ".join(filter(None, UNITS)))
    try:
        return float(cell.replace(",", "")) * UNITS[unit][1]
    except ValueError:  # n/a
        return None


def fault(log: str, status: int, output: str) -> Exception | None:
    """What went wrong, by ncu's log, the exit status and what the program printed; None if nothing did."""
    if CLOSED in log or CLOSED in output:
        return error("ncu_closed", given=CLOSED)
    said = [line.partition("==ERROR==")[2].strip() for line in (log + "\n" + output).splitlines() if "==ERROR==" in line]
    if status == 0 and not said:
        return None
    last = [line.strip() for line in output.strip().splitlines()[-3:] if "==ERROR==" not in line]
    return error("ncu_failed", given=status, said="; ".join(dict.fromkeys(said + last)) or "nothing")
