"""Runs lessons on a GPU and stores what they show, so that a reader without one sees real numbers.

    flashlab record [NOTEBOOK ...]     default: every lesson in notebooks/, then every lab in notebooks/labs/

A notebook is written only after all of its cells have run. Cell ids and the notebook's own metadata stay as they are;
timings and widget state are left out, and where an output has a still picture or a text besides its widget, the widget
is left out: without a kernel it would be an error message. So is what a lesson said while it waited for its turn on the GPU.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path

from flashlab import runtime
from flashlab.bench.neighbours import WAITING
from flashlab.errors import error

WIDGET = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT_S = 600


def strip(notebook) -> None:
    """Take out of an executed notebook what a reader without a kernel cannot use, in place."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.get("outputs"):
            cell.outputs = without_waiting(joined(cell.outputs))
        for output in cell.get("outputs", []):
            if len(output.get("data", {})) > 1:
                output.data.pop(WIDGET, None)


def joined(outputs: list) -> list:
    """The same outputs, with text that was printed piece by piece in one piece: pages show a gap between two."""
    kept = []
    for output in outputs:
        if kept and output.output_type == kept[-1].output_type == "stream" and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def without_waiting(outputs: list) -> list:
    """The same outputs without the lines that tell a place in the queue (bench/turn.py)."""
    for output in outputs:
        if output.output_type == "stream":
            output.text = "".join(line for line in output.text.splitlines(keepends=True) if not line.startswith(WAITING))
    return [output for output in outputs if output.output_type != "stream" or output.text]


def execute(path: Path):
    """The notebook at `path` with all cells run, in its folder. Raises RuntimeError that names the cell that failed."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    metadata = copy.deepcopy(notebook.metadata)
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    running = []
    client.on_cell_execute = lambda cell, cell_index: running.append(cell_index)
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as problem:
        if isinstance(problem, CellExecutionError):
            why = f"{problem.ename}: {problem.evalue}"
        else:
            why = f"{type(problem).__name__}: {problem}".strip().splitlines()[0]
        raise error("record_failed", given=path, cell=running[-1] + 1, why=why) from problem
    notebook.metadata = metadata
    strip(notebook)
    return notebook


def write(notebook, path: Path) -> None:
    """Put the notebook at `path` in one step: a full disk leaves the old one whole."""
    import nbformat

    half = path.with_name(f".{path.name}.new")
    half.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    os.replace(half, path)


def record(notebooks: list[Path] = ()) -> list[Path]:
    """Run each notebook (default: every lesson and lab) on the GPU and store its outputs; returns the paths written.

    Raises RuntimeError without a GPU or when a cell fails, FileNotFoundError for a path that is no notebook.
    """
    runtime.need_gpu("Recording")
    if not notebooks:
        from flashlab.copies import find_course

        folder = find_course() / "notebooks"
        notebooks = [*sorted(folder.glob("*.ipynb")), *sorted(folder.glob("labs/*.ipynb"))]
    for path in map(Path, notebooks):
        if path.suffix != ".ipynb" or not path.is_file():
            raise error("record_missing", given=path)
    for path in map(Path, notebooks):
        print(f"{path} on {runtime.gpu_found().name} ...", flush=True)
        write(execute(path), path)
    return [Path(path) for path in notebooks]
