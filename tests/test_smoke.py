"""smoke.py: one small kernel really runs, in the mode that runtime chose."""

import subprocess
import sys
from pathlib import Path

import pytest

from flashlab import runtime

pytest.importorskip("triton", reason="Triton has no wheel for this system")


def test_the_kernel_runs_and_names_its_mode():
    done = subprocess.run(
        [sys.executable, "-m", "flashlab.smoke"], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert (done.stdout.strip(), done.returncode) == (runtime.mode(), 0), done.stderr


def test_wrong_numbers_are_an_error(monkeypatch):
    from flashlab import smoke

    class Nothing:
        def __getitem__(self, grid):
            return lambda *arguments, **options: None

    monkeypatch.setattr(smoke, "add_one_kernel", Nothing())
    with pytest.raises(RuntimeError, match=r"^a Triton kernel that adds 1 to 0\.\.7 gave \[0\.0, 1\.0"):
        smoke.smoke()
