"""peers.py: each way to run attention computes attention and its gradients, or says first why it cannot."""

import importlib.metadata

import pytest
import torch

from flashlab.bench.peers import PASSES, PEERS, Peer, find
from flashlab.errors import ERRORS
from flashlab.problem import AttentionProblem
from flashlab.runtime import device

TINY = AttentionProblem(24, 24, 16, batch=2, heads=2, dtype="float32")


def by_hand(q, k, v, do, causal, scale):
    """o, dq, dk, dv in float64, from the definition."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    scores = q @ k.mT * scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    o = scores.softmax(-1) @ v
    return o, *torch.autograd.grad(o, (q, k, v), do.double())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_that_can_computes_attention_and_its_gradients(name, causal):
    peer, on_gpu = PEERS[name], device() == "cuda"
    problem = TINY.with_(causal=causal, dtype="bfloat16" if on_gpu else "float32", scale=0.3)
    q, k, v = problem.tensors(device=device())
    do = torch.randn_like(q)
    o, *gradients = by_hand(q, k, v, do, causal, 0.3)
    near = {"rtol": 3e-2, "atol": 3e-2} if on_gpu else {"rtol": 1e-4, "atol": 1e-5}
    passes = [pass_ for pass_ in PASSES if peer.can(problem, pass_) is None]
    assert passes or not on_gpu or not peer.version  # a package that is not installed
    with peer.chosen():
        if "forward" in passes:
            torch.testing.assert_close(peer.forward(q, k, v, causal=causal, scale=0.3)().double(), o, **near)
        if "backward" in passes:
            call = peer.backward(q, k, v, do, causal=causal, scale=0.3)
            for _ in range(2):  # a clock repeats it
                torch.testing.assert_close(tuple(x.double() for x in call()), tuple(gradients), **near)
    assert not any(x.requires_grad for x in (q, k, v))


def test_the_forward_keeps_nothing_and_the_backward_runs_the_forward_once():
    calls = []

    def attend(q, k, v, *, is_causal, scale):
        calls.append(is_causal)
        return q * k * v * scale

    peer = type(PEERS["triton"])("fake", attend)
    q = torch.ones(1, 1, 2, 2)
    assert not peer.forward(q, q, q, causal=False, scale=1.0)().requires_grad
    call = peer.backward(q, 2 * q, 3 * q, q, causal=True, scale=1.0)
    calls.clear()
    assert [x.unique().item() for x in call()] == [6, 3, 2] and calls == []


def test_our_two_backwards_ask_for_what_their_names_say(monkeypatch):
    from flashlab.kernels import api

    asked = []
    monkeypatch.setattr(api, "attention", lambda q, k, v, **options: asked.append(options))
    for name in ("triton", "triton/fused"):
        PEERS[name].attend(None, None, None, is_causal=True, scale=0.5)
    common = {"causal": True, "scale": 0.5, "backend": "triton"}
    assert asked == [{**common, "deterministic": True}, {**common, "deterministic": False}]


@pytest.mark.parametrize("name", ["sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "sdpa-math"])
def test_sdpa_takes_the_backend_asked_for_and_no_other(name):
    from torch.nn.attention import _cur_sdpa_kernel_backends

    with PEERS[name].chosen():
        (backend,) = _cur_sdpa_kernel_backends()
    assert backend.name.lower().startswith(name.removeprefix("sdpa-"))


@pytest.mark.parametrize(
    "name, problem, pass_, place, reason",
    [
        ("triton/fused", TINY, "forward", "cuda", "its forward pass is that of triton"),
        ("sdpa-cudnn", TINY, "forward", "cpu", "runs on a CUDA GPU only"),
        ("sdpa-efficient", TINY, "backward", "cpu", "runs on a CUDA GPU only"),
        ("sdpa-math", TINY.with_(heads=4, kv_heads=2), "forward", "cuda", "grouped queries are not compared here"),
        (
            "sdpa-flash",
            TINY.with_(n_k=32, causal=True),
            "forward",
            "cuda",
            "SDPA's is_causal is aligned to the top left, ours to the bottom right; they agree only where n_q = n_k",
        ),
    ],
)
def test_what_a_peer_cannot_do_has_a_reason(name, problem, pass_, place, reason):
    assert PEERS[name].can(problem, pass_, place) == reason


@pytest.mark.parametrize(
    "name, problem",
    [
        ("sdpa-flash", TINY.with_(n_k=32)),
        ("triton", TINY.with_(n_k=32, causal=True)),
        ("sdpa-cudnn", TINY.with_(causal=True)),
    ],
)
def test_what_a_peer_can_do_has_none(name, problem):
    assert PEERS[name].can(problem, "backward", "cuda:1") is None


def test_a_package_that_is_not_installed_is_named_and_one_that_is_has_a_version():
    missing, there = Peer("x", None, package="no-such-package-here"), Peer("x", None, package="torch")
    assert missing.can(TINY) == "no-such-package-here is not installed (pip install no-such-package-here)" and missing.version is None
    assert there.can(TINY) is None and there.version == importlib.metadata.version("torch") and PEERS["flex"].version is None
    assert {peer.name: peer.package for peer in PEERS.values() if peer.package} == {name: name for name in ("flash-attn", "flash-attn-4", "xformers")}


def test_peers_are_found_by_name_in_the_order_of_the_table():
    assert [peer.name for peer in find(["sdpa-math", "triton"])] == ["triton", "sdpa-math"]
    with pytest.raises(ERRORS["peer"][0]) as caught:
        find(["triton", "fa3"])
    assert str(caught.value) == (
        "no peer is called 'fa3'; there are: triton, triton/fused, sdpa-flash, sdpa-cudnn, sdpa-efficient, flex, flash-attn,"
        " flash-attn-4, xformers, sdpa-math."
    )
