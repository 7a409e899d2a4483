"""What it runs on: accelerators as data."""
