"""More cases for the grader, which no student has: {name of the test: cases}, as in flashlab/grading/exercises."""

from flashlab.grading.exercises.e01_bytes import case

CASES = {
    "one head": [case(1, 1, 1), case(9, 9, 7), case(1000, 1000, 80)],
    "two lengths": [case(13, 5, 3, 8), case(100, 1, 1, 2), case(17, 4099, 576, 512)],
    "batch, heads": [case(5, 2, 3, 4, batch=3, heads=5), case(1, 777, 96, batch=16, heads=12)],
    "types": [case(3, 7, 5, 2, batch=3, heads=2, element_bytes=8), case(11, 3, 4, 9, batch=5, element_bytes=4), case(8, 2, 6, heads=7, element_bytes=2)],
    "large": [case(40_000, 1_000_000, 128, 64, batch=2, heads=128), case(65536, 32768, 192, 128, heads=16, element_bytes=8)],
}
