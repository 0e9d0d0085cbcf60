"""More cases for the grader, which no student has: {name of the test: cases}, as in flashlab/grading/exercises."""

from flashlab.grading.exercises.e05_first_kernels import LOW, scores, softmax

CASES = {
    "softmax": [softmax(16, 8, 8, 104, x="turned", sharp=3.0)],
    "softmax ragged": [softmax(21, 13, 8, 105, y="wide"), softmax(2, 7, 4, 106, x="turned", y="turned", dtype="float16")],
    "softmax large": [softmax(13, 5, 4, 107, sharp=500.0, offset=LOW)],
    "softmax bytes": [softmax(41, 17, 8, 108, x="wide", y="turned")],
    "scores": [scores(16, 48, 16, 16, 32, 109)],
    "scores ragged": [scores(29, 45, 33, 32, 16, 110, layout="wide"), scores(1, 1, 1, 16, 16, 111)],
    "scores bytes": [scores(61, 33, 24, 16, 16, 112, layout="wide"), scores(40, 90, 72, 16, 32, 113, dtype="float16")],
}
