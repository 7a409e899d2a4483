"""On a device: allocate what was predicted, fill it, run attention over it, compare. Only this package uses torch."""
