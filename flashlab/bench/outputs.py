"""Where `flashlab bench` is to write, looked at before it times anything: a fault found at the end would come after all the work."""

from __future__ import annotations

import os
from pathlib import Path

from flashlab import runtime
from flashlab.bench.instructor_page import around
from flashlab.errors import error


def check_outputs(out: Path | None, csv: Path | None, figures: Path | None, page: Path | None) -> None:
    """Raises OSError where a file is a folder, a folder a file, or either closed to this user; LookupError for a page without its marks."""
    for option, path in {"out": out, "csv": csv, "figures": figures, "page": page}.items():
        if path is None or (option == "out" and path.is_file() and runtime.device() == "cpu"):  # without a GPU it is only read
            continue
        path, needed = path.absolute(), "folder" if option == "figures" else "file"
        there = next(one for one in (path, *path.parents) if one.exists())  # what is missing below it will be made
        is_folder, folder_wanted = there.is_dir(), needed == "folder" or there != path
        if is_folder != folder_wanted or not os.access(there, os.W_OK):
            why = "is closed to you" if is_folder == folder_wanted else "is a folder" if is_folder else "is no folder"
            raise error("bench_place", option=option, place=there, why=why, needed=needed)
    if page and not page.exists():
        raise error("bench_place", option="page", place=page, why="is not there", needed="file")
    if page:
        around(page)
