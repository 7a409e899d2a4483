"""`python -m kvplan`."""

from kvplan.cli.main import main

main()
