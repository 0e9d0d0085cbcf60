"""Other people's fused attention, each behind one call: `attend(q, k, v, is_causal=, scale=)` on (batch, heads, n, head_dim).

FlexAttention comes with torch; flash-attn, flash-attn-4 and xformers are timed where they are installed. Their causal is aligned
to the bottom right, as ours is. Those three take (batch, n, heads, head_dim): they get a view, so nothing is copied. Packages are
imported when called, so what is broken in one is that peer's failure, told in its words.
"""

from __future__ import annotations

from functools import lru_cache

import torch


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool, scale: float) -> torch.Tensor:
    """FlexAttention (torch.nn.attention.flex_attention), compiled for these sizes, with a block mask where causal."""
    mask = block_mask(q.shape[2], k.shape[2], str(q.device)) if is_causal else None
    needs = any(x.requires_grad for x in (q, k, v))
    return compiled_flex(q.shape, k.shape, q.dtype, is_causal, needs)(q, k, v, block_mask=mask, scale=scale)


@lru_cache(maxsize=1)
def compiled_flex(*sizes: object):
    """FlexAttention compiled anew for each problem: after 8 sizes torch.compile would give up, and fullgraph makes that an error."""
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@lru_cache(maxsize=1)
def block_mask(n_q: int, n_k: int, device: str):
    """The tiles that a causal problem needs; the last query sees every key."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda batch, head, i, j: j <= i + n_k - n_q, None, None, n_q, n_k, device=device)


def flash_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool, scale: float) -> torch.Tensor:
    """FlashAttention-2 (package flash-attn)."""
    from flash_attn import flash_attn_func

    return flash_attn_func(*_rows_first(q, k, v), softmax_scale=scale, causal=is_causal).transpose(1, 2)


def flash_attn_4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool, scale: float) -> torch.Tensor:
    """FlashAttention-4 (package flash-attn-4), which gives o, or o and lse, as its version has it."""
    from flash_attn.cute import flash_attn_func

    found = flash_attn_func(*_rows_first(q, k, v), softmax_scale=scale, causal=is_causal)
    return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)


def xformers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool, scale: float) -> torch.Tensor:
    """xformers' memory_efficient_attention, which chooses its own kernel."""
    from xformers.ops import fmha, memory_efficient_attention

    mask = fmha.attn_bias.LowerTriangularFromBottomRightMask() if is_causal else None
    return memory_efficient_attention(*_rows_first(q, k, v), attn_bias=mask, scale=scale).transpose(1, 2)


def _rows_first(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [x.transpose(1, 2) for x in tensors]  # (batch, n, heads, head_dim)
