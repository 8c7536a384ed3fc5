"""`python -m burnish.cli`."""

from burnish.cli import main

main()
