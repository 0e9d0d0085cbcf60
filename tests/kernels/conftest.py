"""The kernels' tests share what lies beside them: kernel_oracle.py, kernel_compile.py and forward_cases.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("kernel_oracle", "forward_cases")  # so that a failed assertion shows its values
