"""Paged decode attention: a problem, its fp32 oracle, a split-KV reference in torch and the Triton kernel."""
