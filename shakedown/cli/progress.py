"""Live progress: one line per step, with the time since the command began."""

import time

from rich.console import Console


class Progress:
    """Prints each step as it begins; plain lines where there is no terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._began = time.monotonic()

    def line(self, text: str) -> None:
        """Show one step."""
        self._console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/]  {text}", soft_wrap=True)
