"""lab.py: the JupyterLab that `flashlab lab` starts, up to a real one that answers."""

import contextlib
import errno
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from flashlab import lab as module
from flashlab.lab import CONFIG, command, environment, free_port, lab, port_fault

ROOT = Path(__file__).parents[1]


@pytest.fixture
def taken():
    """A port on which another program listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_start_here.ipynb").write_text("{}")
    return tmp_path


def test_a_taken_port_is_named_with_a_free_one(folder, taken):
    with pytest.raises(OSError) as caught:
        command(folder, port=taken)
    assert str(caught.value) == f"port {taken} is taken by another program. Stop that one, or pass --port {free_port(taken)}."
    assert free_port(taken) > taken and not port_fault(free_port(taken)) and port_fault(taken) == errno.EADDRINUSE


def test_the_last_port_taken_has_no_other_after_it(folder, monkeypatch):
    assert free_port(65535) is None
    monkeypatch.setattr(module, "port_fault", lambda port: errno.EADDRINUSE)
    with pytest.raises(OSError) as caught:
        command(folder, port=65535)
    assert str(caught.value) == "port 65535 is taken by another program. Stop that one, or leave --port out."


def test_a_port_for_root_is_not_called_taken(folder, monkeypatch):
    def bind(probe, address):  # the kernel's answer to a user who is not root
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(module.socket, "socket", type("Socket", (socket.socket,), {"bind": bind}))
    with pytest.raises(OSError) as caught:
        command(folder, port=80)
    assert str(caught.value) == "port 80 is closed to you: ports below 1024 are for root. Pass one from 1024 up, e.g. --port 8888."


def test_lesson_00_of_the_folder_is_opened(folder):
    line = command(folder)
    assert line[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={folder}" in line
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in line
    assert not [option for option in line if "port" in option or "token" in option or option == "--no-browser"]


def test_port_browser_and_further_options(folder):
    port = free_port(20000)
    line = command(folder, port=port, browser=False, extra=("--ip=0.0.0.0",))
    assert f"--ServerApp.port={port}" in line and "--ServerApp.port_retries=0" in line
    assert "--no-browser" in line and line[-1] == "--ip=0.0.0.0"


@pytest.mark.parametrize("user, allowed", [(0, True), (1000, False)])
def test_root_is_allowed_as_in_a_container(folder, monkeypatch, user, allowed):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("--allow-root" in command(folder)) is allowed


def test_our_settings_come_before_those_that_were_there():
    scripts = str(Path(sys.executable).parent)
    assert environment({"A": "b"}) == {"A": "b", "JUPYTER_CONFIG_PATH": str(CONFIG), "PATH": scripts}
    assert environment({"PATH": "/usr/bin"})["PATH"] == f"{scripts}{os.pathsep}/usr/bin"
    assert environment({"JUPYTER_CONFIG_PATH": "/theirs"})["JUPYTER_CONFIG_PATH"] == f"{CONFIG}{os.pathsep}/theirs"


class Server:
    """A server that is played: `waits` are what its wait() returns or raises, one after the other."""

    waits = [0]

    def __init__(self, line, env):
        self.line, self.left = line, list(self.waits)

    def wait(self):
        if isinstance(self.left[0], type):
            raise self.left.pop(0)
        return self.left.pop(0)


@pytest.fixture
def started(monkeypatch, folder):
    """What lab() would run, and what it says, without running it, in `folder` as the course."""
    calls = []
    monkeypatch.setattr(module.subprocess, "Popen", lambda line, env: calls.append(line) or Server(line, env))
    monkeypatch.setattr(module, "find_course", lambda: folder)
    monkeypatch.chdir(folder)
    module.runtime.announce.cache_clear()
    yield calls
    module.runtime.announce.cache_clear()


def test_lab_opens_copies_and_says_where_kernels_run(started, folder, capsys):
    assert lab(browser=False) == 0
    assert f"--ServerApp.root_dir={folder / 'work'}" in started[0] and (folder / "work/notebooks/00_start_here.ipynb").exists()
    assert capsys.readouterr().out.splitlines() == [f"{folder / 'work'}: 1 new.", module.runtime.describe()]


def test_in_place_opens_the_originals(started, folder):
    lab(browser=False, in_place=True)
    assert f"--ServerApp.root_dir={folder}" in started[0] and not (folder / "work").exists()


def test_copies_may_go_elsewhere(started, folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("home") / "mine"
    lab(browser=False, work=elsewhere)
    assert (elsewhere / "notebooks/00_start_here.ipynb").exists() and not (folder / "work").exists()


def test_from_another_folder_copies_go_there(started, folder, tmp_path_factory, monkeypatch):
    mine = tmp_path_factory.mktemp("student")
    monkeypatch.chdir(mine)
    lab(browser=False)
    assert f"--ServerApp.root_dir={mine / 'work'}" in started[0]
    assert (mine / "work/notebooks/00_start_here.ipynb").exists() and not (folder / "work").exists()


@pytest.mark.parametrize("status", [0, 3])
def test_control_c_is_left_to_jupyterlab_as_often_as_it_comes(started, monkeypatch, status):
    monkeypatch.setattr(Server, "waits", [KeyboardInterrupt, KeyboardInterrupt, status])
    assert lab(browser=False) == status


def test_without_jupyterlab_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError) as caught:
        lab()
    assert str(caught.value) == f"JupyterLab is not installed for {sys.executable}. Install the course: make lab, or pip install -e ."


def private(folder):
    """An environment in which JupyterLab reads and writes nothing outside `folder`."""
    places = {"HOME": folder, "JUPYTER_CONFIG_DIR": folder / "c", "JUPYTER_DATA_DIR": folder / "d", "JUPYTER_RUNTIME_DIR": folder / "r"}
    return {**os.environ, **{name: str(place) for name, place in places.items()}}


def test_in_a_terminal_one_control_c_asks_and_y_ends_it_tidily(tmp_path):
    pytest.importorskip("jupyterlab")
    pty = pytest.importorskip("pty")
    port = free_port(22000 + os.getpid() % 1000)
    line = [sys.executable, "-m", "flashlab.cli", "lab", "--no-browser", "--port", str(port), "--work", str(tmp_path / "work")]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execve(line[0], line, private(tmp_path))
    overdue = threading.Timer(120, lambda: os.killpg(child, 9))
    overdue.start()
    said = b""

    def until(text):
        nonlocal said
        while text not in said:
            said += os.read(terminal, 65536)
        said = said.split(text, 1)[1]

    try:
        until(b"?token=")
        while not port_fault(port):  # it prints its address before it listens
            time.sleep(0.1)
        os.write(terminal, b"\x03")
        until(b"Shut down this Jupyter server (y/[n])?")
        time.sleep(1)  # subprocess.call would have killed it after a quarter of a second
        os.write(terminal, b"n\n")
        until(b"resuming operation")
        assert port_fault(port) and list((tmp_path / "r").glob("jpserver-*.json"))
        time.sleep(0.5)  # it hears ^C as a question again once its loop has turned, as it has when it answers
        urllib.request.urlopen(f"http://127.0.0.1:{port}/login", timeout=30).close()
        os.write(terminal, b"\x03")
        until(b"Shut down this Jupyter server (y/[n])?")
        os.write(terminal, b"y\n")
        with contextlib.suppress(OSError):  # how Linux ends a terminal that nobody writes to any more
            while os.read(terminal, 65536):
                pass
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not port_fault(port) and not list((tmp_path / "r").glob("jpserver-*"))
    finally:
        overdue.cancel()
        with contextlib.suppress(ProcessLookupError):  # the usual case: everything has ended
            os.killpg(child, 9)
        os.close(terminal)


def test_a_real_jupyterlab_opens_lesson_00_keeps_its_token_and_asks_nothing(tmp_path):
    pytest.importorskip("jupyterlab")
    port = free_port(21000 + os.getpid() % 1000)
    line = [sys.executable, "-m", "flashlab.cli", "lab", "--no-browser", "--port", str(port), "--work", str(tmp_path / "work")]
    server = subprocess.Popen(
        line, cwd=ROOT, env=private(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    overdue = threading.Timer(120, lambda: os.killpg(server.pid, 9))
    overdue.start()
    try:
        said, address = [], None
        while address is None:
            said.append(server.stdout.readline())
            assert said[-1], "".join(said)
            address = re.search(rf"http://127\.0\.0\.1:{port}/lab/tree/notebooks/00_start_here\.ipynb\?token=\w{{20,}}", said[-1])
        assert any(line.startswith(("No GPU: ", "GPU: ", "No usable GPU: ", "TRITON_INTERPRET")) for line in said)
        while not port_fault(port) and server.poll() is None:  # it prints its address before it listens
            time.sleep(0.1)
        with urllib.request.urlopen(address[0]) as page:
            settings = json.loads(re.search(r'<script id="jupyter-config-data"[^>]*>(.*?)</script>', page.read().decode(), re.S)[1])
        assert "@jupyterlab/apputils-extension:announcements" in settings["disabledExtensions"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/contents")
        server.terminate()  # flashlab alone is told to end, and takes JupyterLab with it
        server.wait(timeout=30)
        assert not port_fault(port)
    finally:
        overdue.cancel()
        with contextlib.suppress(ProcessLookupError):  # the usual case: both have ended
            os.killpg(server.pid, 15)
        server.stdout.close()
        server.wait(timeout=30)
