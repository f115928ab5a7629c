"""Where commands print: tables for people on standard output, progress on standard error."""

from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 120


def output() -> Console:
    """Standard output; as wide as the terminal, or wide enough for our tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)


def notices() -> Console:
    """Standard error, for progress and remarks, so that standard output can be piped."""
    return Console(stderr=True)
