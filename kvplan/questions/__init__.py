"""Questions as documents: what the web page, the REST API and the MCP tools ask, and how each is answered."""
