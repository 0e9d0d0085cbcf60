"""The kernels' tests share kernel_oracle.py and kernel_compile.py, which lie beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
