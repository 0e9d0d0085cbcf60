import pytest, sys
SETUP = """
from flashlab.problem import AttentionProblem
from flashlab.traffic.memory import Memory
from flashlab.reference.flash1 import flash1
from flashlab.reference.flash2 import flash2
from flashlab.reference.standard import standard
from flashlab.widgets.tile_loop import TileLoop
W = ("row_max","row_sum","rescale","acc","o")
p = AttentionProblem(n_q=64, n_k=64, head_dim=16, dtype="float32")
def run(f, title, causal=False, sram=16384, **b):
    m = Memory(title, sram_bytes=sram, watch=W); f(*p.arrays(), causal=causal, memory=m, **b); return m.trace
f2 = run(flash2, "FlashAttention-2", True, block_q=16, block_k=16)
f1 = run(flash1, "FlashAttention-1", True, block_q=16, block_k=16)
st = run(standard, "standard attention", True, sram=None, block_q=16)
"""
@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_thin(open_notebook, theme):
    lab = open_notebook([SETUP, "w = TileLoop(f2, row=37); w.step=49; w"], theme=theme)
    lab.page.wait_for_timeout(600)
    print(lab.kernel("w"), [c for c in lab.console if "error" in c.lower()])
    lab.screenshot(f"thin-{theme}", lab.page.locator(".fl-tile-loop"))
    lab.execute("from IPython.display import display")
@pytest.mark.browser
def test_three(open_notebook):
    lab = open_notebook([SETUP, "w = TileLoop(st, f1, f2, row=37); w.step=30; w"])
    lab.page.wait_for_timeout(600)
    lab.screenshot(f"thin-three", lab.page.locator(".fl-tile-loop"))
BROKEN = """
import numpy as np
from flashlab.traffic.memory import tiles
def broken(q, k, v, memory, block=16):
    n, d = q.shape
    o = memory.hbm("o", np.zeros_like(q)); q = memory.hbm("q", q); k = memory.hbm("k", k); v = memory.hbm("v", v)
    for rows in tiles(n, block):
        q_tile = q.load(rows)
        row_max = np.full(len(q_tile), -np.inf, "float32"); row_sum = np.zeros(len(q_tile), "float32"); acc = memory.hold("acc", np.zeros_like(q_tile), rows.start)
        for cols in tiles(n, block):
            k_tile = k.load(cols); v_tile = v.load(cols)
            scores = memory.hold("scores", q_tile @ k_tile.T / np.sqrt(np.float32(d)), rows.start, cols.start)
            new = np.maximum(row_max, scores.max(axis=1)); rescale = np.exp(row_max - new); w = np.exp(scores - new[:, None])
            row_sum = row_sum * rescale + w.sum(axis=1)
            acc = acc + w @ v_tile
            row_max = new
            memory.compute("acc", rows, cols, row_max=row_max, row_sum=row_sum, rescale=rescale, acc=acc)
        o.store(rows, acc / row_sum[:, None])
        memory.release()
m = Memory("your loop", sram_bytes=16384, watch=W); broken(*p.arrays(), m)
right = run(flash2, "FlashAttention-2", block_q=16, block_k=16)
"""
@pytest.mark.browser
def test_fault(open_notebook):
    lab = open_notebook([SETUP+BROKEN, "w = TileLoop(m.trace, against=right); w.speed=64; w"])
    print(lab.kernel("(w, w.first_wrong_step, w.wrong_rows)"))
    lab.page.get_by_role("button", name="Play").click()
    lab.page.wait_for_timeout(1500)
    print(lab.kernel("w.step, w.playing, w.row"))
    lab.screenshot(f"thin-fault", lab.page.locator(".fl-tile-loop"))
    lab.page.get_by_role("button", name="Play").click()
    lab.page.wait_for_timeout(2500)
    print(lab.kernel("w.step, w.playing, w.row"))
    lab.screenshot(f"thin-fault-end", lab.page.locator(".fl-tile-loop"))
