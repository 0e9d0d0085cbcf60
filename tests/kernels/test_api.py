"""attention(): values, gradients, operators, autocast, and every error word for word."""

import pytest
import torch
import triton
import triton.language as tl

from flashlab import runtime
from flashlab.errors import ERRORS
from flashlab.kernels import masks
from flashlab.kernels.api import attention
from flashlab.kernels.masks import register
from flashlab.problem import AttentionProblem
from kernel_oracle import standard, within_budget

DEVICE = runtime.device()


def tensors(n_q=9, n_k=11, head_dim=8, heads=2, kv_heads=None, dtype="float32", batch=1):
    return AttentionProblem(n_q, n_k, head_dim, batch=batch, heads=heads, kv_heads=kv_heads, dtype=dtype).tensors(0, DEVICE)


def gradients(function, *leaves):
    leaves = [x.detach().requires_grad_() for x in leaves]
    return torch.autograd.grad(function(*leaves), leaves)


def test_value_and_lse():
    q, k, v = tensors()
    o, lse = attention(q, k, v, causal=True, scale=0.3, return_lse=True)
    exact = standard(*(x.double().cpu() for x in (q, k, v)), scale=0.3, causal=True)
    plain = standard(q, k, v, scale=0.3, causal=True)
    within_budget("o", o, plain[0], exact[0])
    within_budget("lse", lse, plain[1], exact[1])
    assert torch.equal(attention(q, k, v, causal=True, scale=0.3), o)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("sinks", [False, True])
def test_gradients_of_o_and_lse(deterministic, sinks):
    q, k, v = tensors(heads=4, kv_heads=2)
    weight, sink = torch.randn_like(q), torch.tensor([0.5, -1.0, 2.0, 0.0], device=DEVICE)

    def loss(f, *given):
        o, lse = f(*given[:3], given[3] if sinks else None)
        return (o * weight.to(o)).sum() + lse.sum()

    def ours(q, k, v, sink):
        return attention(q, k, v, sink=sink, causal=True, return_lse=True, deterministic=deterministic)

    def theirs(q, k, v, sink):
        return standard(q, k, v, sink=sink, causal=True, scale=8**-0.5)

    leaves = (q, k, v, sink)[: 3 + sinks]
    got = gradients(lambda *x: loss(ours, *x), *leaves)
    exact = gradients(lambda *x: loss(theirs, *x), *(x.double().cpu() for x in leaves))
    plain = gradients(lambda *x: loss(theirs, *x), *leaves)
    for name, a, b, c in zip(("dq", "dk", "dv", "dsink"), got, plain, exact):
        within_budget(name, a, b, c, times=3)


def test_only_lse_and_only_some_inputs():
    q, k, v = tensors()
    q.requires_grad_()
    attention(q, k, v, return_lse=True)[1].sum().backward()
    exact = gradients(lambda q: standard(q, k.double().cpu(), v.double().cpu(), scale=8**-0.5)[1].sum(), q.double().cpu())[0]
    assert (q.grad.double().cpu() - exact).abs().max() < 1e-5


def test_a_gradient_with_other_strides():
    q, k, v = tensors()
    for shape in ((1, 1, 1, 1), (1, 2, 9, 1), (1, 1, 1, 8)):
        weight = torch.randn(shape, device=DEVICE)
        got = gradients(lambda *x: (attention(*x) * weight).sum(), q, k, v)
        exact = gradients(lambda *x: (standard(*x, scale=8**-0.5)[0] * weight.double().cpu()).sum(), *(x.double().cpu() for x in (q, k, v)))
        assert all((a.double().cpu() - b).abs().max() < 1e-5 for a, b in zip(got, exact))


def test_packed_qkv_has_one_gradient():
    packed = torch.randn(2, 9, 3, 2, 8, device=DEVICE, requires_grad=True)
    attention(*(x.transpose(1, 2) for x in packed.unbind(2)), causal=True).sum().backward()
    exact = gradients(lambda x: standard(*(y.transpose(1, 2) for y in x.unbind(2)), scale=8**-0.5, causal=True)[0].sum(), packed.double().cpu())[0]
    assert (packed.grad.double().cpu() - exact).abs().max() < 1e-5


@register
class close_in_time:
    """Written as a user would: query i sees the keys whose time is at most `most` from its own; scores fall with the distance."""

    @triton.jit
    def visible(batch, head, i, j, times, most):
        return tl.abs(tl.load(times + i) - tl.load(times + j)) <= most

    @triton.jit
    def score(score, batch, head, i, j, times, most):
        return score * 0.5

    @triton.jit
    def dscore(score, batch, head, i, j, times, most):
        return 0.5


def test_a_mask_written_by_hand():
    q, k, v = tensors(20, 20)
    times = torch.randint(0, 9, (20,), device=DEVICE, dtype=torch.int32)
    mask = close_in_time(times, 3)
    oracle = {"see": lambda i, j: (times.to(i.device)[i] - times.to(i.device)[j]).abs() <= 3, "rescore": lambda s, i, j: s * 0.5}
    got = attention(q, k, v, mask=mask)
    cpu = times.cpu()
    oracle_cpu = oracle | {"see": lambda i, j: (cpu[i] - cpu[j]).abs() <= 3}
    exact = standard(*(x.double().cpu() for x in (q, k, v)), scale=8**-0.5, **oracle_cpu)[0]
    within_budget("o", got, standard(q, k, v, scale=8**-0.5, **oracle)[0], exact)
    grads = gradients(lambda *x: attention(*x, mask=mask).sum(), q, k, v)
    exact = gradients(lambda *x: standard(*x, scale=8**-0.5, **oracle_cpu)[0].sum(), *(x.double().cpu() for x in (q, k, v)))
    assert all((a.double().cpu() - b).abs().max() < 1e-5 for a, b in zip(grads, exact))


@pytest.mark.parametrize("mask", ["", "window", "alibi"])
def test_opcheck(mask):
    q, k, v = (x.requires_grad_() for x in tensors(5, 6))
    given = {"": masks.Mask(), "window": masks.window(2, 1), "alibi": masks.alibi(torch.ones(2, device=DEVICE))}[mask]
    torch.library.opcheck(torch.ops.flashlab.attention_forward.default, (q, k, v, None, 0.3, *given.encode(), True))


@pytest.mark.parametrize("sinks", [False, True])
def test_compile_fullgraph(sinks):
    q, k, v = tensors()
    slopes = torch.tensor([0.5, 0.1], device=DEVICE)
    sink = torch.zeros(2, device=DEVICE) if sinks else None

    def f(q, k, v, slopes):
        return attention(q, k, v, causal=True, mask=masks.window(4, 0) & masks.alibi(slopes), sink=sink).square().sum()

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, slopes), f(q, k, v, slopes))
    ours, plain = (gradients(lambda *x: g(*x, slopes), q, k, v) for g in (compiled, f))
    torch.testing.assert_close(ours, plain)


def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, causal=True)

    q, k, v = tensors()
    torch.testing.assert_close(torch.export.export(Model(), (q, k, v)).module()(q, k, v), attention(q, k, v, causal=True))


def test_autocast_sets_the_dtype():
    q, k, v = tensors()
    with torch.autocast(DEVICE, dtype=torch.float16):
        assert attention(q, k.half(), v).dtype == torch.float16


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_autocast_leaves_alone_what_torch_leaves_alone(dtype):
    q, k, v = (x.to(dtype) for x in tensors())
    with torch.autocast(DEVICE, dtype=torch.float16), pytest.raises(ERRORS["kernel_dtype"][0], match=f"^q has dtype {dtype}; the kernels take"):
        attention(q, k, v)


def test_autocast_s_own_attention_leaves_float64_alone():
    q, k, v = (x.double() for x in tensors(9, 9))
    with torch.autocast(DEVICE, dtype=torch.float16):
        assert torch.nn.functional.scaled_dot_product_attention(q, k, v).dtype == torch.float64


def test_a_sink_of_whole_numbers_is_refused():
    with pytest.raises(ERRORS["kernel_dtype"][0], match="^sink has dtype torch.int64; the kernels take float16, bfloat16 and float32"):
        attention(*tensors(), sink=torch.zeros(2, dtype=torch.int64, device=DEVICE))


def test_a_second_derivative_is_refused():
    q, k, v = (x.requires_grad_() for x in tensors())
    (dq,) = torch.autograd.grad(attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError) as caught:
        dq.sum().backward()
    assert str(caught.value) == (
        "a second derivative was asked for, but attention's backward pass has none. Drop create_graph=True, or use"
        " flashlab.kernels.standard.standard, which PyTorch can differentiate twice."
    )


@register
class no_derivative:
    @triton.jit
    def score(score, batch, head, i, j):
        return score * score


def _other_device(x):
    return x.cpu() if DEVICE == "cuda" else x.to("meta")


OTHER = "cpu" if DEVICE == "cuda" else "meta"
HERE = str(torch.empty(0, device=DEVICE).device)
BAD = {
    "four_dims": (lambda q, k, v: attention(q[0], k, v), "q has shape (2, 9, 8); it must be (batch, heads, n, head_dim). Add the missing dimensions with q[None, None]."),
    "kv_heads": (
        lambda q, k, v: attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)),
        "kv_heads is 4, but heads is 2; heads must be a multiple of kv_heads, so that each key head serves the same number of query heads. Pass one of 1, 2.",
    ),
    "kernel_dtype": (
        lambda q, k, v: attention(q.double(), k, v),
        "q has dtype torch.float64; the kernels take float16, bfloat16 and float32. Convert it first, e.g. q.half().",
    ),
    "dtype_differs": (
        lambda q, k, v: attention(q, k, v.half()),
        "v has dtype torch.float16, but q has torch.float32; q, k and v need the same dtype. Convert it: v.to(q.dtype).",
    ),
    "device_differs": (
        lambda q, k, v: attention(q, _other_device(k), v),
        f"k is on {OTHER}, but q is on {HERE}; q, k and v need the same device. Move it: k.to(q.device).",
    ),
    "head_dim_large": (
        lambda q, k, v: attention(*(torch.zeros(1, 1, 3, 257, device=DEVICE) for _ in range(3))),
        "head_dim is 257; the kernels take at most 256. Split the heads into smaller ones.",
    ),
    "size": (
        lambda q, k, v: attention(*(torch.zeros(1, 1, 3, 0, device=DEVICE) for _ in range(3))),
        "head_dim is 0; it must be a whole number of at least 1. Pass head_dim=1 or more.",
    ),
    "scale": (
        lambda q, k, v: attention(q, k, v, scale="half"),
        "scale is 'half'; it must be a number. Pass a float, or None for 1/√head_dim.",
    ),
    "backend": (
        lambda q, k, v: attention(q, k, v, backend="cudnn"),
        "backend is 'cudnn'; it must be one of auto, triton. Leave it out to get the fastest that fits.",
    ),
    "sink": (
        lambda q, k, v: attention(q, k, v, sink=torch.zeros(3, device=DEVICE)),
        f"sink has shape (3,) on {HERE}; it must be one number for each query head, shape (2,), on {HERE}. Pass e.g. torch.zeros(heads, device=q.device).",
    ),
    "mask": (
        lambda q, k, v: attention(q, k, v, mask=torch.ones(9, 11)),
        "mask is of type Tensor; it must be a Mask, e.g. masks.window(128, 0), or two joined by &. For one given as a"
        " tensor write a visible() that loads it: see flashlab/kernels/masks.py.",
    ),
    "mask_gradient": (
        lambda q, k, v: attention(q, k, v, mask=masks.alibi(torch.ones(2, device=DEVICE, requires_grad=True))),
        "a tensor of shape (2,) in mask needs a gradient, but masks give none to their tensors. Pass it detached: tensor.detach().",
    ),
    "mask_device": (
        lambda q, k, v: attention(q, k, v, mask=masks.alibi(_other_device(torch.ones(2, device=DEVICE)))),
        f"a tensor in mask is on {OTHER}, but q is on {HERE}; both need the same device. Move it: tensor.to(q.device).",
    ),
    "mask_per_head": (
        lambda q, k, v: attention(q, k, v, causal=True, mask=masks.alibi(torch.ones(1, device=DEVICE))),
        "slopes of the mask alibi is a tensor of shape (1,); a kernel reads it by head, so it must be a tensor of one number for each query head,"
        " shape (2,). Where one number is for all, pass e.g. torch.full((2,), 0.5, device=q.device).",
    ),
    "mask_no_dscore": (
        lambda q, k, v: attention(q.requires_grad_(), k, v, mask=no_derivative()).sum().backward(),
        "the mask no_derivative changes scores but defines no dscore, so it has no gradient. Define dscore, the derivative of its score.",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_input_is_named(name):
    trigger, text = BAD[name]
    with pytest.raises(ERRORS[name][0]) as caught:
        trigger(*tensors())
    assert str(caught.value) == text


def test_no_heads_are_refused_and_no_batches_are_not():
    with pytest.raises(ValueError) as caught:
        attention(*(torch.zeros(1, 0, 3, 8, device=DEVICE) for _ in range(3)))
    assert str(caught.value) == "heads is 0; it must be a whole number of at least 1. Pass heads=1 or more."
    assert attention(*(torch.zeros(0, 1, 3, 8, device=DEVICE) for _ in range(3))).shape == (0, 1, 3, 8)


@pytest.mark.gpu
def test_tensors_on_the_cpu_are_refused_where_kernels_are_compiled():
    with pytest.raises(ValueError) as caught:
        attention(*(x.cpu() for x in tensors()))
    assert str(caught.value) == "q is on cpu, but Triton kernels run on the GPU here. Move q, k and v there: q.cuda()."


def test_no_dropout_is_silently_accepted():
    with pytest.raises(TypeError):
        attention(*tensors(), dropout_p=0.1)
