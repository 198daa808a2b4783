"""The cluster's cgroups: what makes every process of it findable, and the ceiling under which its pods live."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shakedown.errors import SetupError

V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where this machine's cgroups are mounted: several places (version 1, hybrid), or one (version 2)."""

    roots: tuple[Path, ...]
    unified: bool

    @property
    def tracking(self) -> Path:
        """The hierarchy in which the cluster's daemons are put so that they can be found."""
        return next((root for root in self.roots if root.name == "pids"), self.roots[0])


def hierarchies(mounts: str | None = None) -> Hierarchies:
    """What /proc/self/mounts says. Raises SetupError on a machine without cgroups."""
    lines = [line.split() for line in (mounts or Path("/proc/self/mounts").read_text()).splitlines()]
    legacy = tuple(dict.fromkeys(Path(words[1]) for words in lines if words[2] == "cgroup"))
    unified = tuple(dict.fromkeys(Path(words[1]) for words in lines if words[2] == "cgroup2"))
    if legacy:
        # On a hybrid machine runc makes cgroups in the unified hierarchy as well.
        return Hierarchies(legacy + unified, unified=False)
    if not unified:
        raise SetupError("no cgroup hierarchy is mounted here; Kubernetes cannot run without one")
    return Hierarchies(unified[:1], unified=True)


def make(name: str, found: Hierarchies) -> None:
    """Make the cgroup `name` (a path relative to the root) in every hierarchy."""
    for root in found.roots:
        directory = root
        for part in Path(name).parts:
            if found.unified:
                _delegate(directory)
            directory /= part
            try:
                directory.mkdir(exist_ok=True)
            except OSError as error:
                raise SetupError(f"cannot make the cgroup {directory}: {error.strerror}") from error
            _inherit_cpuset(directory)


def _delegate(directory: Path) -> None:
    for controller in V2_CONTROLLERS:
        with contextlib.suppress(OSError):
            (directory / "cgroup.subtree_control").write_text(f"+{controller}")


def _inherit_cpuset(directory: Path) -> None:
    for file in ("cpuset.cpus", "cpuset.mems"):
        own, above = directory / file, directory.parent / file
        if own.exists() and above.exists() and not own.read_text().strip() and (value := above.read_text().strip()):
            own.write_text(value)


def tops(name: str, found: Hierarchies) -> tuple[Path, ...]:
    """The directories of the cgroup `name` that exist."""
    return tuple(root / name for root in found.roots if (root / name).is_dir())


def processes(name: str, found: Hierarchies) -> frozenset[int]:
    """Ids of the processes in the cgroup `name` and below it, in any hierarchy."""
    pids: set[int] = set()
    for top in tops(name, found):
        for directory in _depth_first(top):
            with contextlib.suppress(OSError):
                pids.update(int(word) for word in (directory / "cgroup.procs").read_text().split())
    return frozenset(pids - {0, os.getpid()})


def kill_all(pids: frozenset[int]) -> None:
    """Send SIGKILL to each, frozen or not."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def thaw(name: str, found: Hierarchies) -> None:
    """Let frozen processes run, for a frozen one does not die."""
    for top in tops(name, found):
        for directory in _depth_first(top):
            for file, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if (directory / file).exists():
                    with contextlib.suppress(OSError):
                        (directory / file).write_text(value)


def remove(name: str, found: Hierarchies) -> tuple[Path, ...]:
    """Remove the cgroup `name` and all below it; return what could not be removed yet."""
    for top in tops(name, found):
        for directory in _depth_first(top):
            with contextlib.suppress(OSError):
                directory.rmdir()
    return tops(name, found)


def _depth_first(top: Path) -> Iterator[Path]:
    for directory, _, _ in os.walk(top, topdown=False):
        yield Path(directory)
