"""`flashlab doctor`: a table of what this machine has, what works, what does not and what to do.

The checks are in flashlab.machine; here their arguments are gathered and the table is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from importlib import metadata
from pathlib import Path

from flashlab import assembler, machine, runtime
from flashlab.driver import login_node, torch_build
from flashlab.machine import Check

SMOKE_TIMEOUT_S = 180
PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}
LEAST_WIDTH, MOST_WIDTH = 60, 120


def installed(package: str) -> str | None:
    """The package's version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """What flashlab needs: pyproject.toml's dependencies in a clone, where metadata may be older; else its metadata's."""
    try:
        import tomllib  # Python 3.11 or newer, and the table must be printed on an older one too

        project = tomllib.loads(PYPROJECT.read_text())["project"]
        if project["name"] == "flashlab":
            return project["dependencies"]
    except (ImportError, OSError, LookupError):
        pass
    try:
        return metadata.requires("flashlab") or []
    except metadata.PackageNotFoundError:
        return []


def chromium() -> str | None:
    """The path of a Chromium: FLASHLAB_CHROMIUM if set, else the first that is on PATH."""
    named = os.environ.get("FLASHLAB_CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else BROWSERS)), None)


def read(path: str) -> str:
    """The file's text, "" if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def run_smoke() -> tuple[str, str]:
    """What flashlab.smoke printed and the last line of its error, from a process of its own."""
    smoke = [sys.executable, "-m", "flashlab.smoke"]
    try:
        done = subprocess.run(smoke, capture_output=True, text=True, timeout=SMOKE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {SMOKE_TIMEOUT_S} s"
    return done.stdout.strip(), (done.stderr.strip().splitlines() or [""])[-1]


def examine() -> list[Check]:
    """Every check on this machine."""
    gpu = runtime.gpu_found()
    on_gpu = runtime.device() == "cuda"
    triton = installed("triton")
    printed, problem = run_smoke() if triton else ("", "")
    if runtime.mode() == "cuda" and not gpu:
        problem = runtime.describe()  # says what forbids the interpreter; the error of a kernel without a GPU does not
    return [
        machine.check_python(),
        machine.check_torch(torch_build()),
        machine.check_triton(triton),
        machine.check_packages(requirements(), installed),
        machine.check_gpu(gpu, login_node()),
        machine.check_driver(gpu, read("/proc/driver/nvidia/version")),
        *([machine.check_kernels(runtime.mode(), printed, problem)] if triton else []),
        *([machine.check_assembler(assembler.in_use(), assembler.newest(gpu), assembler.variable())] if assembler.on_hopper(gpu) else []),
        machine.check_compiler(
            os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"),
            Path(sysconfig.get_paths()["include"]) / "Python.h",
            gpu=on_gpu,
        ),
        machine.check_cache(Path(os.environ.get("TRITON_CACHE_DIR") or os.path.expanduser("~/.triton/cache")), gpu=on_gpu),
        machine.check_chromium(chromium()),
        machine.check_counters(
            shutil.which("ncu"),
            gpu=bool(gpu.name),
            restricted="RmProfilingAdminOnly: 1" in read("/proc/driver/nvidia/params"),
            root=hasattr(os, "geteuid") and os.geteuid() == 0,
        ),
    ]


def table(checks: list[Check], width: int) -> str:
    """The checks as lines of at most `width` characters, what to do under each that needs something done."""
    column = max(len(check.what) for check in checks)
    margin = " " * (column + 8)
    lines = []

    def wrap(text: str, first: str, others: str) -> None:
        lines.extend(textwrap.wrap(text, width, initial_indent=first, subsequent_indent=others, break_long_words=False))

    for what, found, state, do in checks:
        wrap(found, f"{MARKS[state]}  {what:{column}}  ", margin)
        wrap(do, f"{margin}-> ", f"{margin}   ")
    return "\n".join(lines)


def verdict(checks: list[Check], describe: str) -> tuple[str, int]:
    """The closing sentence and the exit status: 0 when the lessons can run."""
    failed = [check.what for check in checks if check.state == "fail"]
    if failed:
        return f"The lessons cannot run yet. Mend first: {', '.join(failed)}.", 1
    return f"The lessons can run. {describe}", 0


def report() -> int:
    """Print the table and the verdict; returns the exit status."""
    checks = examine()
    print(table(checks, width=min(max(shutil.get_terminal_size().columns, LEAST_WIDTH), MOST_WIDTH)))
    sentence, status = verdict(checks, runtime.describe())
    print(f"\n{sentence}")
    return status
