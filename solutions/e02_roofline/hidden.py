"""More cases for the grader, which no student has: {name of the test: cases}, as in flashlab/grading/exercises."""

from flashlab.grading.exercises.e02_roofline import kernels, on, queries, queries_on, standard

CASES = {
    "one kernel": [kernels([3], [7], 21.0, 5.0), on("L40S", "float16", [7e9], [1e7]), on("T4", "float32", [2e8], [9e8])],
    "several kernels": [kernels([5, 30, 7, 1], [10, 3, 2, 9], 6.0, 4.0), on("B200", "float16", **standard(8192, 256, 32)), on("H100", "float32", **standard(1024, 64, 3, 4))],
    "corners": [kernels([0, 0, 6], [1, 2, 0]), kernels([40, 8, 0], [10, 2, 1])],
    "fewest queries": [queries(100, 4, 30.0, 3.0), queries(48, 2, 48e12, 4e12), queries_on("RTX 5090", "float16", 9000, 2), queries_on("A100-80GB", "float16", 700, 2)],
    "never": [queries(1, 4, 5.0, 2.0), queries(20, 4, 40.0, 4.0), queries_on("A100-40GB", "float16", 150, 2), queries_on("L4", "float16", 401, 2), queries_on("L4", "float16", 433, 2)],
}
