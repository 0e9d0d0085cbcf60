"""What holds for every test: flashlab decides where kernels run before anything imports triton; GPU tests need a GPU."""

from __future__ import annotations

import pytest

from flashlab import runtime


def pytest_collection_modifyitems(items):
    if runtime.device() == "cpu":
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=runtime.describe()))
