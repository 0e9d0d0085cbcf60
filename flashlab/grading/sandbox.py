"""Starts the child that runs a student's code: under bubblewrap where it works, and said aloud where it does not.

Inside there are Python's own files, NumPy and grading/box, all read-only, an empty folder to write in, no network, no
other process and no environment. Whether bwrap works is found by running it: Ubuntu 24.04's AppArmor and Docker's
default profile refuse it.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy

BOX = Path(__file__).parent / "box"
INSIDE = "/sandbox"
TMP_BYTES = 64 << 20  # of the only folder that can be written
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
START = "import sys; sys.path[:0] = {paths!r}; from {module} import main; main()"
# After the last mount: / and /dev lie in memory without a limit, and /proc/sys is the machine's where root grades.
SEALED = ["--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/"]
QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
FIX = (
    "On Debian and Ubuntu: sudo apt install bubblewrap. On Ubuntu 24.04 AppArmor must also let it make user namespaces:"
    " sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0. In Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
)


@functools.cache
def why_not() -> str:
    """Why bwrap cannot be used here, or "" if it can."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed"
    try:
        done = subprocess.run(_bwrap() + SEALED + [_python(), "-I", "-S", "-c", "print(6 * 7)"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"bwrap could not be run ({problem})"
    return "" if done.stdout == "42\n" else f"bwrap refuses: {done.stderr.strip()[:200] or done.returncode}"


def works() -> bool:
    """Whether children run in a sandbox here."""
    return not why_not()


def start(module: str = "box.child", more: dict[Path, str] | None = None, extra: dict[str, str] | None = None, *, bare: bool = False) -> subprocess.Popen:
    """A child that runs `module`'s main(), with its three streams as pipes.

    `more` maps what it may read besides NumPy to a name beside box; `extra` goes into its environment. `bare` leaves the sandbox away,
    and the environment as it is: for what needs a GPU.
    """
    site = Path(numpy.__file__).parents[1]
    seen = {BOX: "box"} | ({site / name: name for name in ("numpy", "numpy.libs")} if more is None else more)
    environment = (dict(os.environ) if bare else {}) | QUIET | (extra or {})
    if works() and not bare:
        folder, paths = None, [INSIDE, f"{INSIDE}/site"]
        mounts = [word for path, name in seen.items() if path.exists() for word in ("--ro-bind", str(path), f"{INSIDE}/{name}")]
        mounts += [word for name, value in environment.items() for word in ("--setenv", name, value)]
        command = _bwrap() + mounts + SEALED + [_python()]
    else:
        folder, paths = tempfile.mkdtemp(prefix="flashlab-"), [str(BOX.parent), str(BOX.parents[2]), str(site)]
        command = [sys.executable]
    process = subprocess.Popen(
        [*command, "-I", "-S", "-c", START.format(paths=paths, module=module)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder or "/", start_new_session=True,
        env=environment if bare else environment | {"HOME": folder} if folder else None,
    )  # fmt: skip
    process.folder = folder
    return process


def stop(process: subprocess.Popen) -> None:
    """End the child with all it started; in the sandbox its process namespace ends with it.

    bwrap's own child goes first, so that bwrap collects it; if that is not enough, or there is no bwrap, the whole group.
    """
    if process.folder is None:
        for child in _children(process.pid):
            _kill(os.kill, child)
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            _kill(os.killpg, process.pid)
    else:
        _kill(os.killpg, process.pid)
    for stream in (process.stdin, process.stdout, process.stderr):
        try:
            stream.close()
        except OSError:
            pass  # bytes that the child never took
    process.wait()
    if process.folder:
        shutil.rmtree(process.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    """The processes that `pid` started, where the system says so."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def cpu_seconds(process: subprocess.Popen) -> float:
    """CPU seconds of a child and of what it started, as far as the system says."""
    ticks, waiting = 0, [process.pid]
    while waiting:
        pid = waiting.pop()
        waiting += _children(pid)
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        except (OSError, ValueError):
            pass
    return ticks / os.sysconf("SC_CLK_TCK")


def files_made(process: subprocess.Popen) -> int:
    """Files and folders in the sandbox's /tmp, as far as the system says; each holds memory of its own, however empty it is."""
    for pid in _children(process.pid) if process.folder is None else ():
        try:
            tmp = os.statvfs(f"/proc/{pid}/root/tmp")
        except OSError:
            continue
        if tmp.f_blocks * tmp.f_frsize == TMP_BYTES:  # else it is still ours: the sandbox is being made
            return tmp.f_files - tmp.f_ffree
    return 0


def _kill(kill, pid: int) -> None:
    try:
        kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _python() -> str:
    """This Python itself, not the link in a virtual environment, whose packages stay outside."""
    return os.path.realpath(sys.executable)


def _bwrap() -> list[str]:
    """The bwrap command up to the program: the system read-only, the folders of third-party packages empty."""
    standard = Path(sysconfig.get_path("stdlib"))
    base = Path(sys.base_prefix)
    binds = [Path(path) for path in SYSTEM if Path(path).exists()]
    if base != Path("/usr"):
        binds += [base / "lib", Path(_python())]
    else:
        binds.append(Path(_python()))
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    for path in binds:
        words += ["--ro-bind", str(path), str(path)]
    for packages in sorted({standard / "site-packages", standard / "dist-packages", base / "lib/python3/dist-packages", Path("/usr/lib/python3/dist-packages")}):
        if packages.is_dir():
            words += ["--tmpfs", str(packages), "--remount-ro", str(packages)]
    return words + ["--proc", "/proc", "--dev", "/dev", "--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp", "--setenv", "HOME", "/tmp"]
