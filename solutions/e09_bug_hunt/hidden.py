"""More cases for the grader, which no student has: other random numbers, so that no pair holds by chance."""

from flashlab.grading.exercises.e09_bug_hunt import BROKEN

CASES = {f"kernel {kernel}": [{"kernel": kernel, "seed": 101}, {"kernel": kernel, "seed": 102}] for kernel in BROKEN}
