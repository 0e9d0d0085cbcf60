"""The same steps as reference/, on torch tensors (batch, heads, n, head_dim): standard.py in plain PyTorch; Triton follows."""
