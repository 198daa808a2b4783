"""How busy the cores of this machine are while something runs, and with whose work.

What a tool uses is read off its processes, whose clocks are exact; /proc/stat samples by the tick and misses short
bursts of work, but tells whether somebody else was busy.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

LOOK_EVERY_S = 0.25
PARENT, UTIME, STIME, CUTIME, CSTIME = 1, 11, 12, 13, 14
"""Columns of /proc/PID/stat after the name."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table."""

    parent: int
    cpu_s: float
    """Its own, and that of its children that ended."""


@dataclass(frozen=True, slots=True)
class Look:
    """CPU seconds of each core that were not idle, at a monotonic time."""

    at_s: float
    busy_s: tuple[float, ...]
    processes: dict[int, "Process"]

    def tree_s(self, root: int) -> float:
        """CPU seconds of a process and all that descend from it."""
        children = (pid for pid, process in self.processes.items() if process.parent == root)
        own_s = self.processes[root].cpu_s if root in self.processes else 0.0
        return own_s + sum(self.tree_s(pid) for pid in children)


class CoreWatch:
    """`with CoreWatch() as cores: …`; child processes that are waited for inside the block are ours."""

    def __enter__(self) -> "CoreWatch":
        self._looks = [look()]
        self._children_s = -children_s()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._looks.append(look())
        self._children_s += children_s()

    @property
    def others_cpu(self) -> float:
        """Cores used by what is not our child, on average."""
        first, last = self._looks[0], self._looks[-1]
        used_s = sum(last.busy_s) - sum(first.busy_s) - self._children_s
        return max(0.0, used_s) / (last.at_s - first.at_s)

    def cpu_share(self, root: int, since_s: float, until_s: float) -> float:
        """Cores used by a process and its descendants between two monotonic times, as near as it was looked at."""
        first = max((each for each in self._looks if each.at_s <= since_s), key=at, default=self._looks[0])
        last = max((each for each in self._looks if each.at_s <= until_s), key=at, default=self._looks[-1])
        if last.at_s <= first.at_s:
            return 0.0
        return (last.tree_s(root) - first.tree_s(root)) / (last.at_s - first.at_s)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self._looks.append(look())


def look() -> Look:
    """Now."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
    return Look(time.monotonic(), tuple(busy_s(line[1:]) for line in lines if line[0] != "cpu"), processes())


def processes() -> dict[int, Process]:
    """The process table."""
    table = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            columns = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        ticks = sum(int(columns[place]) for place in (UTIME, STIME, CUTIME, CSTIME))
        table[int(stat.parent.name)] = Process(int(columns[PARENT]), ticks / os.sysconf("SC_CLK_TCK"))
    return table


def busy_s(columns: list[str]) -> float:
    """Of a line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, …; guests count in user."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, columns)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def at(look: Look) -> float:
    return look.at_s


def children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system
