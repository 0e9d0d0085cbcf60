"""What holds for every test: flashlab decides where kernels run before anything imports triton; GPU tests need a GPU.

Where a machine has several GPUs, each of pytest-xdist's workers begins with another: that one is its device 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def turned(worker: str, uuids: list[str]) -> str:
    """CUDA_VISIBLE_DEVICES for a worker, such as "gw3": the GPUs, turned by the worker's number.

    >>> turned("gw3", ["GPU-a", "GPU-b"]), turned("gw1", ["GPU-a", "GPU-b", "GPU-c"])
    ('GPU-b,GPU-a', 'GPU-b,GPU-c,GPU-a')
    """
    start = int(worker.removeprefix("gw")) % len(uuids)
    return ",".join(uuids[start:] + uuids[:start])


def usable_gpus() -> list[str]:
    """Asked in another process: CUDA reads CUDA_VISIBLE_DEVICES once, when the driver is asked first.

    Not counted in /dev: of the GPUs there a container or a scheduler may let us use a few, and a number too high hides all.
    """
    code = "from flashlab.driver import gpus; print(*(uuid for _, uuid in gpus()))"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout.split()


worker = os.environ.get("PYTEST_XDIST_WORKER")
if worker and any(Path("/dev").glob("nvidia[0-9]*")):  # before flashlab is imported, which asks the driver
    uuids = usable_gpus()
    if len(uuids) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = turned(worker, uuids)

from flashlab import runtime  # noqa: E402


def pytest_collection_modifyitems(items):
    if runtime.device() == "cpu":
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=runtime.describe()))


LONG = tuple(f"tests/kernels/test_{name}.py" for name in ("attention", "backward", "flash1", "forward", "mask_tiles", "unfused"))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which need not be there
def pytest_xdist_make_scheduler(config, log):
    """A file's tests and a notebook's cells stay in one process, but those of the longest files, which share nothing, may go anywhere:
    where there are many processes, one such file would take as long as all else."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return nodeid if nodeid.startswith(LONG) else super()._split_scope(nodeid)

    return Scopes(config, log)
