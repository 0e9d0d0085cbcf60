"""More cases for the grader, which no student has: {name of the test: cases}, as in flashlab/grading/exercises."""

from flashlab.grading.exercises.e07_backward import case, part, rows

CASES = {
    "delta": [rows(5, 4, 3, 101), rows(1, 2, 512, 102, dtype="float16"), rows(6, 5, 32, 103, dtype="float32")],
    "dscores": [part(7, 11, 6, 104), part(6, 5, 5, 105, masked=0.5, blind=(0, 3)), part(3, 9, 2, 106, large=1000.0)],
    "one head": [case(5, 9, 6, 107), case(1, 8, 2, 108), case(8, 1, 2, 109)],
    "masked": [case(7, 7, 3, 110, causal=True), case(3, 11, 5, 111, causal=True), case(10, 4, 2, 112, causal=True)],
    "grouped": [case(5, 6, 2, 113, heads=8, kv_heads=2), case(6, 3, 4, 114, heads=9, kv_heads=3, causal=True)],
    "gradcheck": [case(4, 4, 3, 115, heads=6, kv_heads=2, causal=True), case(2, 5, 2, 116, heads=3, kv_heads=3)],
}
