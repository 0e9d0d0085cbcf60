"""More cases for the grader, which no student has: {name of the test: cases}, as in flashlab/grading/exercises."""

from flashlab.grading.exercises.e06_triton_forward import case

CASES = {
    "plain": [case(48, 32, 32, 16, 16, 104, heads=2, sharp=2.0)],
    "plain ragged": [case(33, 50, 32, 32, 16, 105, heads=2), case(1, 1, 16, 16, 16, 106), case(18, 23, 16, 16, 16, 107, heads=2, layout="heads", sharp=200.0)],
    "plain bytes": [case(41, 55, 32, 16, 16, 108, heads=2, layout="wide")],
    "causal": [case(35, 52, 16, 16, 32, 109, causal=True, layout="wide"), case(53, 21, 16, 32, 16, 110, causal=True)],
    "skipped tiles": [case(70, 81, 16, 16, 16, 111, causal=True, layout="heads"), case(49, 20, 16, 16, 32, 112, causal=True, heads=2)],
    "grouped": [case(21, 40, 16, 16, 16, 113, heads=6, group=2, causal=True), case(18, 18, 16, 16, 16, 114, heads=3, group=3)],
    "error budget": [case(40, 64, 32, 16, 32, 115, dtype="float16", heads=4, group=4, causal=True, layout="wide")],
}
