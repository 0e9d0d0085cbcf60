"""One attention problem: its sizes and its seeded inputs.

Sizes follow the course's vocabulary: n_q queries, n_k keys, head_dim numbers in each. Arrays of one head are
(n, head_dim); tensors of a whole problem are (batch, heads, n, head_dim), as in torch's scaled_dot_product_attention.
This module imports nothing of flashlab but errors and, until you ask for inputs, nothing but the standard library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flashlab.errors import error

ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def check_size(argument: str, given: object, least: int = 1) -> int:
    """`given` as an int, or an error that names the argument. Accepts NumPy's integers, refuses True and 64.0."""
    if isinstance(given, bool) or not hasattr(given, "__index__") or int(given) < least:
        raise error("size", argument=argument, given=given, least=least)
    return int(given)


@dataclass(frozen=True)
class AttentionProblem:
    """The sizes of one attention call; formulas, references, kernels and figures all take one.

    Sizes are whole numbers; `kv_heads` (default: heads) is smaller for grouped-query attention; `scale` multiplies the
    scores (default 1/√head_dim); `dtype` is a name such as "float16". Causal is aligned to the bottom right: the last
    query sees every key.

    Raises ValueError for a size, dtype or head ratio that cannot be.

    >>> AttentionProblem(n_q=8192, n_k=8192, head_dim=64).score_matrix_bytes
    134217728
    """

    n_q: int
    n_k: int
    head_dim: int
    batch: int = 1
    heads: int = 1
    kv_heads: int | None = None
    causal: bool = False
    scale: float | None = None
    dtype: str = "float16"

    def __post_init__(self) -> None:
        for name, least in (("n_q", 0), ("n_k", 0), ("head_dim", 1), ("batch", 1), ("heads", 1)):
            object.__setattr__(self, name, check_size(name, getattr(self, name), least))
        if self.dtype not in ELEMENT_BYTES:
            raise error("dtype", given=self.dtype, allowed=", ".join(ELEMENT_BYTES))
        kv_heads = self.heads if self.kv_heads is None else check_size("kv_heads", self.kv_heads)
        if self.heads % kv_heads:
            allowed = ", ".join(str(h) for h in range(1, self.heads + 1) if self.heads % h == 0)
            raise error("kv_heads", given=kv_heads, heads=self.heads, allowed=allowed)
        object.__setattr__(self, "kv_heads", kv_heads)
        object.__setattr__(self, "scale", 1 / math.sqrt(self.head_dim) if self.scale is None else float(self.scale))

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of q, k, v and o."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def statistic_bytes(self) -> int:
        """Bytes of one row_max, row_sum or lse, and of one accumulator element: float32, or float64 for float64."""
        return max(4, self.element_bytes)

    @property
    def score_matrix_bytes(self) -> int:
        """Bytes of one head's n_q x n_k scores: the matrix that FlashAttention never stores."""
        return self.n_q * self.n_k * self.element_bytes

    def with_(self, **changes: object) -> AttentionProblem:
        """The same problem with some fields changed; a default scale follows head_dim, and kv_heads heads where they were equal."""
        if "heads" in changes and "kv_heads" not in changes and self.kv_heads == self.heads:
            changes["kv_heads"] = None
        if "head_dim" in changes and "scale" not in changes and self.scale == 1 / math.sqrt(self.head_dim):
            changes["scale"] = None
        return replace(self, **changes)

    def arrays(self, seed: int = 0):
        """One head as NumPy arrays: q (n_q, head_dim), k and v (n_k, head_dim), standard normal, the same for a seed.

        Raises TypeError for bfloat16, which NumPy does not have.
        """
        import numpy as np

        if self.dtype == "bfloat16":
            raise error("numpy_dtype", argument="q", given="bfloat16")
        draw = np.random.default_rng(seed).standard_normal
        return tuple(draw((n, self.head_dim)).astype(self.dtype) for n in (self.n_q, self.n_k, self.n_k))

    def tensors(self, seed: int = 0, device: str = "cpu"):
        """The whole problem as torch tensors: q (batch, heads, n_q, head_dim), k and v (batch, kv_heads, n_k, head_dim).

        Drawn on `device`, so a large problem never passes through host memory; a seed gives the same numbers on the
        same kind of device.
        """
        import torch

        generator = torch.Generator(device=device).manual_seed(seed)
        shapes = ((self.heads, self.n_q), (self.kv_heads, self.n_k), (self.kv_heads, self.n_k))
        return tuple(
            torch.randn(self.batch, heads, n, self.head_dim, generator=generator, device=device).to(getattr(torch, self.dtype))
            for heads, n in shapes
        )
