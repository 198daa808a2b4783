"""Taking a cluster down, whatever state it is in, and telling what is still there.

Everything is found anew, by cgroup and by name, so that it does not matter who made it or how far they came.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from shakedown.cluster.embedded import cgroups
from shakedown.cluster.embedded.cgroups import Hierarchies, hierarchies
from shakedown.cluster.embedded.layout import RUN_ROOT, STATE_ROOT, Layout
from shakedown.cluster.embedded.mounts import mounts_below
from shakedown.cluster.embedded.network import namespaces, remove_namespace
from shakedown.process import run
from shakedown.waiting import wait_until

DEATH_LIMIT_S = 30.0
CGROUP_LIMIT_S = 15.0
UNMOUNT_LIMIT_S = 20.0
CREATED_DIRECTORIES = STATE_ROOT / "created-directories"


def leftovers(layout: Layout) -> tuple[str, ...]:
    """What exists of the cluster, in words; nothing after a clean end.

    Links, addresses and packet filter rules are made in the cluster's network namespaces only and end with them.
    """
    found = hierarchies()
    return (
        *(f"process {pid} ({_program(pid)})" for pid in sorted(tenants(layout, found))),
        *(f"network namespace {netns}" for netns in namespaces(layout.name)),
        *(f"mount {point}" for point in mounts_below(layout.run_dir, layout.state_dir)),
        *(f"cgroup {top}" for top in cgroups.tops(layout.cgroup, found)),
        *(f"directory {path}" for path in (layout.run_dir, layout.state_dir) if path.exists()),
    )


def tenants(layout: Layout, found: Hierarchies) -> frozenset[int]:
    """Processes in the cluster's cgroups or network namespaces, except ourselves and who started us."""
    inodes = set()
    for netns in namespaces(layout.name):
        with contextlib.suppress(OSError):
            inodes.add(netns.stat().st_ino)
    visitors = {pid for pid in _all_pids() if _network_namespace(pid) in inodes} if inodes else set()
    return (cgroups.processes(layout.cgroup, found) | visitors) - _ancestry()


async def sweep(layout: Layout) -> None:
    """Remove everything that `leftovers` would name. Safe to repeat, and to finish what a killed one began."""
    found = hierarchies()

    async def kill() -> frozenset[int]:
        cgroups.thaw(layout.cgroup, found)
        living = tenants(layout, found)
        cgroups.kill_all(living)
        return living

    await wait_until(
        f"the end of every process of {layout.name}", kill, lambda pids: not pids, within_s=DEATH_LIMIT_S, every_s=0.05
    )
    for netns in namespaces(layout.name):
        await remove_namespace(netns)
    for point in mounts_below(layout.run_dir, layout.state_dir):
        await run(["umount", "--lazy", point], timeout_s=UNMOUNT_LIMIT_S)

    async def remove_cgroups() -> tuple[Path, ...]:
        return cgroups.remove(layout.cgroup, found)

    await wait_until(
        f"the end of the cgroups of {layout.name}",
        remove_cgroups,
        lambda left: not left,
        within_s=CGROUP_LIMIT_S,
        every_s=0.05,
    )
    for directory in (layout.run_dir, layout.state_dir):
        await asyncio.to_thread(_remove_tree, directory)
    remove_created_directories()


def create_directories(wanted: Iterable[Path]) -> None:
    """Make directories outside our own roots, each written down before it is made."""
    CREATED_DIRECTORIES.parent.mkdir(parents=True, exist_ok=True)
    for directory in wanted:
        for level in (*reversed(directory.parents), directory):
            if not level.exists():
                with CREATED_DIRECTORIES.open("a") as ledger:
                    ledger.write(f"{level}\n")
                level.mkdir(exist_ok=True)


def remove_created_directories() -> None:
    """Remove, when no cluster is left, the directories that were made for clusters and are empty.

    Not before: removing a directory unmounts what another cluster's node has mounted over it.
    """
    if STATE_ROOT.exists() and not any(path.is_dir() for path in STATE_ROOT.iterdir()):
        if CREATED_DIRECTORIES.exists():
            for line in reversed(CREATED_DIRECTORIES.read_text().splitlines()):
                with contextlib.suppress(OSError):
                    Path(line).rmdir()
            CREATED_DIRECTORIES.unlink()
        with contextlib.suppress(OSError):
            STATE_ROOT.rmdir()


def others(layout: Layout) -> tuple[str, ...]:
    """Names of the other clusters on this machine."""
    if not STATE_ROOT.exists():
        return ()
    return tuple(sorted(path.name for path in STATE_ROOT.iterdir() if path.is_dir() and path.name != layout.name))


def _remove_tree(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    if directory.parent == RUN_ROOT:
        with contextlib.suppress(OSError):
            RUN_ROOT.rmdir()


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _network_namespace(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def _ancestry() -> frozenset[int]:
    pids, pid = set(), "self"
    while pid != "0":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pids.add(int(Path(f"/proc/{pid}").resolve().name))
        except (OSError, ValueError):
            break
        pid = fields[1]
    return frozenset(pids)


def _program(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words[:2]).decode(errors="replace").strip()
    except OSError:
        return "ended"
