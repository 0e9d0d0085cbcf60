"""`flashlab count FILE.py:kernel`: the file runs as a program, and each launch of that kernel is traced."""

from __future__ import annotations

import sys

from flashlab import runtime  # before triton

import pytest

from flashlab.cli import main
from flashlab.count import count, report, table

FILE = f"""
import sys
import torch
import triton
import triton.language as tl
from beside import SIZE

@triton.jit
def other_kernel(x_ptr):
    tl.store(x_ptr, 7.0)

@triton.autotune(configs=[triton.Config({{"BLOCK": 8}}), triton.Config({{"BLOCK": 4}})], key=["n"])
@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)

if __name__ == "__main__":
    x, out = torch.ones(SIZE, device="{runtime.device()}"), torch.zeros(SIZE, device="{runtime.device()}")
    other_kernel[(1,)](x)
    for n in map(int, sys.argv[1:] or [SIZE]):
        copy_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    assert torch.equal(out, x) and x[0] == 7
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("SIZE = 10\n")
    (tmp_path / "copy.py").write_text(FILE)
    return tmp_path / "copy.py"


def test_each_launch_is_traced(file, capsys):
    path, argv = list(sys.path), list(sys.argv)
    assert report(f"{file}:copy_kernel", ["10", "3"]) == 0
    assert capsys.readouterr().out == (
        "copy_kernel: 4 steps in 2 programs, 40 bytes loaded, 40 bytes stored\n"
        "tensor  op     accesses  bytes  asked for\n"
        "x       load          2     40         64\n"
        "out     store         2     40         64\n"
        "\n"
        "copy_kernel: 2 steps in 1 program, 12 bytes loaded, 12 bytes stored\n"
        "tensor  op     accesses  bytes  asked for\n"
        "x       load          1     12         32\n"
        "out     store         1     12         32\n"
    )
    assert sys.path == path and sys.argv == argv
    sys.modules.pop("beside", None)


@pytest.mark.parametrize("end", ["sys.exit()", "sys.exit(0)", "raise SystemExit"])
def test_a_file_that_ends_in_an_exit_without_fault_is_counted(file, capsys, end):
    file.write_text(f"{FILE}    {end}\n")
    assert report(f"{file}:copy_kernel") == 0
    assert capsys.readouterr().out.startswith("copy_kernel: 4 steps in 2 programs, 40 bytes loaded")


@pytest.mark.parametrize("end, code", [("sys.exit(3)", 3), ("sys.exit('no data')", "no data")])
def test_a_file_that_exits_with_a_fault_ends_the_count(file, capsys, end, code):
    path, argv = list(sys.path), list(sys.argv)
    file.write_text(f"{FILE}    {end}\n")
    with pytest.raises(SystemExit) as caught:
        report(f"{file}:copy_kernel")
    assert caught.value.code == code and capsys.readouterr().out == ""
    assert sys.path == path and sys.argv == argv


def test_a_fault_of_the_file_itself_is_shown_as_python_shows_it_from_the_file_on(file, capfd):
    file.write_text(f"{FILE}    raise ValueError('no data')\n")
    assert main(["count", f"{file}:copy_kernel"]) == 1
    said = capfd.readouterr()
    lines = said.err.splitlines()
    assert said.out == "" and lines[:1] + lines[-1:] == ["Traceback (most recent call last):", "ValueError: no data"]
    assert [line for line in lines if line.startswith("  File")] == [f'  File "{file}", line {len(FILE.splitlines()) + 1}, in <module>']


def test_a_fault_of_a_kernel_shows_its_line(file, capfd):
    file.write_text(FILE.replace("tl.store(out_ptr + at, tl.load", "tl.store(out_ptr + at, tl.lode"))
    assert main(["count", f"{file}:copy_kernel"]) == 1
    said = capfd.readouterr().err
    assert f'File "{file}", line 16, in copy_kernel' in said and said.splitlines()[-1].startswith("AttributeError: ")


def test_what_the_tracer_refuses_is_one_line_of_whatever_class(file, capfd):
    file.write_text(FILE.replace("(x, out, n)", "(x, out)"))
    assert main(["count", f"{file}:copy_kernel"]) == 2
    assert capfd.readouterr().err == (
        "flashlab: copy_kernel was not given n; every parameter needs a value. Pass each by name, e.g. trace(copy_kernel, grid, ..., n=64).\n"
    )


def test_a_kernel_without_a_load_has_one_line(file):
    (recorded,) = count(f"{file}:other_kernel")
    assert table(recorded).splitlines()[1:] == ["tensor  op     accesses  bytes  asked for", "x       store         1      4          4"]


NAMES = f"""
import torch
import triton
import triton.language as tl

@triton.jit
def names_kernel(x_ptr, kernel, watch, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(kernel + at, mask=at < watch, other=0.0))

x = torch.ones(4, device="{runtime.device()}")
names_kernel[(1,)](x, kernel=x, watch=3, BLOCK=4)
"""


def test_a_kernel_whose_parameters_are_called_as_those_of_trace(tmp_path):
    (tmp_path / "names.py").write_text(NAMES)
    (recorded,) = count(f"{tmp_path}/names.py:names_kernel")
    assert recorded.bytes_by_tensor() == {("kernel", "load"): 12, ("x", "store"): 16}


def test_a_kernel_that_is_not_launched(file):
    with pytest.raises(LookupError) as caught:
        count(f"{file}:softmax_kernel")
    assert str(caught.value) == (
        f"{file} launched no kernel called softmax_kernel; it launched other_kernel, copy_kernel. Add a launch to the file, under"
        " if __name__ == '__main__' if you like: it is run as a program."
    )
    file.write_text("")
    with pytest.raises(LookupError, match="it launched none"):
        count(f"{file}:softmax_kernel")


@pytest.mark.parametrize("target", ["softmax.py", "softmax.py:", ":kernel", "softmax.py:two words", ""])
def test_a_target_that_names_no_kernel(target):
    with pytest.raises(LookupError) as caught:
        count(target)
    assert str(caught.value) == f"{target!r} names no kernel of a file. Pass FILE.py:kernel, e.g. flashlab count softmax.py:softmax_kernel."


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        count(f"{tmp_path}/missing.py:kernel")
    assert str(caught.value) == f"there is no file {tmp_path}/missing.py. Pass the path of a Python file that launches the kernel."
