"""Who else computes on a GPU, by nvidia-smi: a timing taken beside another process is not yours alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

QUERY = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits"]
TIMEOUT_S = 20
WAITING = "Waiting for the GPU:"  # how turn.py begins to tell a place in the queue; here, where torch is not needed


class Neighbour(NamedTuple):
    """A process on the GPU: its number, its program and owner as far as this user may see them, and its memory in bytes."""

    pid: int
    program: str
    owner: str
    bytes: int | None


def others(uuid: str) -> list[Neighbour]:
    """The processes on the GPU of this uuid, without this one; empty where nvidia-smi does not answer."""
    try:
        text = subprocess.run(QUERY, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [one for one in parsed(text, uuid) if one.pid != os.getpid()]


def parsed(text: str, uuid: str) -> list[Neighbour]:
    """nvidia-smi's lines of one GPU. Its memory column is MiB, or words where the driver does not tell."""
    found = []
    for line in text.splitlines():
        columns = [column.strip() for column in line.split(",", 3)]
        if len(columns) == 4 and columns[0] == uuid and columns[1].isdecimal():
            memory = int(columns[2]) * 2**20 if columns[2].isdecimal() else None
            found.append(Neighbour(int(columns[1]), Path(columns[3]).name, _owner(int(columns[1])), memory))
    return found


def sentence(found: list[Neighbour]) -> str:
    """All of them in one sentence."""
    names = ", ".join(
        f"{one.program} (process {one.pid}{f' of {one.owner}' if one.owner else ''}{f', {one.bytes / 1e9:.1f} GB' if one.bytes else ''})"
        for one in found
    )
    return f"Also on this GPU: {names}. Timings taken beside other work are slower and less steady."


def _owner(pid: int) -> str:
    """The user's name, "" where the process cannot be seen (another container, or a system without /proc)."""
    try:
        return Path(f"/proc/{pid}").owner()
    except (OSError, KeyError):
        return ""
