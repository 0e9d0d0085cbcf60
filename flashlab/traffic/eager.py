"""Count the bytes that each PyTorch operator reads and writes, on a CPU or a GPU, without a profiler.

    with count_bytes() as counter:
        standard(q, k, v)
    counter                      a row an operator: bytes loaded, bytes stored

PyTorch runs eager code one operator at a time: each reads its input tensors from memory and writes its outputs there.
So its bytes follow from the tensors it is given. This counts each operand once, as an ideal operator would read it: a
cache may serve some of it (traffic/cache.py), a poor kernel may read it twice (traffic/counters.py sees that).

Views (reshape, transpose, slices) move nothing. A tensor expanded from one row counts as that one row. Does not handle:
what a custom operator does inside, or compiled code (torch.compile fuses operators, so there is less to see).
"""

from __future__ import annotations

from contextlib import contextmanager
from math import prod
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# These allocate memory, or tell about a tensor, and touch none of its elements.
_MOVES_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "detach", "alias"}

# These write every element of `self` and read none; what they fill it with they may read.
_OVERWRITES = {
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_",
}  # fmt: skip


class OperatorBytes(NamedTuple):
    """One operator as it ran: its name, the shapes it was given, bytes loaded from and written to memory."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    bytes_loaded: int
    bytes_stored: int


class ByteCounter(TorchDispatchMode):
    """The operators that ran inside `count_bytes()`; its repr is a table with a total."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[OperatorBytes] = []

    @property
    def bytes_loaded(self) -> int:
        """Bytes read by all operators."""
        return sum(row.bytes_loaded for row in self.rows)

    @property
    def bytes_stored(self) -> int:
        """Bytes written by all operators."""
        return sum(row.bytes_stored for row in self.rows)

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written by all operators."""
        return self.bytes_loaded + self.bytes_stored

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        name = operator.overloadpacket.__name__
        if name not in _MOVES_NOTHING:
            self._count(name, operator._schema, args, kwargs, result)
        return result

    def _count(self, name, schema, args, kwargs, result) -> None:
        read, written, seen = [], [], set()
        passed = dict(zip((argument.name for argument in schema.arguments), args)) | kwargs
        overwritten = _overwritten_unread(name, schema, passed)
        for argument in schema.arguments:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in _tensors(passed.get(argument.name)):
                seen.add(tensor.untyped_storage()._cdata)
                if argument.name not in overwritten:
                    read.append(tensor)
                if is_written:
                    written.append(tensor)
        outputs = _tensors(result)
        written += [tensor for tensor in outputs if tensor.untyped_storage()._cdata not in seen]
        if outputs and not written:  # a view: every output lies in memory that was passed in
            return
        row = OperatorBytes(name, tuple(tuple(t.shape) for t in read), sum(map(touched_bytes, read)), sum(map(touched_bytes, written)))
        if row.bytes_loaded or row.bytes_stored:
            self.rows.append(row)

    def __repr__(self) -> str:
        width = max([len(row.operator) for row in self.rows] + [8])
        lines = [f"{'operator':<{width}}  {'bytes loaded':>15}  {'bytes stored':>15}"]
        lines += [f"{row.operator:<{width}}  {row.bytes_loaded:>15,}  {row.bytes_stored:>15,}" for row in self.rows]
        lines.append(f"{'all':<{width}}  {self.bytes_loaded:>15,}  {self.bytes_stored:>15,}   {self.bytes_moved:,} bytes moved")
        return "\n".join(lines)


@contextmanager
def count_bytes():
    """Count the bytes of every PyTorch operator that runs inside the `with` block, backward passes included.

    >>> with count_bytes() as counter:
    ...     doubled = torch.ones(1000, dtype=torch.float16) * 2
    >>> [(row.operator, row.bytes_loaded, row.bytes_stored) for row in counter.rows]
    [('ones', 0, 2000), ('mul', 2000, 2000)]
    """
    with ByteCounter() as counter:
        yield counter


def touched_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements of a tensor: what expand repeats, or what lies in several of unfold's windows, counts once.

    >>> touched_bytes(torch.ones(100).unfold(0, 10, 1))  # 91 windows of 10
    400
    """
    if not tensor.numel():
        return 0
    runs = []  # [stride, size] of elements that are evenly spaced, whichever dimensions they come from
    for stride, size in sorted(pair for pair in zip(tensor.stride(), tensor.shape) if pair[1] > 1):
        if runs and stride % runs[-1][0] == 0 and stride // runs[-1][0] <= runs[-1][1]:  # it begins inside the run, or right after it
            runs[-1][1] += stride // runs[-1][0] * (size - 1)
        elif stride:
            runs.append([stride, size])
    between = 1 + sum(stride * (size - 1) for stride, size in runs)  # runs may still cross, as those of strides 2 and 3 do
    return min(prod(size for _, size in runs), between) * tensor.element_size()


def _tensors(value) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _overwritten_unread(name: str, schema, passed: dict) -> set[str]:
    """Arguments that an operator is given but does not read: what it overwrites whole, and an addend times beta = 0."""
    unread = {argument.name for argument in schema.arguments if argument.is_out}
    if passed.get("beta", 1) == 0:
        unread.add("self")
    if name in _OVERWRITES or name.endswith("_like") or name.startswith("new_"):
        unread.add("self")  # only its shape matters
    return unread
