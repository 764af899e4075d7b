"""Where the command line prints: results, and beside them what went wrong."""

__all__ = ["console", "problems", "say"]

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

console = Console()
problems = Console(stderr=True)


def say(notes: Sequence[str]) -> None:
    """Each on a line of its own, where results are printed at all."""
    for note in () if console.quiet else notes:
        problems.print(escape(f"Note: {note}"), soft_wrap=True)
