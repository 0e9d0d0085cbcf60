"""Powers of two, a part of them by additions and products, on units that are not the exponentials': a step of lesson 09's ladder.

Source: FlashAttention-4 (Zadouri et al. 2026), which does so on Blackwell; Cody & Waite 1980 for splitting off the whole number.

Only the ladder uses it: on an H200 it lost. Each of a multiprocessor's four schedulers has a unit of exponentials that takes 8
clocks for a warp's 32 powers, and issues other instructions meanwhile; a polynomial is about eight instructions, a clock each.
"""

import triton
import triton.language as tl


@triton.jit
def power_of_two(x):
    """2^x for x up to 0, float32: the nearest whole number goes into the exponent's bits, the rest through a polynomial.

    Within 1e-4 (relative) of it down to x = -125; about 2^-126 for all below. What it makes of nan is not promised.
    """
    x = tl.maximum(x, -126.0)
    shifted = x + 12582912.0  # 1.5 · 2²³ leaves a float32 no room for a fraction: its last bits are the whole number
    rest = x - (shifted - 12582912.0)  # -0.5 to 0.5
    power = ((0.0551705 * rest + 0.24260852) * rest + 0.69326094) * rest + 0.99992824
    return (power.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)).to(tl.float32, bitcast=True)


@triton.jit
def mixed_powers(x):
    """2^x for a tile (rows, columns) of x up to 0: every fourth group of 8 columns by power_of_two, the others by tl.exp2.

    Each thread has two columns of every such group of a product, so nothing moves from one thread to another.
    """
    rows: tl.constexpr = x.shape[0]
    cols: tl.constexpr = x.shape[1]
    group: tl.constexpr = 8 if cols >= 32 else cols // 4
    even, odd = x.reshape(rows, cols // (4 * group), 2, 2, group).permute(0, 1, 4, 2, 3).split()
    odd, last = odd.split()
    odd = tl.join(tl.exp2(odd), power_of_two(last))
    return tl.join(tl.exp2(even), odd).permute(0, 1, 3, 4, 2).reshape(rows, cols)
