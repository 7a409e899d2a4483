"""The rest of the GPU: weights and overheads."""
