"""The same steps as reference/, on torch tensors (batch, heads, n, head_dim).

standard.py in plain PyTorch → unfused.py, that as three Triton kernels → flash1.py, the slow order of the loop → primitives.py,
masks.py and joined_masks.py → forward.py → backward.py in Triton. tiles.py says which tiles they run with and what was
tried, autotune.py tries others on your GPU, launch.py starts them, api.py is `flashlab.attention`.
"""
