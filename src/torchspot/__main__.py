"""`python -m torchspot`: the command line."""

__all__: list[str] = []

from torchspot.cli import main

main()
