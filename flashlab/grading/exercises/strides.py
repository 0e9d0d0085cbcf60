"""What a kernel reads and writes that takes a tensor to lie otherwise than it does: the same memory, seen with other strides.

Arrays are (heads, n, head_dim), strides (head, row, column) in elements. Between rows that lie apart there is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

Strides = tuple[int, int, int]


def contiguous(shape: tuple[int, int, int], strides: Strides) -> list[Strides]:
    """What is taken for `strides` by mistake: rows, or heads, or both, as they lie in an array without gaps, one head after the other."""
    _, n, head_dim = shape
    return [(strides[0], head_dim, 1), (n * head_dim, strides[1], 1), (n * head_dim, head_dim, 1)]


def room(shape: tuple[int, ...], strides: Strides) -> int:
    """How many elements of memory an array with these strides reaches over."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def seen(memory: np.ndarray, shape: tuple[int, ...], strides: Strides) -> np.ndarray:
    """The memory as an array of that shape; writing to it writes to the memory."""
    return as_strided(memory, shape, [stride * memory.itemsize for stride in strides])


def read(array: np.ndarray, strides: Strides, taken: Strides) -> np.ndarray | None:
    """The numbers that are read with the strides `taken` where `array` lies with `strides`; None if some lie outside.

    >>> two_heads = np.arange(8.0).reshape(2, 2, 2)  # each row of head 0 lies beside the same row of head 1
    >>> read(two_heads, (2, 4, 1), (2, 2, 1))[0].tolist()
    [[0.0, 1.0], [4.0, 5.0]]
    """
    if room(array.shape, taken) > room(array.shape, strides):
        return None
    memory = np.full(room(array.shape, strides), np.nan)
    seen(memory, array.shape, strides)[...] = array
    return seen(memory, array.shape, taken).copy()


def written(array: np.ndarray, strides: Strides, taken: Strides, before: float) -> np.ndarray | None:
    """What a tensor with `strides` holds after `array` was written with the strides `taken`; where nothing was, `before`."""
    if room(array.shape, taken) > room(array.shape, strides):
        return None
    memory = np.full(room(array.shape, strides), before)
    for head, rows in zip(seen(memory, array.shape, taken), array):  # in the order of the programs: later heads write over earlier
        head[...] = rows
    return seen(memory, array.shape, strides).copy()
