"""`python -m byteps`: the command line."""

from byteps.cli import main

main()
