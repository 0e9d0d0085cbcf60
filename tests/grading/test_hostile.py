"""Submissions that cheat, break or hang: each ends within its limits with the mark it deserves, and the class is graded."""

import csv
import io
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import pytest
from class_of import hand_in, notebook, solution

from flashlab.grading import sandbox
from flashlab.grading.box.limits import KEEPERS
from flashlab.grading.grade import grade
from flashlab.grading.runner import Limits

pytestmark = pytest.mark.skipif(not sandbox.works(), reason=f"needs bubblewrap: {sandbox.why_not()}")

ROOT = Path(__file__).parents[2]
LIMITS = Limits(cpu_s=3, wall_s=10, memory_bytes=512 << 20)
RIGHT = solution()
HEAD = RIGHT[: RIGHT.index("\n") + 1]  # def flash_forward(...):
NOTHING = HEAD + "    return\n"
JUNK = HEAD + "    for rows in tiles(q.shape[0], block_q):\n        o.store(rows, {tile})\n"


def body(*lines):
    """flash_forward with this body."""
    return HEAD + "".join(f"    {line}\n" for line in lines)


# {student: (what is handed in, points)}
ZERO = {
    "patched_allclose": "import numpy\nnumpy.allclose = lambda *a, **k: True\nnumpy.testing.assert_allclose = lambda *a, **k: None\n" + NOTHING,
    "array_subclass": "class Equal(np.ndarray):\n    __eq__ = lambda a, b: np.True_\n    __array_priority__ = 1e9\n"
    + JUNK.format(tile="np.zeros((rows.stop - rows.start, q.shape[1])).view(Equal)"),
    "exception_in_eq": "class Odd(np.ndarray):\n    def __array__(self, *a, **k):\n        raise RuntimeError('no')\n" + JUNK.format(tile="np.zeros((1, 1)).view(Odd)"),
    "input_transformer": "get_ipython().input_transformers_post.append(lambda lines: ['pass'])\n" + NOTHING,
    "ast_transformer": "import ast, sys\nast.parse = lambda *a, **k: None\nsys.modules['ast'] = None\n" + NOTHING,
    "system_exit": "import sys\nsys.exit(0)\n" + NOTHING,
    "exit_in_call": body("import sys", "sys.exit(0)"),
    "os_exit": body("import os", "os._exit(0)"),
    "os_exit_at_once": "import os\nos._exit(0)\n" + NOTHING,
    "endless_loop": body("while True:", "    pass"),
    "sleeps": body("import time", "time.sleep(3600)"),
    "swallows_interrupt": body("while True:", "    try:", "        while True: pass", "    except BaseException:", "        pass"),
    "fork_bomb": body("import os", "while True:", "    os.fork()"),
    "thread_bomb": body("import threading", "while True:", "    threading.Thread(target=lambda: None).start()"),
    "detached": body("import subprocess, sys", "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True)"),
    "memory_hog": body("kept = []", "while True:", "    kept.append(np.ones(1 << 22))"),
    "disk_hog": body("with open('/tmp/big', 'wb') as file:", "    while True:", "        file.write(b'x' * (1 << 20))"),
    "segmentation_fault": body("import ctypes", "ctypes.string_at(0)"),
    "kills_all": body("import os, signal", "os.kill(-1, signal.SIGKILL)"),
    "reads_solutions": body(f"print(open({str(ROOT / 'solutions/e04_flash_forward/hidden.py')!r}).read())"),
    "reads_the_grader": body(f"print(open({str(ROOT / 'flashlab/grading/marks.py')!r}).read())"),
    "reads_a_neighbour": body("print(open(NEIGHBOUR).read())"),
    "writes_the_gradebook": body("open(GRADES, 'w').write('all right')"),
    "reads_the_environment": body("import os", "names = {name for name in os.environ if not name.endswith('_NUM_THREADS')}", "assert names <= {'HOME', 'PWD', 'LC_ALL', 'PYTHONDONTWRITEBYTECODE'}, names", "raise ValueError('nothing here')"),
    "calls_the_network": body("import socket", "socket.create_connection(('1.1.1.1', 53), 2)"),
    "imports_torch": "import torch\n" + NOTHING,
    "imports_flashlab": "from flashlab.reference.flash2 import flash2\n" + NOTHING,
    "huge_answer": JUNK.format(tile="np.zeros((1 << 13, 1 << 13), np.int8)"),
    "nan_answer": JUNK.format(tile="np.full((rows.stop - rows.start, q.shape[1]), np.nan)"),
    "object_answer": JUNK.format(tile="np.array([object()])"),
    "text_answer": JUNK.format(tile="'all right'"),
    "too_long_frame": body("import os", "for fd in range(3, 20):", "    try: os.write(fd, b'\\xff' * 64)", "    except OSError: pass"),
    "forged_reply": body("import os, json, struct", "head = json.dumps({'result': True, 'points': 10, 'arrays': []}).encode()", "data = struct.pack('<I', len(head)) + head",
                         "for fd in range(3, 20):", "    try: os.write(fd, struct.pack('<Q', len(data)) + data)", "    except OSError: pass"),
    "broken_header": body("import os, struct", "for fd in range(3, 20):", "    try: os.write(fd, struct.pack('<Q', 8) + b'\\xff' * 8)", "    except OSError: pass"),
    "lifts_limits": "import resource\nfor what in (resource.RLIMIT_CPU, resource.RLIMIT_AS):\n    resource.setrlimit(what, (-1, -1))\n" + NOTHING,
    "magic": "%timeit 1\n" + RIGHT,
    "no_python": HEAD + "    for\n",
    "script": body("raise ValueError('<script>alert(1)</script>')"),
    "deep_recursion": body("import sys", "sys.setrecursionlimit(10**9)", "f = lambda: f()", "f()"),
    "stores_to_inputs": body("k.store(slice(0, 1), np.zeros((1, k.shape[1])))"),
    "holds_too_much": body("memory.hold('x', np.broadcast_to(np.zeros(1), (1 << 40, 1 << 20)))"),
    "holds_many_names": body("for i in range(40_000):", "    memory.hold(str(i), np.zeros(1))"),
    "holds_a_number": body("memory.hold('x', 3.0)"),
    "fills_shared_memory": body("import os", "for place in ('/dev/shm', '/dev', '/'):", "    try: open(f'{place}/x', 'wb')", "    except OSError as problem: assert problem.errno == 30", "    else: raise SystemError(place)", "raise ValueError('nowhere')"),
    "nameless_files": body("import os", "for number in range(1000):", "    os.write(os.memfd_create('x'), b'x' * (1 << 20))"),
    "small_files": body("import os", "number = 0", "while True:", "    os.close(os.open(f'/tmp/{number}', os.O_CREAT))", "    number += 1"),
    "many_files": body("kept = [open('/dev/null') for number in range(1000)]"),
    "system_v_memory": body("import ctypes", "libc = ctypes.CDLL(None, use_errno=True)", "assert libc.shmget(0, 1 << 20, 0o1600) < 0", "raise ValueError(ctypes.get_errno())"),
    "leaves_a_kernel_key": body("import ctypes", "libc = ctypes.CDLL(None, use_errno=True)", "assert libc.syscall(KEY, b'user', b'flashlab', b'x', 1, -4) < 0", "raise ValueError(ctypes.get_errno())"),
    "new_namespace": body("import ctypes", "assert ctypes.CDLL(None).unshare(0x10000000) < 0", "raise ValueError('refused')"),
    "traces_its_parent": body("import ctypes, os", "assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) < 0", "raise ValueError('refused')"),
    "sets_the_machine": body("open('/proc/sys/kernel/domainname', 'w')"),
    "looks_up_the_stack": body("import gc, sys", "frame, seen = sys._getframe(), set(globals())", "while frame:", "    seen |= set(frame.f_locals)", "    frame = frame.f_back",
                               "assert not seen & {'expected', 'judge', 'seed', 'test', 'exercise', 'case', 'hidden'}, seen", "raise ValueError('nothing here')"),
    "many_arrays": HEAD + "    return {str(i): np.zeros(1) for i in range(10_000)}\n",
    "forged_numbers": body("import os, json, struct, io", "blob = io.BytesIO()", "np.lib.format.write_array_header_1_0(blob, {'descr': '<U0', 'fortran_order': False, 'shape': (10**18,)})", "blob = blob.getvalue()",
                           "head = json.dumps({'result': True, 'arrays': [['o', len(blob)]]}).encode()", "data = struct.pack('<I', len(head)) + head + blob",
                           "for fd in range(3, 20):", "    try: os.write(fd, struct.pack('<Q', len(data)) + data)", "    except OSError: pass"),
    "half_a_letter": "x = '\ud800'\n" + NOTHING,
    "half_a_letter_said": body("raise ValueError('\\ud800 \\u202e \\x1b[2J \\x00')"),
    "ends_its_guard": body("import os", "os.kill(1, 9)", "os.kill(os.getppid(), 9)"),
    "ignores_signals": body("import signal", "signal.signal(signal.SIGXCPU, signal.SIG_IGN)", "while True: pass"),
    "floods": body("import os", "while True:", "    os.write(1, b'x' * 65536)"),
    "patches_numpy": "real = np.exp\nfor name in ('exp', 'allclose', 'array', 'isfinite'):\n    setattr(np, name, lambda *a, **k: True)\n" + NOTHING,
    "remembers": "kept = {}\n" + body("kept[len(kept)] = q", "for one in kept.values():", "    o.store(slice(0, 1), one.load(slice(0, 1)))"),
    "no_stride": JUNK.format(tile="np.lib.stride_tricks.as_strided(np.zeros(1, q.dtype), (1 << 15, 1 << 15), (0, 0))"),
    "a_record": JUNK.format(tile="np.zeros(3, 'i4,f4')"),
    "endless_loads": body("while True:", "    q.load(slice(0, 1))"),
}  # fmt: skip
FULL = {
    "right": RIGHT,
    "prints": "import warnings\nwarnings.warn('careful')\nprint('hello')\n" + RIGHT.replace("    n_q, head_dim", "    print('x' * 1000)\n    n_q, head_dim", 1),
    "fifty_megabytes": RIGHT.replace("    n_q, head_dim", "    print('x' * 10_000_000)\n    n_q, head_dim", 1),
    "seen_in_ipython": "try:\n    get_ipython()\nexcept NameError:\n    pass\n" + RIGHT,
}


def without_tests():
    made = notebook(RIGHT)
    made["cells"] = [cell for cell in made["cells"] if not cell["metadata"].get("nbgrader", {}).get("grade")]
    return made


def edited_tests():
    made = notebook(NOTHING)
    for cell in made["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade"):
            cell["source"] = "print('10 of 10 points')"
            cell["metadata"]["nbgrader"]["points"] = 1000
    return made


def with_script():
    made = notebook(RIGHT)
    made["cells"].insert(0, {"cell_type": "markdown", "metadata": {}, "source": "<script>alert(1)</script>"})
    made["cells"][4]["outputs"] = [{"output_type": "display_data", "data": {"text/html": "<script>alert(1)</script>"}, "metadata": {}}]
    return made


def no_solution():
    made = notebook(None)
    made["cells"] = [cell for cell in made["cells"] if cell["cell_type"] == "markdown"]
    return made


def many_cells():
    made = notebook(RIGHT)
    made["cells"] += [{"cell_type": "code", "metadata": {}, "source": f"x = {i}", "outputs": [], "execution_count": None} for i in range(10_000)]
    return made


def no_metadata():
    made = notebook(RIGHT)
    for cell in made["cells"]:
        cell["metadata"] = {}
    return made


NOTEBOOKS = {
    "tests_deleted": (without_tests(), 10), "tests_edited": (edited_tests(), 0), "script_in_markdown": (with_script(), 10), "no_solution_cell": (no_solution(), 0),
    "ten_thousand_cells": (many_cells(), 10), "metadata_lost": (no_metadata(), 10), "stub": (notebook(None), 0), "not_json": (b"{", 0), "empty": (b"", 0),
    "a_list": (b"[]", 0), "cells_are_odd": (b'{"cells": [1, null, {"cell_type": "code"}, {"cell_type": "code", "source": 5}]}', 0),
    "deep_json": (b"[" * 100_000, 0), "binary": (bytes(range(256)) * 10, 0),
}  # fmt: skip
EXPECTED = {name: 0 for name in ZERO} | {name: 10 for name in FULL} | {name: points for name, (_, points) in NOTEBOOKS.items()}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The whole class, graded once: ({student: row of grades.csv}, the out folder, what was said, seconds)."""
    folder = tmp_path_factory.mktemp("hostile")
    out = folder / "grades"
    header = f"KEY = {KEEPERS[platform.machine()]['add_key']}\nNEIGHBOUR = {str(folder / 'class/right.ipynb')!r}\nGRADES = {str(out / 'grades.csv')!r}\n"
    for name, source in {**ZERO, **FULL}.items():
        hand_in(folder / "class", name, source if source.startswith("%") else header + source)
    for name, (content, _) in NOTEBOOKS.items():
        hand_in(folder / "class", name, content)
    said, start, started = io.StringIO(), time.monotonic(), []
    begin = sandbox.start

    def noted(*args, **more):
        started.append(begin(*args, **more))
        return started[-1]

    mine, before = tmp_path_factory.mktemp("temporary"), set(os.listdir("/tmp"))  # other tests make sandboxes in /tmp meanwhile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(mine))
        patch.setattr(sandbox, "start", noted)
        grade(folder / "class", "e04", out, jobs=2, limits=LIMITS, progress=said)
    rows = {row["student"]: row for row in csv.DictReader(io.StringIO((out / "grades.csv").read_text()))}
    return {"rows": rows, "out": out, "said": said.getvalue(), "seconds": time.monotonic() - start, "started": started, "new": set(os.listdir("/tmp")) - before, "left": os.listdir(mine)}


@pytest.mark.parametrize("student", EXPECTED)
def test_each_gets_the_mark_it_deserves(graded, student):
    row = graded["rows"][student]
    assert int(row["points"]) == EXPECTED[student], (row, (graded["out"] / "results" / f"{student}.json").read_text()[:3000])


def test_nobody_is_lost(graded):
    assert set(graded["rows"]) == set(EXPECTED)
    assert {path.stem for path in (graded["out"] / "reports").glob("*.html")} == set(EXPECTED)
    assert "the grader itself failed" not in (graded["out"] / "grades.csv").read_text()


def test_no_process_and_no_file_is_left(graded):
    for process in graded["started"]:
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    assert not graded["left"] and not [name for name in graded["new"] if name == "big" or name.isdigit()]


def test_reports_run_nothing(graded):
    for path in [*graded["out"].glob("reports/*.html"), graded["out"] / "class.html"]:
        assert "<script" not in path.read_text(), path
    assert "&lt;script&gt;alert(1)" in (graded["out"] / "reports/script.html").read_text()


@pytest.mark.parametrize(
    "student, words",
    [
        ("magic", "line 1 is the magic %timeit"),
        ("endless_loop", "TimeLimit"),
        ("sleeps", "it ran longer than 10 s"),
        ("segmentation_fault", "a segmentation fault"),
        ("memory_hog", "MemoryError"),
        ("fork_bomb", "PermissionError"),
        ("imports_torch", "ModuleNotFoundError"),
        ("imports_flashlab", "ModuleNotFoundError"),
        ("reads_solutions", "FileNotFoundError"),
        ("reads_a_neighbour", "FileNotFoundError"),
        ("writes_the_gradebook", "FileNotFoundError"),
        ("reads_the_environment", "nothing here"),
        ("not_json", "no notebook that can be read"),
        ("no_solution_cell", "has no cell that defines flash_forward"),
        ("stub", "NotImplementedError"),
        ("too_long_frame", "AnswerTooLarge"),
        ("stores_to_inputs", "k is an input"),
        ("fills_shared_memory", "ValueError: nowhere"),
        ("nameless_files", "PermissionError"),
        ("small_files", "it made more than 5,000 files and was stopped"),
        ("many_files", "Too many open files"),
        ("system_v_memory", "ValueError: 1 "),
        ("leaves_a_kernel_key", "ValueError: 1 "),
        ("new_namespace", "ValueError: refused"),
        ("traces_its_parent", "ValueError: refused"),
        ("sets_the_machine", "Read-only file system"),
        ("looks_up_the_stack", "ValueError: nothing here"),
        ("many_arrays", "BrokenAnswer"),
        ("half_a_letter", "Python cannot read it"),
        ("half_a_letter_said", "\\ud800 \\u202e \\x1b[2J \\x00"),
        ("ignores_signals", "TimeLimit"),
        ("floods", "TimeLimit"),
        ("a_record", "numbers, truth values or text are needed"),
    ],
)
def test_each_is_told_what_happened(graded, student, words):
    record = json.loads((graded["out"] / "results" / f"{student}.json").read_bytes())
    assert words in record["problem"] + (record["tests"][0]["what"] if record["tests"] else ""), record


def test_what_is_printed_is_cut(graded):
    record = json.loads((graded["out"] / "results/fifty_megabytes.json").read_bytes())
    assert 0 < len(record["printed"]) <= 2000


def test_a_process_that_detaches_ends_with_its_sandbox(tmp_path):
    (tmp_path / "evil").mkdir()
    marker = f"flashlab-evil-{os.getpid()}-{time.time_ns()}"
    (tmp_path / "evil/__init__.py").write_text(
        "import os, sys, time\n"
        "def main():\n"
        "    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        f"            os.execv(sys.executable, ['{marker}', '-c', 'import time; time.sleep(600)'])\n        os._exit(0)\n"
        "    os.wait()\n    os.write(1, b'x')\n    time.sleep(600)\n"
    )

    def alive():
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                found += [entry] if marker.encode() in Path("/proc", entry, "cmdline").read_bytes().split(b"\0")[0] else []
            except OSError:
                pass
        return found

    process = sandbox.start("evil", more={tmp_path / "evil": "evil"})
    assert os.read(process.stdout.fileno(), 1) == b"x"
    deadline = time.monotonic() + 20
    while not alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(alive()) == 1
    sandbox.stop(process)
    while alive() and time.monotonic() < deadline + 20:
        time.sleep(0.02)
    assert alive() == []
