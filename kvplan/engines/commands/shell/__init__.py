"""Reading shell text without running it."""
