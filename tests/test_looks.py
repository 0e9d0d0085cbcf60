"""looks.py: no two algorithms look alike, in colour or without it."""

import re

from matplotlib.lines import Line2D

from flashlab.looks import ALGORITHMS, OTHER_TENSOR, TENSORS

OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}


def test_every_algorithm_differs_in_label_in_colour_and_in_marker():
    for column in zip(*ALGORITHMS.values()):
        assert len(set(column)) == len(ALGORITHMS), column
    assert {look.marker for look in ALGORITHMS.values()} <= set(Line2D.markers)


def test_colours_are_okabe_and_itos():
    assert {look.colour for look in ALGORITHMS.values()} | set(TENSORS.values()) <= OKABE_ITO
    assert re.fullmatch("#[0-9A-F]{6}", OTHER_TENSOR) and OTHER_TENSOR not in TENSORS.values()


def test_the_four_tensors_of_attention_look_different():
    assert len({TENSORS[name] for name in ("q", "k", "v", "o", "scores")}) == 5
