"""e02_roofline: each misconception is a mutant of the solution, caught at a named test; and the judge agrees with the library."""

import numpy as np
import pytest

from exercise_cells import ROOT, assert_caught, mutated
from flashlab.grading import marks
from flashlab.grading.exercise import find
from flashlab.grading.exercises.e02_roofline import fewest, layer, reaches, solved
from flashlab.hardware import GPUS, Bound

LONGER = "np.maximum(computing, moving).sum()"
NEVER = "    if 2 * n_k <= r:\n        return 0\n"
# {misconception: (the test it fails first, the edits that make it)}
MUTANTS = {
    "memory and compute swapped": ("one kernel", [("moving > computing", "moving < computing")]),
    "memory-bound at the ridge": ("corners", [("moving > computing", "moving >= computing")]),
    "times added within a kernel": ("one kernel", [(LONGER, "(computing + moving).sum()")]),
    "shorter time taken": ("one kernel", [(LONGER, "np.minimum(computing, moving).sum()")]),
    "roof of the sums": ("several kernels", [(LONGER, "max(computing.sum(), moving.sum())")]),
    "rates averaged": ("several kernels", [("flops.sum() / time_s", "(flops / np.maximum(computing, moving)).mean()")]),
    "intensity of no bytes": (
        "corners",
        [
            ("flops / peak_flops_per_s", "flops / np.minimum(peak_flops_per_s, flops / bytes_moved * bytes_per_s)"), (LONGER, "computing.sum()"),
            ("moving > computing", "flops / bytes_moved < peak_flops_per_s / bytes_per_s"),
        ],
    ),
    "rounded down": ("fewest queries", [("math.ceil", "int")]),
    "one too many": ("fewest queries", [("math.ceil(", "1 + int(")]),
    "elements instead of bytes": ("fewest queries", [("/ bytes_per_s * element_bytes", "/ bytes_per_s")]),
    "half the FLOPs": ("fewest queries", [("2 * n_k", "n_k")]),
    "o not written": ("fewest queries", [("(2 * n_k - r)", "(2 * n_k - r / 2)")]),
    "square attention assumed": ("fewest queries", [("math.ceil(r * n_k / (2 * n_k - r))", "math.ceil(r)")]),
    "ridge that can be reached": ("fewest queries", [("2 * n_k <= r:", "n_k <= r:")]),
    "ridge that is never reached": ("never", [(NEVER, "    if 2 * n_k == r:\n        return 0\n")]),
}  # fmt: skip


@pytest.mark.parametrize("misconception", MUTANTS)
def test_each_misconception_is_caught_and_named(misconception):
    assert_caught("e02", misconception, *MUTANTS[misconception])


@pytest.mark.parametrize("denominator", ["(4 * n_k - r)", "(2 * n_k + r)", "(4 * n_k - 2 * r - 1)"])
def test_a_wrong_denominator_is_not_taken_for_elements(denominator):
    result = marks.mark(find("e02"), mutated("e02", [("(2 * n_k - r)", denominator)]), stop=True)
    assert result.first_failure.test.name == "fewest queries" and result.first_failure.finding.misconception is None
    assert "then solve for n_q" in result.first_failure.finding.hint


def test_a_division_by_zero_at_the_limit_has_advice():
    result = marks.mark(find("e02"), mutated("e02", [("2 * n_k <= r:", "2 * n_k < r:")]), stop=True)
    assert result.first_failure.test.name == "never" and "ZeroDivisionError" in result.first_failure.finding.what
    assert "the limit itself" in result.first_failure.finding.hint


def calls_of(function):
    return [call for test in find("e02").with_hidden(ROOT / "solutions").tests if test.function == function for call in test.calls]


def test_one_kernel_is_what_the_library_says():
    for gpu in GPUS.values():
        for dtype in gpu.flops_per_s:
            for flops, moved in ((10**12, 10**9), (10**9, 10**9), (10**6, 10**9)):
                bound = Bound(gpu, dtype, flops, moved)
                call = find("e02").tests[0].call({"flops": [flops], "bytes_moved": [moved], "peak_flops_per_s": gpu.peak_flops_per_s(dtype), "bytes_per_s": gpu.hbm_bytes_per_s})
                mine = layer()(call)
                assert mine["bound"].tolist() == [bound.binds]
                np.testing.assert_allclose([mine["time_s"], mine["attainable"]], [bound.time_s, bound.attainable_flops_per_s], rtol=1e-12)


def test_the_formula_gives_what_halving_finds_and_no_case_hangs_on_rounding():
    for call in calls_of("fewest_queries"):
        found = int(fewest(call)["n_q"])
        assert found == solved()(call).get("n_q", 0)
        nudged = [{**call.options, "peak_flops_per_s": call.options["peak_flops_per_s"] * factor} for factor in (1 - 1e-12, 1 + 1e-12)]
        exact = call.options["bytes_per_s"] in (2.0, 3.0, 4.0, 4e12, 8e12)  # the toys: no digit is lost
        assert exact or all(reaches(options, found) and not reaches(options, found - 1) for options in nudged if found), call


def test_no_layer_has_a_kernel_so_near_the_ridge_that_rounding_names_it():
    for call in calls_of("layer_roofline"):
        flops, moved = call.arrays["flops"], call.arrays["bytes_moved"]
        apart = np.abs(flops * call.options["bytes_per_s"] - moved * call.options["peak_flops_per_s"])
        assert ((apart == 0) | (apart > 1e-6 * np.maximum(flops * call.options["bytes_per_s"], moved * call.options["peak_flops_per_s"]))).all()
