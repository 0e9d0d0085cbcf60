"""Lesson 09's ladder: every step computes attention, moves the bytes of its schedule, and compiles to what the table says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from flashlab import runtime  # before triton

import pytest
import torch

from flashlab.bench.ladder import COMPILED, programs
from flashlab.errors import ERRORS
from flashlab.kernels.flash1 import flash1
from flashlab.kernels.standard import standard as operators
from flashlab.kernels.steps import STEPS, step
from flashlab.kernels.tiles import Tile, forward_tile_for, heads_at_once
from flashlab.kernels.unfused import unfused
from flashlab.problem import AttentionProblem
from flashlab.traffic import schedule
from flashlab.traffic.counters import STEPS as NAMES
from flashlab.traffic.interpreter import trace
from flashlab.traffic.model import flash2_traffic
from flashlab.traffic.triton_hooks import launches
from kernel_compile import MAX_SHARED
from kernel_oracle import standard, within_budget

DEVICE = runtime.device()
OWN = [name for name, one in STEPS.items() if one.kernel == "step_kernel"]


def tensors(n_q, n_k, head_dim, *, heads=4, kv_heads=2, batch=2, dtype="float32"):
    return AttentionProblem(n_q, n_k, head_dim, batch=batch, heads=heads, kv_heads=kv_heads, dtype=dtype).tensors(device=DEVICE)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_attention(name, causal):
    """Ragged tiles, fewer queries than keys, grouped queries; lse in natural units whatever the exponential."""
    dtype = "float32" if DEVICE == "cpu" else "bfloat16"
    for n_q, n_k in ((50, 70), (1, 33)) if DEVICE == "cpu" else ((500, 700), (1024, 1024), (1, 333)):
        q, k, v = tensors(n_q, n_k, 16 if DEVICE == "cpu" else 64, dtype=dtype)
        o, lse = step(name, q, k, v, causal=causal, scale=0.3)
        exact, exact_lse = standard(*(x.double().cpu() for x in (q, k, v)), scale=0.3, causal=causal)
        plain, _ = standard(q, k, v, scale=0.3, causal=causal)
        if STEPS[name].mixed and dtype == "float32":  # its powers are right to 1e-4 (powers.py), enough for 16 bits only
            torch.testing.assert_close(o.double().cpu(), exact, rtol=1e-3, atol=2e-4)
            torch.testing.assert_close(lse.cpu().double(), exact_lse, rtol=0, atol=1e-4)
            continue
        within_budget("o", o, plain, exact)
        torch.testing.assert_close(lse.cpu().double(), exact_lse, rtol=1e-3 if DEVICE == "cuda" else 2e-6, atol=2e-3 if DEVICE == "cuda" else 2e-6)


@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter's bfloat16")
def test_bfloat16_in_the_interpreter_is_computed_in_float32():
    q, k, v = tensors(20, 20, 16, dtype="bfloat16")
    o, _ = step("fold", q, k, v)
    exact, _ = standard(*(x.double() for x in (q, k, v)), scale=0.25)
    assert o.dtype == torch.bfloat16 and (o.double() - exact).abs().max() < 1e-2


@pytest.mark.parametrize("name", ["fold", "library", "flash1"])
def test_any_strides(name):
    q, k, v = (x.mT.contiguous().mT for x in tensors(20, 20, 16, dtype="float32" if DEVICE == "cpu" else "bfloat16"))
    for given, right in zip(step(name, q, k, v, causal=True), step(name, *(x.contiguous() for x in (q, k, v)), causal=True)):
        assert torch.equal(given, right)


@pytest.mark.parametrize(
    "sizes, options, text",
    [
        ((5, 5, 12), {}, "^the steps take a head_dim that is a power of two from 16 on, and q has head_dim 12. kernels.forward.forward takes any.$"),
        ((5, 5, 8), {}, "q has head_dim 8"),
        ((5, 4, 16), {"causal": True}, "^the steps take at least one key for each query, and q has 5 rows, k 4."),
        ((5, 0, 16), {}, "q has 5 rows, k 0"),
        ((0, 5, 16), {}, "^the steps take at least one query, and q has 0 rows."),
        ((5, 5, 16), {"scale": 0}, "^the steps take a scale from 2⁻¹²⁶ to 2¹²⁶ where it is folded into the exponent, and the call has scale 0."),
        ((5, 5, 16), {"scale": -0.5}, "the call has scale -0.5."),
        ((5, 5, 16), {"scale": 2.0**-127}, "the call has scale 5.87747e-39."),
        ((5, 5, 16), {"scale": 1e38}, "the call has scale 1e\\+38."),
        ((5, 5, 16), {"scale": float("nan")}, "the call has scale nan."),
        ((5, 5, 16), {"heads": 3, "kv_heads": 3, "k_heads": 2}, "heads"),
    ],
)
def test_what_a_step_cannot_take_is_refused(sizes, options, text):
    heads = {name: options[name] for name in ("heads", "kv_heads") if name in options}
    q, k, v = tensors(*sizes, **heads)
    k, v = (x[:, : options.get("k_heads", x.shape[1])] for x in (k, v))
    with pytest.raises(ValueError, match=text):
        step("fold", q, k, v, causal=options.get("causal", False), scale=options.get("scale"))


def test_a_step_without_fold_takes_any_scale():
    q, k, v = tensors(20, 20, 16, dtype="float32" if DEVICE == "cpu" else "bfloat16")
    for scale in (0.0, -0.5):
        exact, _ = standard(*(x.double().cpu() for x in (q, k, v)), scale=scale)
        assert (step("fit", q, k, v, scale=scale)[0].double().cpu() - exact).abs().max() < (1e-5 if DEVICE == "cpu" else 2e-2)


def test_a_step_that_there_is_not_is_refused_by_name():
    with pytest.raises(ERRORS["step"][0], match="^no step of the ladder is called 'folds'; there are: flash1, small, tiles, .*, overlap.$"):
        step("folds", *tensors(5, 5, 16))


@pytest.mark.parametrize("run", [partial(step, "flash1"), partial(step, "fold"), partial(step, "library"), unfused, flash1, operators])
def test_what_is_no_tensor_is_named(run):
    q, k, v = tensors(5, 5, 16)
    for name, given in (("q", ([1.0], k, v)), ("k", (q, None, v)), ("v", (q, k, v.cpu().float().numpy()))):
        with pytest.raises(ERRORS["tensor"][0], match=f"^{name} is of type .*; it must be a tensor"):
            run(*given)


@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_launched_on_the_tensors_own_gpu(name, monkeypatch):
    seen, real = [], torch.cuda.device_of
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: seen.append(x) or real(x))
    step(name, *tensors(16, 16, 16, dtype="float32" if DEVICE == "cpu" else "bfloat16"))
    assert seen


def recorded(name, problem, tile):
    traces = []
    with launches(lambda launch: traces.append(trace(launch.kernel, launch.grid, *launch.args, **launch.meta))):
        step(name, *problem.tensors(device=DEVICE), causal=problem.causal, tile=tile)
    (one,) = traces
    return one


def events(traced):
    return [(e.program, e.op, e.tensor, e.batch, e.head, e.row0, e.rows, e.bytes) for e in traced if e.op in ("load", "store")]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", OWN)
def test_each_step_moves_what_its_schedule_says_event_for_event(name, causal):
    one = STEPS[name]
    for sizes, tile in (((64, 64), Tile(16, 16, 1, 1)), ((50, 70), Tile(16, 32, 1, 1)), ((70, 70), Tile(32, 16, 1, 1))):
        problem = AttentionProblem(*sizes, 16, batch=2, heads=3, causal=causal, dtype="float16")
        traced = recorded(name, problem, tile)
        at_once = {"one": 1, "l2": heads_at_once(problem.tensors()[1]), "all": 6}[one.heads]
        blocks = {"block_q": tile.block_q, "block_k": tile.block_k}
        wanted = schedule.step_schedule(problem, **blocks, heads_at_once=at_once, longest=one.longest, skip=one.skip)
        assert events(traced) == events(wanted)
        if one.skip:
            assert traced.bytes_moved == flash2_traffic(problem, **blocks).bytes_moved


def test_all_tiles_moves_what_a_full_mask_would():
    """Only the bytes show that hidden tiles were visited: the values are the same."""
    problem, tile = AttentionProblem(64, 64, 16, causal=True, dtype="float16"), Tile(16, 16, 1, 1)
    moved = {name: recorded(name, problem, tile).bytes_moved for name in ("tiles", "all-tiles")}
    assert moved == {"tiles": 14_592, "all-tiles": 20_736}
    q, k, v = problem.tensors(device=DEVICE)
    assert torch.equal(step("tiles", q, k, v, causal=True)[0], step("all-tiles", q, k, v, causal=True)[0])


def test_the_ladder_is_one_and_each_step_changes_a_step_before_it():
    assert tuple(STEPS) == NAMES == tuple(COMPILED)
    seen = []
    for name, one in STEPS.items():
        assert one.name == name and (one.after is None or one.after in seen) and one.changes and one.expected
        if one.kept and one.after:
            assert STEPS[one.after].kept
        seen.append(name)
    kept = [name for name, one in STEPS.items() if one.kept]
    assert [STEPS[name].after for name in kept] == [None, *kept[:-1]]


def test_the_last_steps_have_the_library_s_tiles():
    for head_dim in (64, 128):
        library = forward_tile_for(90, head_dim, False, MAX_SHARED[90])
        assert STEPS["fit"].tile(head_dim) == STEPS["l2"].tile(head_dim) == STEPS["library"].tile(head_dim) == library
        assert STEPS["overlap"].tile(head_dim) == library._replace(overlap=True, registers=None)


# -- compiled ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def compiled():
    """What the compiler that is installed here says of three steps."""
    script = Path(__file__).parent / "step_compile.py"
    done = subprocess.run([sys.executable, str(script), "tiles", "e", "fit", "fold", "l2", "mixed"], env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_steps_compile_for_sm_90_to_what_the_table_says(compiled):
    """The table is Triton 3.6's; other versions differ a little in registers and spills."""
    for name, of in compiled.items():
        for head_dim, used in of.items():
            registers, spilled, shared = COMPILED[name][int(head_dim)]
            assert used["wgmma"] and used["shared"] <= MAX_SHARED[90], (name, head_dim, used)
            assert abs(used["registers"] - registers) <= 24 and abs(used["spilled"] - spilled) <= 128 and abs(used["shared"] - shared) <= 2**14, (name, head_dim, used)


def test_exp_keeps_what_exp2_flushes_and_folding_saves_two_of_three(compiled):
    """In PTX tl.exp differs by `ftz` alone; what that costs, ptxas adds: 68 comparisons and 136 multiplications at head_dim 64."""
    for head_dim in ("64", "128"):
        exp, exp2, fit, fold = (compiled[name][head_dim]["ptx"] for name in ("e", "tiles", "fit", "fold"))
        assert exp["ex2"] == exp2["ex2"] == exp2["ex2.ftz"] > 0 == exp["ex2.ftz"]
        assert {name: n for name, n in exp.items() if name != "ex2.ftz"} == {name: n for name, n in exp2.items() if name != "ex2.ftz"}
        scores = fit["ex2"] - 2  # a thread has two rows, each with one rescale
        assert fold["ex2"] == fit["ex2"]  # rescale keeps its subtraction: fused, it would not be 1 where the maximum stays
        assert fit["mul"] - fold["mul"] >= 1.9 * scores and fit["sub"] - fold["sub"] == scores and scores <= fold["fma"] - fit["fma"] <= scores + 8


def test_mixed_takes_a_quarter_of_the_whole_tiles_powers_from_ex2(compiled):
    for head_dim, scores in (("64", 64), ("128", 32)):  # of a thread: 64 rows · 128 keys, or 128 · 64 in two warpgroups
        l2, mixed = (compiled[name][head_dim]["ptx"] for name in ("l2", "mixed"))
        assert l2["ex2"] - mixed["ex2"] == scores / 4 and mixed["fma"] - l2["fma"] == 3 * scores / 4
    assert compiled["mixed"]["64"]["spilled"] == compiled["l2"]["64"]["spilled"]


@pytest.mark.parametrize("head_dim, expected", [(64, {"tiles": 2, "fit": 3, "overlap": 2}), (128, {"tiles": 1, "warps": 1, "fit": 2, "library": 2, "overlap": 1, "flash1": 1})])
def test_programs_of_a_multiprocessor(head_dim, expected):
    assert {name: programs(name, head_dim) for name in expected} == expected
