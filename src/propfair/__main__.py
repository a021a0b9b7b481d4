"""`python -m propfair` is the `propfair` command."""

from propfair.cli import main

main()
