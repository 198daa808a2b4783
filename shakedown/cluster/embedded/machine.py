"""What the machine must offer before anything is made on it."""

import os
import shutil
from pathlib import Path

from shakedown.errors import MissingPrerequisite, SetupError


def require_root() -> None:
    """Raise MissingPrerequisite unless we may create namespaces, mounts and cgroups."""
    if os.geteuid() != 0:
        raise MissingPrerequisite(
            "the embedded cluster makes network namespaces, mounts and cgroups, which needs root; "
            "run the same command with sudo, or choose --cluster current"
        )


def require_free_space(place: Path, needed_bytes: int, purpose: str) -> None:
    """Raise SetupError if the file system that holds `place` (or will) has too little room."""
    existing = next(parent for parent in (place, *place.parents) if parent.exists())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise SetupError(
            f"{purpose} needs {needed_bytes / 1024**3:.1f} GiB in {place}, but only {free_bytes / 1024**3:.1f} GiB "
            "are free there; make room and run the same command again"
        )
