"""runner.py, serve.py and sandbox.py on functions of a line: what goes in, what comes out, and where no sandbox works."""

import sys

import numpy as np
import pytest

from flashlab.grading import runner, sandbox
from flashlab.grading.box import limits, wire
from flashlab.grading.exercise import Call
from flashlab.grading.runner import Limits, Session

QUICK = Limits(cpu_s=2, wall_s=10)


@pytest.fixture(params=["sandbox", "bare"])
def kind(request, monkeypatch):
    """With bwrap, and without it as on a student's laptop."""
    if request.param == "bare":
        monkeypatch.setattr(sandbox, "why_not", lambda: "bwrap is not installed")
    elif not sandbox.works():
        pytest.skip(sandbox.why_not())
    return request.param


def ask(source, call, function="f", **more):
    with Session([source], QUICK, **more) as session:
        return session.call(function, call)


@pytest.mark.parametrize(
    "expression, returns, expected",
    [
        ("n + 1", ("y",), {"y": 4}),
        ("n, 'memory'", ("bytes", "bound"), {"bytes": 3, "bound": "memory"}),
        ("{'a': x * 2, 'b': True}", (), {"a": [0, 2, 4], "b": True}),
        ("[x, x, x]", ("a",), {"a": [[0, 1, 2]] * 3}),
        ("x, n", ("a",), {"a": None}),
        ("None", ("a",), {}),
        ("x.T.view(type('Odd', (np.ndarray,), {}))", ("a",), {"a": [0, 1, 2]}),
    ],
)
def test_what_a_function_returns_comes_back_by_name(kind, expression, returns, expected):
    answer = ask(f"def f(x, n):\n    return {expression}", Call(arrays={"x": np.arange(3)}, options={"n": 3}, returns=returns))
    if expected == {"a": None}:  # two values of different shapes are no array
        assert answer.fault is not None
    else:
        assert answer.fault is None and {name: array.tolist() for name, array in answer.arrays.items()} == expected


def test_served_tiles_are_counted_and_stored(kind):
    source = "def f(q, o, memory):\n    for rows in tiles(5, 2):\n        o.store(rows, 2 * q.load(rows))"
    call = Call(served={"q": np.arange(10.0).reshape(5, 2), "o": np.zeros((5, 2))}, stores=("o",))
    answer = ask(source, call)
    assert answer.fault is None and np.array_equal(answer.arrays["o"], 2 * call.served["q"])
    assert answer.trace.bytes_by_tensor() == {("q", "load"): 80, ("o", "store"): 80}
    assert call.served["o"].sum() == 0, "the call itself is as it was"


@pytest.mark.parametrize(
    "line, kind_, words",
    [
        ("q.load(slice(4, 6))", "IndexError", "rows 4 to 6 of q were asked for, but it has 5 rows"),
        ("q.load(3)", "TypeError", "rows is 3; pass a slice"),
        ("q.load(slice(0, 4, 2))", "TypeError", "is no slice of whole rows"),
        ("o.store(slice(0, 2), np.zeros((3, 2)))", "ValueError", "a tile of shape (3, 2) was stored to o at a place of shape (2, 2)"),
        ("q.store(slice(0, 2), np.zeros((2, 2)))", "ValueError", "q is an input; store to o"),
        ("memory.hold('acc', np.zeros((100, 100)))", "MemoryError", "holding acc (100, 100) (80,000 bytes) needs 80,000 bytes of SRAM, but the budget is 100"),
        ("memory.release('acc')", "ValueError", ""),
        ("1 / 0", "ZeroDivisionError", "division by zero"),
    ],
)
def test_what_memory_refuses_is_raised_in_the_students_line(line, kind_, words):
    call = Call(served={"q": np.zeros((5, 2)), "o": np.zeros((5, 2))}, stores=("o",), sram_bytes=100)
    fault = ask(f"def f(q, o, memory):\n    {line}", call).fault
    assert fault.kind == kind_ and words in fault.text and (fault.line, fault.source) == (2, line)


def test_a_process_that_ended_is_not_started_again_for_the_next_call(kind):
    with Session(["import os\ndef f():\n    os._exit(3)"], QUICK) as session:
        assert [session.call("f", Call()).fault.text for _ in range(2)] == ["the process ended by itself (status 3)"] * 2


def test_a_cell_that_raises_leaves_the_others_working(kind):
    with Session(["raise ValueError('one')\ndef f(): return 1", "def g():\n    return 2"], QUICK) as session:
        assert str(session.call("f", Call()).fault) == "ValueError: one in line 1: raise ValueError('one')"
        assert session.call("g", Call(returns=("y",))).arrays["y"] == 2


def test_prints_are_kept_and_cut(kind):
    with Session(["import sys\ndef f():\n    print('a' * 20_000)\n    print('b', file=sys.stderr)\n    return 1"], QUICK) as session:
        assert session.call("f", Call(returns=("y",))).fault is None
        session.call("f", Call())
        assert session.printed[:3] == b"aaa" and len(session.printed) == 10_000


def test_memory_beyond_the_calls_own_limit_is_refused():
    source = "def f(n):\n    return np.ones(n, np.uint8).sum()"
    with Session([source], QUICK, memory_bytes=8 << 20) as session:
        assert session.call("f", Call(options={"n": 1 << 20}, returns=("y",))).arrays["y"] == 1 << 20
        assert "Unable to allocate 16.0 MiB" in session.call("f", Call(options={"n": 16 << 20})).fault.text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="seccomp is Linux's")
def test_no_process_starts_even_without_bwrap(monkeypatch):
    monkeypatch.setattr(sandbox, "why_not", lambda: "bwrap is not installed")
    for line in ("os.fork()", "os.execv('/bin/true', ['true'])", "__import__('subprocess').run(['true'])", "os.system('true') == 0 or 1 / 0"):
        fault = ask(f"import os\ndef f():\n    {line}", Call()).fault
        assert fault is not None and fault.kind in ("PermissionError", "ZeroDivisionError"), line


def test_the_child_sees_numpy_and_nothing_else_of_ours():
    if not sandbox.works():
        pytest.skip(sandbox.why_not())
    source = "import os, pkgutil\ndef f():\n    found = {m.name for m in pkgutil.iter_modules()}\n    return ' '.join(sorted(found & {'numpy', 'torch', 'flashlab', 'triton', 'pytest', 'pip', 'box'})), ' '.join(sorted(os.listdir('/sandbox'))), ' '.join(os.listdir('/tmp'))"
    answer = ask(source, Call(returns=("modules", "sandbox", "tmp")))
    assert {name: str(array) for name, array in answer.arrays.items()} == {"modules": "box numpy", "sandbox": "box numpy numpy.libs", "tmp": ""}


def test_why_bwrap_cannot_be_used_is_found_by_running_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.why_not.cache_clear()
    try:
        assert sandbox.why_not() == "bwrap is not installed" and not sandbox.works()
        (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
        (tmp_path / "bwrap").chmod(0o755)
        sandbox.why_not.cache_clear()
        assert sandbox.why_not() == "bwrap refuses: No permissions to create new namespace"
    finally:
        monkeypatch.undo()
        sandbox.why_not.cache_clear()


def test_what_is_mapped_is_known_here():
    assert limits.mapped() is None or limits.mapped() > 1 << 20


@pytest.mark.parametrize("body, words", [("while True: pass", "computed longer than 2 s"), ("__import__('time').sleep(60)", "ran longer than 1 s")])
def test_on_a_busy_machine_cpu_seconds_decide_and_not_the_clock(kind, body, words, monkeypatch):
    monkeypatch.setattr(runner, "MORE_TURNS", 100)
    with Session([f"def f():\n    {body}\n"], Limits(cpu_s=2, wall_s=1)) as session:
        assert words in session.call("f", Call()).fault.text


def test_a_childs_text_is_bounded_and_moves_no_cursor(kind):
    fault = ask("def f():\n    raise type('K\\x1b[2J', (Exception,), {})('\\u202e' + 'x' * 9999)", Call()).fault
    assert fault.kind == "K\\x1b[2J" and fault.text.startswith("\\u202ex") and len(fault.text) < 2100


def test_a_frame_of_many_arrays_is_refused():
    many = {f"a{number}": np.zeros(1) for number in range(wire.MOST_ARRAYS + 1)}
    with pytest.raises(ValueError, match="101 arrays in one frame"):
        wire.unpack(wire.pack({}, many)[wire.PREFIX.size :])
