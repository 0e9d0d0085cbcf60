"""flashlab: from naive attention to FlashAttention in Triton, with live kernels and every byte counted.

The map, in reading order:

    problem      AttentionProblem: sizes and seeded inputs (errors: the one table of error messages)
    reference/   the algorithms in order of discovery, in NumPy, over recording memory
    traffic/     the same bytes counted several ways: trace, recording memory, closed forms, PyTorch operators, Triton kernels,
                 the GPU's own counters
    hardware     GPUs from their data sheets, with sources; the roofline of a problem
    kernels/     the same steps on torch tensors, in PyTorch and in Triton; attention()
    bench/       honest timing; our kernels beside PyTorch's
    widgets/     the tile loop, online softmax, roofline and quiz that you play with in a notebook
    grading/     check() of an exercise; misconceptions, the sandboxed runner, reports for a class
    notebook     predict(), show(), source(): what a notebook needs
    looks        one name, colour and marker for an algorithm, everywhere

    driver       what the NVIDIA driver says about the GPU, asked without torch
    runtime      where kernels run: a CUDA GPU or Triton's interpreter, decided before triton is imported
    assembler    which ptxas assembles them for Hopper
    doctor       what this machine has, what works and what to do (machine: its checks; smoke: a tiny kernel that it runs)
    lab          JupyterLab on your copies of the lessons (copies: made, refreshed, put back)
    record       runs lessons on a GPU and stores what they show
    count        traces each launch of a kernel in your own file (count_measured: by the GPU's counters)
    workloads    what the counters count, by name, in a process of its own
    provenance   of which code and machine a recorded number is
    cli          flashlab lab · doctor · reset · record · count · bench · check · progress · grade

Importing flashlab loads neither torch nor triton; the names below load what they need when you first use them.
"""

from __future__ import annotations

import importlib

from flashlab import runtime

runtime.prepare()

HOMES = {
    "AttentionProblem": "flashlab.problem",
    "Trace": "flashlab.traffic.trace",
    "predict": "flashlab.notebook",
    "show": "flashlab.notebook",
    "source": "flashlab.notebook",
    "attention": "flashlab.kernels.api",
    "trace": "flashlab.traffic.interpreter",
    "compare": "flashlab.notebook",
    "without": "flashlab.notebook",
    "quiz": "flashlab.widgets.quiz",
    "check": "flashlab.grading.checking",
    "TileLoop": "flashlab.widgets.tile_loop",
    "OnlineSoftmax": "flashlab.widgets.online_softmax",
    "Roofline": "flashlab.widgets.roofline",
    "TileBudget": "flashlab.widgets.tile_budget",
    "TokenCost": "flashlab.widgets.token_cost",
}
__all__ = [*HOMES, "runtime"]


def __getattr__(name: str):
    """The object behind one of the names above, loaded on first use."""
    if name not in HOMES:
        raise AttributeError(f"module 'flashlab' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
