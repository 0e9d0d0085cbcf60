"""Masks as functions: what a query sees, which tiles are worth visiting, and how a score is changed.

A mask is a class of `@triton.jit` functions under `@register`; calling it with its numbers and tensors makes a Mask for
`attention(..., mask=...)`. Masks join with `&`: a key must be visible to both, and scores pass left to right. A kernel
calls the functions (joined_masks.py); it has no branch for any of them. Write your own at the top level of a module:

    @register
    class every_second:
        @triton.jit
        def visible(batch, head, i, j, step):
            return (i - j) % step == 0

    attention(q, k, v, mask=every_second(2))

All functions end with the mask's own parameters; one annotated `int` takes only a whole number, one annotated `per_head`
only a tensor of one number for each query head. i is a query's place **among the keys**: the last query is at n_k - 1,
so causal is `j <= i` also where n_q differs from n_k. Where n_q is larger, the first queries have i below 0: a function that
loads by i must mask such loads. i and j never pass n_k - 1. A mask needs visible or score, or both; all else is optional:

    visible(batch, head, i, j)                           whether query i sees key j; i and j are tiles that broadcast
    key_range(batch, head, first, last, begin, end)      for queries first to last, both included: (lo, hi, full_lo,
                                                         full_hi); no key outside lo to hi - 1 is seen by any of them,
                                                         each key from full_lo to full_hi - 1 by all; begin to end - 1
                                                         are all keys. Tiles outside are skipped. For a mask
                                                         with `visible`: without it every key is seen.
    query_range(batch, head, first, last, begin, end)    the same for keys first to last; begin to end - 1 are all queries
    score(score, batch, head, i, j)                      the new score; scores are scaled, in natural units. -inf hides
                                                         the key; a row whose every key has float32's least number gets
                                                         the mean of v, but no right gradients: hide such a row
    dscore(score, batch, head, i, j)                     its derivative at the old score; needed for gradients

In the interpreter a bfloat16 or float8 tensor arrives as float32, and a body that computes in these dtypes is refused.
Does not handle: gradients of a mask's own tensors.
"""

from __future__ import annotations

import inspect
from functools import cache

import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.errors import error
from flashlab.kernels.joined_masks import MaskFunctions, no_function
from flashlab.kernels.primitives import tanh

# What the interpreter computes wrongly (runtime.narrow_refused), of torch's dtypes.
WRONG_THERE = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz}
LARGEST_INT = 2**30  # of a mask's parameters: kernels add n to them in 32 bits
FUNCTIONS = {"visible": 4, "key_range": 6, "query_range": 6, "score": 5, "dscore": 5}  # arguments before the mask's own
# Annotates a mask's parameter that is read by `head`: a tensor of shape (heads,), checked at each call. A kernel may name no
# global of another kind than a constexpr, not even to annotate.
per_head = tl.constexpr("per_head")


# -- what a caller holds ----------------------------------------------------------------------------------------------
KINDS: dict[str, MaskKind] = {}  # every registered mask by its name: an operator of torch takes a name, not an object


class MaskKind:
    """A registered mask without its parameters; call it with them to get a Mask."""

    def __init__(self, source: type) -> None:
        given = {name: f for name, f in vars(source).items() if isinstance(f, (triton.JITFunction, _INTERPRETED))}
        for name in given:
            if name not in FUNCTIONS:
                raise error("mask_function", mask=source.__name__, given=name, allowed=", ".join(FUNCTIONS))
        for name in FUNCTIONS:
            if name in vars(source) and name not in given:
                raise error("mask_plain", mask=source.__name__, given=name)
        if not {"visible", "score"} & set(given):
            raise error("mask_empty", mask=source.__name__)
        if "visible" not in given and {"key_range", "query_range"} & set(given):
            raise error("mask_range", mask=source.__name__, given=" and ".join(name for name in ("key_range", "query_range") if name in given))
        self.name, self.__name__, self.__doc__ = f"{source.__module__}.{source.__qualname__}", source.__name__, source.__doc__
        self.source, self.given = source, given
        arguments = {name: list(inspect.signature(f.fn).parameters.values()) for name, f in given.items()}
        counts = {len(found) - FUNCTIONS[name] for name, found in arguments.items()}
        if len(counts) > 1 or min(counts) < 0:
            raise error("mask_arguments", mask=source.__name__, needed=", ".join(f"{n}: {FUNCTIONS[n]}" for n in given))
        self.parameters = counts.pop()
        annotated = [(place, one) for name, found in arguments.items() for place, one in enumerate(found[FUNCTIONS[name] :])]
        # By the parameter's place: its name, where a function asks for a whole number, or for a number a head.
        self.whole = {place: one.name for place, one in annotated if one.annotation in (int, "int")}
        self.per_head = {place: one.name for place, one in annotated if _is_per_head(one.annotation)}

    def __call__(self, *params: int | float | torch.Tensor) -> Mask:
        if len(params) != self.parameters:
            raise error("mask_params", mask=self.__name__, given=len(params), needed=self.parameters)
        for place, name in self.whole.items():
            if isinstance(params[place], (float, torch.Tensor)):
                given = f"the float {params[place]}" if isinstance(params[place], float) else f"a tensor of shape {tuple(params[place].shape)}"
                raise error("mask_whole", mask=self.__name__, argument=name, given=given)
        return Mask(((self.name, params),))

    def __repr__(self) -> str:
        return f"<mask {self.__name__}: {', '.join(self.given)}; {self.parameters} parameter(s)>"


def _is_per_head(annotation: object) -> bool:
    """Whether it is per_head, or the text of it under any name of this module: some read annotations as text."""
    return annotation is per_head or (isinstance(annotation, str) and annotation.rsplit(".", 1)[-1] == "per_head")


_INTERPRETED = type(no_function)  # what @triton.jit makes here: a JITFunction, or the interpreter's own class


def register(source: type) -> MaskKind:
    """Decorate a class of mask functions: it becomes a MaskKind, known to the kernels by its module and name."""
    kind = MaskKind(source)
    KINDS[kind.name] = kind
    _functions.cache_clear()
    return kind


class Mask:
    """One or several masks with their parameters; `a & b` joins them."""

    def __init__(self, parts: tuple = ()) -> None:
        self.parts = parts

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise error("mask", given=type(other).__name__)
        return Mask(self.parts + other.parts)

    def __repr__(self) -> str:
        return " & ".join(f"{name.rsplit('.', 1)[-1]}{params}" for name, params in self.parts) or "no mask"

    def check_heads(self, heads: int) -> None:
        """Raises ValueError for a `per_head` parameter that is no tensor of one number for each of so many query heads."""
        for name, params in self.parts:
            for place, argument in KINDS[name].per_head.items():
                number = not isinstance(params[place], torch.Tensor)
                if number or params[place].shape != (heads,):
                    given = f"the number {params[place]}" if number else f"a tensor of shape {tuple(params[place].shape)}"
                    raise error("mask_per_head", mask=KINDS[name].__name__, argument=argument, given=given, needed=(heads,))

    def encode(self) -> tuple[str, list[float], list[torch.Tensor]]:
        """(names, numbers, tensors): what an operator of torch can take. A name ends with the kinds of its parameters."""
        names, numbers, tensors = [], [], []
        for name, params in self.parts:
            kinds = ""
            for value in params:
                if isinstance(value, torch.Tensor):
                    kinds += "t"
                    tensors.append(value.contiguous())
                elif isinstance(value, (int, float)):
                    if isinstance(value, int) and abs(value) > LARGEST_INT:
                        raise error("mask_number", mask=name.rsplit(".", 1)[-1], given=value, most=LARGEST_INT)
                    kinds += "f" if isinstance(value, float) else "i"
                    numbers.append(float(value))
                else:
                    raise error("mask_value", mask=name.rsplit(".", 1)[-1], given=type(value).__name__)
            names.append(f"{name}:{kinds}")
        return "&".join(names), numbers, tensors


def decode(names: str, numbers: list[float], tensors: list[torch.Tensor]) -> tuple[MaskFunctions, tuple]:
    """The functions and parameters that `Mask.encode` named: what the kernels take."""
    if not names:
        return NOTHING, ()
    functions = _functions(names)
    if not numbers and not tensors:
        return functions, ((),) * len(functions.limits)  # one for each joined mask, none of which has a parameter
    numbers, tensors, params = iter(numbers), iter(tensors), []
    take = {"t": lambda: _right_there(next(tensors)), "i": lambda: int(next(numbers)), "f": lambda: next(numbers)}
    for name in names.split("&"):
        params.append(tuple(take[kind]() for kind in name.rsplit(":", 1)[1]))
    return functions, tuple(params)


def _right_there(x: torch.Tensor) -> torch.Tensor:
    """x with its sign where torch only noted it, and in the interpreter float32 for a dtype whose arithmetic is wrong there."""
    x = x.resolve_neg()
    return x.float() if x.dtype in WRONG_THERE and runtime.mode() == "interpreter" else x


NOTHING = MaskFunctions()


@cache
def _functions(names: str) -> MaskFunctions:
    given = [KINDS[name.rsplit(":", 1)[0]].given for name in names.split("&")]
    flags = ([name in g for g in given] for name in ("visible", "score", "key_range", "query_range"))
    return MaskFunctions(*map(tuple, flags), **{name: tuple(g.get(name, no_function) for g in given) for name in FUNCTIONS})


def without_slope(names: str) -> list[str]:
    """The masks of an encoded name that change scores and give no derivative."""
    kinds = [KINDS[name.rsplit(":", 1)[0]] for name in names.split("&") if name]
    return [kind.__name__ for kind in kinds if "score" in kind.given and "dscore" not in kind.given]


# -- the masks --------------------------------------------------------------------------------------------------------
@register
class causal:
    """A query sees the keys up to its own place. For 3 queries and 5 keys: 11100, 11110, 11111."""

    @triton.jit
    def visible(batch, head, i, j):
        return j <= i

    @triton.jit
    def key_range(batch, head, first, last, begin, end):
        return begin, last + 1, begin, first + 1

    @triton.jit
    def query_range(batch, head, first, last, begin, end):
        return first, end, last, end


@register
class window:
    """window(left, right): a query sees the keys from `left` before its place to `right` after it, both included.

    Both are whole numbers (int). For no limit on one side give 2**30; -1 is one key less than 0, not "no limit" as elsewhere.
    """

    @triton.jit
    def visible(batch, head, i, j, left: int, right: int):
        return (j >= i - left) & (j <= i + right)

    @triton.jit
    def key_range(batch, head, first, last, begin, end, left, right):
        return first - left, last + right + 1, last - left, first + right + 1

    @triton.jit
    def query_range(batch, head, first, last, begin, end, left, right):
        return first - right, last + left + 1, last - right, first + left + 1


@register
class prefix:
    """prefix(length): the first `length` keys are seen by all, the others as in causal. For 4 and 4, length 2: 1100, 1100, 1110, 1111."""

    @triton.jit
    def visible(batch, head, i, j, length: int):
        return (j < length) | (j <= i)

    @triton.jit
    def key_range(batch, head, first, last, begin, end, length):
        return begin, tl.maximum(length, last + 1), begin, tl.maximum(length, first + 1)

    @triton.jit
    def query_range(batch, head, first, last, begin, end, length):
        return tl.where(first < length, begin, first), end, tl.where(last < length, begin, last), end


@register
class alibi:
    """alibi(slopes): a score loses slopes[head] for each place between query and key (Press et al. 2022).

    slopes: (heads,), one for each query head.
    """

    @triton.jit
    def score(score, batch, head, i, j, slopes: per_head):
        return score - tl.load(slopes + head).to(tl.float32) * tl.abs(i - j)

    @triton.jit
    def dscore(score, batch, head, i, j, slopes):
        return 1.0


@register
class softcap:
    """softcap(cap): scores stay between -cap and cap, cap · tanh(score / cap), as in Gemma 2."""

    @triton.jit
    def score(score, batch, head, i, j, cap):
        return cap * tanh(score / cap)

    @triton.jit
    def dscore(score, batch, head, i, j, cap):
        bend = tanh(score / cap)
        return 1 - bend * bend
