"""One at a time on a shared GPU: a timed cell waits for its turn, says its place in the queue, and gives up after a stated wait.

Each process that waits leaves a ticket, a file of its own that it keeps locked; whoever has the oldest live ticket may take the
device's lock. Locks are the kernel's (flock): a process that dies leaves nothing behind that stops the others. They work
between users of one host, and between containers that share the folder.

    FLASHLAB_LOCKS     the folder (default: /tmp/flashlab-turns); where it cannot be written to, no turns are taken, said once
    FLASHLAB_WAIT_S    seconds to wait for a turn (default: 300)
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from flashlab.bench import neighbours
from flashlab.bench.memory import cap
from flashlab.errors import error

FOLDER, WAIT_S, POLL_S = "/tmp/flashlab-turns", 300.0, 0.2
OLD_TICKET_S = 60  # a dead ticket this old is cleared away
_held: dict[str, int] = {}  # how often this process has taken each device: a turn inside a turn is the same turn


def wait_s() -> float:
    """What FLASHLAB_WAIT_S says, in seconds. Raises ValueError for what is no number of at least 0."""
    given = os.environ.get("FLASHLAB_WAIT_S", "").strip() or str(WAIT_S)
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", given):
        raise error("wait_s", given=given)
    return float(given)


@contextmanager
def turn(device: str) -> Iterator[None]:
    """Have a GPU to yourself among flashlab's processes of this host; on a CPU nothing is done.

    Also caps this process's memory and, once, names the other processes on the GPU. Raises TimeoutError.
    """
    if torch.device(device).type != "cuda":
        yield
        return
    cap(device)
    name = _uuid(device)
    if name not in _held:
        _introduce(name)
    with taken(name):
        yield


@contextmanager
def taken(name: str, say=print) -> Iterator[None]:
    """Hold the lock called `name`; whoever waits is told who is before them. Raises TimeoutError after wait_s()."""
    if name in _held:
        _held[name] += 1
        try:
            yield
        finally:
            _held[name] -= 1
        return
    folder = _folder()
    with _queued(name, folder, say) if folder else _without_turns():
        _held[name] = 1
        try:
            yield
        finally:
            del _held[name]


@contextmanager
def _queued(name: str, folder: Path, say) -> Iterator[None]:
    import fcntl  # not at the top: Windows has none, and no turns to take

    limit = wait_s()
    ticket = folder / f"{name}.{time.time_ns():020}.{os.getpid()}.ticket"
    with _open(ticket) as mine, _open(folder / f"{name}.lock") as lock:
        fcntl.flock(mine, fcntl.LOCK_EX)
        start, told = time.monotonic(), None
        try:
            while True:
                ahead = len(_ahead(ticket, name))
                if not ahead and _try(lock):
                    break
                ahead = max(ahead, 1)  # who has the lock and no ticket any more is before us, too
                if time.monotonic() - start > limit:
                    raise error("gpu_busy", device=name, waited=limit, ahead=ahead)
                if told != ahead:
                    told = ahead
                    say(f"{neighbours.WAITING} {told} before you; after {limit:g} s this gives up.", flush=True)
                time.sleep(POLL_S)
            yield
        finally:
            ticket.unlink(missing_ok=True)
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough where a process forked meanwhile has the file open too


def _folder() -> Path | None:
    """Where the tickets are; None where this user cannot put files there (a read-only /tmp, another's private folder)."""
    folder = Path(os.environ.get("FLASHLAB_LOCKS") or FOLDER)
    with contextlib.suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()  # raises where it is there: then its owner has chosen who may write
        folder.chmod(0o1777)  # all may put files there, and nobody removes another's
    return folder if os.path.isdir(folder) and os.access(folder, os.R_OK | os.W_OK | os.X_OK) else None


@contextmanager
def _without_turns() -> Iterator[None]:
    _say_without(os.environ.get("FLASHLAB_LOCKS") or FOLDER)
    yield


@cache
def _say_without(folder: str) -> None:
    print(f"No turns are taken on the GPU: {folder} cannot be written to. Set FLASHLAB_LOCKS to a folder that everyone may write to.", flush=True)


def _open(path: Path):
    """The file, made if it is not there, for all users. Opened first without O_CREAT: Linux refuses that for others' files in /tmp."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            number = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            break
        with contextlib.suppress(FileExistsError):  # another was faster
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(number, 0o666)  # whatever the umask is
            break
    return os.fdopen(number, "r+b")


def _try(file, shared: bool = False) -> bool:
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ahead(ticket: Path, name: str) -> list[Path]:
    """The older tickets that a living process holds; names sort by time."""
    ahead = []
    for other in sorted(ticket.parent.glob(f"{name}.*.ticket")):
        if other.name >= ticket.name:
            continue
        with contextlib.suppress(FileNotFoundError, PermissionError), _open_existing(other) as file:
            if not _try(file, shared=True):
                ahead.append(other)
            elif time.time() - other.stat().st_mtime > OLD_TICKET_S:
                with contextlib.suppress(PermissionError):
                    other.unlink()
    return ahead


def _open_existing(path: Path):
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")


@cache
def _introduce(uuid: str) -> None:
    others = neighbours.others(uuid)
    if others:
        print(neighbours.sentence(others), flush=True)


def _uuid(device: str) -> str:
    """The GPU's own name, which CUDA_VISIBLE_DEVICES does not renumber."""
    return f"GPU-{torch.cuda.get_device_properties(torch.device(device)).uuid}"
