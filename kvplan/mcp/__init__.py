"""The same questions as tools for assistants, by the Model Context Protocol (extra `mcp`)."""
