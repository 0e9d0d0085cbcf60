"""JupyterLab, opened on lesson 00 of your copies.

The server listens on this machine only and keeps JupyterLab's own token. jupyter_config/labconfig/page_config.json turns
its announcements off: the news prompt (which --LabApp.news_url=None leaves on in 4.6) and the look-ups of new versions.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from flashlab import runtime
from flashlab.copies import find_course, sync, work_folder
from flashlab.errors import error
from flashlab.killed import when_killed

FIRST_LESSON = "notebooks/00_start_here.ipynb"
CONFIG = Path(__file__).with_name("jupyter_config")


def port_fault(port: int) -> int:
    """Why no server of yours can listen on `port` on this machine, as an errno; 0 if one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as problem:
            return problem.errno
    return 0


def free_port(after: int) -> int | None:
    """The first free port above `after`, or None."""
    return next((port for port in range(after + 1, 65536) if not port_fault(port)), None)


def command(root: Path, *, port: int | None = None, browser: bool = True, extra: tuple[str, ...] = ()) -> list[str]:
    """The JupyterLab command for `root`; without a port JupyterLab finds one. Raises OSError if `port` cannot be used."""
    line = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}"]
    if (root / FIRST_LESSON).exists():
        line.append(f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}")
    if port is not None:
        fault = port_fault(port)
        if fault == errno.EACCES:
            raise error("port_closed", given=port)
        if fault:
            free = free_port(port)
            raise error("port_taken", given=port, instead=f"pass --port {free}" if free else "leave --port out")
        line += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        line.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # as in most containers; JupyterLab would refuse
        line.append("--allow-root")
    return [*line, *extra]


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The server's environment: our settings before those that were there, and `flashlab` on the PATH of its terminals and cells."""
    ours = {"JUPYTER_CONFIG_PATH": str(CONFIG), "PATH": str(Path(sys.executable).parent)}
    return {**inherited, **{name: os.pathsep.join(filter(None, [path, inherited.get(name)])) for name, path in ours.items()}}


def lab(
    *,
    port: int | None = None,
    browser: bool = True,
    in_place: bool = False,
    work: Path | None = None,
    extra: tuple[str, ...] = (),
) -> int:
    """Bring the copies up to date, say what happened, and run JupyterLab until it stops; returns its exit status.

    `in_place` opens the originals instead of copies; `work` (default: copies.work_folder) is where copies go.
    Raises FileNotFoundError without a course, RuntimeError without JupyterLab, OSError for a port that cannot be used.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise error("no_jupyterlab", python=sys.executable)
    course = find_course()
    root = course if in_place else work_folder(course, work)
    for sentence in [] if in_place else sync(course, root):
        print(sentence)
    line = command(root, port=port, browser=browser, extra=extra)
    runtime.announce()
    sys.stdout.flush()
    server = subprocess.Popen(line, env=environment(os.environ))
    with when_killed(lambda *_: server.terminate()):  # JupyterLab would go on without us
        while True:
            try:
                return server.wait()
            except KeyboardInterrupt:  # JupyterLab got it too and asks whether to shut down; subprocess.call would kill it
                pass
