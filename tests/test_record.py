"""record.py: a lesson is stored only after all of it ran, and keeps what is its own."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from flashlab import record as module
from flashlab import runtime
from flashlab.driver import GpuFound
from flashlab.record import WIDGET, record, strip

NO_GPU = "Recording needs a CUDA GPU that Triton can use. "
CELLS = [
    "import os; print(os.getcwd())",
    "1 + 1",
    "from IPython.display import display\n"
    f"display({{'{WIDGET}': {{'model_id': 'x'}}, 'image/png': 'aGVsbG8=', 'text/plain': 'TileLoop'}}, raw=True)",
]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU for this test; its kernels are not used."""
    monkeypatch.setattr(runtime, "gpu_found", lambda: GpuFound(True, name="NVIDIA H200"))
    monkeypatch.setattr(runtime, "mode", lambda: "cuda")


def lesson(path, sources):
    cells = [nbformat.v4.new_markdown_cell("# A lesson", id="title")]
    cells += [nbformat.v4.new_code_cell(source, id=f"cell-{i}", metadata={"tags": ["keep"]}) for i, source in enumerate(sources)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}, "widgets": {"state": {}}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


def test_a_lesson_is_run_in_its_folder_and_stored(gpu, tmp_path, capsys):
    path = lesson(tmp_path / "00.ipynb", CELLS)
    assert record([path]) == [path]
    assert capsys.readouterr().out == f"{path} on NVIDIA H200 ...\n"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells] == ["title", "cell-0", "cell-1", "cell-2"]
    assert [cell.execution_count for cell in notebook.cells[1:]] == [1, 2, 3]
    assert notebook.cells[1].outputs[0].text == f"{tmp_path}\n"
    assert notebook.cells[2].outputs[0].data == {"text/plain": "2"}
    assert notebook.cells[3].outputs[0].data == {"image/png": "aGVsbG8=", "text/plain": "TileLoop"}
    assert all(cell.metadata == {"tags": ["keep"]} for cell in notebook.cells[1:])  # no timings
    assert notebook.metadata == {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    assert path.read_text().endswith("}\n") and [file.name for file in tmp_path.iterdir()] == ["00.ipynb"]


def test_what_was_said_while_it_waited_is_not_stored(gpu, tmp_path):
    wait, also = "Waiting for the GPU: 1 before you; after 300 s", "Also on this GPU: train (process 8). Timings taken"
    path = lesson(tmp_path / "00.ipynb", [f"print({wait!r}); print({also!r}); print({wait!r}); print('1 ms')", f"print({wait!r})", f"{wait!r}"])
    record([path])
    first, second, third = (cell.outputs for cell in nbformat.read(path, as_version=4).cells[1:])
    assert [output.text for output in first] == [f"{also}\n1 ms\n"] and second == [] and third[0].data == {"text/plain": repr(wait)}


@pytest.mark.parametrize(
    "source, why", [("print('no'); 1 / 0", "ZeroDivisionError: division by zero"), ("import os; os._exit(1)", "DeadKernelError: Kernel died")]
)
def test_a_cell_that_fails_leaves_the_file_as_it_was(gpu, tmp_path, source, why):
    path = lesson(tmp_path / "00.ipynb", ["1", source, "2"])
    before = path.read_bytes()
    with pytest.raises(RuntimeError) as caught:
        record([path])
    assert str(caught.value) == f"{path} was not recorded and is as it was: cell 3 raised {why}. Mend the cell, then record again."
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["00.ipynb"]


def test_a_slow_cell_is_a_failure(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CELL_TIMEOUT_S", 1)
    path = lesson(tmp_path / "00.ipynb", ["import time; time.sleep(30)"])
    with pytest.raises(RuntimeError, match="cell 2 raised CellTimeoutError: "):
        record([path])


def test_a_path_that_is_no_notebook_stops_before_anything_runs(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "execute", lambda path: pytest.fail("a notebook was run"))
    path = lesson(tmp_path / "00.ipynb", ["1"])
    for missing in (tmp_path / "01.ipynb", tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            record([path, missing])
        assert str(caught.value) == f"there is no notebook {missing}. Pass the path of an .ipynb file."


def test_every_lesson_and_then_every_lab_is_the_default(gpu, monkeypatch):
    written = []
    monkeypatch.setattr(module, "execute", lambda path: "executed")
    monkeypatch.setattr(module, "write", lambda notebook, path: written.append(path.name))
    record()
    folder = Path(__file__).parents[1] / "notebooks"
    lessons, labs = (sorted(path.name for path in folder.glob(pattern)) for pattern in ("*.ipynb", "labs/*.ipynb"))
    assert written == lessons + labs and lessons and labs


def test_without_a_gpu_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "gpu_found", lambda: GpuFound(False, "the NVIDIA driver sees no GPU"))
    monkeypatch.setattr(module, "execute", lambda path: pytest.fail("a notebook was run"))
    with pytest.raises(RuntimeError, match=f"^{NO_GPU}No GPU: the NVIDIA driver sees no GPU"):
        record([lesson(tmp_path / "00.ipynb", ["1"])])


@pytest.mark.skipif(runtime.device() == "cuda", reason="this machine has a GPU")
def test_the_command_says_why_and_fails_without_a_gpu(tmp_path):
    path = lesson(tmp_path / "00.ipynb", ["1"])
    done = subprocess.run(
        [sys.executable, "-m", "flashlab.cli", "record", str(path)], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 2 and done.stderr.startswith(f"flashlab: {NO_GPU}")


def test_flashlab_record_is_the_only_command_line():
    text = Path(module.__file__).read_text()
    assert "__main__" not in text and "flashlab record [NOTEBOOK ...]" in module.__doc__


# -- what a reader without a kernel gets --------------------------------------------------------------------------------------
def stored(data):
    """The data left of one output after strip()."""
    output = nbformat.v4.new_output("display_data", data=data)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("w", outputs=[output])])
    strip(notebook)
    return json.loads(json.dumps(notebook.cells[0].outputs[0].data))


def test_a_widget_without_a_stand_in_stays():
    assert stored({WIDGET: {"model_id": "x"}}) == {WIDGET: {"model_id": "x"}}


def test_a_text_stands_in_for_its_widget():
    assert stored({WIDGET: {"model_id": "x"}, "text/plain": "Quiz: 3 questions"}) == {"text/plain": "Quiz: 3 questions"}


def test_other_outputs_are_left_alone():
    assert stored({"image/png": "aGVsbG8=", "text/html": "<b>"}) == {"image/png": "aGVsbG8=", "text/html": "<b>"}


def test_text_printed_piece_by_piece_is_stored_as_one():
    def printed(text, name="stdout"):
        return nbformat.v4.new_output("stream", name=name, text=text)

    figure = nbformat.v4.new_output("display_data", data={"image/png": "aGVsbG8="})
    outputs = [printed("a\n"), printed("b\n"), printed("!", "stderr"), printed("c"), figure, printed("d")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("w", outputs=outputs)])
    strip(notebook)
    assert [output.get("text", "figure") for output in notebook.cells[0].outputs] == ["a\nb\n", "!", "c", "figure", "d"]
