"""Counts the bytes of a kernel in your own file: runs the file and traces each launch of that kernel.

    flashlab count softmax.py:softmax_kernel

The file is run as a program, `if __name__ == "__main__"` included; it makes the tensors and launches the kernel as ever.
Other kernels run as usual. Under @triton.autotune the first configuration is taken that its early_config_prune leaves, since
timing them needs a GPU.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from flashlab.errors import error, is_known
from flashlab.traffic.trace import Trace


def count(target: str, arguments: Sequence[str] = ()) -> list[Trace]:
    """The trace of each launch of FILE.py:kernel, in order; `arguments` are the file's own command line.

    Raises LookupError for a target that names no kernel or one that the file does not launch, FileNotFoundError, and
    whatever the file raises, SystemExit with a failure included.
    """
    name, separator, kernel = target.rpartition(":")
    if not separator or not name or not kernel.isidentifier():
        raise error("count_target", given=target)
    file = Path(name)
    if not file.is_file():
        raise error("count_file", given=file)
    from flashlab.traffic import triton_hooks
    from flashlab.traffic.interpreter import trace

    traces, launched = [], []

    def seen(launch: triton_hooks.Launch) -> object:
        launched.append(launch.kernel.__name__)
        if launch.kernel.__name__ != kernel:
            return launch()
        traces.append(trace(launch.kernel, launch.grid, *launch.args, **launch.meta))

    path, argv = list(sys.path), list(sys.argv)
    sys.path.insert(0, str(file.resolve().parent))
    sys.argv[:] = [str(file), *arguments]
    try:
        with triton_hooks.launches(seen):
            runpy.run_path(str(file), run_name="__main__")
    except SystemExit as end:  # many files end in sys.exit(main()); for them as for Python, None and 0 are success
        if end.code not in (None, 0):
            raise
    finally:
        sys.path[:], sys.argv[:] = path, argv
    if not traces:
        raise error("count_none", file=file, kernel=kernel, launched=", ".join(dict.fromkeys(launched)) or "none")
    return traces


def table(trace: Trace) -> str:
    """The trace as text: its sentence, and bytes tensor by tensor in the order of first use.

    >>> trace = Trace("copy_kernel")
    >>> trace.append("load", "x", bytes=1000, bytes_requested=1024)
    >>> trace.append("store", "out", bytes=1000, bytes_requested=1024)
    >>> print(table(trace))
    copy_kernel: 2 steps in 1 program, 1,000 bytes loaded, 1,000 bytes stored
    tensor  op     accesses  bytes  asked for
    x       load          1  1,000      1,024
    out     store         1  1,000      1,024
    """
    rows = [("tensor", "op", "accesses", "bytes", "asked for")]
    for tensor in trace.tensor_names:
        for op in ("load", "store", "atomic"):
            events = trace.select(op, tensor=tensor)
            if len(events):
                numbers = (len(events), events["bytes"].sum(), events["bytes_requested"].sum())
                rows.append((tensor, op, *(f"{number:,}" for number in numbers)))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths))) for row in rows]
    return "\n".join([repr(trace), *(line.rstrip() for line in lines)])


def report(target: str, arguments: Sequence[str] = ()) -> int:
    """Print the table of each launch; returns the exit status.

    Where the file itself raises, its traceback is printed as Python would, without the frames that led to the file, and the
    status is 1, as Python's.
    """
    try:
        traces = count(target, arguments)
    except Exception as fault:
        if is_known(fault):
            raise
        file, frames = target.rpartition(":")[0], fault.__traceback__
        while frames and frames.tb_frame.f_code.co_filename != file:
            frames = frames.tb_next
        traceback.print_exception(fault.with_traceback(frames or fault.__traceback__))
        return 1
    print(*map(table, traces), sep="\n\n")
    return 0
