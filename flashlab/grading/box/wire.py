"""How parent and child talk: frames of one JSON header and plain arrays as .npy, never a pickle.

A frame is its length (8 bytes), the header's length (4 bytes), the header, then the arrays one after another; the
header's "arrays" lists (name, bytes of its .npy). Used on both sides, so it imports nothing of flashlab.
"""

import io
import json
import math
import struct

import numpy as np

PREFIX = struct.Struct("<Q")
HEADER = struct.Struct("<I")
MOST_ARRAYS = 100  # of one frame
KINDS = "biufU"  # booleans, integers, floats, text: nothing that could hold an object


def pack(header, arrays=()):
    """The bytes of one frame: `header` is plain JSON, `arrays` is {name: array}."""
    blobs = [(name, _npy(array)) for name, array in dict(arrays).items()]
    text = json.dumps({**header, "arrays": [(name, len(blob)) for name, blob in blobs]}).encode()
    body = b"".join([HEADER.pack(len(text)), text, *(blob for _, blob in blobs)])
    return PREFIX.pack(len(body)) + body


def unpack(body):
    """(header, {name: array}) of a frame's bytes after its length. Raises ValueError for anything else."""
    (size,) = HEADER.unpack_from(body)
    header = json.loads(body[HEADER.size : HEADER.size + size])
    if not isinstance(header, dict):
        raise ValueError("a frame's header is no object")
    arrays, start = {}, HEADER.size + size
    listed = header.pop("arrays", [])
    if len(listed) > MOST_ARRAYS:
        raise ValueError(f"{len(listed)} arrays in one frame")
    for name, length in listed:
        arrays[str(name)] = _array(body[start : start + int(length)])
        start += int(length)
    return header, arrays


def _npy(array):
    plain = np.array(array, order="C")  # a subclass becomes a plain array
    if plain.dtype.kind not in KINDS:
        raise TypeError(f"an answer holds {plain.dtype}; numbers, truth values or text are needed")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, plain, allow_pickle=False)
    return buffer.getvalue()


def _array(blob):
    """One .npy: its header must promise exactly the bytes that are there, so that a lie cannot make us allocate."""
    buffer = io.BytesIO(blob)
    version = np.lib.format.read_magic(buffer)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, _, dtype = read(buffer)
    if dtype.kind not in KINDS or (dtype.itemsize == 0 and math.prod(shape) > 1) or math.prod(shape) * dtype.itemsize != len(blob) - buffer.tell():
        raise ValueError("an array is not what its header says")
    buffer.seek(0)
    return np.lib.format.read_array(buffer, allow_pickle=False)
