"""llama.cpp and its relatives: caches of cells, all allocated at start."""
