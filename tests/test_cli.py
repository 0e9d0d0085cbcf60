"""cli.py: what each subcommand passes on, and how a fault is told."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flashlab import cli, copies, doctor, lab, record, runtime
from flashlab.driver import GpuFound
from flashlab.errors import error


@pytest.fixture
def called(monkeypatch):
    """The arguments with which lab, record and reset were called."""
    calls = []
    monkeypatch.setattr(lab, "lab", lambda **options: calls.append(options) or 3)
    monkeypatch.setattr(record, "record", lambda notebooks: calls.append(notebooks))
    monkeypatch.setattr(copies, "find_course", lambda: Path("/course"))
    monkeypatch.setattr(copies, "reset", lambda *arguments: calls.append(arguments) or ["put back"])
    return calls


@pytest.mark.parametrize(
    "arguments, changes",
    [
        ([], {}),
        (["--port", "9000"], {"port": 9000}),
        (["--no-browser"], {"browser": False}),
        (["--in-place"], {"in_place": True}),
        (["--work", "/home/me/work"], {"work": Path("/home/me/work")}),
        (["--no-browser", "--", "--ip=0.0.0.0", "-y"], {"browser": False, "extra": ("--ip=0.0.0.0", "-y")}),
    ],
)
def test_lab(called, arguments, changes):
    assert cli.main(["lab", *arguments]) == 3
    assert called == [{"port": None, "browser": True, "in_place": False, "work": None, "extra": (), **changes}]


def test_reset(called, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["reset", "04"]) == cli.main(["reset", "04", "--work", "/mine"]) == 0
    assert called == [("04", Path("/course"), tmp_path / "work"), ("04", Path("/course"), Path("/mine"))]
    assert capsys.readouterr().out == "put back\nput back\n"


@pytest.mark.parametrize("given", ["70000", "65536", "0", "-1", "8888.0", "eighty", ""])
def test_what_is_no_port_is_said_before_anything_is_done(called, capsys, given):
    with pytest.raises(SystemExit) as caught:
        cli.main(["lab", f"--port={given}"])
    assert caught.value.code == 2 and called == []
    said = f"argument --port: {given} is no port: a port is a whole number from 1 to 65535. Pass e.g. --port 8888."
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("given", [1, 65535])
def test_the_first_and_the_last_port(called, given):
    assert cli.main(["lab", "--port", str(given)]) == 3 and called[0]["port"] == given


def test_control_c_ends_a_command_without_a_traceback(monkeypatch):
    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr(lab, "lab", interrupted)
    assert cli.main(["lab"]) == 130


COUNTS = """
import sys
from pathlib import Path
from flashlab import cli
from flashlab.traffic import ncu
child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
cli.run_doctor = lambda options: ncu.run([sys.executable, "-c", child], Path(sys.argv[1]), timeout_s=60)
sys.exit(cli.main(["doctor"]))
"""


def test_who_kills_a_command_ends_what_it_started(tmp_path):
    said = tmp_path / "said"
    with subprocess.Popen([sys.executable, "-c", COUNTS, str(said)], cwd=Path(__file__).parent.parent, stderr=subprocess.PIPE, text=True) as command:
        until = time.monotonic() + 60
        while not (said.exists() and said.read_text().endswith("\n")) and time.monotonic() < until:
            time.sleep(0.05)
        command.terminate()
        assert (command.communicate(timeout=60)[1], command.returncode) == ("", 130)
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.read_text()), 0)


def test_a_command_leaves_signals_as_they_were(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    during = []
    monkeypatch.setattr(doctor, "report", lambda: during.append(signal.getsignal(signal.SIGTERM)) or 0)
    assert cli.main(["doctor"]) == 0
    assert during == [signal.default_int_handler] and signal.getsignal(signal.SIGTERM) == before
    thread = threading.Thread(target=cli.main, args=[["doctor"]])  # which may take no signal, and needs none
    thread.start()
    thread.join()
    assert during[1:] == [before]


def test_record(called):
    assert cli.main(["record"]) == cli.main(["record", "a.ipynb", "b.ipynb"]) == 0
    assert called == [[], [Path("a.ipynb"), Path("b.ipynb")]]


def test_doctor_gives_the_exit_status(monkeypatch):
    monkeypatch.setattr(doctor, "report", lambda: 1)
    assert cli.main(["doctor"]) == 1


def test_doctor_gpu_says_only_whether_there_is_one(monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(runtime, "gpu_found", lambda: GpuFound(True, name="NVIDIA H200"))
    assert cli.main(["doctor", "--gpu"]) == 0 and "NVIDIA H200" in capsys.readouterr().out
    monkeypatch.setattr(runtime, "gpu_found", lambda: GpuFound(False, "the NVIDIA driver sees no GPU"))
    assert cli.main(["doctor", "--gpu"]) == 2
    assert "This needs a CUDA GPU that Triton can use. No GPU: the NVIDIA driver sees no GPU" in capsys.readouterr().err


def test_a_known_fault_is_one_line_and_exit_status_2(monkeypatch, capsys):
    def fails(**options):
        raise error("port_taken", given=8888, instead="pass --port 8889")

    monkeypatch.setattr(lab, "lab", fails)
    assert cli.main(["lab"]) == 2
    assert capsys.readouterr().err == "flashlab: port 8888 is taken by another program. Stop that one, or pass --port 8889.\n"


def test_a_bug_is_not_hidden(monkeypatch):
    def fails(**options):
        raise TypeError("a bug")

    monkeypatch.setattr(lab, "lab", fails)
    with pytest.raises(TypeError):
        cli.main(["lab"])


def test_without_a_command_it_says_which_there_are(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2 and "COMMAND" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"\n    {command} " in printed for command in ("lab", "doctor", "reset", "record"))


def test_help_loads_nothing_heavy():
    code = "import sys; from flashlab import cli; cli.parser(); print([m for m in ('torch', 'triton', 'numpy', 'nbformat') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    assert done.stdout.strip() == "[]"
