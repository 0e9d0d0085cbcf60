"""box/wire.py: plain arrays come out as they went in; everything else is refused before memory is taken for it."""

import io

import numpy as np
import pytest

from flashlab.grading.box import wire


def body(header, arrays=()):
    return wire.pack(header, arrays)[wire.PREFIX.size :]


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.array(3), np.array("memory"), np.array([True]), np.zeros((0, 4), np.float16)])
def test_arrays_survive(array):
    header, arrays = wire.unpack(body({"a": 1}, {"x": array}))
    assert header == {"a": 1} and arrays["x"].dtype == array.dtype
    assert np.array_equal(arrays["x"], array) and arrays["x"].shape == array.shape


def test_a_fortran_array_and_a_subclass_become_plain():
    class Odd(np.ndarray):
        pass

    array = np.asfortranarray(np.arange(6).reshape(2, 3)).view(Odd)
    out = wire.unpack(body({}, {"x": array}))[1]["x"]
    assert type(out) is np.ndarray and np.array_equal(out, np.arange(6).reshape(2, 3))


@pytest.mark.parametrize("value", [np.array([object()]), np.array(1j), np.array([(1, 2)], "i4,i4"), np.array(["2026-11-29"], "M8[D]")])
def test_other_kinds_are_not_sent(value):
    with pytest.raises(TypeError, match="numbers, truth values or text are needed"):
        wire.pack({}, {"x": value})


def npy(text: bytes, data: bytes = b""):
    """A .npy of version 1 with this header."""
    head = text + b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


@pytest.mark.parametrize(
    "blob",
    [
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"),
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"cos\nsystem\n"),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"),
        npy(b"__import__('os').system('true')"),
        b"",
        b"\x93NUMPY\x03\x00",
    ],
)
def test_an_array_that_lies_is_refused(blob):
    header = b'{"arrays": [["x", %d]]}' % len(blob)
    with pytest.raises(Exception):  # noqa: B017  the runner takes any exception as a broken answer
        wire.unpack(wire.HEADER.pack(len(header)) + header + blob)


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, wire.HEADER.pack(2) + b"[]", wire.HEADER.pack(4) + b"null"])
def test_a_header_that_is_none_is_refused(content):
    with pytest.raises(Exception):  # noqa: B017
        wire.unpack(content)


def test_numpy_reads_what_is_sent():
    header_size = wire.HEADER.unpack_from(body({}, {"x": np.arange(3)}))[0]
    blob = body({}, {"x": np.arange(3)})[wire.HEADER.size + header_size :]
    assert np.load(io.BytesIO(blob), allow_pickle=False).tolist() == [0, 1, 2]
