"""Capacity as a test: launch commands found in a repository's files, and what must hold for them."""
