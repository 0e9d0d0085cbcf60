"""What the tests of the reference algorithms share: the oracle, the ugly sizes, and warnings turned into failures."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("flashlab_reference_oracle", Path(__file__).with_name("oracle.py"))
_ORACLE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_ORACLE)


def _id(sizes):
    return "{}x{}x{}-tiles{}x{}".format(*sizes)


@pytest.fixture(scope="session")
def oracle():
    """tests/reference/oracle.py: float64 attention that shares nothing with flashlab."""
    return _ORACLE


@pytest.fixture(params=_ORACLE.SIZES, ids=_id)
def sizes(request):
    """(n_q, n_k, head_dim, block_q, block_k), none of them 0."""
    return request.param


@pytest.fixture(params=_ORACLE.EMPTY_SIZES, ids=_id)
def empty_sizes(request):
    """(n_q, n_k, head_dim, block_q, block_k) with n_q or n_k or both 0."""
    return request.param


@pytest.fixture(params=[False, True], ids=["full", "causal"])
def causal(request):
    """Without and with the causal mask."""
    return request.param


def pytest_collection_modifyitems(items):
    """A warning is a failure here: the algorithms promise no overflow, no 0/0 and no -inf - (-inf).

    Except one of a matmul: NumPy's OpenBLAS (2.4.6, AVX-512) sometimes raises the flag for finite float32 inputs whose
    product is right, about once in ten runs. A matmul that really went wrong shows in the values.
    """
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("error", "ignore:.* encountered in matmul:RuntimeWarning"))
