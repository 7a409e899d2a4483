"""The local web page and its REST API (extra `web`)."""
