"""What `kill` (SIGTERM) does to a command of flashlab's, so that what it started does not go on without it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def when_killed(do: Callable[..., object]) -> Iterator[None]:
    """`do`, a signal handler, answers `kill` inside the with statement. Only a main thread may take a signal: elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, do)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
