"""doctor.py: the table, the verdict and the exit status."""

import subprocess
import sys

import pytest

from flashlab import doctor
from flashlab.machine import Check

CHECKS = [
    Check("Python", "3.12.1, /usr/bin/python3"),
    Check("GPU", "none: the NVIDIA driver sees no GPU", "note", "Lessons run without one; timings are those recorded on a GPU"),
    Check("torch", "not installed", "fail", "make lab, or pip install -e ."),
]


def test_the_table_says_found_state_and_what_to_do():
    assert doctor.table(CHECKS, width=60).splitlines() == [
        "ok    Python  3.12.1, /usr/bin/python3",
        "note  GPU     none: the NVIDIA driver sees no GPU",
        "              -> Lessons run without one; timings are those",
        "                 recorded on a GPU",
        "FAIL  torch   not installed",
        "              -> make lab, or pip install -e .",
    ]


def test_a_long_path_is_not_broken():
    path = "/very/long" * 12
    assert path in doctor.table([Check("Python", path)], width=60)


def test_a_failure_is_named_and_gives_exit_status_1():
    assert doctor.verdict(CHECKS, "…") == ("The lessons cannot run yet. Mend first: torch.", 1)


def test_notes_alone_give_exit_status_0():
    assert doctor.verdict(CHECKS[:2], "No GPU: why.") == ("The lessons can run. No GPU: why.", 0)


def test_report_looks_at_this_machine(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "run_smoke", lambda: (doctor.runtime.mode(), ""))
    monkeypatch.setattr(doctor, "torch_build", lambda: None)
    monkeypatch.setattr(doctor, "installed", lambda package: None if package == "jupyterlab" else "3.6.0")
    assert doctor.report() == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "The lessons cannot run yet. Mend first: torch, JupyterLab."
    assert [line.split()[1] for line in printed if line.startswith("FAIL")] == ["torch", "JupyterLab"]


def test_without_triton_no_kernel_is_tried(monkeypatch):
    def never():
        raise AssertionError("a kernel was tried")

    monkeypatch.setattr(doctor, "run_smoke", never)
    monkeypatch.setattr(doctor, "installed", lambda package: None)
    assert "Triton kernels" not in [check.what for check in doctor.examine()]


def test_every_check_of_this_machine_can_be_read(monkeypatch):
    monkeypatch.setattr(doctor, "run_smoke", lambda: (doctor.runtime.mode(), ""))
    checks = doctor.examine()
    assert len({check.what for check in checks}) == len(checks) == 11
    assert all(check.found and check.state in doctor.MARKS for check in checks)


def test_installed_and_read():
    assert doctor.installed("pytest") == pytest.__version__ and doctor.installed("no-such-package") is None
    assert doctor.read("/no/such/file") == "" and doctor.read(__file__).startswith('"""doctor.py')


def play(monkeypatch, line, timeout=30):
    """run_smoke with `line` in place of the kernel's process."""
    run = subprocess.run
    monkeypatch.setattr(doctor.subprocess, "run", lambda _, **options: run([sys.executable, "-c", line], **{**options, "timeout": timeout}))
    return doctor.run_smoke()


def test_what_the_kernel_printed(monkeypatch):
    assert play(monkeypatch, "print('cuda')") == ("cuda", "")


def test_the_last_line_of_the_kernels_error(monkeypatch):
    assert play(monkeypatch, "raise RuntimeError('no compiler')") == ("", "RuntimeError: no compiler")


def test_a_kernel_that_hangs(monkeypatch):
    assert play(monkeypatch, "import time; time.sleep(9)", timeout=0.2) == ("", "no answer within 180 s")
