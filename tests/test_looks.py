"""looks.py: no two algorithms look alike, in colour or without it, and no two kernels of the benchmark."""

import re

from matplotlib.lines import Line2D

from flashlab.bench.peers import PEERS
from flashlab.looks import ALGORITHMS, KERNELS, OTHER_TENSOR, TENSORS

OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}


def test_every_algorithm_differs_in_label_in_colour_and_in_marker():
    for column in zip(*ALGORITHMS.values()):
        assert len(set(column)) == len(ALGORITHMS), column
    assert {look.marker for look in ALGORITHMS.values()} <= set(Line2D.markers)


def test_colours_are_okabe_and_itos():
    assert {look.colour for look in ALGORITHMS.values()} | set(TENSORS.values()) <= OKABE_ITO
    assert re.fullmatch("#[0-9A-F]{6}", OTHER_TENSOR) and OTHER_TENSOR not in TENSORS.values()


def test_every_peer_has_a_look_of_its_own():
    assert set(KERNELS) == set(PEERS)
    assert len({(look.colour, look.marker) for look in KERNELS.values()}) == len({look.label for look in KERNELS.values()}) == len(KERNELS)
    assert len({look.marker for look in KERNELS.values()}) == len(KERNELS)
    assert {look.marker for look in KERNELS.values()} <= set(Line2D.markers)


def test_the_four_tensors_of_attention_look_different():
    assert len({TENSORS[name] for name in ("q", "k", "v", "o", "scores")}) == 5
