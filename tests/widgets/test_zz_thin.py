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
    lab = open_notebook([SETUP, "w = TileLoop(f2, row=37); w.step=45; w"], theme=theme)
    lab.page.wait_for_timeout(600)
    print(lab.kernel("w"), [c for c in lab.console if "error" in c.lower()])
    lab.screenshot(f"thin-{theme}", lab.page.locator(".fl-tile-loop"))
    lab.execute("from IPython.display import display")
@pytest.mark.browser
def test_three(open_notebook):
    lab = open_notebook([SETUP, "w = TileLoop(st, f1, f2, row=37); w.step=12; w"])
    lab.page.wait_for_timeout(600)
    lab.screenshot(f"thin-three", lab.page.locator(".fl-tile-loop"))
