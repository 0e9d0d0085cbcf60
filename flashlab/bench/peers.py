"""Ways to run attention, by name: ours, the four backends of torch's scaled_dot_product_attention (SDPA), and other_peers.py's.

A peer says first what it cannot do, and why; then it hands back a call without arguments, forward or backward, that a
clock can repeat. All peers of a comparison get the same tensors.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flashlab import runtime
from flashlab.bench import other_peers
from flashlab.errors import error
from flashlab.problem import AttentionProblem

PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Peer:
    """One way to run attention: `attend(q, k, v, is_causal=, scale=)` returns o; `backend` is what SDPA must use, if it is SDPA.

    `package` is what must be installed besides torch, by the name that pip knows.
    """

    name: str
    attend: Callable[..., torch.Tensor]
    passes: tuple[str, ...] = PASSES
    backend: SDPBackend | None = None
    cuda_only: bool = False
    package: str | None = None

    @property
    def version(self) -> str | None:
        """The version of its package; None where it has none, or is not installed."""
        try:
            return importlib.metadata.version(self.package) if self.package else None
        except importlib.metadata.PackageNotFoundError:
            return None

    def can(self, problem: AttentionProblem, pass_: str = "forward", device: str | None = None) -> str | None:
        """None, or the reason why this peer has nothing to time. What only a run can tell, the run tells (sweep.py).

        >>> PEERS["sdpa-cudnn"].can(AttentionProblem(16, 16, 8), device="cpu")
        'runs on a CUDA GPU only'
        """
        if pass_ not in self.passes:
            return f"its {pass_} pass is that of {self.name.partition('/')[0]}"
        if self.package and not self.version:
            return f"{self.package} is not installed (pip install {self.package})"
        if self.cuda_only and torch.device(device or runtime.device()).type != "cuda":
            return "runs on a CUDA GPU only"
        if problem.kv_heads != problem.heads:
            return "grouped queries are not compared here"
        if self.backend is not None and problem.causal and problem.n_q != problem.n_k:
            return "SDPA's is_causal is aligned to the top left, ours to the bottom right; they agree only where n_q = n_k"
        return None

    def chosen(self) -> AbstractContextManager:
        """Hold this around the calls: inside, SDPA takes this peer's backend and no other."""
        return nullcontext() if self.backend is None else sdpa_kernel(self.backend)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float) -> Callable[[], torch.Tensor]:
        """A call that computes o and keeps nothing for a backward pass."""
        return lambda: self.attend(q, k, v, is_causal=causal, scale=scale)

    def backward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, *, causal: bool, scale: float
    ) -> Callable[[], tuple[torch.Tensor, ...]]:
        """A call that computes dq, dk and dv from do. The forward pass is run here, once, so that the call is the backward alone."""
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        o = self.attend(*inputs, is_causal=causal, scale=scale)
        return lambda: torch.autograd.grad(o, inputs, do, retain_graph=True)


def _triton(deterministic: bool) -> Callable[..., torch.Tensor]:
    def attend(q, k, v, *, is_causal, scale):
        from flashlab.kernels.api import attention  # not at the top: Triton is not everywhere, and torch's backends are

        return attention(q, k, v, causal=is_causal, scale=scale, deterministic=deterministic, backend="triton")

    return attend


# In the order of a table: ours first, the slowest last.
PEERS = {
    peer.name: peer
    for peer in (
        Peer("triton", _triton(deterministic=True)),
        Peer("triton/fused", _triton(deterministic=False), passes=("backward",)),
        Peer("sdpa-flash", scaled_dot_product_attention, backend=SDPBackend.FLASH_ATTENTION),
        Peer("sdpa-cudnn", scaled_dot_product_attention, backend=SDPBackend.CUDNN_ATTENTION, cuda_only=True),
        Peer("sdpa-efficient", scaled_dot_product_attention, backend=SDPBackend.EFFICIENT_ATTENTION, cuda_only=True),
        Peer("flex", other_peers.flex, cuda_only=True),
        Peer("flash-attn", other_peers.flash_attn, cuda_only=True, package="flash-attn"),
        Peer("flash-attn-4", other_peers.flash_attn_4, cuda_only=True, package="flash-attn-4"),
        Peer("xformers", other_peers.xformers, cuda_only=True, package="xformers"),
        Peer("sdpa-math", scaled_dot_product_attention, backend=SDPBackend.MATH),
    )
}


def find(names: Iterable[str]) -> list[Peer]:
    """The peers of these names, in the table's order. Raises LookupError for a name that is not there."""
    names = list(names)
    for name in names:
        if name not in PEERS:
            raise error("peer", given=name, allowed=", ".join(PEERS))
    return [peer for peer in PEERS.values() if peer.name in names]
