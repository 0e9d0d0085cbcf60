"""reference/backward.py: exact gradients, one writer for each row, the weights never stored."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.problem import AttentionProblem
from flashlab.reference.backward import backward, delta_pass, fused_backward, keys_pass, queries_pass, weights_again
from flashlab.reference.flash2 import flash2
from flashlab.traffic.memory import Memory
from flashlab.traffic.model import backward_sram_bytes

BOTH = pytest.mark.parametrize("algorithm", [backward, fused_backward])
INPUTS = {"q", "k", "v", "o", "do", "lse", "delta"}


def gradients(oracle, q, k, v, do, dlse=None, *, causal=False, scale=None, dtype=torch.float64):
    """(dq, dk, dv) as torch's autograd gives them for standard attention; a query without a key gives and gets 0."""
    q, k, v = (torch.tensor(np.array(x), dtype=dtype, requires_grad=True) for x in (q, k, v))
    seen = oracle.causal_mask(len(q), len(k)) if causal else torch.ones(len(q), len(k), dtype=torch.bool)
    rows = seen.any(dim=1)
    scores = ((q @ k.T) * (q.shape[1] ** -0.5 if scale is None else scale)).masked_fill(~seen, -math.inf)[rows]
    loss = ((torch.softmax(scores, dim=-1) @ v) * torch.tensor(np.array(do), dtype=dtype)[rows]).sum()
    if dlse is not None:
        loss = loss + (torch.logsumexp(scores, dim=-1) * torch.tensor(np.array(dlse), dtype=dtype)[rows]).sum()
    loss.backward()
    return tuple(np.zeros(x.shape) if x.grad is None else x.grad.double().numpy() for x in (q, k, v))


def incoming(q, seed=1):
    """(do in q's shape and dtype, dlse), read-only."""
    draw = np.random.default_rng([seed, *q.shape]).standard_normal
    do, dlse = draw(q.shape).astype(q.dtype), draw(len(q)).astype(np.result_type(q.dtype, np.float32))
    for array in (do, dlse):
        array.setflags(write=False)
    return do, dlse


def run(algorithm, q, k, v, do, dlse=None, *, sram_bytes=None, **options):
    """((dq, dk, dv), trace) with o and lse from flash2."""
    o, lse = flash2(q, k, v, **options)
    for array in (o, lse):
        array.setflags(write=False)
    memory = Memory(sram_bytes=sram_bytes)
    return algorithm(q, k, v, o, do, lse, dlse=dlse, memory=memory, **options), memory.trace


def assert_exact(oracle, algorithm, q, k, v, dlse=None, *, causal=False, scale=None, **blocks):
    do, _ = incoming(q)
    given, _ = run(algorithm, q, k, v, do, dlse, causal=causal, scale=scale, **blocks)
    for name, got, right in zip(("dq", "dk", "dv"), given, gradients(oracle, q, k, v, do, dlse, causal=causal, scale=scale)):
        assert got.dtype == np.float64 and got.shape == right.shape
        np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-10, err_msg=name)


# -- the answer ---------------------------------------------------------------------------------------------------------------
@BOTH
def test_exact_in_float64(oracle, sizes, causal, algorithm):
    n_q, n_k, head_dim, block_q, block_k = sizes
    assert_exact(oracle, algorithm, *oracle.inputs(n_q, n_k, head_dim), causal=causal, block_q=block_q, block_k=block_k)


@BOTH
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 6), st.integers(1, 24), st.integers(1, 24), st.booleans())
def test_exact_for_any_sizes(oracle, algorithm, n_q, n_k, head_dim, block_q, block_k, causal):
    assert_exact(oracle, algorithm, *oracle.inputs(n_q, n_k, head_dim), causal=causal, block_q=block_q, block_k=block_k)


@BOTH
@pytest.mark.parametrize("scale", [0.0, -0.7, 3.0])
def test_any_scale(oracle, causal, scale, algorithm):
    assert_exact(oracle, algorithm, *oracle.inputs(17, 23, 8), causal=causal, scale=scale, block_q=4, block_k=8)


@BOTH
def test_the_gradient_of_lse_counts(oracle, sizes, causal, algorithm):
    n_q, n_k, head_dim, block_q, block_k = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim)
    assert_exact(oracle, algorithm, q, k, v, incoming(q)[1], causal=causal, block_q=block_q, block_k=block_k)


def test_the_gradient_of_lse_alone_is_the_weights(oracle):
    q, k, v = oracle.inputs(5, 7, 4)
    (dq, dk, dv), _ = run(backward, q, k, v, np.zeros_like(q), np.ones(5), block_q=2, block_k=3)
    weights = torch.softmax(torch.tensor(q @ k.T / 2), dim=-1).numpy()
    np.testing.assert_allclose(dq, weights @ k / 2, atol=1e-14)
    np.testing.assert_allclose(dk, weights.T @ q / 2, atol=1e-14)
    assert (dv == 0).all()


@BOTH
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_within_three_times_the_error_of_plain_torch(oracle, sizes, causal, dtype, algorithm):
    n_q, n_k, head_dim, block_q, block_k = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim, dtype)
    do, _ = incoming(q)
    given, _ = run(algorithm, q, k, v, do, causal=causal, block_q=block_q, block_k=block_k)
    right = gradients(oracle, q, k, v, do, causal=causal)
    plain = gradients(oracle, q, k, v, do, causal=causal, dtype=getattr(torch, dtype))
    for name, got, exact, rough in zip(("dq", "dk", "dv"), given, right, plain):
        assert got.dtype == q.dtype
        floor = 4 * np.finfo(dtype).eps * max(np.abs(exact).max(), 1)  # few terms: 3 × plain may be 0; and delta is made from an o rounded to dtype
        floor += 4 * np.finfo("float32").eps * max(n_q, n_k) ** 0.5  # with one key all terms of dk cancel, each but for its rounding: how much is the BLAS's
        allowed = max(3 * np.abs(rough - exact).max(), floor)
        assert np.abs(got - exact).max() <= allowed, f"{name} is off by {np.abs(got - exact).max():.3g}; {allowed:.3g} is allowed"


@BOTH
def test_an_empty_side_gives_zeros(oracle, empty_sizes, causal, algorithm):
    n_q, n_k, head_dim, block_q, block_k = empty_sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim)
    given, _ = run(algorithm, q, k, v, *incoming(q), causal=causal, block_q=block_q, block_k=block_k)
    assert all(got.shape == x.shape and (got == 0).all() for got, x in zip(given, (q, k, v)))


@BOTH
def test_a_row_that_sees_no_key_gets_zero_and_gives_nothing(oracle, algorithm):
    q, k, v = oracle.inputs(17, 3, 4)
    do, dlse = incoming(q)
    (dq, dk, dv), _ = run(algorithm, q, k, v, do, dlse, causal=True, block_q=5, block_k=2)  # row 14 is the first with a key
    assert (dq[:14] == 0).all() and np.abs(dq[14:]).min() > 0
    changed = do.copy()
    changed[:14] = 1e3
    again, _ = run(algorithm, q, k, v, changed, dlse, causal=True, block_q=5, block_k=2)
    assert all((a == b).all() for a, b in zip(again, (dq, dk, dv)))


@BOTH
def test_a_masked_nan_touches_no_row_that_should_not_see_it(oracle, algorithm):
    q, k, v = oracle.inputs(16, 16, 8)
    do, _ = incoming(q)
    clean, _ = run(algorithm, q, k, v, do, causal=True, block_q=4, block_k=4)
    broken = k.copy()
    broken[9] = np.nan
    (dq, _, _), _ = run(algorithm, q, broken, v, do, causal=True, block_q=4, block_k=4)
    assert (dq[:8] == clean[0][:8]).all() and np.isnan(dq[9:]).all()  # rows 0 to 7 skip its tile


def test_weights_come_back_from_lse():
    scores = np.array([[1.0, 3.0, -np.inf], [-np.inf] * 3])
    weights = weights_again(scores, np.array([np.log(np.exp(1) + np.exp(3)), -np.inf]))
    np.testing.assert_allclose(weights[0], [1 / (1 + np.exp(2)), 1 / (1 + np.exp(-2)), 0], rtol=1e-14)
    assert (weights[1] == 0).all()


def test_delta_is_the_rowsum_of_do_and_o_and_of_dweights_and_weights(oracle):
    q, k, v = oracle.inputs(17, 23, 8)
    (do, dlse), (o, _) = incoming(q), oracle.attention(q, k, v)
    weights = torch.softmax(torch.tensor(q @ k.T / np.sqrt(8)), dim=-1).numpy()
    np.testing.assert_allclose(delta_pass(o, do, block_q=5), (weights * (do @ v.T)).sum(axis=1), atol=1e-14)
    np.testing.assert_allclose(delta_pass(o, do, dlse, block_q=5), (do * o).sum(axis=1) - dlse, atol=1e-14)


def test_a_pass_may_run_alone(oracle):
    q, k, v = oracle.inputs(17, 23, 8)
    (do, _), (o, lse) = incoming(q), flash2(q, k, v, block_q=4, block_k=8)
    delta = delta_pass(o, do, block_q=4)
    whole, _ = run(backward, q, k, v, do, block_q=4, block_k=8)
    assert (queries_pass(q, k, v, do, lse, delta, block_q=4, block_k=8) == whole[0]).all()
    assert all((a == b).all() for a, b in zip(keys_pass(q, k, v, do, lse, delta, block_q=4, block_k=8), whole[1:]))


def test_torch_gradcheck(causal):
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            o, lse = map(torch.from_numpy, flash2(*(x.detach().numpy() for x in inputs), **options))
            ctx.save_for_backward(*inputs, o, lse)
            return o, lse

        @staticmethod
        def backward(ctx, do, dlse):
            q, k, v, o, lse = (x.detach().numpy() for x in ctx.saved_tensors)
            return tuple(map(torch.from_numpy, backward(q, k, v, o, do.numpy(), lse, dlse=dlse.numpy(), **options)))

    options = {"block_q": 2, "block_k": 3, "causal": causal}
    inputs = [torch.from_numpy(x).requires_grad_() for x in AttentionProblem(4, 5, 3, dtype="float64").arrays()]
    assert torch.autograd.gradcheck(Attention.apply, inputs)


# -- the loops ----------------------------------------------------------------------------------------------------------------
def writers(trace, tensor):
    """{row: the programs that store it}."""
    found = {}
    for event in trace.select("store", tensor=tensor):
        for row in range(event["row0"], event["row0"] + event["rows"]):
            found.setdefault(row, []).append(int(event["program"]))
    return found


def test_two_kernels_every_row_of_a_gradient_has_one_writer(oracle, causal):
    q, k, v = oracle.inputs(17, 23, 8)
    _, trace = run(backward, q, k, v, incoming(q)[0], causal=causal, block_q=5, block_k=8)
    # programs 0 to 3 make delta, 4 to 6 own keys, 7 to 10 own queries
    assert writers(trace, "delta") == {row: [row // 5] for row in range(17)}
    assert writers(trace, "dk") == writers(trace, "dv") == {row: [4 + row // 8] for row in range(23)}
    assert writers(trace, "dq") == {row: [7 + row // 5] for row in range(17)}
    assert not {name for name, op in trace.bytes_by_tensor() if op == "load"} & {"dq", "dk", "dv"}


def test_fused_every_keys_program_adds_to_every_row_of_dq(oracle):
    q, k, v = oracle.inputs(17, 23, 8)
    _, trace = run(fused_backward, q, k, v, incoming(q)[0], block_q=5, block_k=8)
    assert writers(trace, "dq_sum") == {row: [4, 4, 5, 6] for row in range(17)}  # zeros first, in the first program after delta
    assert [len(programs) for programs in writers(trace, "dq").values()] == [1] * 17
    added = trace.select("load", tensor="dq_sum")["program"].tolist()
    assert added == [4] * 4 + [5] * 4 + [6] * 4 + [7] * 4


@pytest.mark.parametrize("algorithm, times", [(backward, {"dk": 1, "dq": 1}), (fused_backward, {"dk": 1})])
def test_every_visible_score_is_worked_on_once_for_each_loop_and_no_tile_in_vain(oracle, sizes, causal, algorithm, times):
    n_q, n_k, head_dim, block_q, block_k = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim)
    _, trace = run(algorithm, q, k, v, incoming(q)[0], causal=causal, block_q=block_q, block_k=block_k)
    seen = oracle.causal_mask(n_q, n_k).numpy() if causal else np.ones((n_q, n_k), bool)
    done = {name: np.zeros((n_q, n_k), int) for name in times}
    for event in trace:
        if event.op == "compute":
            place = np.s_[event.row0 : event.row0 + event.rows, event.col0 : event.col0 + event.cols]
            assert seen[place].any()
            done[event.tensor][place] += 1
    for name, count in times.items():
        assert (done[name][seen] == count).all() and done[name].max() <= count


def test_no_n_by_n_array_and_no_row_max_in_hbm(oracle, causal):
    q, k, v = oracle.inputs(17, 23, 8)
    for algorithm, sums in ((backward, set()), (fused_backward, {"dq_sum"})):
        _, trace = run(algorithm, q, k, v, incoming(q)[0], causal=causal, block_q=5, block_k=8)
        assert {name for name, _ in trace.bytes_by_tensor()} == INPUTS | sums | {"dq", "dk", "dv"}
        assert {shape[:2] for shape in trace.tensors.values()} == {(17, 8), (23, 8), (17, 1)}


def test_one_keys_program_step_by_step(oracle):
    q, k, v = oracle.inputs(3, 4, 5, "float16")
    _, trace = run(backward, q, k, v, incoming(q)[0], block_q=3, block_k=4)
    steps = [(event.op, event.tensor, event.rows, event.cols, event.bytes) for event in trace if event.program == 1 and event.op != "release"]
    assert steps == [
        ("load", "k", 4, 5, 40), ("load", "v", 4, 5, 40), ("hold", "dk", 4, 5, 80), ("hold", "dv", 4, 5, 80),
        ("load", "q", 3, 5, 30), ("hold", "scores", 3, 4, 48), ("load", "lse", 3, 1, 12), ("load", "do", 3, 5, 30),
        ("hold", "dweights", 3, 4, 48), ("load", "delta", 3, 1, 12), ("compute", "dk", 3, 4, 0),
        ("store", "dk", 4, 5, 40), ("store", "dv", 4, 5, 40),
    ]  # fmt: skip


def test_a_tile_made_on_the_chip_says_where_it_lies(oracle, causal):
    q, k, v = oracle.inputs(7, 5, 3)
    _, trace = run(backward, q, k, v, incoming(q)[0], causal=causal, block_q=3, block_k=2)
    computed = [(event.row0, event.col0) for event in trace if event.op == "compute"]
    for name in ("scores", "dweights"):
        assert [(event.row0, event.col0) for event in trace if event.op == "hold" and event.tensor == name] == computed
    held = {name: [event.row0 for event in trace if event.op == "hold" and event.tensor == name] for name in ("dq", "dk", "dv")}
    assert held == {"dq": [0, 3, 6], "dk": [0, 2, 4], "dv": [0, 2, 4]}


# -- SRAM ---------------------------------------------------------------------------------------------------------------------
@BOTH
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_budget_is_exact_to_the_byte(oracle, sizes, dtype, algorithm):
    n_q, n_k, head_dim, block_q, block_k = sizes
    q, k, v = oracle.inputs(n_q, n_k, head_dim, dtype)
    do, blocks = incoming(q)[0], {"block_q": block_q, "block_k": block_k}
    free, trace = run(algorithm, q, k, v, do, **blocks)
    peak = trace.peak_sram_bytes
    assert peak == backward_sram_bytes(AttentionProblem(n_q, n_k, head_dim, dtype=dtype), fused=algorithm is fused_backward, **blocks)
    within, _ = run(algorithm, q, k, v, do, sram_bytes=peak, **blocks)
    assert all((a == b).all() for a, b in zip(within, free))
    with pytest.raises(MemoryError, match=f"needs {peak:,} bytes of SRAM, but the budget is {peak - 1:,}"):
        run(algorithm, q, k, v, do, sram_bytes=peak - 1, **blocks)


@BOTH
def test_programs_keep_nothing(oracle, algorithm):
    q, k, v = oracle.inputs(17, 23, 8)
    _, trace = run(algorithm, q, k, v, incoming(q)[0], block_q=5, block_k=8)
    held, programs = trace.sram_by_step(), trace.columns["program"]
    assert (np.diff(programs) >= 0).all()
    assert all(held[np.flatnonzero(programs == program)[-1]] == 0 for program in set(programs.tolist()))


# -- what is refused ----------------------------------------------------------------------------------------------------------
WRONG = [
    ({"do": np.ones((1, 4, 3))}, ValueError, "do has shape (1, 4, 3); the NumPy algorithms work on one head"),
    ({"o": np.ones((4, 2))}, ValueError, "o has head_dim 2, but q has 3;"),
    ({"do": np.ones((5, 3))}, IndexError, "rows 0 to 4 of do were asked for, but it has 5 rows."),
    ({"lse": np.ones(3)}, IndexError, "rows 0 to 4 of lse were asked for, but it has 3 rows."),
    ({"lse": np.ones((4, 1))}, ValueError, "lse has shape (4, 1); the NumPy algorithms work on one head"),
    ({"do": np.ones((4, 3), int)}, TypeError, "do has dtype int64; the NumPy algorithms take"),
    ({"k": np.ones((5, 2))}, ValueError, "k has head_dim 2, but q has 3;"),
    ({"block_q": 0}, ValueError, "block_q is 0; a tile needs at least 1 row."),
    ({"block_k": 0}, ValueError, "block_k is 0; a tile needs at least 1 row."),
]


@BOTH
@pytest.mark.parametrize("changed, kind, message", WRONG, ids=[row[2][:24] for row in WRONG])
def test_wrong_input_is_named(algorithm, changed, kind, message):
    right = {name: np.ones((4, 3)) for name in ("q", "o", "do")} | {"k": np.ones((5, 3)), "v": np.ones((5, 3)), "lse": np.ones(4)}
    with pytest.raises(kind) as caught:
        algorithm(**(right | {"block_q": 2, "block_k": 2} | changed))
    assert str(caught.value).startswith(message)
