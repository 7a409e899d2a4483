"""How long a step takes: a roofline, and the same with factors measured on real kernels."""
