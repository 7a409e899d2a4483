"""For people: tables, plots and JSON."""
