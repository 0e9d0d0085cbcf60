"""provenance.py: versions, digests and lines in a file. What bench/records.py and traffic/counter_records.py make of them is tested there."""

import importlib.metadata
import os
import subprocess

import pytest
import torch

from flashlab import assembler, provenance
from flashlab.assembler import Assembler
from flashlab.errors import ERRORS
from flashlab.provenance import KERNELS, SOURCES, digest, reached


def test_the_versions_are_those_that_are_imported(monkeypatch):
    monkeypatch.delenv(assembler.variable(), raising=False)
    provenance.versions.cache_clear()
    assert provenance.versions()["torch"] == torch.__version__
    assert provenance.versions()["triton"] == importlib.metadata.version("triton")
    assert all(provenance.versions().values())
    provenance.versions.cache_clear()


def test_an_assembler_that_was_chosen_is_named(monkeypatch):
    provenance.versions.cache_clear()
    monkeypatch.setenv(assembler.variable(), "/there/ptxas")
    monkeypatch.setattr(assembler, "at", lambda path: Assembler(path, (12, 9, 86)))
    assert provenance.versions()["triton"] == f"{importlib.metadata.version('triton')}, ptxas 12.9.86"
    provenance.versions.cache_clear()


def test_what_is_missing_is_named(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError

    def none(*arguments, **options):
        raise FileNotFoundError

    provenance.versions.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setattr(provenance, "torch_build", lambda: None)
    monkeypatch.setattr(subprocess, "run", none)
    assert provenance.versions() == {"driver": "unknown", "torch": "not installed", "triton": "not installed"}
    provenance.versions.cache_clear()


def test_the_time_is_utc_to_the_second():
    assert len(provenance.now()) == 25 and provenance.now().endswith("+00:00")


def test_a_digest_sees_code_and_nothing_else(tmp_path):
    path = tmp_path / "one.py"

    times = iter(range(10**9, 10**10, 10**9))

    def written(text):
        path.write_text(text)
        os.utime(path, ns=(0, next(times)))
        return digest(("one",), tmp_path)

    first = written('"""Doc."""\nX = 1\n')
    assert written("# a comment\n'''Another.'''\n\nX  =  1\n") == first
    assert written('"""Doc."""\nX = 2\n') != first


def test_the_modules_behind_the_plain_kernel():
    assert reached("standard") == ("standard",) and len(digest(reached("standard"))) == 12
    assert all((KERNELS / f"{name}.py").is_file() for names in SOURCES.values() for name in names)
    assert {"primitives", "tiles", "launch"} <= set(reached("forward")) and "api" not in reached("forward")


def test_lines_go_to_the_end_and_a_wrong_one_is_named(tmp_path):
    path = tmp_path / "new" / provenance.file_name("A GPU (80 GB)")
    assert path.name == "a-gpu-80-gb.jsonl"
    for line in "12":
        provenance.append(line, path)
    assert provenance.load([path], int) == [1, 2]
    provenance.append("x", path)
    with pytest.raises(ERRORS["not_a_record"][0], match=r"a-gpu-80-gb\.jsonl, line 3, is not a record: invalid literal"):
        provenance.load([path], int)


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "image.jsonl"
    path.write_bytes(b"12\n\x89PNG\r\n\x1a\n")
    with pytest.raises(ERRORS["not_a_record"][0], match=r"image\.jsonl, line 2, is not a record: 'utf-8' codec can't decode byte 0x89"):
        provenance.load([path], int)


@pytest.mark.parametrize("cut", ["x", "12\nx", "12\n{34"])
def test_a_line_that_was_cut_spoils_no_other(tmp_path, cut):
    path = tmp_path / "cut.jsonl"
    path.write_text(cut)
    provenance.append("56", path)
    assert path.read_text() == f"{cut}\n56\n"
    with pytest.raises(ERRORS["not_a_record"][0], match=rf"cut\.jsonl, line {len(cut.splitlines())}, is not a record"):
        provenance.load([path], int)
    path.write_text("12")  # only the end of the line is missing
    provenance.append("56", path)
    assert provenance.load([path], int) == [12, 56]
