"""copies.py: a learner's copies are made, refreshed and put back, and nothing that a person wrote is ever lost."""

import json
from datetime import date
from pathlib import Path

import pytest

from flashlab import copies
from flashlab.copies import MANIFEST, content, find_course, originals, reset, sync, work_folder

LESSON = Path("notebooks/04_tiling.ipynb")
DAY = date(2026, 11, 29)


def notebook(*sources, outputs=(), **metadata):
    """A notebook's text with one code cell for each source; `outputs` go into the first."""
    cells = [
        {"id": f"c{i}", "cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
        for i, source in enumerate(sources)
    ]
    if outputs:
        cells[0] |= {"outputs": list(outputs), "execution_count": 1}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


RAN = ({"output_type": "stream", "name": "stdout", "text": "2\n"},)


@pytest.fixture
def course(tmp_path):
    """A course with two lessons, a lab, a picture and an exercise of two files."""
    root = tmp_path / "course"
    for name, text in {
        "flashlab/copies.py": "",
        "notebooks/00_start_here.ipynb": notebook("import flashlab"),
        str(LESSON): notebook("1 + 1", "2 + 2"),
        "notebooks/labs/lab1_speedup.ipynb": notebook("3"),
        "notebooks/figure.png": "picture",
        "notebooks/.ipynb_checkpoints/00_start_here-checkpoint.ipynb": notebook("old"),
        "notebooks/__pycache__/x.pyc": "",
        "exercises/e04_flash_forward/e04_flash_forward.ipynb": notebook("raise NotImplementedError"),
        "exercises/e04_flash_forward/helper.py": "x = 1\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def work(course):
    return course / "work"


@pytest.fixture
def copied(course, work):
    """The lesson's original and its copy, after a first sync."""
    sync(course, work)
    return course / LESSON, work / LESSON


def files(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


# -- the first time -----------------------------------------------------------------------------------------------------------
def test_everything_a_learner_gets_is_copied_once(course, work):
    assert sync(course, work) == [f"{work}: 5 new."]
    assert files(work).keys() - {MANIFEST} == {str(name) for name in originals(course)} == {
        "notebooks/00_start_here.ipynb",
        "notebooks/04_tiling.ipynb",
        "notebooks/labs/lab1_speedup.ipynb",
        "exercises/e04_flash_forward/e04_flash_forward.ipynb",
        "exercises/e04_flash_forward/helper.py",
    }
    assert all(text == (course / name).read_text() for name, text in files(work).items() if name != MANIFEST)
    assert sync(course, work) == []


def test_a_course_without_exercises_is_fine(course, work):
    for path in sorted((course / "exercises").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert sync(course, work) == [f"{work}: 3 new."]


def test_a_copy_that_was_deleted_comes_back(course, work, copied):
    copied[1].unlink()
    assert sync(course, work) == [f"{work}: 1 new."] and copied[1].exists()


# -- copies that nobody changed -----------------------------------------------------------------------------------------------
def test_an_unopened_copy_follows_its_original(course, work, copied):
    original, copy = copied
    original.write_text(notebook("1 + 1", "2 + 3"))
    assert sync(course, work) == [f"{work}: 1 brought up to date."]
    assert copy.read_text() == original.read_text() and sync(course, work) == []


def test_an_unopened_copy_gets_new_stored_outputs(course, work, copied):
    original, copy = copied
    original.write_text(notebook("1 + 1", "2 + 2", outputs=RAN))
    sync(course, work)
    assert copy.read_text() == original.read_text()


@pytest.mark.parametrize(
    "ran",
    [
        notebook("1 + 1", "2 + 2", outputs=RAN),
        notebook("1 + 1", "2 + 2", "", outputs=RAN),  # Shift-Enter on the last cell adds an empty one
        notebook(["1 ", "+ 1\n"], "2 + 2", kernelspec={"name": "other"}),
    ],
)
def test_a_copy_that_was_only_run_keeps_its_outputs(course, work, copied, ran):
    original, copy = copied
    copy.write_text(ran)
    assert sync(course, work) == [] and copy.read_text() == ran
    original.write_text(notebook("1 + 1", "2 + 2", outputs=[{**RAN[0], "text": "recorded"}]))
    assert sync(course, work) == [] and copy.read_text() == ran
    original.write_text(notebook("1 + 1", "a new cell"))
    assert sync(course, work) == [f"{work}: 1 brought up to date."] and copy.read_text() == original.read_text()


# -- copies that their owner changed ------------------------------------------------------------------------------------------
MINE = [
    notebook("1 + 1", "2 + 2 + 100"),
    notebook("2 + 2", "1 + 1"),
    notebook("1 + 1"),
    notebook("1 + 1", "2 + 2", "mine"),
    notebook("1 + 1", "2 + 2").replace('"code"', '"raw"', 1),
    "not a notebook at all {",
    '{"cells": 7}',
    "",
]


@pytest.mark.parametrize("mine", MINE)
def test_a_changed_copy_is_never_overwritten(course, work, copied, mine):
    original, copy = copied
    copy.write_text(mine)
    assert sync(course, work) == []
    original.write_text(notebook("a new lesson"))
    newer = [
        f"{copy} has your changes and was left alone; a newer one came with the course. `flashlab reset 04` gets it and keeps yours"
        " beside it."
    ]
    assert sync(course, work) == newer and sync(course, work) == newer  # said until it is settled
    assert copy.read_text() == mine


def test_a_changed_helper_file_is_never_overwritten(course, work, copied):
    copy, original = (root / "exercises/e04_flash_forward/helper.py" for root in (work, course))
    copy.write_text("x = 2\n")
    original.write_text("x = 3\n")
    assert "`flashlab reset helper`" in sync(course, work)[0] and copy.read_text() == "x = 2\n"


def test_the_same_change_on_both_sides_is_no_change(course, work, copied):
    original, copy = copied
    copy.write_text(notebook("both", outputs=RAN))
    original.write_text(notebook("both"))
    assert sync(course, work) == []
    original.write_text(notebook("newer still"))
    assert sync(course, work) == [f"{work}: 1 brought up to date."] and copy.read_text() == original.read_text()


# -- when the memory is gone --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("damage", ["", "{", "[1, 2]", '{"notebooks/04_tiling.ipynb": 3}', "null", b"\xff\xfe"])
def test_a_broken_manifest_loses_nothing(course, work, copied, damage):
    original, copy = copied
    (work / MANIFEST).write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    copy.write_text(MINE[0])
    said = sync(course, work)
    assert said[0] == f"{work / MANIFEST} could not be read, so every copy that differs from its original counts as yours."
    assert "flashlab reset 04" in said[1] and len(said) == 2
    assert copy.read_text() == MINE[0] and sync(course, work) == []  # mended, and said once
    original.write_text(notebook("a new lesson"))
    assert "a newer one came" in sync(course, work)[0] and copy.read_text() == MINE[0]


def test_without_a_manifest_a_file_of_the_same_name_is_kept(course, work):
    (work / LESSON).parent.mkdir(parents=True)
    (work / LESSON).write_text(MINE[3])
    sync(course, work)
    (course / LESSON).write_text(notebook("a new lesson"))
    sync(course, work)
    assert (work / LESSON).read_text() == MINE[3]


def test_an_interrupted_copy_is_taken_up_again(course, work, copied):
    (work / MANIFEST).unlink()
    assert sync(course, work) == []
    copied[0].write_text(notebook("a new lesson"))
    assert sync(course, work) == [f"{work}: 1 brought up to date."]


@pytest.mark.parametrize("stops", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_what_an_interrupted_sync_put_is_still_the_courses(course, work, copied, monkeypatch, stops):
    put, done = copies.put, []

    def interrupted(original, copy):
        if len(done) == 2:
            raise stops
        done.append(copy)
        put(original, copy)

    for name in originals(course):
        (course / name).write_text(notebook("second", str(name)))
    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, OSError)):
        patch.setattr(copies, "put", interrupted)
        sync(course, work)
    for name in originals(course):
        (course / name).write_text(notebook("third", str(name)))
    assert sync(course, work) == [f"{work}: 5 brought up to date."]


def test_what_an_interrupted_reset_put_is_still_the_courses(course, work, copied, monkeypatch):
    put, done = copies.put, []
    exercise = [name for name in originals(course) if name.parts[0] == "exercises"]

    def interrupted(original, copy):
        if done:
            raise KeyboardInterrupt
        done.append(copy)
        put(original, copy)

    for name in exercise:
        (work / name).write_text("mine")
        (course / name).write_text("second")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(copies, "put", interrupted)
        reset("e04", course, work, DAY)
    for name in exercise:
        (course / name).write_text("third")
    sync(course, work)
    assert (work / exercise[0]).read_text() == "third"


def test_two_runs_at_once_do_not_share_a_half_written_file(course, work, copied, monkeypatch):
    written = []
    for pid in (101, 102):
        monkeypatch.setattr(copies.os, "getpid", lambda: pid)
        monkeypatch.setattr(copies.os, "replace", lambda half, path: written.append(half))
        copies.put(*copied)
        copies.write_json(work / MANIFEST, {})
    assert len(set(written)) == 4


def test_a_copy_that_failed_leaves_no_half_behind(course, work, copied, monkeypatch):
    monkeypatch.setattr(copies.os, "replace", lambda half, path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        copies.put(*copied)
    with pytest.raises(ZeroDivisionError):
        copies.write_json(work / MANIFEST, {})
    assert not [path for path in work.rglob("*") if path.name.endswith(".new")]


@pytest.mark.parametrize("act", [sync, lambda course, work: reset("04", course, work, DAY)])
def test_an_unreadable_file_of_the_course_is_named_and_not_your_folder(course, work, copied, monkeypatch, act):
    read = Path.read_bytes

    def refuse(path):
        if path == copied[0]:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    copied[1].write_text(MINE[0])
    with pytest.raises(OSError) as caught:
        act(course, work)
    assert str(caught.value) == (
        f"{copied[0]}, a file of the course, cannot be read: Permission denied. Mend its permissions, or get the course again."
    )
    assert copied[1].read_text() == MINE[0] and not list(work.rglob("*.mine-*"))


def test_a_work_folder_that_is_a_file_is_named(course, work):
    work.write_text("")
    with pytest.raises(OSError) as caught:
        sync(course, work)
    assert str(caught.value) == f"the folder for your copies, {work}, cannot be used: File exists. Pass another one: --work FOLDER."


def test_a_copy_is_never_half_written(course, work, copied, monkeypatch):
    original, copy = copied
    before = copy.read_text()

    def full_disk(source, target):
        Path(target).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies.shutil, "copyfile", full_disk)
    original.write_text(notebook("a new lesson"))
    with pytest.raises(OSError, match="No space left on device. Pass another one"):
        sync(course, work)
    assert copy.read_text() == before


# -- reset --------------------------------------------------------------------------------------------------------------------
def test_reset_puts_the_original_back_and_keeps_yours(course, work, copied):
    original, copy = copied
    for number, text in enumerate(MINE[:3], start=1):
        copy.write_text(text)
        kept = copy.with_name("04_tiling.mine-2026-11-29" + (f"-{number}" if number > 1 else "") + ".ipynb")
        assert reset("04", course, work, DAY) == [f"{copy} is the original again. Yours is kept as {kept.name}."]
        assert kept.read_text() == text and copy.read_text() == original.read_text()
    assert [copy.with_name(f"04_tiling.mine-2026-11-29{suffix}.ipynb").read_text() for suffix in ("", "-2", "-3")] == MINE[:3]


def test_after_reset_the_copy_follows_its_original_again(course, work, copied):
    original, copy = copied
    copy.write_text(MINE[0])
    original.write_text(notebook("newer"))
    sync(course, work)
    reset("04", course, work, DAY)
    original.write_text(notebook("newest"))
    assert sync(course, work) == [f"{work}: 1 brought up to date."] and copy.read_text() == original.read_text()


def test_reset_of_a_run_copy_keeps_the_run(course, work, copied):
    copied[1].write_text(notebook("1 + 1", "2 + 2", outputs=RAN))
    assert "kept as 04_tiling.mine-2026-11-29.ipynb" in reset("04", course, work, DAY)[0]


def test_reset_of_an_original_or_missing_copy_keeps_nothing(course, work, copied):
    assert reset("04", course, work, DAY) == [f"{copied[1]} is the original already."]
    copied[1].unlink()
    assert reset("04", course, work, DAY) == [f"{copied[1]} is the original again."]
    assert not list(work.rglob("*.mine-*"))


@pytest.mark.parametrize(
    "which, names",
    [
        ("04", ["04_tiling.ipynb"]),
        ("4", ["04_tiling.ipynb"]),
        ("04_tiling.ipynb", ["04_tiling.ipynb"]),
        ("notebooks/04_tiling.ipynb", ["04_tiling.ipynb"]),
        ("lab1", ["lab1_speedup.ipynb"]),
        ("e04", ["e04_flash_forward.ipynb", "helper.py"]),
        ("e04_flash_forward", ["e04_flash_forward.ipynb", "helper.py"]),
    ],
)
def test_what_a_lesson_may_be_called(course, work, which, names):
    assert [Path(said.split(" is the ")[0]).name for said in reset(which, course, work, DAY)] == names


@pytest.mark.parametrize("which", ["figure", "figure.png", "notebooks/figure.png"])
def test_a_picture_is_no_lesson(course, work, which):
    with pytest.raises(LookupError):
        reset(which, course, work, DAY)


def test_an_unknown_lesson_lists_the_known(course, work):
    with pytest.raises(LookupError) as caught:
        reset("9", course, work, DAY)
    assert str(caught.value) == "no lesson is called '9'; there are: 00, 04, lab1, e04."


# -- finding the course -------------------------------------------------------------------------------------------------------
def test_the_course_is_found_from_inside(course, work, copied):
    assert find_course(copied[1].parent) == course == find_course(course)


def test_from_elsewhere_the_clone_that_flashlab_came_from_is_found(tmp_path):
    assert find_course(tmp_path) == Path(copies.__file__).parents[1]


def test_inside_the_course_copies_are_in_its_work_folder(course, work, monkeypatch):
    for folder in (course, course / "notebooks", course / "exercises" / "e04_flash_forward"):
        monkeypatch.chdir(folder)
        assert work_folder(course) == work


def test_from_elsewhere_copies_are_in_your_own_folder(course, tmp_path, monkeypatch):
    for student in ("ada", "grace"):
        home = tmp_path / student
        home.mkdir()
        monkeypatch.chdir(home)
        assert work_folder(course) == home / "work"
        sync(course, home / "work")
    monkeypatch.chdir(home / "work" / "notebooks")  # as a terminal in JupyterLab
    assert work_folder(course) == home / "work"


def test_a_work_folder_that_is_named_is_taken(course, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert work_folder(course, Path("mine")) == tmp_path / "mine"


def test_without_a_course_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(copies, "__file__", str(tmp_path / "site-packages" / "flashlab" / "copies.py"))
    with pytest.raises(FileNotFoundError) as caught:
        find_course(tmp_path)
    assert str(caught.value) == (
        f"no folder with the course's notebooks/ is at or above {tmp_path}. Change into your clone of the course, then try again."
    )


def test_content_is_the_cells_and_nothing_else(tmp_path):
    for name, text in {"a": notebook("x", outputs=RAN), "b": notebook("x"), "c": notebook("y")}.items():
        (tmp_path / f"{name}.ipynb").write_text(text)
    a, b, c = (content(tmp_path / f"{name}.ipynb") for name in "abc")
    assert a == b != c
