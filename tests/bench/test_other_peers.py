"""other_peers.py: FlexAttention itself, and the packages by stand-ins that compute attention in the layout they take."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from flashlab.bench import other_peers
from flashlab.bench.peers import PEERS
from flashlab.bench.sweep import sweep
from flashlab.problem import AttentionProblem

PROBLEM = AttentionProblem(6, 9, 4, batch=2, heads=3, dtype="float32")


def bottom_right(q, k, v, causal, scale):
    n_q, n_k = q.shape[2], k.shape[2]
    seen = torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q) if causal else None
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)


@pytest.fixture
def packages(monkeypatch):
    """Modules called flash_attn, flash_attn.cute and xformers.ops, which take (batch, n, heads, head_dim)."""

    def attend(q, k, v, softmax_scale, causal):
        assert q.shape == (2, 6, 3, 4) and k.shape == (2, 9, 3, 4)
        return bottom_right(*(x.transpose(1, 2) for x in (q, k, v)), causal, softmax_scale).transpose(1, 2)

    mask = type("LowerTriangularFromBottomRightMask", (), {})
    ops = {
        "fmha": SimpleNamespace(attn_bias=SimpleNamespace(LowerTriangularFromBottomRightMask=mask)),
        "memory_efficient_attention": lambda q, k, v, attn_bias, scale: attend(q, k, v, scale, isinstance(attn_bias, mask)),
    }
    modules = {
        "flash_attn": {"flash_attn_func": attend},
        "flash_attn.cute": {"flash_attn_func": lambda *x, **options: (attend(*x, **options), "lse")},
        "xformers": {},
        "xformers.ops": ops,
    }
    for name, inside in modules.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(inside)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_4", "xformers"])
def test_each_package_gets_its_layout_scale_and_mask(packages, name, causal):
    q, k, v = PROBLEM.tensors()
    found = getattr(other_peers, name)(q, k, v, is_causal=causal, scale=0.3)
    torch.testing.assert_close(found, bottom_right(q, k, v, causal, 0.3))


def test_a_version_of_flash_attn_4_that_gives_o_alone(packages, monkeypatch):
    monkeypatch.setattr(sys.modules["flash_attn.cute"], "flash_attn_func", sys.modules["flash_attn"].flash_attn_func)
    q, k, v = PROBLEM.tensors()
    torch.testing.assert_close(other_peers.flash_attn_4(q, k, v, is_causal=True, scale=0.3), bottom_right(q, k, v, True, 0.3))


@pytest.mark.parametrize("causal", [False, True])
def test_flex_is_aligned_to_the_bottom_right(monkeypatch, causal):
    from torch.nn.attention.flex_attention import flex_attention

    asked = []
    monkeypatch.setattr(other_peers, "compiled_flex", lambda *sizes: asked.append(sizes) or flex_attention)
    problem = AttentionProblem(6, 9, 16, batch=2, heads=3, dtype="float32")
    q, k, v = problem.tensors()
    found = other_peers.flex(q, k, v, is_causal=causal, scale=0.3)
    torch.testing.assert_close(found, bottom_right(q, k, v, causal, 0.3))
    assert asked == [(q.shape, k.shape, torch.float32, causal, False)]


def test_flex_is_compiled_anew_for_each_problem(monkeypatch):
    log = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: log.append("reset"))
    monkeypatch.setattr(torch, "compile", lambda function, **options: log.append((function.__name__, options)))
    other_peers.compiled_flex.cache_clear()
    for sizes in ((1, 2), (1, 2), (2, 2)):
        other_peers.compiled_flex(*sizes)
    other_peers.compiled_flex.cache_clear()
    assert log == ["reset", ("flex_attention", {"dynamic": False, "fullgraph": True})] * 2


def test_a_broken_package_fails_in_its_own_words(monkeypatch):
    broken = type(PEERS["triton"])("flash-attn", other_peers.flash_attn)
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    (missing,) = sweep([PROBLEM], "forward", [broken], device="cpu")
    assert missing.failed and missing.why.startswith("ImportError: cannot import name 'flash_attn_func'")
