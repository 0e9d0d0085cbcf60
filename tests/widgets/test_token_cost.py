"""Token costs against numbers worked out by hand."""

from __future__ import annotations

import re

import pytest

from flashlab.hardware import gpu
from flashlab.problem import AttentionProblem
from flashlab.traffic.model import standard_traffic
from flashlab.widgets.token_cost import TokenCost, token_cost, token_cost_figure

PROBLEM = AttentionProblem(n_q=4096, n_k=4096, head_dim=128, heads=32)


def test_fused_by_hand():
    """4 · 4096² · 128 · 32 = 274,877,906,944 FLOP a layer at 989.4 TFLOP/s: 277.8 µs; 32 layers: 8.890 ms."""
    cost = token_cost(PROBLEM, "H200", 3.6, layers=32)
    assert cost.bound.binds == "compute" and cost.bound.flops == 274_877_906_944
    assert cost.time_s == pytest.approx(8.8904e-3, rel=1e-4)
    assert cost.microseconds_per_token == pytest.approx(2.17051, rel=1e-4)  # of 4096 tokens
    assert cost.dollars == pytest.approx(8.8904e-6, rel=1e-4)  # 3.6 dollars an hour are 0.001 a second
    assert cost.dollars_per_million_tokens == pytest.approx(2.17051e-3, rel=1e-4)


def test_standard_by_hand():
    """Scores and weights: 4 · 4096² · 2 bytes · 32 heads = 4,294,967,296; q, k, v, o: 134,217,728. At 4.8 TB/s: 922.7 µs."""
    moved = standard_traffic(PROBLEM).bytes_moved
    assert moved == 4_294_967_296 + 134_217_728
    cost = token_cost(PROBLEM, gpu("H200"), 3.6, 32, moved)
    assert cost.bound.binds == "memory" and cost.time_s == pytest.approx(29.528e-3, rel=1e-4)
    assert cost.microseconds_per_token == pytest.approx(7.20896, rel=1e-4)


def test_a_batch_shares_the_time():
    one, four = (token_cost(PROBLEM.with_(batch=batch), "H200", 1.0, layers=1) for batch in (1, 4))
    assert four.tokens == 4 * one.tokens and four.time_s == pytest.approx(4 * one.time_s)
    assert four.dollars_per_million_tokens == pytest.approx(one.dollars_per_million_tokens)


def test_price_and_layers_scale():
    base = token_cost(PROBLEM, "H200", 1.0, layers=1)
    assert token_cost(PROBLEM, "H200", 5.0, layers=1).dollars == pytest.approx(5 * base.dollars)
    assert token_cost(PROBLEM, "H200", 1.0, layers=7).time_s == pytest.approx(7 * base.time_s)
    assert token_cost(PROBLEM, "H200", 0, layers=1).dollars == 0


@pytest.mark.parametrize("price", [-0.01, float("nan")])
def test_a_price_that_cannot_be(price):
    with pytest.raises(ValueError, match="dollars_per_hour is .*at least 0"):
        token_cost(PROBLEM, "H200", price, layers=1)


def test_no_token_and_no_layer():
    with pytest.raises(ValueError, match=r"batch \* n_q is 0"):
        token_cost(AttentionProblem(n_q=0, n_k=8, head_dim=8), "H200", 1.0, layers=1)
    with pytest.raises(ValueError, match="layers is 0"):
        token_cost(PROBLEM, "H200", 1.0, layers=0)


def test_widget_agrees_with_the_function():
    widget = TokenCost("H200", n=4096, heads=32, layers=32, dollars_per_hour=3.6)
    costs = widget.costs()
    assert costs["fused"] == token_cost(PROBLEM, "H200", 3.6, 32)
    assert costs["standard"] == token_cost(PROBLEM, "H200", 3.6, 32, standard_traffic(PROBLEM).bytes_moved)
    assert widget.scores_bytes == 2 * 32 * 4096 * 4096 * 2
    for words in (
        "keeps 2.15 GB of scores and weights for one layer (1 % of its memory)",
        "at least 7.21 µs a token standard (memory-bound) and 2.17 µs fused (compute-bound), 3.3 times less",
        "at $3.6 an hour that is at least $0.0072 and $0.0022 a million tokens",
        "By the roofline",
    ):
        assert words in repr(widget)


def test_scores_that_do_not_fit():
    assert "more than its whole memory" in repr(TokenCost("T4", n=65536))


def test_controls():
    widget = TokenCost("H100", heads=8)
    before = widget.costs()["fused"]
    widget.controls["dollars_per_hour"].value *= 2
    widget.controls["layers"].value *= 3
    assert widget.costs()["fused"].dollars == pytest.approx(6 * before.dollars)
    widget.controls["gpu"].value = gpu("T4")
    assert "On the T4" in widget.sentence


def test_figure_draws_what_the_costs_are():
    widget = TokenCost("H200", n=4096, heads=32, layers=32, dollars_per_hour=3.6)
    costs, kept = widget.costs(), {"standard": widget.scores_bytes, "fused": 0}
    memory, latency, dollars = token_cost_figure(costs, kept, gpu("H200"), "a prompt").axes
    pair = [costs["standard"], costs["fused"]]
    for axes, sizes in (
        (memory, [widget.scores_bytes, 0]),
        (latency, [cost.microseconds_per_token for cost in pair]),
        (dollars, [cost.dollars_per_million_tokens for cost in pair]),
    ):
        assert [bar.get_width() for bar in axes.patches] == sizes and sizes[0] > 2 * sizes[1]
        assert all(bar.get_x() == 0 for bar in axes.patches) and axes.get_xlim() == (0, pytest.approx(1.05 * sizes[0]))
        assert [bar.get_y() + bar.get_height() / 2 for bar in axes.patches] == pytest.approx([0, -1])
        assert [round(text.xy[0], 9) for text in axes.texts] == [round(size, 9) for size in sizes]
    assert [tick.get_text().split()[0] for tick in memory.get_yticklabels()] == ["standard", "fused"]
    assert [text.get_text() for text in memory.texts] == ["2.15 GB", "0 B"]
    assert [text.get_text() for text in latency.texts] == ["7.21 µs\nmemory-bound", "2.17 µs\ncompute-bound"]
    assert [text.get_text() for text in dollars.texts] == ["$0.0072", "$0.0022"]


def test_still():
    data, metadata = TokenCost()._repr_mimebundle_()
    assert data["image/png"] and metadata["image/png"]["alt"] == data["text/plain"]


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_jupyterlab(open_notebook, theme):
    lab = open_notebook(["from flashlab.widgets.token_cost import TokenCost", "w = TokenCost('H100'); w"], theme=theme)
    page = lab.page
    page.get_by_role("img", name=re.compile("On the H100, standard attention keeps 8.59 GB")).wait_for()
    lab.screenshot(f"token-cost-{theme}")
    price = page.get_by_label("$ an hour")
    price.fill("10.5")
    price.press("Enter")
    lab.wait_kernel("w.values['dollars_per_hour']", "10.5")
    heads = page.get_by_label("heads")
    heads.fill("8")
    heads.press("Tab")
    lab.wait_kernel("w.problem.heads", "8")
    slider = page.get_by_role("slider", name="n", exact=True)
    slider.focus()
    slider.press("ArrowRight")
    lab.wait_kernel("w.values['n']", "16384")
    page.get_by_role("status").filter(has_text="at $10.5 an hour").wait_for()
