"""A class of 200 is marked within ten minutes and 2 GB on two cores: measured on a part of it, for time grows with the class."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from class_of import hand_in, solution
from exercise_cells import mutated

from flashlab.grading import sandbox

ROOT = Path(__file__).parents[2]
STUDENTS, CLASS = 16, 200
MOST_S, MOST_BYTES = 600, 2 << 30

# Marks the class in a process of its own, then says its own peak memory and that of its largest child, in KiB. Its own is read
# from /proc: getrusage would give the peak of the process that started it, if that was larger.
RUN = (
    "import re, resource, sys; from flashlab.cli import main; status = main(sys.argv[1:]);"
    " own = re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1];"
    " print('peak', own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, status)"
)


@pytest.mark.skipif(not sandbox.works(), reason=f"needs bubblewrap: {sandbox.why_not()}")
def test_a_class_takes_minutes(tmp_path):
    wrong = mutated("e04", [("scale * (q_tile", "(q_tile")])["flash_forward"]
    for number in range(STUDENTS):
        hand_in(tmp_path / "in", f"s{number:03}", wrong if number % 4 == 0 else solution())
    command = [sys.executable, "-c", RUN, "grade", str(tmp_path / "in"), "--exercise", "e04", "--out", str(tmp_path / "out"), "--jobs", "2"]
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    took = time.monotonic() - start
    ours, child, status = map(int, re.search(r"peak (\d+) (\d+) (\d)", done.stdout).groups())
    assert status == 0 and (tmp_path / "out/grades.csv").read_text().count("\n") == STUDENTS + 1
    assert took * CLASS / STUDENTS < MOST_S, f"{took:.0f} s for {STUDENTS}"
    assert (ours + 2 * child) * 1024 < MOST_BYTES
