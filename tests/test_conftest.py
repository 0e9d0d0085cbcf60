"""conftest.py: which tests share a process under pytest-xdist."""

from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def conftest(request):
    return request.config.pluginmanager.get_plugin(str(ROOT / "tests/conftest.py"))


def scheduler(conftest, dist):
    values = {"dist": dist, "tx": ["popen"], "loadscopereorder": True}
    config = SimpleNamespace(getvalue=values.get, getoption=values.get, option=SimpleNamespace(**values))
    return conftest.pytest_xdist_make_scheduler(config, None)


def test_the_longest_files_are_there_and_their_tests_share_nothing_that_costs(conftest):
    for path in conftest.LONG:
        source = (ROOT / path).read_text()
        before, *fixtures = source.split('@pytest.fixture(scope="module")\n')
        assert all(fixture.startswith("def run():\n    return ") for fixture in fixtures) and 'scope="session"' not in before


def test_files_and_notebooks_stay_whole_and_the_longest_files_do_not(conftest):
    pytest.importorskip("xdist")
    scope = scheduler(conftest, "loadscope")._split_scope
    assert scope("notebooks/01_standard_attention.ipynb::Cell 3") == "notebooks/01_standard_attention.ipynb"
    assert scope("tests/kernels/test_tiles.py::test_a[1]") == "tests/kernels/test_tiles.py"
    assert scope("tests/kernels/test_backward.py::test_a[x::y]") == "tests/kernels/test_backward.py::test_a[x::y]"


def test_another_way_to_spread_tests_is_left_to_xdist(conftest):
    assert scheduler(conftest, "load") is None
