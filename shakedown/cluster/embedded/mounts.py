"""The mount table of this process's mount namespace."""

import re
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")


def mount_points(mountinfo: str | None = None) -> tuple[Path, ...]:
    """Every mount point in the order of mounting; a path mounted over is there more than once."""
    lines = (mountinfo if mountinfo is not None else Path("/proc/self/mountinfo").read_text()).splitlines()
    return tuple(Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split()[4])) for line in lines)


def mounts_below(*tops: Path) -> tuple[Path, ...]:
    """Mount points at or below `tops`, newest first: the order in which they can be undone."""
    return tuple(point for point in reversed(mount_points()) if any(point.is_relative_to(top) for top in tops))
