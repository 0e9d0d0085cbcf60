"""The eager counter: each operator's bytes, by hand and by the closed form."""

import pytest
import torch
from hypothesis import given as each, settings
from hypothesis import strategies as st

from flashlab.kernels.standard import standard
from flashlab.problem import AttentionProblem
from flashlab.runtime import device
from flashlab.traffic.eager import count_bytes, touched_bytes
from flashlab.traffic.model import fused_traffic, standard_traffic


def rows_of(function):
    with count_bytes() as counter:
        function()
    return [(row.operator, row.bytes_loaded, row.bytes_stored) for row in counter.rows]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n_q, n_k, head_dim, batch, heads, kv_heads", [(64, 64, 16, 1, 1, 1), (17, 113, 5, 2, 6, 2), (1, 239, 64, 3, 5, 1), (3, 1, 1, 1, 2, 2)])
def test_standard_attention_equals_the_closed_form(n_q, n_k, head_dim, batch, heads, kv_heads, dtype):
    problem = AttentionProblem(n_q, n_k, head_dim, batch=batch, heads=heads, kv_heads=kv_heads, dtype=dtype)
    q, k, v = problem.tensors(device=device())
    with count_bytes() as counter:
        standard(q, k, v)
    assert [row.operator for row in counter.rows] == ["baddbmm", "_softmax", "bmm"]
    assert counter.bytes_loaded == standard_traffic(problem).bytes_loaded
    assert counter.bytes_stored == standard_traffic(problem).bytes_stored
    assert [row.bytes_stored for row in counter.rows[:2]] == [batch * heads * problem.score_matrix_bytes] * 2


def test_causal_adds_one_read_of_a_bias_that_all_heads_share():
    problem = AttentionProblem(64, 64, 16, heads=8, causal=True)
    q, k, v = problem.tensors(device=device())
    with count_bytes() as counter:
        standard(q, k, v, causal=True)
    operators = {row.operator: row for row in counter.rows}
    plain = fused_traffic(problem).by_tensor
    assert operators["baddbmm"].bytes_loaded == plain["q", "load"] + plain["k", "load"] + problem.score_matrix_bytes


def test_the_sizes_of_lesson_01_without_any_arithmetic():
    problem = AttentionProblem(8192, 8192, 128, dtype="float16")
    q, k, v = (torch.empty(1, 1, 8192, 128, dtype=torch.float16, device="meta") for _ in range(3))
    with count_bytes() as counter:
        standard(q, k, v)
    assert [row.bytes_stored for row in counter.rows] == [134_217_728, 134_217_728, 2_097_152]
    assert counter.bytes_moved == standard_traffic(problem).bytes_moved == 545_259_520


def test_views_move_nothing():
    x = torch.zeros(8, 4)
    assert rows_of(lambda: (x.reshape(4, 8), x.T, x[2:5], x.expand(3, 8, 4), x.detach(), x.unsqueeze(0))) == []


def test_a_strided_copy_is_counted_once_each_way():
    x = torch.zeros(8, 4)
    assert rows_of(lambda: x.T.contiguous()) == [("clone", 128, 128)]


def test_an_operator_in_place_reads_and_writes():
    x, y = torch.zeros(100), torch.zeros(100)
    assert rows_of(lambda: x.add_(y)) == [("add_", 800, 400)]
    assert rows_of(lambda: x.zero_()) == [("zero_", 0, 400)]
    assert rows_of(lambda: x.copy_(y)) == [("copy_", 400, 400)]
    assert rows_of(lambda: torch.add(x, y, out=x)) == [("add", 800, 400)]


def test_an_output_given_by_the_caller_is_written_and_not_read():
    x, y, out = torch.zeros(100), torch.zeros(100), torch.zeros(100)
    assert rows_of(lambda: torch.add(x, y, out=out)) == [("add", 800, 400)]


def test_factories_read_nothing():
    x = torch.zeros(100)
    assert rows_of(lambda: (torch.ones(10), torch.zeros_like(x), torch.empty(10), torch.empty_like(x))) == [("ones", 0, 40), ("zeros_like", 0, 400)]


def test_an_expanded_tensor_counts_the_elements_it_has():
    row = torch.zeros(1, 10)
    assert touched_bytes(row.expand(50, 10)) == 40
    assert rows_of(lambda: torch.zeros(50, 10) + row.expand(50, 10))[-1] == ("add", 2000 + 40, 2000)


def test_windows_that_overlap_count_each_element_once():
    x = torch.ones(100)
    assert rows_of(lambda: x.unfold(0, 10, 1).sum()) == [("sum", 400, 4)]
    assert rows_of(lambda: torch.as_strided(x, (50, 2), (1, 1)).sum()) == [("sum", 51 * 4, 4)]
    assert touched_bytes(x.unfold(0, 10, 20)) == 50 * 4 and touched_bytes(x[::2].unfold(0, 4, 1)) == 50 * 4
    image = x.view(10, 10)
    assert touched_bytes(image.unfold(0, 3, 1).unfold(1, 3, 1)) == 400 and touched_bytes(image[:, :5].unfold(1, 3, 1)) == 50 * 4
    assert touched_bytes(x[:0].unfold(0, 0, 1)) == 0 == touched_bytes(torch.zeros(0, 5).expand(3, 0, 5))


@settings(max_examples=300, deadline=None, derandomize=True)
@each(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), max_size=4))
def test_touched_bytes_are_those_of_a_list_of_all_offsets(dimensions):
    """Exactly, where each stride is a multiple of the next smaller one; else never more than the elements or the span."""
    sizes, strides = [size for size, _ in dimensions], [stride for _, stride in dimensions]
    span = 1 + sum(stride * (size - 1) for size, stride in dimensions)
    x = torch.arange(span).as_strided(sizes, strides)
    distinct, steps = len(x.unique()) * 8, sorted({stride for size, stride in dimensions if size > 1} - {0})
    if all(larger % smaller == 0 for smaller, larger in zip(steps, steps[1:])):
        assert touched_bytes(x) == distinct
    else:
        assert distinct <= touched_bytes(x) <= min(x.numel(), span) * 8


@pytest.mark.parametrize("name, given", [("random_", ()), ("random_", (5,)), ("random_", (2, 5)), ("bernoulli_", (0.5,)), ("geometric_", (0.5,))]
    + [(f"{name}_", ()) for name in ("exponential", "cauchy", "log_normal", "normal", "uniform")])  # fmt: skip
def test_what_fills_a_tensor_with_random_numbers_reads_nothing(name, given):
    x = torch.zeros(100)
    assert rows_of(lambda: getattr(x, name)(*given)) == [(name, 0, 400)]


def test_chances_that_are_a_tensor_are_read():
    x, chances = torch.zeros(100), torch.full((100,), 0.5)
    assert rows_of(lambda: x.bernoulli_(chances)) == [("bernoulli_", 400, 400)]


def test_an_addend_times_zero_is_not_read():
    a, b, bias = torch.zeros(1, 4, 4), torch.zeros(1, 4, 4), torch.zeros(4, 4)
    assert rows_of(lambda: torch.baddbmm(bias, a, b, beta=0)) == [("baddbmm", 128, 64)]
    assert rows_of(lambda: torch.baddbmm(bias, a, b)) == [("baddbmm", 192, 64)]


def test_backward_passes_are_counted_too():
    x = torch.zeros(100, requires_grad=True)
    with count_bytes() as counter:
        (x * 2).sum().backward()
    assert [row.operator for row in counter.rows] == ["mul", "sum", "ones_like", "mul"]


def test_repr_is_a_table_with_a_total():
    with count_bytes() as counter:
        torch.ones(250) * 2
    assert repr(counter).splitlines() == [
        "operator     bytes loaded     bytes stored",
        "ones                    0            1,000",
        "mul                 1,000            1,000",
        "all                 1,000            2,000   3,000 bytes moved",
    ]


def test_an_operator_that_gives_no_tensor_still_reads():
    a, b = torch.zeros(100), torch.zeros(100)
    assert rows_of(lambda: torch.equal(a, b)) == [("equal", 800, 0)]


def test_nothing_is_counted_after_the_block():
    with count_bytes() as counter:
        pass
    torch.ones(10) + 1
    assert counter.rows == [] and counter.bytes_moved == 0
