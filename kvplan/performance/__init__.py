"""How fast the cache is read: bandwidth, FLOPs and links of a step."""
