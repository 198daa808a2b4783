"""What is being done to the world and how to take it back, written down before it is done.

Each intent is a ConfigMap in the namespace it harms (so that any machine can undo it) and a file (so that it can be
undone when the API forgot). Both go only when the undo is proven. A runner is known by host, boot, pid and start time.
"""

import os
import platform
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from shakedown.chaos.undo import UndoStep, play_all
from shakedown.clock import SYSTEM_CLOCK, Clock
from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest
from shakedown.errors import HarnessError, RollbackFailed
from shakedown.settings import cache_root

MANAGED_BY = {"app.kubernetes.io/managed-by": "shakedown"}
RUN_ID_LABEL = "shakedown.dev/run-id"
LEDGER_LABEL = "shakedown.dev/ledger"
ENTRY_KEY = "entry.json"
FOREIGN_GRACE_S = 900.0
"""A runner on another machine cannot be seen; it is taken for dead this long after its fault should have ended."""


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """A process, so identified that a reused pid or a reboot is not taken for it."""

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def me(cls) -> Self:
        """This process."""
        pid = os.getpid()
        return cls(host=platform.node(), boot=_boot_id(), pid=pid, started=_start_time(pid))

    @property
    def here(self) -> bool:
        """True if it ran on this machine, before or after a reboot."""
        return self.host == platform.node()

    @property
    def alive(self) -> bool:
        """True if that very process still runs on this machine."""
        return self.here and self.boot == _boot_id() and self.started != "" and _start_time(self.pid) == self.started


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One intent."""

    id: str
    run_id: str
    cluster: str
    """uid of the kube-system namespace: a cluster built anew under the same address is another one."""
    namespace: str
    fault: str
    """In words."""
    undo: tuple[UndoStep, ...]
    runner: Runner
    opened_at: float
    due_at: float
    """When the fault should have ended, in seconds since the Unix epoch."""

    @property
    def object_name(self) -> str:
        return f"shakedown-ledger-{self.id}"

    def orphaned(self, now: float) -> bool:
        """True when its runner is dead, or on another machine and long overdue."""
        return not self.runner.alive if self.runner.here else now > self.due_at + FOREIGN_GRACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What became of one entry."""

    entry: Entry
    done: bool
    """True when everything is taken back and proven."""
    text: str


class Ledger:
    """The open intents of one cluster."""

    def __init__(self, cluster: Cluster, cluster_uid: str, folder: Path | None = None, clock: Clock = SYSTEM_CLOCK):
        self._cluster, self.cluster_uid, self._clock = cluster, cluster_uid, clock
        self.folder = folder or cache_root() / "ledger"

    @classmethod
    async def of(cls, cluster: Cluster, folder: Path | None = None) -> Self:
        return cls(cluster, await cluster_uid(cluster), folder)

    async def open(
        self, run_id: str, namespace: str, fault: str, undo: tuple[UndoStep, ...], duration_s: float
    ) -> Entry:
        """Write an intent to disk and to the cluster; only then may the fault act."""
        now = self._clock.now()
        entry = Entry(
            id=f"{label_value(run_id).lower().replace('.', '-').replace('_', '-')[:40]}-{secrets.token_hex(3)}",
            run_id=run_id,
            cluster=self.cluster_uid,
            namespace=namespace,
            fault=fault,
            undo=undo,
            runner=Runner.me(),
            opened_at=now,
            due_at=now + duration_s,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file(entry).write_bytes(msgspec.json.format(msgspec.json.encode(entry), indent=2))
        await self._cluster.create(_as_config_map(entry))
        return entry

    async def close(self, entry: Entry) -> None:
        """Strike an intent out. Only for one whose undo is proven."""
        await self._cluster.delete("v1", "ConfigMap", entry.namespace, entry.object_name)
        self._file(entry).unlink(missing_ok=True)

    async def is_open(self, entry: Entry) -> bool:
        """True while the intent is written anywhere."""
        if self._file(entry).exists():
            return True
        return await self._cluster.read("v1", "ConfigMap", entry.namespace, entry.object_name) is not None

    async def entries(self, namespace: str | None = None) -> tuple[Entry, ...]:
        """Open intents of this cluster, newest first, from the cluster and from this machine's disk."""
        selector = f"{LEDGER_LABEL}=open"
        items = await self._cluster.list_objects("v1", "ConfigMap", namespace, selector)
        found = [_decoded(item["data"][ENTRY_KEY].encode(), item["metadata"]["name"]) for item in items]
        found += [_decoded(path.read_bytes(), str(path)) for path in sorted(self.folder.glob("*.json"))]
        ours = {e.id: e for e in found if e.cluster == self.cluster_uid and namespace in (None, e.namespace)}
        return tuple(sorted(ours.values(), key=lambda entry: -entry.opened_at))

    async def recover(self, namespace: str | None = None, *, force: bool = False) -> tuple[Recovered, ...]:
        """Undo what dead runners left, newest first; idempotent. `force` takes every runner for dead."""
        return tuple([await self._recover(entry, force) for entry in await self.entries(namespace)])

    async def _recover(self, entry: Entry, force: bool) -> Recovered:
        if not force and not entry.orphaned(self._clock.now()):
            who = f"process {entry.runner.pid} on {entry.runner.host}"
            return Recovered(entry=entry, done=False, text=f"left alone: its runner ({who}) is alive, or may be")
        return await self.settle(entry)

    async def settle(self, entry: Entry) -> Recovered:
        """Play an entry's undo, and strike it out if all of it is proven."""
        try:
            proofs = await play_all(self._cluster, entry.undo)
        except RollbackFailed as failure:
            return Recovered(entry=entry, done=False, text=f"not undone: {failure}")
        await self.close(entry)
        return Recovered(entry=entry, done=True, text="; ".join(proofs) or "nothing to undo")

    def _file(self, entry: Entry) -> Path:
        return self.folder / f"{entry.id}.json"


async def cluster_uid(cluster: Cluster) -> str:
    """What tells clusters apart: the uid of kube-system."""
    namespace = await cluster.read("v1", "Namespace", None, "kube-system")
    if namespace is None:
        raise HarnessError("the cluster has no namespace kube-system, so it cannot be told from others")
    return str(namespace["metadata"]["uid"])


def label_value(text: str) -> str:
    """A text as a Kubernetes label value."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("-._") or "run"


def _as_config_map(entry: Entry) -> Manifest:
    labels = {**MANAGED_BY, RUN_ID_LABEL: label_value(entry.run_id), LEDGER_LABEL: "open"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": entry.object_name, "namespace": entry.namespace, "labels": labels},
        "data": {ENTRY_KEY: msgspec.json.encode(entry).decode()},
    }


def _decoded(data: bytes, where: str) -> Entry:
    try:
        return msgspec.json.decode(data, type=Entry)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise HarnessError(f"the ledger entry {where} cannot be read ({error}); look at it and remove it") from error


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat; the command name before it may contain spaces. Empty for no process or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
