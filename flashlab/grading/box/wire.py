"""How parent and child talk: frames of one JSON header and plain arrays as their bytes, never a pickle.

A frame is its length (8 bytes), the header's length (4 bytes), the header, then the arrays' bytes one after another, the last
dimension fastest; the header's "arrays" lists (name, dtype, shape). Used on both sides, so it imports nothing of flashlab.

No .npy: NumPy reads its header with ast.literal_eval, and where two threads that mark a class parse at once Python 3.11 raises
SystemError now and then.
"""

import json
import math
import re
import struct

import numpy as np

PREFIX = struct.Struct("<Q")
HEADER = struct.Struct("<I")
MOST_ARRAYS = 100  # of one frame
MOST_DIMENSIONS = 32
KINDS = "biufU"  # booleans, integers, floats, text: nothing that could hold an object
DTYPE = re.compile(r"[<>|]([biuf]\d{1,2}|U[1-9]\d{0,8})")  # one of these kinds, and no text that NumPy would have to parse


def pack(header, arrays=()):
    """The bytes of one frame: `header` is plain JSON, `arrays` is {name: array}."""
    plain = {name: _plain(array) for name, array in dict(arrays).items()}
    listed = [(name, array.dtype.str, array.shape) for name, array in plain.items()]
    text = json.dumps({**header, "arrays": listed}).encode()
    body = b"".join([HEADER.pack(len(text)), text, *(array.tobytes() for array in plain.values())])
    return PREFIX.pack(len(body)) + body


def unpack(body):
    """(header, {name: array}) of a frame's bytes after its length. Raises ValueError, or another Exception, for anything else."""
    (size,) = HEADER.unpack_from(body)
    header = json.loads(body[HEADER.size : HEADER.size + size])
    if not isinstance(header, dict):
        raise ValueError("a frame's header is no object")
    arrays, start = {}, HEADER.size + size
    listed = header.pop("arrays", [])
    if len(listed) > MOST_ARRAYS:
        raise ValueError(f"{len(listed)} arrays in one frame")
    for name, dtype, shape in listed:
        arrays[str(name)] = array = _array(body, start, dtype, shape)
        start += array.nbytes
    return header, arrays


def _plain(array):
    plain = np.array(array, order="C")  # a subclass becomes a plain array
    if plain.dtype.kind not in KINDS:
        raise TypeError(f"an answer holds {plain.dtype}; numbers, truth values or text are needed")
    return plain


def _array(body, start, dtype, shape):
    """The array whose bytes begin at `start`; as many as its header says must be there, so that a lie cannot make us allocate."""
    if not DTYPE.fullmatch(dtype) or len(shape) > MOST_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array's header is none")
    if np.dtype(dtype).itemsize * math.prod(shape) > len(body) - start:
        raise ValueError("an array is not what its header says")
    return np.ndarray(shape, dtype, body, start).copy()
