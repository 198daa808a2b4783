"""A start that is killed at any moment leaves nothing behind once `down` has been asked."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from shakedown.cluster import embedded
from shakedown.process import run, spawn
from shakedown.waiting import wait_until

NAME = "doomed"


async def machine_state() -> dict[str, set[str]]:
    """What a cluster could leave on a machine, as comparable lines."""
    links = await run(["ip", "-o", "link"], timeout_s=10)
    namespaces = await run(["ip", "netns", "list"], timeout_s=10)
    rules = await run(["iptables-save"], timeout_s=10, check=False)
    cgroups = {str(path) for path in Path("/sys/fs/cgroup").glob(f"*/*{NAME}*")}
    return {
        "links": {line.split(":")[1] for line in links.stdout.splitlines()},
        "network namespaces": {line.split()[0] for line in namespaces.stdout.splitlines() if line},
        "packet filter rules": {line.split(" [")[0] for line in rules.stdout.splitlines() if line[:1] in "-:"},
        "mounts": {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()},
        "cgroups": cgroups,
        "programs": processes_of(NAME),
    }


def processes_of(name: str) -> set[str]:
    """Command lines that name the cluster, ours excepted."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"/{name}/" in words and "pytest" not in words:
            found.add(words)
    return found


@pytest.mark.parametrize("after_s", [0.4, 1.2, 2.5, 4.0, 6.0])
async def test_a_killed_start_is_cleaned_up_by_down(after_s: float, tmp_path: Path) -> None:
    before = await machine_state()
    pid = spawn([sys.executable, "-m", "shakedown.cli.main", "up", "--name", NAME], log=tmp_path / "up.log")

    await asyncio.sleep(after_s)  # The moment of death is the parameter, not a wait for something.
    os.killpg(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, pid, 0)
    await embedded.down(NAME)

    assert embedded.leftovers(NAME) == ()
    assert await machine_state() == before


async def test_a_run_that_is_killed_takes_its_cluster_with_it(tmp_path: Path) -> None:
    before = await machine_state()
    command = [sys.executable, "-m", "shakedown.cli.main", "run", "conformance", "--name", NAME]
    pid = spawn([*command, "--reports", tmp_path / "reports"], log=tmp_path / "run.log")

    async def cluster() -> object:
        return await embedded.find(NAME)

    await wait_until("the run's cluster", cluster, lambda found: found is not None, within_s=120)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, pid, 0)

    async def left() -> tuple[str, ...]:
        return embedded.leftovers(NAME)

    await wait_until("the guardian to take the cluster down", left, lambda found: found == (), within_s=60)
    assert await machine_state() == before
