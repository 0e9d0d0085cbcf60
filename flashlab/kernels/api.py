"""attention(): the kernels behind one function, as operators of torch that autograd, torch.compile and export understand.

An operator of torch takes tensors, numbers and strings, no Python objects. So a mask travels as its registered name, its
numbers and its tensors (Mask.encode), and the operator looks the functions up (masks.decode). Each operator has three
parts: what it does, what shapes it returns (for tracing without data), and its derivative.

Unlike torch's scaled_dot_product_attention: causal is aligned to the bottom right, lse can be returned and has a
gradient, and masks are functions. Does not handle: dropout, double backward, forward-mode derivatives.
"""

from __future__ import annotations

import math

import torch
from torch.autograd import forward_ad

from flashlab import runtime
from flashlab.errors import error
from flashlab.kernels import masks
from flashlab.kernels.backward import backward
from flashlab.kernels.forward import forward
from flashlab.kernels.masks import Mask
from flashlab.kernels.standard import _sizes, need_tensors

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_HEAD_DIM = 256
BACKENDS = ("auto", "triton")
NO_MASK = Mask().encode()
CAUSAL = masks.causal()
PLAIN = {torch.Tensor, torch.nn.Parameter}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Mask | None = None,
    sink: torch.Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = True,
    backend: str = "auto",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """o (batch, heads, n_q, head_dim) from q of that shape and k, v (batch, kv_heads, n_k, head_dim); float16, bfloat16, float32.

    Any sizes and strides; heads, at least one, must be a multiple of kv_heads, head_dim at most 256. `causal` is aligned to
    the bottom right and joins `mask` (flashlab.kernels.masks). `scale` is 1/√head_dim by default. `sink` (heads,), in any
    of the three dtypes, is one more score in each row's sum, without a value. A row that sees no key gives 0. `return_lse` adds lse (batch, heads, n_q),
    float32, the natural log of each row's Σ exp(score), the sink's too; it has a gradient. `deterministic=False` takes the
    fused backward pass with atomics: dq may differ in its last bits from run to run, and on an H200 it was the slower one
    at every head_dim (tiles.py). `backend`: "auto" or "triton", for now the same.

    Raises ValueError or TypeError naming the argument, NotImplementedError for forward-mode derivatives. The environment
    variable FLASHLAB_AUTOTUNE=1, set before flashlab is imported, times a few tiles on the first call of each kind and
    keeps the fastest (autotune.py).

    >>> from flashlab.runtime import device
    >>> q, k, v = (torch.ones(1, 2, n, 8, device=device()) for n in (3, 5, 5))
    >>> attention(q, k, v, causal=True).shape
    torch.Size([1, 2, 3, 8])
    """
    need_tensors(q=q, k=k, v=v, **({} if sink is None else {"sink": sink}))
    if not q.is_meta and torch.is_autocast_enabled(q.device.type):
        wanted = torch.get_autocast_dtype(q.device.type)
        # As torch's own does: whole numbers and float64 stay what they are, and are refused below.
        q, k, v = (x.to(wanted) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v))
    _check(q, k, v, mask, sink, backend)
    if causal:
        mask = CAUSAL if mask is None else CAUSAL & mask
    names, numbers, tensors = mask.encode() if mask is not None else NO_MASK
    _check_tensors(q, tensors)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else _number(scale)
    run = _forward_autograd if _only_eager(q, k, v) else torch.ops.flashlab.attention_forward
    o, lse = run(q, k, v, sink, scale, names, numbers, tensors, deterministic)
    return (o, lse) if return_lse else o


def _only_eager(*tensors: torch.Tensor) -> bool:
    """Whether the dispatcher's 40 µs buy nothing: no one watches operators (compile, export, a dispatch mode, functorch), no tensor is special."""
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None
    return not watched and PLAIN.issuperset(map(type, tensors)) and not any(x.is_meta or x.is_neg() for x in tensors)


# -- the operators ----------------------------------------------------------------------------------------------------
LIBRARY = torch.library.Library("flashlab", "FRAGMENT")
MASK = "float scale, str mask, float[] numbers, Tensor[] tensors, bool deterministic"
LIBRARY.define(f"attention_forward(Tensor q, Tensor k, Tensor v, Tensor? sink, {MASK}) -> (Tensor o, Tensor lse)")
LIBRARY.define(
    "attention_backward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor do, Tensor? dlse, Tensor? sink,"
    f" {MASK}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink)"
)


def _on_device_of(function):
    """Launch on the tensors' GPU, also where another one is current."""

    def launch(q, *arguments):
        if q.is_cuda and q.device.index != torch.cuda.current_device():
            with torch.cuda.device(q.device):
                return function(q, *arguments)
        return function(q, *arguments)

    return launch


@_on_device_of
def _forward(q, k, v, sink, scale, mask, numbers, tensors, deterministic):
    if not q.is_cuda and runtime.mode() == "cuda":
        raise error("kernel_device", given=q.device)
    sink = None if sink is None else sink.contiguous().resolve_neg()  # one number may have been expanded to all heads
    return forward(q, k, v, *masks.decode(mask, numbers, tensors), scale, sink)


@_on_device_of
def _backward(q, k, v, o, lse, do, dlse, sink, scale, mask, numbers, tensors, deterministic):
    missing = masks.without_slope(mask)
    if missing:
        raise error("mask_no_dscore", mask=missing[0])
    functions, params = masks.decode(mask, numbers, tensors)
    lse, dlse = lse.contiguous(), None if dlse is None else dlse.resolve_neg()
    dq, dk, dv, delta = backward(q, k, v, o, lse, do, dlse, functions, params, scale, fused=not deterministic)
    if sink is None:
        return dq, dk, dv, q.new_empty(0)
    weights = torch.exp(sink.float()[:, None] - lse).masked_fill(lse == -torch.inf, 0)  # of the sink, in each row
    return dq, dk, dv, -(weights * delta).sum((0, 2)).to(sink.dtype)


LIBRARY.impl("attention_forward", _forward, "CompositeExplicitAutograd")
LIBRARY.impl("attention_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("flashlab::attention_forward", lib=LIBRARY)
def _forward_shapes(q, k, v, sink, scale, mask, numbers, tensors, deterministic):
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("flashlab::attention_backward", lib=LIBRARY)
def _backward_shapes(q, k, v, o, lse, do, dlse, sink, scale, mask, numbers, tensors, deterministic):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), q.new_empty(0) if sink is None else torch.empty_like(sink)


def _below_autograd(plain, operator, *given):
    """The result without a derivative: by the operator where something watches operators, else by the function behind it."""
    if _only_eager(*given[:3]):
        return plain(*given)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*given)


class _Attention(torch.autograd.Function):
    """The derivative of attention_forward. Written out, because torch.library.register_autograd takes 100 µs a call."""

    @staticmethod
    def forward(ctx, q, k, v, sink, scale, mask, numbers, deterministic, *tensors):
        o, lse = _below_autograd(_forward, torch.ops.flashlab.attention_forward, q, k, v, sink, scale, mask, numbers, tensors, deterministic)
        ctx.save_for_backward(q, k, v, sink, o, lse, *tensors)
        ctx.numbers = scale, mask, numbers, deterministic
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, sink, o, lse, *tensors = ctx.saved_tensors
        scale, mask, numbers, deterministic = ctx.numbers
        do = torch.zeros_like(o) if do is None else do
        run = _backward_autograd if _only_eager(q, k, v, do) else torch.ops.flashlab.attention_backward
        dq, dk, dv, dsink = run(q, k, v, o, lse, do, dlse, sink, scale, mask, numbers, tensors, deterministic)
        return dq, dk, dv, None if sink is None else dsink, None, None, None, None, *[None] * len(tensors)


class _Backward(torch.autograd.Function):
    """attention_backward for autograd: runs, and has no derivative of its own."""

    @staticmethod
    def forward(ctx, *given):
        return _below_autograd(_backward, torch.ops.flashlab.attention_backward, *given[:11], given[12:], given[11])

    @staticmethod
    def backward(ctx, *gradients):
        raise error("double_backward", given="attention's backward pass")


def _forward_autograd(q, k, v, sink, scale, mask, numbers, tensors, deterministic):
    if forward_ad._current_level >= 0:
        _check_tangents(q=q, k=k, v=v, sink=sink)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, sink)):
        return _Attention.apply(q, k, v, sink, scale, mask, numbers, deterministic, *tensors)
    return _below_autograd(_forward, torch.ops.flashlab.attention_forward, q, k, v, sink, scale, mask, numbers, tensors, deterministic)


def _backward_autograd(q, k, v, o, lse, do, dlse, sink, scale, mask, numbers, tensors, deterministic):
    if torch.is_grad_enabled():
        return _Backward.apply(q, k, v, o, lse, do, dlse, sink, scale, mask, numbers, deterministic, *tensors)
    given = (q, k, v, o, lse, do, dlse, sink, scale, mask, numbers, tensors, deterministic)
    return _below_autograd(_backward, torch.ops.flashlab.attention_backward, *given)


LIBRARY.impl("attention_forward", _forward_autograd, "Autograd")
LIBRARY.impl("attention_backward", _backward_autograd, "Autograd")


# -- what can be wrong ------------------------------------------------------------------------------------------------
def _check(q, k, v, mask, sink, backend) -> None:
    _, heads, _, head_dim, _, _ = _sizes(q, k, v)
    dtype, device = q.dtype, q.device
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in DTYPES:
            raise error("kernel_dtype", argument=name, given=x.dtype)
        if x.dtype != dtype:
            raise error("dtype_differs", argument=name, given=x.dtype, needed=dtype)
        if x.device != device:
            raise error("device_differs", argument=name, given=x.device, needed=device)
    if head_dim > LARGEST_HEAD_DIM:
        raise error("head_dim_large", given=head_dim, most=LARGEST_HEAD_DIM)
    if head_dim == 0:
        raise error("size", argument="head_dim", given=0, least=1)
    if mask is not None:
        if not isinstance(mask, Mask):
            raise error("mask", given=type(mask).__name__)
        mask.check_heads(heads)
    if sink is not None and (sink.shape != (heads,) or sink.device != q.device):
        raise error("sink", given=tuple(sink.shape), device=sink.device, needed=(heads,), place=q.device)
    if sink is not None and sink.dtype not in DTYPES:
        raise error("kernel_dtype", argument="sink", given=sink.dtype)
    if backend not in BACKENDS:
        raise error("backend", given=backend, allowed=", ".join(BACKENDS))


def _number(scale) -> float:
    try:
        return float(scale)
    except (TypeError, ValueError):
        raise error("scale", given=repr(scale)) from None


def _check_tangents(**given) -> None:
    for name, x in given.items():
        if x is not None and forward_ad.unpack_dual(x).tangent is not None:
            raise error("forward_mode", argument=name)


def _check_tensors(q, tensors) -> None:
    for x in tensors:
        if x.requires_grad:
            raise error("mask_gradient", given=tuple(x.shape))
        if x.device != q.device:
            raise error("mask_device", given=x.device, needed=q.device)
