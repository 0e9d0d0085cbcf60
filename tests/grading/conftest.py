"""The grader's tests share class_of.py and the cells of the exercises, which lie beside them."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "exercises")]
