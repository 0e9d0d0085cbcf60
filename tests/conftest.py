"""What holds for every test: flashlab decides where kernels run before anything imports triton; GPU tests need a GPU.

Where a machine has several GPUs, each of pytest-xdist's workers begins with another: that one is its device 0.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def turned(worker: str, visible: str, gpus: int) -> str:
    """CUDA_VISIBLE_DEVICES for a worker, such as "gw3": what it may see, turned by the worker's number.

    >>> turned("gw3", visible="", gpus=2), turned("gw1", visible="4,5,6", gpus=8), turned("gw0", visible="", gpus=0)
    ('1,0', '5,6,4', '')
    """
    seen = visible.split(",") if visible else [str(gpu) for gpu in range(gpus)]
    start = int(worker.removeprefix("gw")) % len(seen) if seen else 0
    return ",".join(seen[start:] + seen[:start])


worker, visible = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("CUDA_VISIBLE_DEVICES")
gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
if worker and gpus and visible != "":  # before flashlab is imported: it asks the driver for its GPUs
    os.environ["CUDA_VISIBLE_DEVICES"] = turned(worker, visible or "", gpus)

from flashlab import runtime  # noqa: E402


def pytest_collection_modifyitems(items):
    if runtime.device() == "cpu":
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=runtime.describe()))
