"""doctor.py: the table, the verdict and the exit status."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from flashlab import assembler, doctor
from flashlab.driver import GpuFound
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
    installed = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda package: None if package == "ipywidgets" else installed(package))
    assert doctor.report() == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "The lessons cannot run yet. Mend first: torch, Packages."
    assert [line.split()[1] for line in printed if line.startswith("FAIL")] == ["torch", "Packages"]


def test_a_forbidden_interpreter_is_named_where_kernels_fail_for_it(monkeypatch):
    gpu = GpuFound(False, "the NVIDIA driver sees no GPU")
    monkeypatch.setattr(doctor.runtime, "gpu_found", lambda: gpu)
    monkeypatch.setattr(doctor.runtime, "has_triton", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(doctor, "run_smoke", lambda: ("", "RuntimeError: 0 active drivers ([]). There should only be one."))
    monkeypatch.setattr(doctor, "installed", lambda package: "3.6.0")
    (kernels,) = [check for check in doctor.examine() if check.what == "Triton kernels"]
    do = "No GPU: the NVIDIA driver sees no GPU; TRITON_INTERPRET=0 forbids the interpreter, so unset it."
    assert kernels == Check("Triton kernels", "do not run on a CUDA GPU", "fail", do)


def test_without_triton_no_kernel_is_tried(monkeypatch):
    def never():
        raise AssertionError("a kernel was tried")

    monkeypatch.setattr(doctor, "run_smoke", never)
    monkeypatch.setattr(doctor, "installed", lambda package: None)
    assert "Triton kernels" not in [check.what for check in doctor.examine()]


@pytest.mark.parametrize("found, check", [((12, 9, 86), ("ok", "")), ((12, 8, 93), ("note", "It can build wrong code for Hopper: unset {}, and 12.9.1 is taken"))])
def test_on_hopper_the_assembler_is_named(monkeypatch, found, check):
    gpu = GpuFound(True, name="NVIDIA H200", capability=(9, 0), cuda_version=(13, 0))
    monkeypatch.setattr(doctor.runtime, "gpu_found", lambda: gpu)
    monkeypatch.setattr(doctor, "run_smoke", lambda: ("cuda", ""))
    monkeypatch.setattr(assembler, "at", lambda path: assembler.Assembler(path, found if path == Path("/there/ptxas") else (12, 9, 1)))
    monkeypatch.setenv(assembler.variable(), "/there/ptxas")
    (ptxas,) = [check for check in doctor.examine() if check.what == "ptxas"]
    state, do = check
    assert ptxas == Check("ptxas", f"{'.'.join(map(str, found))}, /there/ptxas", state, do.format(assembler.variable()))


def test_every_check_of_this_machine_can_be_read(monkeypatch):
    monkeypatch.setattr(doctor, "run_smoke", lambda: (doctor.runtime.mode(), ""))
    checks = doctor.examine()
    assert len({check.what for check in checks}) == len(checks) == 11 + assembler.on_hopper(doctor.runtime.gpu_found())
    assert all(check.found and check.state in doctor.MARKS for check in checks)


def test_installed_and_read():
    assert doctor.installed("pytest") == pytest.__version__ and doctor.installed("no-such-package") is None
    assert doctor.read("/no/such/file") == "" and doctor.read(__file__).startswith('"""doctor.py')


# -- what flashlab needs ------------------------------------------------------------------------------------------------------
def test_the_packages_are_those_of_pyproject(monkeypatch):
    monkeypatch.setattr(doctor, "run_smoke", lambda: (doctor.runtime.mode(), ""))
    named = {Requirement(line).name for line in doctor.requirements()}
    assert {"numpy", "torch", "triton", "matplotlib", "jupyterlab", "ipywidgets", "anywidget", "packaging"} <= named
    (check,) = [check for check in doctor.examine() if check.what == "Packages"]
    assert check.state == "ok" and all(f"{name} {doctor.installed(name)}" in check.found for name in named - {"torch", "triton"})


@pytest.mark.parametrize("text", [None, '[project]\nname = "another"\ndependencies = ["x"]\n', "[tool]\n"])
def test_without_a_clone_they_are_those_of_the_metadata(tmp_path, monkeypatch, text):
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.setattr(doctor, "PYPROJECT", tmp_path / "pyproject.toml")
    monkeypatch.setattr(doctor.metadata, "requires", {"flashlab": ["numpy>=2"]}.get)
    assert doctor.requirements() == ["numpy>=2"]

    def not_installed(package):
        raise doctor.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(doctor.metadata, "requires", not_installed)
    assert doctor.requirements() == []


# -- the browser and the Node that tests use ----------------------------------------------------------------------------------
@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """on_path(*names): those commands and no others are on PATH; returns their folder."""

    def put(*names):
        for name in names:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        return tmp_path

    monkeypatch.setattr(doctor, "run_smoke", lambda: (doctor.runtime.mode(), ""))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("FLASHLAB_CHROMIUM", raising=False)
    return put


@pytest.fixture
def harness():
    """tests/widgets/conftest.py as a module."""
    spec = importlib.util.spec_from_file_location("harness", Path(__file__).parent / "widgets" / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_doctor_and_browser_tests_find_the_same_chromium(on_path, harness, name):
    assert doctor.chromium() is harness.chromium() is None
    assert str(on_path(name) / name) == doctor.chromium() == harness.chromium()
    (check,) = [check for check in doctor.examine() if check.what == "Chromium"]
    assert check.found == doctor.chromium()


def test_a_chromium_can_be_named(on_path, monkeypatch):
    folder = on_path("chromium", "mine")
    monkeypatch.setenv("FLASHLAB_CHROMIUM", str(folder / "mine"))
    assert doctor.chromium() == str(folder / "mine")
    monkeypatch.setenv("FLASHLAB_CHROMIUM", str(folder / "not-there"))
    assert doctor.chromium() is None


def test_node_is_the_one_on_path_else_playwrights(on_path, harness, monkeypatch):
    playwright = pytest.importorskip("playwright")
    brought = harness.find_node()
    assert Path(brought).parent == Path(playwright.__file__).with_name("driver")
    assert subprocess.run([brought, "--test", "--version"], capture_output=True, text=True, check=True).stdout.startswith("v")
    assert harness.find_node() == brought != str(on_path("node") / "node") == harness.find_node()


def test_without_a_node_the_javascript_tests_are_skipped_with_a_reason(on_path, harness, monkeypatch):
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    assert harness.find_node() is None


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
