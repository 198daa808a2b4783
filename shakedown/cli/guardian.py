"""Outlives a run that is killed and takes its cluster down: `python -m shakedown.cli.guardian PID NAME`.

A run that ends by itself takes its cluster down before it ends, and then there is nothing left to do here.
"""

import asyncio
import os
import select
import sys
from pathlib import Path

from shakedown.cli.progress import Progress
from shakedown.cluster import embedded
from shakedown.process import spawn


def watch_over(cluster_name: str, log: Path) -> None:
    """Start a guardian of the calling process."""
    spawn([sys.executable, "-m", "shakedown.cli.guardian", str(os.getpid()), cluster_name], log=log)


def await_end(pid: int) -> None:
    """Return when a process is gone, however it ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.close(descriptor)


def main() -> None:
    await_end(int(sys.argv[1]))
    asyncio.run(embedded.down(sys.argv[2], Progress().line))


if __name__ == "__main__":
    main()
