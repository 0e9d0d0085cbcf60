"""The Makefile: which Python it takes, what it installs with and when, what it says if it cannot. Nothing is installed."""

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from flashlab import runtime
from flashlab.driver import torch_build

ROOT = Path(__file__).parents[1]
MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")

# A Python that is played: it has a version and perhaps a venv module, makes a .venv that holds itself, and logs the rest.
PYTHON = """#!/bin/bash
version={version}
case "$*" in
  *python_version*) echo $version; exit {runs} ;;
  *version_info*) {real} -c "import sys; sys.version_info = tuple(map(int, '$version'.split('.'))); $2"; exit ;;
  *"import venv, ensurepip"*) exit {no_venv} ;;
  *"import pip"*) exit {no_pip} ;;
  *"import xdist"*) exit {no_xdist} ;;
  *"import pytest_benchmark"*) exit {no_benchmark} ;;
  *second_gpu*) exit ;;
  *torch_build*) echo "{torch}"; exit ;;
  *realpath*) echo {bin}/{name}; exit ;;
  "-m venv "*) [ {venv_fails} = 0 ] || exit 1; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
esac
echo "${{0##*/}} $*" >> {log}
echo "$PYTHONPATH" > {log}.path
case "$*" in *"-k test_bench"*) exit {timed_fails} ;; esac
exit {status}
"""
UV = """#!/bin/bash
echo "uv $*" >> {log}
if [ "$1" = venv ]; then mkdir -p "$5/bin"; cp {bin}/"$4" "$5/bin/python"; fi
"""


@pytest.fixture
def machine(tmp_path):
    """A copy of the course's Makefile on a machine with the commands that a test puts there and no others."""
    bin, log = tmp_path / "bin", tmp_path / "log"
    course = tmp_path / "a course"  # a space in the path
    for folder in (bin, course / "notebooks/labs"):
        folder.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, course)
    for lesson in ("00_start_here", "01_standard_attention", "labs/lab1_speedup"):
        (course / "notebooks" / f"{lesson}.ipynb").write_text("{}")
    for command in ("mkdir", "cp", "touch"):
        (bin / command).symlink_to(shutil.which(command))

    def put(name, text=PYTHON, **values):
        defaults = {"version": "3.12.1", "runs": 0, "no_venv": 0, "venv_fails": 0, "no_pip": 0, "no_xdist": 0, "status": 0}
        defaults |= {"no_benchmark": 0, "timed_fails": 0, "torch": "cu130", "name": name}
        places = {"log": log, "bin": bin, "real": sys.executable}
        (bin / name).write_text(text.format(**{**defaults, **places, **values}))
        (bin / name).chmod(0o755)

    def make(*arguments):
        log.write_text("")
        environment = {"PATH": str(bin), "HOME": str(tmp_path)}
        done = subprocess.run([MAKE, *arguments], cwd=course, env=environment, capture_output=True, text=True)
        return SimpleNamespace(status=done.returncode, out=done.stdout, err=done.stderr, ran=log.read_text().splitlines())

    return SimpleNamespace(put=put, make=make, course=course, python_path=tmp_path / "log.path")


# -- which Python -------------------------------------------------------------------------------------------------------------
def test_the_newest_supported_python_makes_the_venv(machine):
    for name, version in (("python3", "3.9.1"), ("python3.11", "3.11.2"), ("python3.12", "3.12.4")):
        machine.put(name, version=version)
    done = machine.make("lab")
    assert done.status == 0 and "Making .venv with python3.12" in done.out
    assert done.ran == ["python3.12 -m venv .venv", "python -m pip install -e .", "python -m flashlab.cli lab"]


def test_a_shim_that_does_not_run_is_passed_over(machine):
    machine.put("python3.13", runs=127)  # as pyenv's, for a version that is not chosen
    machine.put("python3", version="3.11.7")
    assert machine.make("lab").ran[0] == "python3 -m venv .venv"


def test_a_python_without_venv_is_passed_over_if_another_has_it(machine):
    machine.put("python3.13", version="3.13.0", no_venv=1)
    machine.put("python3", version="3.12.3")
    assert machine.make("lab").ran[0] == "python3 -m venv .venv"


def test_python_can_be_named(machine):
    machine.put("python3.13", version="3.13.0")
    machine.put("mine", version="3.11.0")
    assert machine.make("lab", "PYTHON=mine").ran[0] == "mine -m venv .venv"


def test_a_python_that_is_too_old_is_said(machine):
    machine.put("python3", version="3.10.12")
    done = machine.make("lab")
    assert done.status != 0 and done.ran == []
    assert "flashlab needs Python 3.11 or newer, and found: python3 is 3.10.12;" in done.err and "PYTHON=/path/to/python3.12" in done.err


def test_no_python_at_all_is_said(machine):
    done = machine.make("test")
    assert done.status != 0 and "flashlab needs Python 3.11 or newer, and found: no Python at all" in done.err


def test_no_venv_module_is_said(machine):
    machine.put("python3", version="3.12.3", no_venv=1)
    done = machine.make("lab")
    assert done.status != 0 and done.ran == []
    assert "python3 has no venv module" in done.err and "sudo apt install python3-venv" in done.err


def test_a_venv_that_cannot_be_made_stops_everything(machine):
    machine.put("python3", venv_fails=1)
    done = machine.make("lab")
    assert done.status != 0 and done.ran == [] and "PyTorch" not in done.out


# -- what is installed, and when ----------------------------------------------------------------------------------------------
def test_a_second_run_installs_nothing(machine):
    machine.put("python3")
    machine.make("lab")
    assert machine.make("lab").ran == ["python -m flashlab.cli lab"]


def test_a_changed_pyproject_installs_again_into_the_same_venv(machine):
    machine.put("python3")
    machine.make("lab")
    later = (machine.course / ".venv/.flashlab").stat().st_mtime + 10
    os.utime(machine.course / "pyproject.toml", (later, later))
    assert machine.make("lab").ran == ["python -m pip install -e .", "python -m flashlab.cli lab"]


def test_a_failed_installation_is_tried_again(machine):
    machine.put("python3")
    machine.make("lab")
    (machine.course / ".venv/.flashlab").unlink()
    python = machine.course / ".venv/bin/python"
    works = python.read_text()
    python.write_text(works.replace("exit 0\n", "exit 1\n"))
    assert machine.make("lab").status != 0 and not (machine.course / ".venv/.flashlab").exists()
    python.write_text(works)
    assert machine.make("lab").ran == ["python -m pip install -e .", "python -m flashlab.cli lab"]


def test_a_venv_without_pip_is_made_again(machine):
    machine.put("python3")
    machine.make("lab")
    (machine.course / ".venv/.flashlab").unlink()
    machine.put("python3", no_pip=1)
    shutil.copy(machine.course.parent / "bin/python3", machine.course / ".venv/bin/python")
    assert machine.make("lab").ran[0] == "python3 -m venv .venv"


def test_after_test_lab_has_nothing_to_install(machine):
    machine.put("python3")
    assert machine.make("test").ran[1] == "python -m pip install -e .[test]"
    assert machine.make("lab").ran == ["python -m flashlab.cli lab"]


def test_torch_cpu_adds_pytorchs_index_and_nothing_else_does(machine):
    machine.put("python3")
    assert machine.make("lab", "TORCH=cpu").ran[1] == "python -m pip install --extra-index-url https://download.pytorch.org/whl/cpu -e ."


def test_the_plain_command_names_the_small_build_where_there_is_no_gpu(machine):
    machine.put("python3")
    said = "TORCH=cpu takes the small CPU build" in machine.make("lab").out
    assert said is not Path("/proc/driver/nvidia/version").exists()


def test_uv_is_used_where_it_is_installed(machine):
    machine.put("python3", no_venv=1, no_pip=1)
    machine.put("uv", UV)
    assert machine.make("lab").ran == [
        "uv venv --allow-existing --python python3 .venv",
        "uv pip install --python .venv/bin/python -e .",
        "python -m flashlab.cli lab",
    ]
    assert machine.make("lab").ran == ["python -m flashlab.cli lab"]


def test_uv_takes_pytorchs_cpu_build(machine):
    machine.put("python3")
    machine.put("uv", UV)
    assert machine.make("test", "TORCH=cpu").ran[1] == "uv pip install --python .venv/bin/python --torch-backend=cpu -e .[test]"


# -- what an existing .venv does not follow -----------------------------------------------------------------------------------
def said(done, option):
    return [line for line in done.out.splitlines() if line.startswith(f"{option} changes nothing")]


@pytest.mark.parametrize("target", ["lab", "test"])
def test_torch_that_an_existing_venv_does_not_have_is_said_in_one_line(machine, target):
    machine.put("python3", torch="cu130")
    machine.make(target)
    done = machine.make(target, "TORCH=cpu")
    assert done.status == 0 and not [line for line in done.ran if "install" in line]
    assert said(done, "TORCH=cpu") == ["TORCH=cpu changes nothing: .venv has torch for cu130. To install anew: rm -r .venv, then this again."]
    assert not said(machine.make(target, "TORCH=cu130"), "TORCH=cu130") and not said(machine.make(target), "TORCH=")


def test_the_real_torch_is_told_by_the_makefiles_own_line(machine):
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "torch_build" in line]
    code = line.split("'")[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == torch_build().index


def test_a_python_that_an_existing_venv_was_not_made_with_is_said_in_one_line(machine):
    machine.put("python3", version="3.11.7")
    machine.put("mine", version="3.12.1")
    machine.make("lab")
    done = machine.make("lab", "PYTHON=mine")
    where = machine.course.parent / "bin" / "python3"
    assert done.status == 0 and done.ran == ["python -m flashlab.cli lab"]
    assert said(done, "PYTHON=mine") == [f"PYTHON=mine changes nothing: .venv has {where}. To install anew: rm -r .venv, then this again."]
    assert not said(machine.make("lab", "PYTHON=python3"), "PYTHON=python3")


def test_a_real_venv_is_known_by_the_python_that_made_it(tmp_path):
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "realpath" in line]
    code = line.split("'")[1]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    pythons = [sys.executable, os.path.join(sys.base_prefix, "bin", "python3"), tmp_path / "v/bin/python"]
    assert len({subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout for python in pythons}) == 1


def test_uv_makes_a_broken_venv_again(machine):
    machine.put("python3")
    machine.put("uv", UV)
    (machine.course / ".venv" / "bin").mkdir(parents=True)  # uv refuses a folder that is there without --allow-existing
    assert machine.make("lab").ran[0] == "uv venv --allow-existing --python python3 .venv"


def test_options_for_the_lab(machine):
    machine.put("python3")
    assert machine.make("lab", "LAB_ARGS=--port 9000 --no-browser").ran[-1] == "python -m flashlab.cli lab --port 9000 --no-browser"


# -- the tests ----------------------------------------------------------------------------------------------------------------
TIMED = "-m pytest tests -q -k test_bench --benchmark-columns=median,rounds"
PYTEST = (
    "-m pytest tests flashlab --doctest-modules --ignore=flashlab/grading/formgrade.py --nbval-lax --nbval-current-env --nbval-cell-timeout=400"
    " notebooks/00_start_here.ipynb notebooks/01_standard_attention.ipynb notebooks/labs/lab1_speedup.ipynb"
)


def test_make_test_times_first_then_runs_tests_doctests_and_lessons(machine):
    machine.put("python3")
    assert machine.make("test").ran[-2] == f"python {TIMED}"
    assert machine.make("test").ran[-1] == f"python {PYTEST} -n 2 --dist loadscope"
    assert machine.make("test", "JOBS=4", "PYTEST_ARGS=-x").ran[-1] == f"python {PYTEST} -n 4 --dist loadscope -x"


def test_make_test_fails_when_pytest_does(machine):
    machine.put("python3")
    machine.make("test")
    python = machine.course / ".venv/bin/python"
    python.write_text(python.read_text().replace("exit 0\n", "exit 1\n"))
    assert machine.make("test").status != 0


def test_without_xdist_it_says_so_and_runs_one_at_a_time(machine):
    machine.put("python3", no_xdist=1)
    done = machine.make("test")
    assert done.ran[-1] == f"python {PYTEST}" and "pytest-xdist is not installed: one test at a time." in done.out


def test_a_timed_test_that_fails_is_a_failure_and_stops_the_run(machine):
    machine.put("python3", timed_fails=1)
    done = machine.make("test")
    assert done.status != 0 and done.ran[-1] == f"python {TIMED}" and "pytest-xdist" not in done.out


def test_without_pytest_benchmark_the_timed_tests_are_left_out_and_the_rest_run_at_once(machine):
    machine.put("python3", no_benchmark=1, timed_fails=4)
    done = machine.make("test")
    assert done.status == 0 and f"python {TIMED}" not in done.ran
    assert done.ran[-1] == f"python {PYTEST} -n 2 --dist loadscope -k not test_bench"
    assert "pytest-benchmark is not installed: the timed tests are left out." in done.out


def test_without_both_it_still_runs(machine):
    machine.put("python3", no_benchmark=1, no_xdist=1)
    done = machine.make("test")
    assert done.status == 0 and done.ran[-1] == f"python {PYTEST} -k not test_bench"


def test_test_gpu_with_a_python_installs_nothing(machine):
    machine.put("python3")
    assert machine.make("test-gpu", "PYTHON=python3").ran == [
        "python3 -m flashlab.cli doctor --gpu",
        f"python3 {TIMED}",
        f"python3 {PYTEST} -n 2 --dist loadscope",
    ]
    assert not (machine.course / ".venv").exists()


@pytest.mark.parametrize("target", ["test-gpu", "record", "reproduce"])
def test_on_a_gpu_node_the_course_is_found_without_installing_it(machine, target):
    machine.put("python3")
    machine.make(target, "PYTHON=python3")
    assert machine.python_path.read_text() == f"{machine.course}\n"


def test_test_gpu_stops_where_there_is_no_gpu(machine):
    machine.put("python3", status=2)
    done = machine.make("test-gpu", "PYTHON=python3")
    assert done.status != 0 and done.ran == ["python3 -m flashlab.cli doctor --gpu"]


def test_test_gpu_without_a_python_makes_the_venv(machine):
    machine.put("python3")
    assert [line.split(" -e")[0] for line in machine.make("test-gpu").ran[:2]] == ["python3 -m venv .venv", "python -m pip install"]


def test_record_passes_its_notebooks_on(machine):
    machine.put("python3")
    assert machine.make("record", "PYTHON=python3").ran == ["python3 -m flashlab.cli record"]
    assert machine.make("record", "PYTHON=python3", "NOTEBOOKS=notebooks/00_start_here.ipynb").ran == [
        "python3 -m flashlab.cli record notebooks/00_start_here.ipynb"
    ]


def test_reproduce_times_and_counts_everything_and_ends_with_the_lessons(machine):
    machine.put("python3")
    ran = [line.removeprefix("python3 -m flashlab.cli ").split(" --")[0] for line in machine.make("reproduce", "PYTHON=python3").ran]
    timed = [f"bench {what}" for what in ("forward", "backward", "growth", "steps", "lengths")]
    assert ran == ["doctor", *timed, "count", "count", "record"]


def test_reproduce_measures_anew_or_goes_on(machine):
    machine.put("python3")
    anew, on = (machine.make("reproduce", "PYTHON=python3", *given).ran for given in ([], ["RESUME=1"]))
    assert sum(" --anew" in line for line in anew) == 2 and sum(" --resume" in line for line in on) == 4
    assert [line.replace(" --anew", "") for line in anew] == [line.replace(" --resume", "") for line in on]


# On two GPUs: says which GPU a command is on, then does what the test wants of it.
ON_TWO = """#!/bin/bash
case "$*" in *second_gpu*) echo GPU-b; exit ;; esac
shift 2
trap 'echo "interrupted $*" >> {log}; exit 130' INT
echo "${{CUDA_VISIBLE_DEVICES:-all}} $*" >> {log}
{then}
"""


@pytest.fixture
def two(machine, tmp_path):
    for command in ("mktemp", "cat", "rm", "sleep"):
        (tmp_path / "bin" / command).symlink_to(shutil.which(command))
    return lambda then="": machine.put("python3", ON_TWO, then=then)


@pytest.mark.parametrize("then", ["", 'case "$*" in *steps*--anew*) exit 3 ;; esac', 'case "$*" in *growth*) exit 3 ;; esac'])
def test_reproduce_counts_on_a_second_gpu_meanwhile(machine, two, then):
    two(then)
    done = machine.make("reproduce", "PYTHON=python3")
    assert (done.status != 0) == bool(then) and done.out.count("== flashlab count --record --anew --budget 400") == 1
    first, second = ([line.partition(" ")[2].split(" --")[0] for line in done.ran if line.startswith(gpu)] for gpu in ("all", "GPU-b"))
    assert first == ["doctor", *(f"bench {what}" for what in ("forward", "backward", "growth", "steps", "lengths")), "record"]
    assert second == ["count", "count"] and done.ran[-1] == "all record"


# As a command of flashlab's that is interrupted: it ends in its own time, with 130 (cli.py). Ctrl-C goes to the whole group.
WAITS = 'case "$*" in *doctor*) exit ;; esac; for i in {1..200}; do sleep 0.05; done'


@pytest.mark.parametrize("gpus", [1, 2])
def test_ctrl_c_ends_all_of_reproduce(machine, two, tmp_path, gpus):
    log = tmp_path / "log"
    two(WAITS)
    if gpus == 1:
        python = tmp_path / "bin" / "python3"
        python.write_text(python.read_text().replace("echo GPU-b; ", ""))
    log.write_text("")
    (tmp_path / "logs").mkdir()
    environment = {"PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path / "logs")}
    options = {"cwd": machine.course, "env": environment, "start_new_session": True, "stdout": subprocess.PIPE, "text": True}
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's `command &` ignores Ctrl-C, and all it starts
    with subprocess.Popen([MAKE, "reproduce", "PYTHON=python3"], **options) as process:
        until = time.monotonic() + 20
        while len(log.read_text().splitlines()) < 1 + gpus and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out = process.communicate(timeout=20)[0]  # its end is the end of all that print there
    time.sleep(0.5)
    ran = sorted(line.split(" --")[0] for line in log.read_text().splitlines())
    counting = ["GPU-b count", "interrupted count"] if gpus == 2 else []
    assert process.returncode != 0 and ran == sorted(["all doctor", "all bench forward", "interrupted bench forward", *counting])
    assert ("== flashlab count" in out) == (gpus == 2) and not any((tmp_path / "logs").iterdir())


@pytest.mark.skipif(runtime.device() == "cuda", reason="this machine has a GPU")
@pytest.mark.parametrize("target, what", [("test-gpu", "This"), ("record", "Recording"), ("reproduce", "This")])
def test_without_a_gpu_the_real_targets_say_why(target, what):
    done = subprocess.run([MAKE, target, f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"flashlab: {what} needs a CUDA GPU that Triton can use. No" in done.stderr and runtime.gpu_found().reason in done.stderr


# -- what builds it -----------------------------------------------------------------------------------------------------------
def test_the_build_needs_a_hatchling_that_knows_license_files():
    (needed,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert not Requirement(needed).specifier.contains("1.26.3") and Requirement(needed).specifier.contains("1.27.0")


# -- exercises ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target, more", [("exercises", ""), ("student-release", " --student build/flashlab-student")])
def test_exercises_are_made_with_what_tests_need_installed(machine, target, more):
    machine.put("python3")
    ran = machine.make(target).ran
    assert ran[-1] == f"python -m flashlab.grading.release{more}" and "[test]" in ran[-2]


# -- conda and CI -------------------------------------------------------------------------------------------------------------
def test_the_conda_route_takes_python_from_conda_and_the_rest_from_pyproject():
    lines = [line.strip() for line in (ROOT / "environment.yml").read_text().splitlines()]
    assert "- python=3.12" in lines and lines[lines.index("- pip:") + 1 :] == ["- -e ."]


def test_ci_requires_the_browser_and_runs_make_test():
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("this is a class's copy")
    lines = script.read_text().splitlines()
    assert os.access(script, os.X_OK) and "set -euo pipefail" in lines
    assert lines[-2:] == ["export FLASHLAB_REQUIRE_BROWSER=1", "make test"]
