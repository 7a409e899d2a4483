"""The formula: entries, widths, dtype formats and techniques become bytes here and nowhere else."""
