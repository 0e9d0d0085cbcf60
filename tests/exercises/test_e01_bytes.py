"""e01_bytes: each misconception is a mutant of the solution, caught at a named test; and the judge is PyTorch's counter."""

import numpy as np
import pytest

from exercise_cells import ROOT, assert_caught
from flashlab.grading.exercise import find
from flashlab.grading.exercises.e01_bytes import OPERATORS, costs

# {misconception: (the test it fails first, the edits that make it)}
MUTANTS = {
    "half the FLOPs": ("one head", [("flops = 2 * scores * head_dim + 2 * scores * value_dim", "flops = scores * (head_dim + value_dim)")]),
    "elements instead of bytes": ("one head", [("e, each = element_bytes", "e, each = 1"), ("exact = 4 * scores", "exact = scores")]),
    "softmax in the element type": ("one head", [("exact = 4 * scores", "exact = e * scores")]),
    "written but not read again": (
        "one head",
        [
            ("(scores * e, scores * e),", "(0, scores * e),"), ("((scores + n_q * n_k) * e", "(n_q * n_k * e"), ("(exact, exact)", "(0, exact)"),
            ("to_float32[::-1],", "(0, scores * e),"), ("    to_float32,", "    (0, exact),"), ("((scores + each * n_k", "((each * n_k"),
        ],
    ),
    "operand read once a row": ("one head", [("each * (n_q + n_k) * head_dim", "each * (n_q + n_q * n_k) * head_dim")]),
    "n_k taken for n_q": ("two lengths", [("e, each = element_bytes", "n_k = n_q; e, each = element_bytes")]),
    "value_dim taken for head_dim": ("two lengths", [("2 * scores * value_dim", "2 * scores * head_dim"), ("* value_dim * e", "* head_dim * e")]),
    "batch or heads left out": ("batch, heads", [("batch * heads", "heads")]),
    "mask not read": ("one head", [("(scores + n_q * n_k)", "scores")]),
    "mask read once a head": ("batch, heads", [("(scores + n_q * n_k)", "(scores + scores)")]),
    "converted though nothing changes": ("types", [("if e != 4 else (0, 0)", "")]),
}  # fmt: skip
BY_HALVES = {
    "batch or heads left out": ("batch, heads", [("batch * heads", "batch")]),
    "elements instead of bytes": ("one head", [("e, each = element_bytes", "e, each = 1")]),
}


@pytest.mark.parametrize("misconception", MUTANTS)
def test_each_misconception_is_caught_and_named(misconception):
    assert_caught("e01", misconception, *MUTANTS[misconception])


@pytest.mark.parametrize("misconception", BY_HALVES)
def test_a_misconception_by_halves_has_the_same_name(misconception):
    assert_caught("e01", misconception, *BY_HALVES[misconception])


def test_what_is_expected_equals_pytorchs_counter_over_every_case():
    torch = pytest.importorskip("torch")
    from flashlab.traffic.eager import count_bytes

    for test in find("e01").with_hidden(ROOT / "solutions").tests:
        for call in test.calls:
            sizes = call.options
            batch, heads, n_q, n_k = (sizes[name] for name in ("batch", "heads", "n_q", "n_k"))
            kind = {"dtype": {2: torch.float16, 4: torch.float32, 8: torch.float64}[sizes["element_bytes"]], "device": "meta"}
            q, k = (torch.empty(batch, heads, n, sizes["head_dim"], **kind) for n in (n_q, n_k))
            v, mask = torch.empty(batch, heads, n_k, sizes["value_dim"], **kind), torch.empty(n_q, n_k, **kind)
            with count_bytes() as counter:
                exact = (torch.matmul(q, k.mT) * 0.5 + mask).float()
                torch.matmul(torch.softmax(exact, dim=-1).to(q.dtype), v)
            names = ["bmm", "mul", "add", "_to_copy", "_softmax", "_to_copy", "bmm"]
            if sizes["element_bytes"] == 4:
                names = [name for name in names if name != "_to_copy"]
            assert [row.operator for row in counter.rows] == names
            wanted = costs()(call)
            there = [at for at in range(len(OPERATORS)) if wanted["loaded"][at]]
            assert [row.bytes_loaded for row in counter.rows] == wanted["loaded"][there].tolist(), call
            assert [row.bytes_stored for row in counter.rows] == wanted["stored"][there].tolist(), call
            assert not np.delete(wanted["stored"], there).any()


def test_flops_equal_pytorchs_flop_counter():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    for call in find("e01").tests[2].calls:
        sizes = call.options
        shape = sizes["batch"], sizes["heads"]
        q, k = (torch.empty(*shape, sizes[n], sizes["head_dim"]) for n in ("n_q", "n_k"))
        with FlopCounterMode(display=False) as counter:
            torch.matmul(torch.softmax(torch.matmul(q, k.mT), dim=-1), torch.empty(*shape, sizes["n_k"], sizes["value_dim"]))
        assert counter.get_total_flops() == costs()(call)["flops"]
