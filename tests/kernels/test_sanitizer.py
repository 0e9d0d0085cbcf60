"""compute-sanitizer finds nothing: no access outside a tensor, no race in shared memory, forward and both backwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sanitized

SCRIPT = Path(sanitized.__file__)
PLACES = (os.environ.get("CUDA_HOME", "/usr/local/cuda"), "/usr/local/cuda", "/opt/cuda")
TOOL = shutil.which("compute-sanitizer") or next((str(path) for path in (Path(p, "bin", "compute-sanitizer") for p in PLACES) if path.exists()), None)
FOUND_ERRORS = 9  # the exit status that we ask for


def under(tool, *arguments):
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [TOOL, "--tool", tool, "--error-exitcode", str(FOUND_ERRORS), sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)


needs_tool = pytest.mark.skipif(TOOL is None, reason="compute-sanitizer is not installed; it is part of the CUDA toolkit")


@pytest.mark.gpu
@needs_tool
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_kernels_are_clean(tool):
    done = under(tool)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "COMPUTE-SANITIZER" in done.stdout + done.stderr


@pytest.mark.gpu
@needs_tool
def test_the_tool_would_notice():
    done = under("memcheck", "outside")
    assert done.returncode == FOUND_ERRORS and "Invalid __global__ read" in done.stdout, (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize("given", sanitized.PROBLEMS, ids=["descriptors", "pointers", "float32", "head_dim_128", "head_dim_256", "strided"])
def test_what_it_watches_runs_by_itself(given):
    sanitized.run(*given)
