"""More cases for the grader, which no student has: {name of the test: cases}, as in flashlab/grading/exercises."""

from flashlab.grading.exercises.e08_triton_backward import NAMED, case

MORE = {
    "": [case(48, 16, 101, heads=3), case(16, 64, 102, scale=0.4)],
    "ragged": [case(31, 47, 103, heads=6, group=3, block_q=32), case(5, 3, 104, heads=2, group=2)],
    "layout": [case(19, 33, 105, heads=6, group=2, rows_together=True)],
    "causal": [case(50, 19, 106, causal=True, heads=4, group=4), case(18, 63, 107, causal=True, rows_together=True, heads=2, block_k=32)],
    "budget": [case(72, 40, 108, dtype="float16", heads=2, group=2, causal=True)],
    "bytes": [case(33, 65, 109, causal=True, heads=4, group=2, block_k=32), case(47, 31, 110, block_q=32, dtype="float16")],
}
CASES = {f"{name} {test}".strip(): cases for name in NAMED.values() for test, cases in MORE.items()}
