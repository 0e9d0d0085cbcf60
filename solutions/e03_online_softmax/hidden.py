"""More cases for the grader, which no student has: {name of the test: cases}, as in flashlab/grading/exercises."""

from flashlab.grading.exercises.e03_online_softmax import INF, by_hand, rows_of, sides, tile, two

CASES = {
    "update": [by_hand([2, 2], [2, 2, 2]), tile(9, 5, 13, 101), tile(2, 1, 1, 102)],
    "large scores": [tile(7, 3, 9, 103, signs=1e4), tile(3, 4, 4, 104, shift=1e4), tile(4, 3, 5, 105, large=100.0, rise=800.0)],
    "masked": [by_hand([], [-INF, 4]), tile(8, 5, 2, 106, masked=0.7), tile(4, 6, 6, 107, masked=0.2, blind=(2,), signs=1e4)],
    "merge": [two([-3, 0], [7]), two([-1e4], [1e4]), sides(9, 31, 1, 108), sides(9, 31, 30, 108), sides(7, 10, 5, 109, masked=0.6, left_blind=(3,)), sides(4, 6, 3, 110, large=200.0)],
    "one pass": [rows_of(11, 37, 6, 111), rows_of(3, 64, 16, 112, masked=0.8, blind=(1,)), rows_of(5, 7, 7, 113, signs=1e4), rows_of(6, 10, 1, 114, large=50.0)],
}
