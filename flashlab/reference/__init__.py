"""The algorithms in order of discovery, in NumPy, one head at a time, over recording memory.

standard.py → online_softmax.py → flash1.py → flash2.py. Each file says what it changes over the one before it.
Arrays are (n, head_dim); every tile moves through `memory` (traffic/memory.py), so its bytes are counted.
"""
