"""A saved answer as a document to share: one HTML file that needs nothing else, or Markdown."""
