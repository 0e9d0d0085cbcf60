"""Runs a student's cells in the sandbox and makes one call at a time; never in the process that grades.

A Session is one child. It ends at the first call that outlives its limits, and the next call starts another, unless the
calls have cost more than the whole is allowed.
"""

from __future__ import annotations

import importlib.util
import os
import selectors
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flashlab.grading import sandbox
from flashlab.grading.box import wire
from flashlab.grading.exercise import Answer, Call, Fault
from flashlab.grading.plain import plain
from flashlab.grading.serve import Server
from flashlab.traffic.trace import COLUMNS, Trace

MOST_REPLY = 64 << 20  # bytes of one frame
MOST_FILES, LOOK_S = 5_000, 0.25  # files in the folder that can be written, and how often they are counted: 120,000 a second are easy
MOST_PRINTED = 10_000  # bytes kept of what is printed; the rest is read and dropped


@dataclass(frozen=True)
class Limits:
    """CPU seconds of one child, wall seconds in which it must have used some of them; bytes of address space and of a file."""

    cpu_s: float = 10
    wall_s: float = 30
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20


KERNEL_LIMITS = Limits(cpu_s=60, wall_s=120, memory_bytes=2 << 30)  # Triton's interpreter is slow
PARTS = ("__init__.py", "errors.py", "driver.py", "assembler.py", "runtime.py", "problem.py", "traffic")  # of flashlab, for the tracer
MORE_TURNS = 5  # of wall_s, for a child that computes all the while and is given little of a busy machine


class Gone(Exception):
    """The child has ended or broken the protocol; the text says how."""


class Session:
    """One child with the student's cells in it; `call` makes one call. Use it in a with statement.

    `module` is what runs in the box: child, kernel_child (one cell of kernels, traced), compile_child, or outside of it
    gpu_child, for the reader's own machine only.
    """

    def __init__(self, cells: list[str], limits: Limits | None = None, memory_bytes: int | None = None, module: str = "child") -> None:
        self.cells, self.memory_bytes, self.module = cells, memory_bytes, module
        self.limits = limits or (Limits() if module == "child" else KERNEL_LIMITS)
        self.printed, self.process, self.dead = b"", None, None
        self.done: set = set()  # what its owner has had it do already

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            sandbox.stop(self.process)
            self.process = None

    def call(self, function: str, call: Call) -> Answer:
        """What `function` gives for this call; a fault if it raises, ends or hangs."""
        start = time.monotonic()
        try:
            if self.dead:
                return Answer(fault=self.dead)
            if self.process is None:
                self._begin()
                if self.dead:
                    return Answer(fault=self.dead)
            return self._call(function, call, start)
        except Gone as gone:
            self.__exit__()
            self.dead = gone.args[0]
            return Answer(fault=self.dead, seconds=time.monotonic() - start)

    def _begin(self) -> None:
        self.deadline, self.more_turns, self.computed = time.monotonic() + self.limits.wall_s, MORE_TURNS, 0.0
        self.looked = time.monotonic()
        self.process = sandbox.start(f"box.{self.module}", **({} if self.module == "child" else _with_triton(self.module)))
        self.wait = selectors.DefaultSelector()
        for stream, mask in ((self.process.stdout, selectors.EVENT_READ), (self.process.stderr, selectors.EVENT_READ)):
            os.set_blocking(stream.fileno(), False)
            self.wait.register(stream, mask)
        os.set_blocking(self.process.stdin.fileno(), False)
        self.buffer = bytearray()
        limits = {"cpu_s": self.limits.cpu_s, "file_bytes": self.limits.file_bytes, "memory_bytes": self.memory_bytes or self.limits.memory_bytes}
        self._send({"cells": self.cells, "limits": limits})
        header, _ = self._receive()
        if not header.get("ready"):
            self.dead = fault_of(header)

    def _call(self, function: str, call: Call, start: float) -> Answer:
        server = Server(call)
        about = {"call": function, "options": dict(call.options), "returns": list(call.returns), "served": server.about()}
        if self.module != "child":
            about |= {"grid": list(call.grid), "strides": dict(call.strides), "stores": list(call.stores), "cast": call.cast, "exact": list(call.exact), "filled": call.filled}
        self._send(about, call.arrays)
        while True:
            header, arrays = self._receive()
            if "ask" not in header:
                break
            self._send(*server.reply(header, arrays))
        try:
            trace = server.memory.trace if call.served else _trace(header, arrays)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise Gone(Fault("BrokenAnswer", f"the trace cannot be read ({type(problem).__name__})")) from problem
        fault = None if header.get("result") else fault_of(header)
        return Answer({**arrays, **server.stored()}, trace, fault, time.monotonic() - start)

    # -- the pipes --------------------------------------------------------------------------------------------------------
    def _send(self, header: dict, arrays=()) -> None:
        data = memoryview(wire.pack(header, arrays))
        stdin = self.process.stdin
        self.wait.register(stdin, selectors.EVENT_WRITE)
        try:
            while data:
                if stdin in self._ready():
                    try:
                        data = data[os.write(stdin.fileno(), data) :]
                    except BrokenPipeError:
                        raise self._ended() from None
        finally:
            self.wait.unregister(stdin)

    def _receive(self) -> tuple[dict, dict]:
        while True:
            if len(self.buffer) >= wire.PREFIX.size:
                (size,) = wire.PREFIX.unpack_from(self.buffer)
                if size > MOST_REPLY:
                    raise Gone(Fault("AnswerTooLarge", f"an answer of {size:,} bytes; at most {MOST_REPLY:,} are read"))
                if len(self.buffer) >= wire.PREFIX.size + size:
                    body = bytes(self.buffer[wire.PREFIX.size : wire.PREFIX.size + size])
                    del self.buffer[: wire.PREFIX.size + size]
                    try:
                        return wire.unpack(body)
                    except Exception as problem:  # whatever the child made of it
                        raise Gone(Fault("BrokenAnswer", f"the answer cannot be read ({type(problem).__name__})")) from problem
            if self.process.stdout in self._ready():
                part = self._read(self.process.stdout)
                if not part:
                    raise self._ended()
                self.buffer += part

    def _ready(self) -> set:
        """The streams that can go on; what the child prints is read here, so that it never waits for us."""
        now = time.monotonic()
        left = self.deadline - now
        if left <= 0 and self.more_turns and self._computes():
            self.more_turns -= 1
            self.deadline, left = now + self.limits.wall_s, self.limits.wall_s
        if left <= 0:
            raise Gone(Fault("TimeLimit", f"it ran longer than {self.limits.wall_s:g} s and was stopped"))
        if now > self.looked + LOOK_S:
            self.looked = now
            if sandbox.files_made(self.process) > MOST_FILES:
                raise Gone(Fault("FileLimit", f"it made more than {MOST_FILES:,} files and was stopped"))
        ready = {key.fileobj for key, _ in self.wait.select(min(left, LOOK_S))}
        if self.process.stderr in ready:
            part = self._read(self.process.stderr)
            self.printed += part[: MOST_PRINTED - len(self.printed)] if len(self.printed) < MOST_PRINTED else b""
            if not part:
                self.wait.unregister(self.process.stderr)
        return ready

    def _computes(self) -> bool:
        """Whether the child has had some CPU time since this was last asked: on a busy machine its CPU seconds decide, not ours."""
        before, self.computed = self.computed, sandbox.cpu_seconds(self.process)
        return self.computed - before > self.limits.wall_s / 50

    @staticmethod
    def _read(stream) -> bytes:
        try:
            return os.read(stream.fileno(), 1 << 20)
        except BlockingIOError:
            return b"?"[:0]

    def _ended(self) -> Gone:
        """How the child ended, in words."""
        try:
            code = self.process.wait(timeout=5)
        except Exception:  # it closed its pipe and lives on
            return Gone(Fault("ProcessEnded", "it closed the pipe to the grader"))
        number = -code if code < 0 else code - 128
        if number in (9, 24):
            return Gone(Fault("TimeLimit", f"it computed longer than {self.limits.cpu_s:g} s of CPU time, or asked for too much, and was stopped"))
        names = {11: "a segmentation fault", 6: "abort()", 7: "a bus error", 8: "an arithmetic fault", 4: "an illegal instruction"}
        return Gone(Fault("ProcessEnded", names.get(number, f"the process ended by itself (status {code})")))


def _with_triton(module: str) -> dict:
    """What a child for kernels sees besides: torch and triton, and of flashlab the tracer."""
    if module == "gpu_child":
        return {"bare": True}
    package, site = Path(__file__).parents[1], Path(importlib.util.find_spec("triton").origin).parents[1]
    more = {package / part: f"flashlab/{part}" for part in PARTS} | {site: "site"}
    return {"more": more, "extra": {"TRITON_INTERPRET": "1" if module == "kernel_child" else "0", "TRITON_CACHE_DIR": "/tmp/triton", "TRITON_DEFAULT_FP_FUSION": "1"}}


def _trace(header: dict, arrays: dict) -> Trace | None:
    """The trace of a kernel, from its events."""
    events = arrays.pop("trace events", None)
    if events is None:
        return None
    names = tuple(str(name) for name in header["names"])
    columns = np.frombuffer(events.tobytes(), COLUMNS)
    if columns.size and (columns["tensor"].max() >= len(names) or columns["tensor"].min() < 0):
        raise Gone(Fault("BrokenAnswer", "the trace names a tensor that is not there"))
    return Trace.of("yours", {str(name): tuple(about) for name, about in header["tensors"].items()}, names, columns)


def fault_of(header: dict) -> Fault:
    """The child's own account of an exception, as bounded text."""
    about = header.get("error")
    about = about if isinstance(about, dict) else {}
    line = about.get("line")
    return Fault(
        plain(about.get("kind", "BrokenAnswer"), 100), plain(about.get("text", ""), 2000),
        line if type(line) is int and 0 <= line < 1_000_000 else 0, plain(about.get("source", ""), 200),
    )  # fmt: skip
