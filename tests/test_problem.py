"""problem.py: sizes and inputs."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flashlab.problem import ELEMENT_BYTES, AttentionProblem, check_size

ROOT = Path(__file__).parent.parent
PROBLEM = AttentionProblem(4, 4, 4)


# -- sizes --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [3, np.int64(3), np.uint8(3)])
def test_a_size_becomes_a_plain_int(given):
    assert check_size("n_q", given) == 3 and type(check_size("n_q", given)) is int


@pytest.mark.parametrize("given", [0, -1, 2.0, "4", None, True, np.float64(4)])
def test_what_is_no_size_is_refused(given):
    with pytest.raises(ValueError, match="^n_q is .*; it must be a whole number of at least 1"):
        check_size("n_q", given)


def test_least_may_be_zero():
    assert check_size("n_q", 0, least=0) == 0 and AttentionProblem(0, 0, 1).score_matrix_bytes == 0


# -- the problem --------------------------------------------------------------------------------------------------------------
def test_defaults():
    problem = AttentionProblem(3, 5, 16)
    assert (problem.batch, problem.heads, problem.kv_heads, problem.causal, problem.dtype) == (1, 1, 1, False, "float16")
    assert problem.scale == 1 / 4 == 1 / math.sqrt(problem.head_dim)
    assert AttentionProblem(3, 5, 16, heads=6).kv_heads == 6 and AttentionProblem(3, 5, 16, scale=0).scale == 0.0


def test_a_problem_can_be_compared_hashed_and_not_changed():
    assert AttentionProblem(3, np.int64(5), 4) == AttentionProblem(3, 5, 4, scale=0.5, kv_heads=1)
    assert len({AttentionProblem(3, 5, 4), AttentionProblem(3, 5, 4), AttentionProblem(3, 5, 4, causal=True)}) == 2
    with pytest.raises(AttributeError):
        PROBLEM.n_q = 5


@pytest.mark.parametrize("dtype, element, statistic", [("float16", 2, 4), ("bfloat16", 2, 4), ("float32", 4, 4), ("float64", 8, 8)])
def test_bytes_of_an_element_and_of_a_statistic(dtype, element, statistic):
    problem = AttentionProblem(3, 5, 4, dtype=dtype)
    assert (problem.element_bytes, problem.statistic_bytes, problem.score_matrix_bytes) == (element, statistic, 15 * element)
    assert ELEMENT_BYTES[dtype] == getattr(torch, dtype).itemsize


def test_with_changes_what_is_named_and_a_default_scale_follows_head_dim():
    problem = AttentionProblem(3, 5, 16, heads=4, kv_heads=2, causal=True)
    changed = problem.with_(n_q=7, dtype="float32")
    assert (changed.n_q, changed.n_k, changed.dtype, changed.kv_heads, changed.causal) == (7, 5, "float32", 2, True)
    assert problem.n_q == 3 and changed.scale == problem.scale == 1 / 4
    assert problem.with_(head_dim=64).scale == 1 / 8
    assert problem.with_(head_dim=64, scale=3).scale == 3.0
    assert AttentionProblem(3, 5, 16, scale=0.7).with_(head_dim=64).scale == 0.7


def test_default_kv_heads_follow_heads():
    assert PROBLEM.with_(heads=8).kv_heads == 8
    assert AttentionProblem(4, 4, 4, heads=8).with_(heads=4).kv_heads == 4
    assert AttentionProblem(4, 4, 4, heads=8).with_(heads=4, kv_heads=2).kv_heads == 2
    assert AttentionProblem(4, 4, 4, heads=4, kv_heads=2).with_(heads=8).kv_heads == 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_are_seeded_standard_normal_and_of_one_head(dtype):
    problem = AttentionProblem(300, 200, 16, heads=4, dtype=dtype)
    q, k, v = problem.arrays(seed=3)
    assert (q.shape, k.shape, v.shape) == ((300, 16), (200, 16), (200, 16)) and {x.dtype for x in (q, k, v)} == {np.dtype(dtype)}
    assert all((x == y).all() for x, y in zip((q, k, v), problem.arrays(seed=3)))
    assert (q != problem.arrays(seed=4)[0]).any() and (k != v).any() and (q[:200] != k).any()
    for x in (q, k, v):
        assert abs(x.astype(float).mean()) < 0.1 and abs(x.astype(float).std() - 1) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tensors_are_the_whole_problem_in_torch_s_layout(dtype):
    problem = AttentionProblem(30, 20, 16, batch=2, heads=6, kv_heads=3, dtype=dtype)
    q, k, v = problem.tensors(seed=3)
    assert (tuple(q.shape), tuple(k.shape), tuple(v.shape)) == ((2, 6, 30, 16), (2, 3, 20, 16), (2, 3, 20, 16))
    assert {x.dtype for x in (q, k, v)} == {getattr(torch, dtype)} and q.device.type == "cpu"
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), problem.tensors(seed=3)))
    assert not torch.equal(q, problem.tensors(seed=4)[0]) and not torch.equal(k, v) and not torch.equal(q[0], q[1])
    assert abs(q.double().mean()) < 0.1 and abs(q.double().std() - 1) < 0.1


def test_tensors_leave_torch_s_own_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    PROBLEM.tensors()
    assert torch.equal(torch.rand(1), expected)


def test_problem_loads_nothing_but_the_standard_library():
    code = "import sys; import flashlab.problem; print([name for name in ('numpy', 'torch', 'triton') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
