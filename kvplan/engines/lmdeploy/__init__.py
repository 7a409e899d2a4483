"""LMDeploy: blocks in a share of the memory that is free after the weights; PyTorch and TurboMind engines."""
