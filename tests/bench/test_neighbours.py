"""neighbours.py: nvidia-smi's lines become names, and its silence is no fault."""

import getpass
import os
import subprocess
from types import SimpleNamespace

import pytest

from flashlab.bench import neighbours
from flashlab.bench.neighbours import Neighbour, others, parsed, sentence

LINES = f"""GPU-a, {os.getpid()}, 512, /usr/bin/python3
GPU-a, 99999999, 2048, /opt/an app, with a comma/train
GPU-b, 5, 100, other
GPU-a, 6, [N/A], [Not Found]
No running processes found
"""


def test_lines_are_read():
    mine, unseen, unknown = parsed(LINES, "GPU-a")
    assert mine == (os.getpid(), "python3", getpass.getuser(), 512 * 2**20)
    assert unseen == (99999999, "train", "", 2048 * 2**20)
    assert (unknown.program, unknown.bytes) == ("[Not Found]", None)


def test_this_process_is_no_neighbour(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=LINES))
    assert [one.pid for one in others("GPU-a")] == [99999999, 6]


@pytest.mark.parametrize("fault", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 1), subprocess.CalledProcessError(9, "nvidia-smi")])
def test_without_nvidia_smi_there_are_none(monkeypatch, fault):
    def fails(*_, **__):
        raise fault

    monkeypatch.setattr(subprocess, "run", fails)
    assert others("GPU-a") == []


def test_the_sentence_names_them():
    found = [Neighbour(7, "python3", "alice", 2_500_000_000), Neighbour(8, "train", "", None)]
    assert sentence(found) == (
        "Also on this GPU: python3 (process 7 of alice, 2.5 GB), train (process 8). Timings taken beside other work are slower and less"
        " steady."
    )


def test_the_query_is_one_that_nvidia_smi_knows():
    assert neighbours.QUERY[0] == "nvidia-smi" and neighbours.QUERY[1].startswith("--query-compute-apps=gpu_uuid,pid,")
