"""How an algorithm, a kernel of the benchmark and a tensor look, the same in every figure and widget: name, colour, marker.

Colours are Okabe and Ito's eight, which stay apart for colour-blind readers; the marker or the letter says the same
thing again, so colour is never the only sign.
"""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """A label for legends, a CSS colour, and a matplotlib marker."""

    label: str
    colour: str
    marker: str


GREY = "#7F7F7F"

ALGORITHMS = {
    "standard": Look("standard attention", "#D55E00", "s"),
    "flash1": Look("FlashAttention-1", "#E69F00", "^"),
    "flash2": Look("FlashAttention-2", "#0072B2", "o"),
    "fused": Look("q, k, v, o once", "#009E73", "D"),
    "sdpa-math": Look("torch SDPA, math", "#CC79A7", "v"),
    "sdpa-flash": Look("torch SDPA, flash", "#56B4E9", "P"),
}

# Kernels of the benchmark, by a peer's name (bench/peers.py); ours is FlashAttention-2, in Triton.
KERNELS = {
    "triton": Look("flashlab, Triton", ALGORITHMS["flash2"].colour, ALGORITHMS["flash2"].marker),
    "triton/fused": Look("flashlab, Triton, fused", ALGORITHMS["flash2"].colour, "X"),
    "sdpa-flash": ALGORITHMS["sdpa-flash"],
    "sdpa-cudnn": Look("torch SDPA, cuDNN", "#000000", "*"),
    "sdpa-efficient": Look("torch SDPA, memory-efficient", GREY, "<"),
    "flex": Look("FlexAttention", "#009E73", "d"),
    "flash-attn": Look("flash-attn 2", "#E69F00", "^"),
    "flash-attn-4": Look("flash-attn 4", "#D55E00", ">"),
    "xformers": Look("xformers", GREY, "h"),
    "sdpa-math": ALGORITHMS["sdpa-math"],
}

TENSORS = {
    "q": "#0072B2",
    "k": "#E69F00",
    "v": "#009E73",
    "o": "#CC79A7",
    "scores": "#D55E00",
    "weights": "#D55E00",
    "acc": "#CC79A7",
}
OTHER_TENSOR = GREY
