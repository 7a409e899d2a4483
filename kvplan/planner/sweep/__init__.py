"""A grid of questions: every cell answered once, in parts that survive an interruption."""
