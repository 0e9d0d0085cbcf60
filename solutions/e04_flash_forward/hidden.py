"""More cases for the grader, which no student has: {name of the test: cases}, as in flashlab/grading/exercises."""

from flashlab.grading.exercises.e04_flash_forward import NAN, case

CASES = {
    "small": [case(16, 16, 8, 8, 4, 104), case(6, 10, 3, 3, 5, 105, dtype="float64", sharp=4.0)],
    "ragged": [case(13, 31, 6, 5, 7, 106, spare=9, junk=NAN), case(2, 17, 4, 16, 16, 107, spare=15)],
    "masked": [case(11, 23, 4, 4, 8, 108, causal=True, spare=1, junk=NAN), case(19, 7, 5, 8, 3, 109, causal=True)],
    "large scores": [case(9, 14, 4, 4, 4, 110, sharp=2e3, causal=True), case(3, 300, 4, 2, 8, 111, dtype="float16", spare=4)],
    "bytes": [case(33, 65, 16, 16, 8, 112, spare=7, junk=NAN, sram_bytes=16384), case(30, 41, 8, 7, 9, 113, causal=True, sram_bytes=8192)],
}
