"""Standard attention in PyTorch against float64, and against SDPA where SDPA means the same."""

import pytest
import torch

from flashlab.kernels.standard import standard
from flashlab.problem import AttentionProblem
from flashlab.runtime import device


def exact(q, k, v, causal, scale):
    """Attention in float64 on the CPU, key head by key head, causal aligned to the bottom right."""
    q, k, v = (tensor.double().cpu() for tensor in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * scale
    if causal:
        n_q, n_k = scores.shape[-2:]
        hidden = torch.arange(n_k)[None] > torch.arange(n_q)[:, None] + n_k - n_q
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.nan_to_num(torch.softmax(scores, -1)) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (6, 2), (5, 1)])
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (17, 17), (3, 113), (113, 3)])
def test_standard(n_q, n_k, heads, kv_heads, causal):
    problem = AttentionProblem(n_q, n_k, 16, batch=2, heads=heads, kv_heads=kv_heads, causal=causal, dtype="float64")
    q, k, v = problem.tensors(device=device())
    o = standard(q, k, v, causal=causal)
    torch.testing.assert_close(o.cpu(), exact(q, k, v, causal, problem.scale), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype, error", [("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_lower_precisions_stay_near_float64(dtype, error):
    q, k, v = AttentionProblem(65, 65, 32, heads=2, dtype=dtype).tensors(device=device())
    assert (standard(q, k, v).double().cpu() - exact(q, k, v, False, 32**-0.5)).abs().max() < error


@pytest.mark.parametrize("scale", [0.0, -0.5, 2.0])
def test_any_scale(scale):
    q, k, v = AttentionProblem(9, 7, 8, dtype="float64").tensors(device=device())
    torch.testing.assert_close(standard(q, k, v, scale=scale).cpu(), exact(q, k, v, False, scale))


@pytest.mark.parametrize("n_q, n_k", [(5, 3), (3, 5), (4, 4), (3, 1)])
def test_causal_gradients_where_some_queries_see_no_key(n_q, n_k):
    inputs = [tensor.requires_grad_() for tensor in AttentionProblem(n_q, n_k, 8, heads=2, dtype="float64").tensors(device=device())]
    ours = torch.autograd.grad(standard(*inputs, causal=True).square().sum(), inputs)
    seeing = slice(max(n_q - n_k, 0), None)  # torch's softmax gives nan for the others, so they are left out
    q, k, v = (tensor.detach().cpu().requires_grad_() for tensor in inputs)
    theirs = torch.autograd.grad(exact(q[:, :, seeing], k, v, True, 8**-0.5).square().sum(), (q, k, v))
    for mine, right in zip(ours, theirs):
        torch.testing.assert_close(mine.cpu(), right)


def test_strided_inputs_and_gradients():
    packed = torch.randn(2, 11, 3, 4, 8, dtype=torch.float64, device=device(), requires_grad=True)  # batch, n, qkv, heads, head_dim
    q, k, v = packed.unbind(2)
    o = standard(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
    o.sum().backward()
    ours, packed.grad = packed.grad, None
    torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in packed.unbind(2)), is_causal=True).sum().backward()
    torch.testing.assert_close(ours, packed.grad)


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((3, 8), (1, 1, 3, 8), (1, 1, 3, 8)), "q has shape (3, 8); it must be (batch, heads, n, head_dim). Add the missing dimensions with q[None, None]."),
        (((1, 1, 3, 8), (2, 1, 3, 8), (2, 1, 3, 8)), "k has batch 2, but q has 1; q, k and v need the same batch."),
        (((1, 1, 3, 8), (1, 1, 3, 4), (1, 1, 3, 8)), "k has head_dim 4, but q has 8; a score is a dot product, so both need the same head_dim."),
        (((1, 1, 3, 8), (1, 1, 3, 8), (1, 1, 5, 8)), "v has 5 rows, but k has 3; every key needs one value row."),
        (
            ((1, 6, 3, 8), (1, 4, 3, 8), (1, 4, 3, 8)),
            "kv_heads is 4, but heads is 6; heads must be a multiple of kv_heads, so that each key head serves the same number of query"
            " heads. Pass one of 1, 2, 3, 6.",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, message):
    with pytest.raises(ValueError) as caught:
        standard(*(torch.zeros(shape) for shape in shapes))
    assert str(caught.value) == message
