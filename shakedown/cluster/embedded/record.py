"""What is written about a cluster on disk, and the lock that lets one process at a time change it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shakedown.cluster.embedded.layout import RUN_ROOT, Layout, layout_of
from shakedown.errors import SetupError


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A cluster as it was ordered. Written before the first thing is made, and again when all is up."""

    name: str
    nodes: int
    gpus_per_node: int
    kubernetes: str
    programs: dict[str, str]
    """Name of each built program to its file."""
    complete: bool = False
    phases_s: dict[str, float] = field(default_factory=dict)
    """How long each phase of the start took; phases overlap."""

    @property
    def layout(self) -> Layout:
        return layout_of(self.name, nodes=self.nodes, gpus_per_node=self.gpus_per_node)


def record_path(layout: Layout) -> Path:
    return layout.state_dir / "cluster.json"


def save(record: Record) -> None:
    """Write the record so that a reader sees the old one or the new one, never half of it."""
    path = record_path(record.layout)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    draft.rename(path)


def load(layout: Layout) -> Record | None:
    """The record of a cluster; None if there is none that can be read (a start that died before, or by, writing it)."""
    try:
        return msgspec.convert(msgspec.json.decode(record_path(layout).read_bytes()), Record)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None


@contextlib.contextmanager
def exclusive(layout: Layout) -> Iterator[None]:
    """Hold the cluster's lock. Raises SetupError at once if another process holds it.

    The kernel releases the lock of a process that dies, so a killed one never blocks the next.
    """
    with _locked_file(layout) as descriptor:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            layout.lock.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        RUN_ROOT.rmdir()


@contextlib.contextmanager
def _locked_file(layout: Layout) -> Iterator[int]:
    while True:
        layout.lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock_or_explain(layout, descriptor)
            if _is_same_file(layout.lock, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _lock_or_explain(layout: Layout, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
        raise SetupError(
            f"process {holder} is bringing the cluster {layout.name!r} up or down right now; "
            "wait until it has ended, or choose another --name"
        ) from error


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
