"""Traces any Triton kernel: runs it in the interpreter and writes down every access, whatever the GPU or none.

    trace(add_kernel, (4,), x, y, out, 1000, block=256)      the grid and arguments of add_kernel[(4,)](...)

Each access is one event, on the tensor argument it belongs to: the parameter's name without _ptr, _pointer, _desc or the
like (`q_ptr` is q, and so is `Q`). Its tile is the rectangle around the elements touched, from the tensor's shape and
strides: the last two dimensions are rows and columns, those before them batch and head, and a tensor without another
argument's last dimension, such as lse beside q, has one number a row. An access that spans tensors or heads is one event
for each. Of a tensor of shape (batch, n, heads, head_dim) pass the view x.transpose(1, 2), whose pointer is the same: else
heads are its rows, and a tile is one event for each of n.

`bytes` are those touched: a masked-off lane touches none, and lanes of one access that share an address touch it once,
as a GPU merges them. `bytes_requested` counts every lane. An atomic counts once, though it reads and writes.

A compute event says which scores were worked on: the rows of the tiles of arguments named q and k that were loaded last,
once a tl.dot has a result of just those rows. It is written when the loop pass ends in which it was multiplied, or before
the next such product, store or atomic if that is sooner, so its watched values are those after the update. Where q's or
k's tile spans heads it names the first. Kernels without such arguments or without tl.dot have none.

Triton's interpreter computes wrong numbers in bfloat16 and float8 and does not say so: such tensors may be loaded and
cast to float32 first, but arithmetic in them is refused, tl.sum and the like included.

Does not handle: Gluon kernels, inline assembly, desc.atomic_add, pointers read from memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from flashlab.errors import error
from flashlab.traffic import triton_hooks
from flashlab.traffic.arguments import bound, on_host
from flashlab.traffic.places import APART, Argument, Tile, cut, distinct, narrowed, short_names
from flashlab.traffic.trace import Trace

_DTYPES = {"bf16": "bfloat16"}  # Triton's names where they are not torch's
_VERBS = {"load": "read", "store": "write", "atomic": "change"}


def trace(
    kernel: object,
    /,
    grid: int | Sequence[int] | Callable[[dict], Sequence[int]],
    *args: object,
    watch: str | Sequence[str] = (),
    **meta: object,
) -> Trace:
    """What every program of `kernel[grid](*args, **meta)` loads, stores and adds atomically, in program order.

    The kernel really runs: its results are in the tensors afterwards, CUDA tensors included (they are copied to the host
    and back). Programs are numbered with axis 0 fastest, and run in that order. `watch` names locals of the kernel or of
    its helpers (row_max, acc): each is kept at the first event after it changed, at every compute event, and cut to the
    rows and columns that exist there; bfloat16 and float8 become float32. A watched tensor is kept where it is stored: the
    event's tile, with NaN (0 in a dtype without it) where nothing was; of an atomic its operands, and lane by lane where
    lanes share an element. Where the kernel itself has a parameter called watch, give that by position; by name it is the
    kernel's, and nothing is watched.

    Raises IndexError before memory is touched where a lane that no mask switches off is outside its tensor; TypeError,
    ValueError or LookupError where the arguments do not fit the kernel.

    >>> import torch
    >>> from flashlab.smoke import add_one_kernel
    >>> trace(add_one_kernel, (1,), torch.zeros(6), 6, block=8)
    add_one_kernel: 2 steps in 1 program, 24 bytes loaded, 24 bytes stored
    """
    function, tuned = triton_hooks.unwrap(kernel)
    if function is None:
        raise error("trace_kernel", given=getattr(kernel, "__name__", None) or repr(kernel))
    if "watch" in list(inspect.signature(function).parameters)[len(args) :] and (not isinstance(watch, tuple) or watch):
        meta, watch = meta | {"watch": watch}, ()
    watched = _names(function.__name__, watch)
    arguments = bound(function, args, meta, tuned)
    storages: dict[int, tuple] = {}
    hosted = {name: on_host(value, storages) for name, value in arguments.items()}
    sizes = _grid(grid(arguments) if callable(grid) else grid)
    recorder = _Recorder(function.__name__, hosted, watched)
    recorder.run = triton_hooks.Run(function, recorder)
    try:
        recorder.run(hosted, sizes)
    except (AttributeError, TypeError) as fault:  # None is right where the kernel only asks whether it is None
        absent = [name for name, value in hosted.items() if value is None]
        if not absent or "NoneType" not in str(fault):
            raise
        values = {"argument": " or ".join(absent), "given": "None", "needed": "it computes with it", "instead": "a tensor or a number"}
        raise error("trace_value", kernel=function.__name__, **values) from fault
    for device, host in storages.values():
        device.copy_(host)
    recorder.check_watched()
    return recorder.trace


def _names(kernel: str, watch: object) -> tuple[str, ...]:
    names = tuple(watch) if isinstance(watch, Iterable) and not isinstance(watch, str) else (watch,)
    if not all(isinstance(name, str) for name in names):
        given, instead = f"a value of type {type(watch).__name__}", "a string or a tuple of strings, e.g. watch=('acc',)"
        raise error("trace_value", kernel=kernel, argument="watch", given=given, needed="it takes names of locals", instead=instead)
    return names


def _grid(grid: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    if not 1 <= len(sizes) <= 3 or not all(hasattr(size, "__index__") and int(size) >= 0 for size in sizes):
        raise error("trace_grid", given=grid)
    return tuple(int(size) for size in sizes) + (1,) * (3 - len(sizes))


class _Recorder(triton_hooks.Listener):
    """Turns what a kernel does into the events of a Trace."""

    def __init__(self, kernel: str, arguments: dict[str, object], watch: tuple[str, ...]) -> None:
        self.kernel, self.watch, self.number = kernel, watch, 0
        self.trace = Trace(kernel)
        found = {path: tensor for name, value in arguments.items() for path, tensor in triton_hooks.tensors_in(name, value)}
        names = short_names(found)
        found = {path: tensor.base if isinstance(tensor, triton_hooks.TensorWrapper) else tensor for path, tensor in found.items()}
        shapes = {tuple(tensor.shape) for tensor in found.values()}
        self.arguments: list[Argument] = []
        self.by_path: dict[str, Argument] = {}
        for slot, (path, tensor) in enumerate(found.items()):
            shape = tuple(tensor.shape)
            per_row = len(shape) > 1 and any(other[:-1] == shape for other in shapes)
            argument = self.by_path[path] = Argument(names[path], tensor, slot, per_row)
            self.arguments.append(argument)
            self.trace.tensors[argument.name] = (argument.rows, argument.cols, argument.width)

    # -- what the hooks tell --------------------------------------------------------------------------------------------
    def address(self, name: str, tensor: object) -> int:
        return self.by_path[name].seen

    def program(self, number: int) -> None:
        self.number = number
        self.loaded: dict[str, Tile] = {}
        self.fresh, self.worked, self.where = False, None, []  # is the pair of q and k new; the pair multiplied last, and in which frames
        self.past: dict[str, object] = {}  # watched locals of helpers that have returned
        self.kept: dict[str, object] = {}

    def access(self, op: str, address: np.ndarray, mask: np.ndarray, width: int, value: object) -> np.ndarray:
        if not self.arguments:
            raise error("trace_no_tensor", kernel=self.kernel, line=self._line(), verb=_VERBS[op])
        if op != "load":
            self._write_compute()
        slot = np.clip(((address + np.uint64(1 << APART - 1)) >> np.uint64(APART)).astype(np.int64) - 1, 0, len(self.arguments) - 1)
        active = slot[mask]
        parts = [int(slot.flat[0])] if not active.size else [int(active[0])] if (active == active[0]).all() else np.unique(active).tolist()
        real = np.zeros(address.shape, np.uint64)
        for part in parts:
            argument = self.arguments[part]
            chosen = mask if len(parts) == 1 else mask & (slot == part)
            offsets = (address - np.uint64(argument.seen)).astype(np.int64)
            self._check(op, argument, offsets[chosen], width)
            requested = address.size if len(parts) == 1 else int((slot == part).sum())
            self._events(op, argument, offsets, chosen, width, requested * width, value)
            real[chosen] = address[chosen] - np.uint64(argument.seen) + np.uint64(argument.real)
        return real

    def dot(self, rows: int, cols: int) -> None:
        q, k = self.loaded.get("q"), self.loaded.get("k")
        if self.fresh and q and k and (rows, cols) in ((q.block[0], k.block[0]), (k.block[0], q.block[0])):
            self._write_compute()
            self.fresh, self.worked, self.where = False, (q, k), list(self.run.frames())

    def narrow(self, dtype: str) -> None:
        raise error("trace_narrow", kernel=self.kernel, line=self._line(), given=_DTYPES.get(dtype, dtype))

    def pass_ended(self) -> None:
        if self.worked and next(self.run.frames()) in self.where:  # not a loop of a helper called after the product
            self._write_compute()

    def returned(self, frame) -> None:
        self.past.update({name: frame.f_locals[name] for name in self.watch if name in frame.f_locals})

    def finished(self) -> None:
        self._write_compute()

    # -- events -----------------------------------------------------------------------------------------------------------
    def _check(self, op: str, argument: Argument, offsets: np.ndarray, width: int) -> None:
        inside = argument.inside(offsets, width)
        if not inside.all():
            first = int(offsets[~inside][0])
            raise error(
                "trace_outside", program=self.number, kernel=self.kernel, line=self._line(), verb=_VERBS[op], tensor=argument.name,
                offset=first // argument.width, shape=argument.shape, strides=argument.strides, outside=int((~inside).sum()), lanes=len(offsets),
            )  # fmt: skip

    def _events(self, op, argument: Argument, offsets, chosen, width, requested, value) -> None:
        """One event for each head that the access touches; lanes that are masked off are asked for with the first."""
        bits = None if value is None else value.data
        if width > argument.width:
            (offsets, chosen, bits), width, value = narrowed(offsets, chosen, bits, width, argument.width), argument.width, None
        touched = offsets[chosen]
        heads = argument.by_head(argument.locate(touched)[0], chosen) if touched.size else [({}, chosen)]
        for number, (indices, lanes) in enumerate(heads):
            tile = argument.tile(indices, lanes) if touched.size else Tile()
            elements, count = distinct(offsets, lanes), int(lanes.sum())
            self.trace.append(
                op, argument.name, row0=tile.row0, col0=tile.col0, rows=tile.rows, cols=tile.cols, batch=tile.batch, head=tile.head,
                program=self.number, bytes=elements * width, bytes_requested=count * width if number else requested - (len(touched) - count) * width,
            )  # fmt: skip
            if number == 0:
                if op == "load" and argument.name in ("q", "k"):
                    self.loaded[argument.name], self.fresh = (tile if tile.rows else None), True
                self._note_changes()
            if op != "load" and argument.name in self.watch and tile.rows:
                values = np.broadcast_to(bits if value is None else triton_hooks.values(value), lanes.shape)[lanes]
                together = op == "atomic" and elements < count  # several lanes change one element: no value of theirs is the tile's
                self.trace.note(**{argument.name: values if together else argument.stored(values, indices, tile)})

    def _write_compute(self) -> None:
        if self.worked is None:
            return
        (q, k), self.worked, self.where = self.worked, None, []
        self.trace.append(
            "compute", "scores", row0=q.row0, col0=k.row0, rows=q.rows, cols=k.rows, batch=q.batch, head=q.head, program=self.number
        )
        self.kept = {}
        self._note_changes(q, k)

    # -- watched values -----------------------------------------------------------------------------------------------------
    def _note_changes(self, *tiles: Tile) -> None:
        """Note each watched local that is another value than when it was last noted in this program."""
        if not self.watch:
            return
        frames = [frame.f_locals for frame in self.run.frames()]
        for name in self.watch:
            found = next((places[name] for places in (*frames, self.past) if name in places), None)
            array = None if self.kept.get(name) is found else triton_hooks.number(found)
            if array is not None:
                self.kept[name] = found
                self.trace.note(**{name: cut(array, tiles or tuple(filter(None, map(self.loaded.get, ("q", "k")))))})

    def check_watched(self) -> None:
        """Raise where a watched name is neither a local of what ran nor a tensor."""
        known = {name for name in self.run.names() if not name.startswith("_")} | set(self.trace.tensors)
        missing = [name for name in self.watch if name not in known]
        if missing:
            raise error("trace_watch", missing=", ".join(missing), kernel=self.kernel, allowed=", ".join(sorted(known)))

    def _line(self) -> str:
        frame = next(self.run.frames())
        return f"line {frame.f_lineno} of {frame.f_code.co_name}"
