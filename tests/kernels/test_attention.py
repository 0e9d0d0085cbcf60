"""What holds of attention() whatever it is asked: any sizes, strides, masks and scales; gradients by differences; no leaks; operators."""

from __future__ import annotations

import ast
import inspect
import math
import threading
from pathlib import Path

from flashlab import runtime  # before triton

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import Phase, Verbosity, example, given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from triton.runtime.errors import InterpreterError

from flashlab.errors import ERRORS
from flashlab.kernels import masks
from flashlab.kernels.api import attention
from flashlab.kernels.masks import register
from flashlab.problem import AttentionProblem
from flashlab.traffic import triton_hooks
from kernel_oracle import check_gradients, outcome, standard, within_budget

DEVICE = runtime.device()
NAN = math.nan


def tensors(n_q=9, n_k=11, head_dim=8, heads=2, kv_heads=None, dtype="float32", batch=1):
    return AttentionProblem(n_q, n_k, head_dim, batch=batch, heads=heads, kv_heads=kv_heads, dtype=dtype).tensors(0, DEVICE)


# -- any call -----------------------------------------------------------------------------------------------------------
@register
class checkered:
    """A mask and a score by hand, as a user would write them: every `step`-th diagonal, and scores bent by x · |x|."""

    @triton.jit
    def visible(batch, head, i, j, step, weight):
        return (i - j + batch + head) % step == 0

    @triton.jit
    def score(score, batch, head, i, j, step, weight):
        return score + tl.load(weight + head) * score * tl.abs(score)

    @triton.jit
    def dscore(score, batch, head, i, j, step, weight):
        return 1 + 2 * tl.load(weight + head) * tl.abs(score)


def per_head(x, score):
    return x.to(score).view(1, -1, 1, 1)


def checkered_sees(i, j, batch, heads):
    which = torch.arange(batch, device=i.device).view(-1, 1, 1, 1) + torch.arange(heads, device=i.device).view(1, -1, 1, 1)
    return (i - j + which) % 2 == 0


MASKS = {  # batch, heads, two whole numbers -> (mask, what it does in PyTorch)
    "none": lambda batch, heads, left, right: (None, {}),
    "window": lambda batch, heads, left, right: (masks.window(left, right), {"see": lambda i, j: (j >= i - left) & (j <= i + right)}),
    "prefix": lambda batch, heads, length, _: (masks.prefix(length), {"see": lambda i, j: (j < length) | (j <= i)}),
    "alibi & softcap": lambda batch, heads, left, right: (
        masks.alibi(torch.linspace(0.1, 0.5, heads, device=DEVICE)) & masks.softcap(0.7),
        {"rescore": lambda s, i, j: 0.7 * torch.tanh((s - per_head(torch.linspace(0.1, 0.5, heads), s) * (i - j).abs()) / 0.7)},
    ),
    "by hand": lambda batch, heads, left, right: (
        checkered(2, torch.linspace(-0.1, 0.2, heads, device=DEVICE)),
        {"see": lambda i, j: checkered_sees(i, j, batch, heads), "rescore": lambda s, i, j: s + per_head(torch.linspace(-0.1, 0.2, heads), s) * s * s.abs()},
    ),
}


def _inside(x):
    """x in the middle of a tensor that is nan all around it: on every side of every dimension."""
    whole = torch.full([n + 2 for n in x.shape], NAN, dtype=x.dtype, device=x.device)
    whole[1:-1, 1:-1, 1:-1, 1:-1] = x
    return whole[1:-1, 1:-1, 1:-1, 1:-1]


VIEWS = {
    "plain": lambda x: x,
    "inside nan": _inside,
    "as a model projects": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: torch.stack([x, x + NAN], -1).flatten(-2)[..., ::2],
    "one batch for all": lambda x: x[:1].expand_as(x),
    "one row for all": lambda x: x[:, :, :1].expand_as(x),
}
# Several tiles: of 16 rows in the interpreter, of 64 or 128 on a GPU, where each head_dim is compiled anew. Without a row: test_forward.py, test_backward.py.
LARGEST, HEAD_DIM = (300, st.sampled_from([20, 64, 128])) if DEVICE == "cuda" else (24, st.integers(1, 20))
SIZE = st.integers(1, LARGEST)
PLACES = st.integers(-2, LARGEST)
VIEW = st.sampled_from(sorted(VIEWS))


# To shrink a failure takes minutes here. After an illegal access every call of the process fails, so what pytest shows, a replay, fails
# in its first line: on a GPU all examples are printed as they ran. The one given ended so on an H200 before flashlab/assembler.py:
# Triton 3.6's ptxas for Hopper (12.8.93) takes its forward kernel's wgmma descriptors from a register that holds something else.
LOUD = Verbosity.verbose if DEVICE == "cuda" else Verbosity.normal


@example((202, 153), 20, (4, 2), ("every second", "every second", "one row for all", "plain"), "prefix", (2, -2), True, -1.0, True, True, "bfloat16")
@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate], verbosity=LOUD)
@given(
    n=st.tuples(SIZE, SIZE), head_dim=HEAD_DIM, heads=st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2)]), views=st.tuples(VIEW, VIEW, VIEW, VIEW),
    name=st.sampled_from(sorted(MASKS)), places=st.tuples(PLACES, PLACES), causal=st.booleans(),
    scale=st.one_of(st.none(), st.sampled_from([0.0, -1.0]), st.floats(-6, 6)), sinks=st.booleans(), deterministic=st.booleans(),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
)  # fmt: skip
def test_any_call(n, head_dim, heads, views, name, places, causal, scale, sinks, deterministic, dtype):
    batch = 1 + (heads[0] < 3)  # the interpreter takes its time
    scale = None if scale is None else scale * head_dim**-0.5
    given = tensors(*n, head_dim, *heads, dtype, batch)
    mask, oracle = MASKS[name](batch, heads[0], *places)
    torch.manual_seed(1)
    do, dlse = VIEWS[views[3]](torch.randn_like(given[0])), torch.randn(batch, heads[0], n[0], device=DEVICE)
    sink = (torch.linspace(-1, 1, heads[0], device=DEVICE).to(given[0].dtype),) if sinks else ()

    def seen(*leaves):
        return (VIEWS[view](x) for view, x in zip(views, leaves))

    def ours(q, k, v, *sink):
        return attention(*seen(q, k, v), causal=causal, scale=scale, mask=mask, sink=(*sink, None)[0], return_lse=True, deterministic=deterministic)

    def theirs(q, k, v, *sink):
        return standard(*seen(q, k, v), scale=head_dim**-0.5 if scale is None else scale, causal=causal, sink=(*sink, None)[0], **oracle)

    check_gradients(ours, theirs, (*given, *sink), do, dlse)


@pytest.mark.parametrize("view", VIEWS)
def test_an_incoming_gradient_may_have_any_strides(view):
    leaves = tensors(5, 7, 8, heads=1, batch=2)
    do, dlse = VIEWS[view](torch.randn_like(leaves[0])), torch.randn(2, 5, 1, device=DEVICE).mT

    def f(*leaves):
        return attention(*leaves, causal=True, return_lse=True)

    strided, contiguous = outcome(f, leaves, do, dlse), outcome(f, leaves, do.contiguous(), dlse.contiguous())
    for a, b in zip(strided, contiguous):  # on a GPU the sums of delta may take another order
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_q, n_k", [(16, 21), (21, 16)])
@pytest.mark.parametrize("deterministic", [True, False], ids=["two_kernels", "fused"])
def test_only_one_side_has_a_ragged_end(n_q, n_k, deterministic):
    leaves, do, dlse = tensors(n_q, n_k), torch.ones(1, 2, n_q, 8, device=DEVICE), torch.ones(1, 2, n_q, device=DEVICE)
    got = outcome(lambda *x: attention(*map(_inside, x), return_lse=True, deterministic=deterministic), leaves, do, dlse)
    exact = outcome(lambda *x: standard(*x, scale=8**-0.5), [x.double().cpu() for x in leaves], do.double().cpu(), dlse.double().cpu())
    assert all((a.double().cpu() - b).abs().max() < 1e-5 for a, b in zip(got, exact))


def test_causal_joins_the_mask():
    q, k, v = tensors(9, 9)
    joined = attention(q, k, v, mask=masks.causal() & masks.window(2, 5))
    assert torch.equal(attention(q, k, v, causal=True, mask=masks.window(2, 5)), joined)
    assert not torch.allclose(attention(q, k, v, causal=True), joined) and not torch.allclose(attention(q, k, v, mask=masks.window(2, 5)), joined)


@pytest.mark.parametrize("huge", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_first_tile_of_scores_of_minus_infinity_gives_no_nan(huge, causal):
    """A bias carried in one more column of q and k, or products past float32's largest number."""
    q, k, v = tensors(n_q=64, n_k=300, heads=1)
    q[..., -1], k[..., -1], k[:, :, :256, -1] = 1, 0, -math.inf
    if huge:
        q, k = torch.full_like(q, 1e20), torch.zeros_like(k)
        k[:, :, :256] = -1e20
    o = attention(q, k, v, causal=causal)
    exact = standard(*(x.double().cpu() for x in (q, k[:, :, 256:], v[:, :, 256:])), scale=8**-0.5, causal=causal)[0]
    torch.testing.assert_close(o.cpu(), exact.float(), rtol=1e-4, atol=1e-5)


def test_a_scale_of_zero_is_the_mean_of_the_values():
    q, k, v = tensors()
    torch.testing.assert_close(attention(q, k, v, scale=0), v.mean(2, keepdim=True).expand_as(q), rtol=1e-5, atol=1e-6)


def test_a_sink_of_minus_infinity_is_no_sink():
    q, k, v = tensors(9, 5)  # causal: the first four queries see no key
    sink, do, dlse = torch.full((2,), -math.inf, device=DEVICE), torch.randn_like(q), torch.randn(1, 2, 9, device=DEVICE)
    without = outcome(lambda *x: attention(*x, causal=True, return_lse=True), (q, k, v), do, dlse)
    *rest, dsink = outcome(lambda *x: attention(*x[:3], sink=x[3], causal=True, return_lse=True), (q, k, v, sink), do, dlse)
    assert (dsink == 0).all()
    for a, b in zip(rest, without):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("end", [3e38, -3e38])
def test_a_sink_at_an_end_of_float32_has_gradients(end, deterministic):
    """lse · LOG2_E is infinite there: -inf in the 13 rows that see no key, where the sink is all that they have."""
    given = *tensors(20, 7), torch.full((2,), end, device=DEVICE)
    do, dlse = torch.randn_like(given[0]), torch.randn(1, 2, 20, device=DEVICE)
    call = lambda *x: attention(*x[:3], sink=x[3], causal=True, return_lse=True, deterministic=deterministic)  # noqa: E731
    o, lse, dq, dk, dv, dsink = outcome(call, given, do, dlse)
    assert all(x.isfinite().all() for x in (o, lse, dq, dk, dv, dsink))
    assert (dq[:, :, :13] == 0).all()
    torch.testing.assert_close(dsink, (dlse if end > 0 else dlse[:, :, :13]).sum((0, 2)), rtol=1e-5, atol=1e-5)


def test_joined_scores_follow_the_chain_rule():
    """Each derivative is taken at the score that the masks before it made."""
    q, k, v = tensors(9, 11, 4)
    mask = masks.softcap(0.7) & checkered(1, torch.tensor([0.4, -0.3], device=DEVICE)) & masks.softcap(0.5)

    def rescore(s, i, j):
        s = 0.7 * torch.tanh(s / 0.7)
        return 0.5 * torch.tanh((s + per_head(torch.tensor([0.4, -0.3]), s) * s * s.abs()) / 0.5)

    do, dlse = torch.randn_like(q), torch.randn(1, 2, 9, device=DEVICE)
    got = outcome(lambda *x: attention(*x, mask=mask, return_lse=True), (q, k, v), do, dlse)
    exact = outcome(lambda *x: standard(*x, scale=0.5, rescore=rescore), [x.double().cpu() for x in (q, k, v)], do.double().cpu(), dlse.double().cpu())
    assert all((a.double().cpu() - b).abs().max() < 1e-5 for a, b in zip(got, exact))


# -- gradients by differences --------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:Input #")  # that it is not float64: the differences are wide enough for float32
@pytest.mark.parametrize("deterministic", [True, False], ids=["two_kernels", "fused"])
def test_gradients_are_what_small_changes_make_of_o_and_lse(deterministic):
    q, k, v = (x.requires_grad_() for x in tensors(2, 3, 2, heads=2, kv_heads=1))
    sink = torch.tensor([0.3, -0.5], device=DEVICE, requires_grad=True)

    def f(q, k, v, sink):
        return attention(q, k, v, sink=sink, causal=True, mask=masks.softcap(2.0), scale=0.7, return_lse=True, deterministic=deterministic)

    assert torch.autograd.gradcheck(f, (q, k, v, sink), eps=1e-2, atol=2e-3, rtol=1e-2, nondet_tol=0.0 if deterministic else 1e-6)


def test_a_row_s_gradient_of_lse_is_its_weights():
    """d lse / d score is the weights, so with scale 1 and keys that are unit vectors, dq is the weights themselves."""
    q, _, v = tensors(5, 8, 8)
    k = torch.eye(8, device=DEVICE).expand(1, 2, 8, 8)
    _, lse = attention(q.requires_grad_(), k, v, scale=1.0, return_lse=True)
    (dq,) = torch.autograd.grad(lse.sum(), q)
    torch.testing.assert_close(dq, torch.softmax(q, -1).detach(), rtol=1e-5, atol=1e-6)


# -- what must not leak ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("deterministic", [True, False], ids=["two_kernels", "fused"])
def test_nan_in_keys_and_queries_past_the_end_does_not_leak(deterministic):
    """Rows of a longer buffer, as in a cache: what lies behind the last one is nobody's."""
    q, k, v = tensors(19, 21, 8)
    do, dlse = torch.randn_like(q), torch.randn(q.shape[:3], device=DEVICE)

    def f(*leaves):
        return attention(*leaves, causal=True, return_lse=True, deterministic=deterministic)

    def buffered(x, fill):
        whole = torch.full((1, 2, 40, 8), fill, device=DEVICE)
        whole[:, :, : x.shape[2]] = x
        return whole[:, :, : x.shape[2]]

    for a, b in zip(outcome(f, (q, k, v), do, dlse), outcome(f, (buffered(q, NAN), buffered(k, NAN), buffered(v, math.inf)), do, dlse)):
        torch.testing.assert_close(a, b, rtol=0, atol=0 if deterministic else 1e-6)


def test_nan_in_tiles_that_nobody_sees_does_not_leak_into_gradients():
    q, k, v = tensors(16, 160, 8)
    mask, do = masks.window(8, 0), torch.ones_like(q)  # queries 144 to 159 see keys 136 to 159: tiles up to key 127 are nobody's
    clean = outcome(lambda *x: attention(*x, mask=mask, return_lse=True), (q, k, v), do, do[..., 0])
    k[:, :, :128], v[:, :, :128] = NAN, NAN
    for deterministic in (True, False):
        dirty = outcome(lambda *x: attention(*x, mask=mask, return_lse=True, deterministic=deterministic), (q, k, v), do, do[..., 0])
        assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(clean, dirty))
        assert (dirty[3][:, :, :16] == 0).all() and (dirty[4][:, :, :16] == 0).all()


@pytest.mark.parametrize("deterministic", [True, False], ids=["two_kernels", "fused"])
def test_rows_past_the_end_have_no_weight_however_large_a_mask_makes_scores(deterministic):
    """A padded row's exp(score) would be inf, and inf times the 0 of its do is nan."""
    leaves = tensors(17, 33, 8, heads=1)
    mask = masks.alibi(torch.tensor([-50.0], device=DEVICE))
    got = outcome(lambda *x: attention(*x, mask=mask, return_lse=True, deterministic=deterministic), leaves, torch.ones_like(leaves[0]), torch.ones(1, 1, 17))
    assert all(x.isfinite().all() for x in got)


def test_a_nan_value_that_a_visited_tile_hides_is_as_in_sdpa():
    q, k, v = tensors(6, 6, 8)
    v[:, :, 4] = NAN
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(6, 6, dtype=torch.bool, device=DEVICE).tril())
    assert torch.equal(attention(q, k, v, causal=True).isnan(), theirs.isnan()) and theirs.isnan().any()


@pytest.mark.parametrize("deterministic", [True, False], ids=["two_kernels", "fused"])
def test_uninitialised_memory_is_never_read(deterministic):
    """PyTorch can fill what torch.empty gives with nan: nothing of it comes out."""
    q, k, v = tensors(19, 21, 5, heads=4, kv_heads=2)
    sink, do = torch.zeros(4, device=DEVICE), torch.ones_like(q)

    def all_of_it():
        return outcome(lambda q, k, v, sink: attention(q, k, v, sink=sink, causal=True, return_lse=True, deterministic=deterministic), (q, k, v, sink), do, do[..., 0])

    usual = all_of_it()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(3, device=DEVICE).isnan().all()
        filled = all_of_it()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(usual, filled))


def test_the_same_bits_come_every_time():
    q, k, v = tensors(1024, 1024, 128, heads=4, dtype="float16") if DEVICE == "cuda" else tensors(17, 17, 8, heads=1, dtype="float16")
    do, dlse = torch.randn_like(q), torch.randn(q.shape[:3], device=DEVICE)
    first, *others = (outcome(lambda *x: attention(*x, causal=True, return_lse=True), (q, k, v), do, dlse) for _ in range(20 if DEVICE == "cuda" else 2))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other))


def test_inputs_are_left_as_they_were():
    given = tensors(19, 21, 8)
    copies = [x.clone() for x in given]
    outcome(lambda *x: attention(*x, causal=True, return_lse=True, deterministic=False), given, torch.ones_like(given[0]), torch.ones(1, 2, 19))
    assert all(torch.equal(a, b) for a, b in zip(given, copies))


FAR = {  # (shape, strides, elements from one tensor to the next: all four lie in one storage, which a CPU gives pages only where they are touched)
    "batch": ((2, 1, 17, 16), (2**31 + 64, 272, 16, 1), 272),
    "n": ((1, 1, 33, 16), (1, 1, 2**31 // 31, 1), 16),
    "n in one tile": ((1, 1, 17, 16), (1, 1, 2**31 // 15, 1), 16),
    "head_dim": ((1, 1, 17, 16), (1, 1, 1, 2**31 // 12), 17),
}


@pytest.mark.parametrize("place", FAR)
@pytest.mark.parametrize("deterministic", [True, False], ids=["two_kernels", "fused"])
def test_offsets_past_two_to_the_31(place, deterministic):
    shape, strides, apart = FAR[place]
    near = [torch.randn(shape, dtype=torch.float16, device=DEVICE) for _ in range(4)]
    storage = torch.empty(sum((n - 1) * s for n, s in zip(shape, strides)) + 1 + 4 * apart, dtype=torch.float16, device=DEVICE)
    q, k, v, do = (storage.as_strided(shape, strides, number * apart).copy_(x) for number, x in enumerate(near))
    dlse = do[..., 0]

    def f(*leaves):
        return attention(*leaves, return_lse=True, deterministic=deterministic)

    for a, b in zip(outcome(f, (q, k, v), do, dlse), outcome(f, near[:3], near[3], near[3][..., 0])):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


def test_the_grid_has_one_axis_which_takes_more_than_65535_programs():
    q, k, v = (torch.zeros(70000, 1, 1, 1, device=DEVICE, requires_grad=True) for _ in range(3))
    for deterministic, kernels in ((True, ["delta_kernel", "keys_kernel", "queries_kernel"]), (False, ["delta_kernel", "keys_kernel"])):
        seen = []
        with triton_hooks.launches(lambda launch: seen.append((launch.kernel.__name__, launch.grid))):
            attention(q, k, v, deterministic=deterministic).sum().backward()
        assert seen == [(name, (70000, 1, 1)) for name in ("forward_kernel", *kernels)]


# -- masks of a user ---------------------------------------------------------------------------------------------------------
@register
class shifted:
    """All of a row's scores moved by the row's own number."""

    @triton.jit
    def score(score, batch, head, i, j, by):
        return score + tl.load(by + i)

    @triton.jit
    def dscore(score, batch, head, i, j, by):
        return 1.0


@pytest.mark.filterwarnings("error::RuntimeWarning")  # a GPU goes to infinity without a word, and so must the interpreter
def test_a_row_s_scores_may_lie_anywhere_in_float32():
    """Far out they are all the same, so the row gets the mean of v, as from PyTorch. A GPU that fused them with their maximum gave nan."""
    by = torch.tensor([0.0, -1e4, 1e9, -1e10, 1e20, -1e30, 1e38, -2e38, 3e38, torch.finfo(torch.float32).min], device=DEVICE)
    q, k, v = tensors(len(by), 40)
    bias = by.repeat(4)  # read by a query's place among the keys: its last tenth
    o, lse = attention(q, k, v, mask=shifted(bias), return_lse=True)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=by[:, None].expand(-1, 40))
    torch.testing.assert_close(o, theirs, rtol=0, atol=2e-3)  # at -1e4 float32 keeps a thousandth of a score
    torch.testing.assert_close(o[:, :, 2:], v.mean(2, keepdim=True).expand_as(o[:, :, 2:]), rtol=0, atol=1e-6)
    torch.testing.assert_close(lse[:, :, 2:], by[2:].expand_as(lse[:, :, 2:]), rtol=1e-6, atol=0)
    for x in outcome(lambda *x: attention(*x, mask=shifted(bias), return_lse=True), (q, k, v), torch.ones_like(q), torch.ones(q.shape[:3])):
        assert x.isfinite().all()
    with_sink, lse = attention(q, k, v, mask=shifted(bias), sink=torch.zeros(2, device=DEVICE), return_lse=True)
    assert (with_sink[:, :, by < 0] == 0).all() and (lse[:, :, by < 0] == 0).all() and torch.equal(with_sink[:, :, by > 0], o[:, :, by > 0])


@register
class squared_bias:
    """Does arithmetic in the dtype of its tensor."""

    @triton.jit
    def score(score, batch, head, i, j, bias):
        return score + tl.load(bias + j) * tl.load(bias + j)

    @triton.jit
    def dscore(score, batch, head, i, j, bias):
        return 1.0


NARROW = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", NARROW if runtime.mode() == "interpreter" else NARROW[:1])  # a GPU rounds each step to float8
def test_a_mask_s_narrow_tensor_is_right_in_the_interpreter_too(dtype):
    q, k, v = (x.requires_grad_() for x in tensors())
    bias = torch.randn(11, device=DEVICE).to(dtype)
    given, exact = (attention(q, k, v, mask=squared_bias(b)) for b in (bias, bias.float()))
    assert (given - exact).abs().max() < 2e-2  # of bfloat16's rounding, on a GPU
    (dq,), (right,) = (torch.autograd.grad(o.sum(), q) for o in (given, exact))
    assert (dq - right).abs().max() < 2e-2


@triton.jit
def halved(x):
    return x.to(tl.bfloat16) * 0.5


@register
class summed_in_bfloat16:
    @triton.jit
    def score(score, batch, head, i, j):
        return score + tl.sum(tl.full([16], 1, tl.float32).to(tl.bfloat16), 0).to(tl.float32)


@register
class whole_to_bfloat16:
    @triton.jit
    def score(score, batch, head, i, j):
        return score + (j - i).to(tl.bfloat16).to(tl.float32)


@register
class places:
    @triton.jit
    def score(score, batch, head, i, j):
        return score + (j - i).to(tl.float32)


@register
class cast_to_bfloat16:
    @triton.jit
    def score(score, batch, head, i, j, bias):
        return score + tl.load(bias + j).to(tl.bfloat16).to(tl.float32)

    @triton.jit
    def dscore(score, batch, head, i, j, bias):
        return halved(tl.load(bias + j))


@pytest.mark.skipif(runtime.mode() == "cuda", reason="a GPU computes in bfloat16")
def test_a_mask_that_computes_in_bfloat16_is_refused_in_the_interpreter_and_a_mere_cast_is_not():
    q, k, v = (x.requires_grad_() for x in tensors())
    o = attention(q, k, v, mask=cast_to_bfloat16(torch.randn(11)))
    with pytest.raises(ERRORS["mask_narrow"][0]) as caught:
        o.sum().backward()
    line = inspect.getsourcelines(halved.fn)[1] + 2
    assert str(caught.value) == (
        f"halved (test_attention.py, line {line}), of a mask or called by one, computes in bfloat16, where Triton's interpreter gives wrong"
        " numbers without saying so. Cast to float32 before the arithmetic: x.to(tl.float32)."
    )
    with pytest.raises(ERRORS["mask_narrow"][0], match=r"^score \(test_attention.py, line \d+\), of a mask"):
        attention(q, k, v, mask=summed_in_bfloat16())
    o, exact = (attention(q, k, v, mask=mask) for mask in (whole_to_bfloat16(), places()))
    assert torch.equal(o, exact)


@triton.jit
def doubled(x, out):
    tl.store(out, tl.load(x) + tl.load(x))


@pytest.mark.skipif(runtime.mode() == "cuda", reason="a GPU computes in bfloat16")
def test_other_kernels_compute_in_bfloat16_as_before_also_while_another_thread_s_mask_may_not():
    begun, go, x, out = threading.Event(), threading.Event(), torch.zeros(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16)

    def other():
        with runtime.narrow_refused():
            begun.set()
            go.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(20)
    doubled[(1,)](x, out)  # inside the other's, which ends after this begins and before the next one ends
    with pytest.raises(ERRORS["mask_narrow"][0], match="^doubled"):
        with runtime.narrow_refused():
            go.set()
            thread.join()
            doubled[(1,)](x, out)
    doubled[(1,)](x, out)
    assert out == 0


@register
class faulty:
    @triton.jit
    def score(score, batch, head, i, j):
        return score.no_such_thing


@pytest.mark.skipif(runtime.mode() == "cuda", reason="there the compiler finds it")
def test_another_fault_of_a_mask_is_triton_s_to_tell():
    with pytest.raises(InterpreterError, match="no_such_thing"):
        attention(*tensors(), mask=faulty())


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU weights are rounded too")
def test_in_the_interpreter_bfloat16_results_are_those_of_float32_rounded():
    q, k, v = (x.bfloat16().requires_grad_() for x in tensors())
    given, right = (attention(*x, causal=True) for x in ((q, k, v), (q.float(), k.float(), v.float())))
    assert given.dtype == torch.bfloat16 and torch.equal(given, right.bfloat16())


def test_every_product_is_asked_for_in_ieee():
    """The interpreter computes no other; on a GPU float32 would be TF32 unless each tl.dot says no."""
    dots = [
        (path.name, node.lineno, {word.arg: getattr(word.value, "value", None) for word in node.keywords}.get("input_precision"))
        for path in (Path(inspect.getfile(attention)).with_name(name) for name in ("forward.py", "backward.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.dot"
    ]
    assert len(dots) >= 10 and [dot for dot in dots if dot[2] != "ieee"] == []


# -- operators -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("whole", [True, False], ids=["with_all", "with_least"])
def test_opcheck_of_the_backward_operator(whole):
    q, k, v = tensors(5, 6, heads=4, kv_heads=2)
    sink, mask = (torch.zeros(4, device=DEVICE), masks.causal() & checkered(2, torch.ones(4, device=DEVICE))) if whole else (None, masks.Mask())
    o, lse = attention(q, k, v, sink=sink, mask=mask, return_lse=True)
    dlse = torch.ones_like(lse) if whole else None
    torch.library.opcheck(torch.ops.flashlab.attention_backward.default, (q, k, v, o, lse, torch.ones_like(o), dlse, sink, 0.3, *mask.encode(), whole))


def test_opcheck_of_the_forward_operator_in_half_precision():
    q, k, v = tensors(5, 6, heads=4, kv_heads=2, dtype="float16")
    torch.library.opcheck(torch.ops.flashlab.attention_forward.default, (q, k, v, torch.zeros(4, device=DEVICE), 0.3, *masks.causal().encode(), True))


def whole_loss(q, k, v, weight, sink):
    o, lse = attention(q, k, v, causal=True, mask=checkered(2, weight), sink=sink, scale=0.3, return_lse=True, deterministic=False)
    return o.square().sum() + lse.sum()


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)]  # on a CPU inductor calls a C++ compiler for 40 s
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_fullgraph_with_everything_and_for_other_sizes(backend, dynamic):
    torch.compiler.reset()
    compiled = torch.compile(whole_loss, fullgraph=True, backend=backend, dynamic=dynamic)
    for n_k in (11, 14):
        q, k, v = (x.requires_grad_() for x in tensors(9, n_k, heads=4, kv_heads=2))
        given = (q, k, v, torch.full((4,), 0.1, device=DEVICE), torch.zeros(4, device=DEVICE, requires_grad=True))
        leaves = (q, k, v, given[4])
        loss, right = compiled(*given), whole_loss(*given)
        torch.testing.assert_close(loss, right)
        torch.testing.assert_close(torch.autograd.grad(loss, leaves), torch.autograd.grad(right, leaves), rtol=1e-4, atol=1e-5)


def test_an_exported_graph_holds_the_operator_and_takes_other_sizes():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, mask=masks.window(3, 0), return_lse=True)

    n_k = torch.export.Dim("n_k", min=2, max=64)
    exported = torch.export.export(Model(), tensors(), dynamic_shapes=({}, {2: n_k}, {2: n_k}))
    assert [str(node.target) for node in exported.graph.nodes if "flashlab" in str(node.target)] == ["flashlab.attention_forward.default"]
    for n in (11, 20):
        torch.testing.assert_close(exported.module()(*tensors(9, n)), Model()(*tensors(9, n)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_computes_in_its_dtype_and_gives_gradients_in_theirs(dtype):
    q, k, v = (x.requires_grad_() for x in tensors())
    with torch.autocast(DEVICE, dtype=dtype):
        o, lse = attention(q, k.to(dtype), v, causal=True, return_lse=True)
    lower = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    right, right_lse = attention(*lower, causal=True, return_lse=True)
    assert o.dtype == dtype and lse.dtype == torch.float32 and torch.equal(o, right) and torch.equal(lse, right_lse)
    grads = torch.autograd.grad(o.float().sum() + lse.sum(), (q, k, v))
    expected = torch.autograd.grad(right.float().sum() + right_lse.sum(), lower)
    assert all(a.dtype == torch.float32 and torch.equal(a, b.float()) for a, b in zip(grads, expected))
    with torch.autocast(DEVICE, dtype=dtype, enabled=False):
        assert attention(q, k, v).dtype == torch.float32


# -- what is refused ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "shapes, message",
    [
        (((1, 2, 3, 8), (2, 2, 3, 8), (2, 2, 3, 8)), "k has batch 2, but q has 1; q, k and v need the same batch."),
        (((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 3, 4)), "v has head_dim 4, but q has 8; a score is a dot product, so both need the same head_dim."),
        (((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 5, 8)), "v has 5 rows, but k has 3; every key needs one value row."),
        (
            ((1, 6, 3, 8), (1, 3, 3, 8), (1, 2, 3, 8)),
            "kv_heads is (3, 2), but heads is 6; heads must be a multiple of kv_heads, so that each key head serves the same number of query"
            " heads. Pass one of 1, 2, 3, 6.",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, message):
    with pytest.raises(ValueError) as caught:
        attention(*(torch.zeros(shape, device=DEVICE) for shape in shapes))
    assert str(caught.value) == message


def test_a_sink_on_another_device_is_named():
    q, k, v = tensors()
    elsewhere = "cpu" if DEVICE == "cuda" else "meta"
    with pytest.raises(ValueError) as caught:
        attention(q, k, v, sink=torch.zeros(2, device=elsewhere))
    assert str(caught.value) == (
        f"sink has shape (2,) on {elsewhere}; it must be one number for each query head, shape (2,), on {q.device}. Pass e.g."
        " torch.zeros(heads, device=q.device)."
    )


def test_a_second_derivative_of_lse_is_refused_under_both_variants():
    for deterministic in (True, False):
        q, k, v = (x.requires_grad_() for x in tensors())
        (dq,) = torch.autograd.grad(attention(q, k, v, return_lse=True, deterministic=deterministic)[1].sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match="^a second derivative was asked for, but attention's backward pass has none"):
            torch.autograd.grad(dq.sum(), k)


# -- large, on a GPU -------------------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False], ids=["two_kernels", "fused"])
def test_the_gradients_of_128k_keys_allocate_nothing_quadratic(deterministic):
    n, d = 131072, 128
    packed = torch.randn(1, n, 3, 1, d, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    q, k, v = (x.transpose(1, 2) for x in packed.unbind(2))
    do = torch.randn(1, 1, n, d, dtype=torch.bfloat16, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o, lse = attention(q, k, v, causal=True, return_lse=True, deterministic=deterministic)
    gradients = torch.autograd.grad(o, (q, k, v), do)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before - sum(x.nbytes for x in (o, lse, *gradients))
    statistics, sums = 2 * n * 4, 0 if deterministic else n * d * 4  # delta and room for one more; dq in float32
    assert extra <= statistics + sums + 2**21 and all(x.isfinite().all() for x in gradients)


@pytest.mark.gpu
def test_gradients_of_more_heads_than_65535():
    q, k, v = tensors(3, 3, 16, heads=1, batch=70000, dtype="float16")
    do = torch.ones_like(q)
    whole, last = (outcome(lambda *x: attention(*x, return_lse=True), [x[part] for x in (q, k, v)], do[part], do[part][..., 0]) for part in (slice(None), slice(-1, None)))
    assert all(torch.equal(a[-1:], b) for a, b in zip(whole, last))


@pytest.fixture
def forty_gigabytes():
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB of the GPU's memory")
    yield
    torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False], ids=["two_kernels", "fused"])
@pytest.mark.parametrize("shape", [(1, 1, 2**23 + 128, 256), (1, 2**16 + 1, 128, 256)], ids=["n", "heads"])
def test_what_is_written_past_two_to_the_31(forty_gigabytes, shape, deterministic):
    """The last 128 queries of the last head see 191 keys, and only they see its last 128 keys: these rows of o and the gradients lie there."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(shape, dtype=torch.float16, device=DEVICE) for _ in range(3))
    mask, dlse = masks.window(63, 0), torch.ones(shape[:3], device=DEVICE)
    got = outcome(lambda *x: attention(*x, mask=mask, return_lse=True, deterministic=deterministic), (q, k, v), v, dlse)
    ends = [x[:, -1:, -n:] for x, n in ((q, 128), (k, 256), (v, 256), (v, 128), (dlse, 128))]
    exact, plain = (
        outcome(lambda *x: standard(*x, scale=1 / 16, see=lambda i, j: (j >= i - 63) & (j <= i)), (q, k, v), do, dlse)
        for q, k, v, do, dlse in ([x.double().cpu() for x in ends], ends)
    )
    for name, ours, theirs, right in zip(("o", "lse", "dq", "dk", "dv"), got, plain, exact):
        within_budget(name, ours[:, -1:, -128:], theirs[:, :, -128:], right[:, :, -128:])


@pytest.mark.gpu
def test_tensors_on_a_gpu_that_is_not_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    q, k, v = tensors(33, 21, 64, dtype="float16")
    there = [x.to("cuda:1") for x in (q, k, v)]
    do = torch.ones_like(q)
    here, other = (outcome(lambda *x: attention(*x, return_lse=True), x, do.to(x[0].device), do[..., 0].to(x[0].device)) for x in ((q, k, v), there))
    assert torch.cuda.current_device() == 0 and all(b.device.index == 1 and torch.equal(a, b.to(a.device)) for a, b in zip(here, other))


# -- what a reviewer found ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("view", [lambda s: s[:1].expand(4), lambda s: s[::2], lambda s: s.expand(2, 8)[:, 1::2][0]])
def test_a_sink_may_be_a_view(view):
    q, k, v = tensors(heads=4)

    def f(copied):
        sink = torch.linspace(-1, 2, 8, device=DEVICE, requires_grad=True)
        seen = view(sink).clone() if copied else view(sink)
        o = attention(q, k, v, sink=seen)
        (gradient,) = torch.autograd.grad(o.square().sum(), sink)
        return o.detach(), gradient

    for given, expected in zip(f(False), f(True)):
        torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-6)


@register
class padded_to:
    """Keys from lengths[batch] on are padding: the first mask a user writes, with its ranges read from a tensor."""

    @triton.jit
    def visible(batch, head, i, j, lengths):
        return j < tl.load(lengths + batch)

    @triton.jit
    def key_range(batch, head, first, last, begin, end, lengths):
        length = tl.load(lengths + batch)
        return begin, length, begin, length

    @triton.jit
    def query_range(batch, head, first, last, begin, end, lengths):
        seen = first < tl.load(lengths + batch)
        return begin, tl.where(seen, end, begin), begin, begin


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_ranges_may_come_from_a_tensor_of_any_integers(integers):
    lengths = torch.tensor([3, 17], dtype=integers, device=DEVICE)
    q, k, v = tensors(20, 20, 16, batch=2, dtype="float16")
    do = torch.randn_like(q)
    o, lse, *gradients = outcome(lambda *x: attention(*x, mask=padded_to(lengths), return_lse=True), (q, k, v), do, torch.zeros(2, 2, 20, device=DEVICE))
    for b, n in enumerate(lengths.tolist()):
        one = outcome(lambda *x: attention(*x, return_lse=True), (q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n]), do[b : b + 1], torch.zeros(1, 2, 20, device=DEVICE))
        for whole, part in zip((o, lse, *gradients), one):
            torch.testing.assert_close(whole[b : b + 1, :, : part.shape[2]], part, rtol=2e-3, atol=2e-3)


def test_no_limit_is_two_to_the_thirty():
    q, k, v = tensors(40, 20)
    for given, expected in ((masks.window(2**30, 0), {"causal": True}), (masks.window(2**30, 2**30), {})):
        do, dlse = torch.ones_like(q), torch.zeros(1, 2, 40, device=DEVICE)
        one = outcome(lambda *x: attention(*x, mask=given, return_lse=True), (q, k, v), do, dlse)
        other = outcome(lambda *x: attention(*x, return_lse=True, **expected), (q, k, v), do, dlse)
        for a, b in zip(one, other):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name, given", [("q", [1]), ("v", None), ("sink", [0.0, 1.0])])
def test_what_is_no_tensor_is_named(name, given):
    q, k, v = tensors()
    with pytest.raises(TypeError) as caught:
        attention(**({"q": q, "k": k, "v": v} | {name: given}))
    assert str(caught.value) == f"{name} is of type {type(given).__name__}; it must be a tensor. Convert it first: torch.as_tensor({name})."


def test_shapes_without_data_on_meta_tensors():
    q, k, v = (torch.empty(1, 2, n, 8, device="meta", dtype=torch.float16) for n in (9, 11, 11))
    o, lse = attention(q, k, v, causal=True, return_lse=True)
    assert o.shape == q.shape and o.is_meta and lse.shape == (1, 2, 9) and lse.dtype == torch.float32


def test_a_tensor_whose_sign_torch_keeps_apart():
    q, k, v = tensors()
    turned = torch.complex(q, -q).conj().imag  # q by value; its minus is only noted
    assert turned.is_neg()
    torch.testing.assert_close(attention(turned, k, v), attention(q, k, v), rtol=0, atol=0)


@pytest.mark.parametrize("where", ["sink", "mask", "dlse"])
def test_a_sign_that_torch_keeps_apart_counts_in_every_tensor(where):
    q, k, v = tensors()
    leaf = q.requires_grad_()

    def run(x):
        o, lse = attention(leaf, k, v, sink=x if where == "sink" else None, mask=masks.alibi(x) if where == "mask" else None, return_lse=True)
        (dq,) = torch.autograd.grad(lse, leaf, x[None, :, None].expand_as(lse) if where == "dlse" else torch.ones_like(lse))
        return o, lse, dq

    heads = torch.linspace(0.5, 1.5, q.shape[1], device=q.device)
    turned = torch.complex(heads, -heads).conj().imag
    assert turned.is_neg() and torch.equal(turned, heads)
    for found, needed in zip(run(turned), run(heads), strict=True):
        torch.testing.assert_close(found, needed, rtol=0, atol=0)


def test_forward_mode_is_refused():
    q, k, v = tensors()
    text = (
        "{} carries a tangent (torch.func.jvp, dual numbers), but attention has no forward-mode derivative."
        " Use reverse mode: backward() or torch.autograd.grad()."
    )
    with pytest.raises(NotImplementedError) as caught:
        torch.func.jvp(lambda x: attention(x, k, v), (q,), (q,))
    assert str(caught.value) == text.format("q")
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError) as caught:
            attention(q, k, forward_ad.make_dual(v, v))
        assert str(caught.value) == text.format("v")
        assert torch.equal(attention(q, k, v), attention(q, k, v))  # a level without a dual number is none of its business


def test_the_operator_takes_lse_of_any_strides():
    q, k, v = tensors(9, 11)
    o, lse = torch.ops.flashlab.attention_forward(q, k, v, None, 0.3, "", [], [], True)
    rest = None, None, 0.3, "", [], [], True
    turned = lse.mT.contiguous().mT
    assert not turned.is_contiguous()
    for a, b in zip(*(torch.ops.flashlab.attention_backward(q, k, v, o, x, torch.ones_like(q), *rest) for x in (lse, turned))):
        assert torch.equal(a, b)


@pytest.mark.parametrize("scale", [4.7e-177, 1e-40, 2.0**-126])
def test_a_scale_that_float32_cannot_hold_weighs_all_seen_keys_alike(scale):
    q, k, v = (x.expand(1, 2, x.shape[2], 8) for x in (torch.ones(1, 2, 7, 8), torch.ones(1, 2, 18, 8), torch.arange(18.0).view(1, 1, 18, 1)))
    q, k, v = (x.to(DEVICE, torch.bfloat16) for x in (q, k, v))
    o, lse = attention(q, k, v, mask=masks.prefix(7), scale=scale, return_lse=True)
    seen = torch.arange(12, 19, device=DEVICE)  # keys of each query: 0 to seen - 1
    torch.testing.assert_close(o.float(), ((seen - 1) / 2).view(1, 1, 7, 1).expand(1, 2, 7, 8), rtol=1e-2, atol=0)
    torch.testing.assert_close(lse, seen.float().log().expand_as(lse), rtol=1e-5, atol=1e-5)
