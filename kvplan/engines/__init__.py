"""How each engine lays the cache out: pools, blocks, groups, and what it prints or refuses at start-up."""
