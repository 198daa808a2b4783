"""The load generator watches itself: a client that could not keep up must not be taken for a slow server."""

import asyncio
import resource
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.errors import UsageError
from shakedown.judge.percentiles import percentile

TICK_EVERY_S = 0.02
WEIGH_EVERY_S = 1.0
CPU_JUDGED_FROM_S = 5.0
LOOP_JUDGED_FROM_S = 1.0
SPARE_FILES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthBounds:
    """Past any of these the client was the bottleneck and the verdict is unknown.

    The lags are a tenth of the usual time-to-first-token objective of 0.5 s: below that the client's own delay cannot
    decide whether an objective holds.
    """

    send_lag_p99_s: float = 0.05
    loop_lag_p99_s: float = 0.05
    cpu_share: float = 0.95
    """Of one core, for the busiest worker."""
    achieved_share: float = 0.95
    """Requests sent ÷ requests due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """What one process says about itself."""

    loop_lag_p99_s: float = 0.0
    loop_lag_max_s: float = 0.0
    cpu_share: float = 0.0
    """CPU seconds ÷ wall seconds of its process."""
    starved_share: float = 0.0
    """Share of the time in which it could have run but another process had the core."""
    wall_s: float = 0.0
    memory_growth_bytes: float = 0.0
    """Resident memory in the last quarter of the load less that in the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadHealth:
    """Whether this load can be believed."""

    due: int
    """Requests the plan had due while the load ran."""
    sent: int
    send_lag_p99_s: float
    """Sent minus due, over the requests sent."""
    send_lag_max_s: float
    loop_lag_p99_s: float
    """How late the event loop wakes a timer; the worst worker's."""
    cpu_share: float
    starved_share: float
    memory_growth_bytes: float
    """Of all workers together; a client that grows with the load ends when the machine does."""
    offered_rate: float
    """Requests due a second."""
    achieved_rate: float
    workers: int
    saturated: str | None
    """Why the client was the bottleneck; None when it was not."""


class SelfWatch:
    """Samples the lag of the running event loop, and this process's CPU use."""

    def __init__(self) -> None:
        self._lags = array("d")
        self._started = time.monotonic()
        self._cpu_at_start = time.process_time()
        self._starved_at_start = _seconds_waited_for_a_core()
        self._resident = array("d")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch; the loop must be running."""
        self._started, self._cpu_at_start = time.monotonic(), time.process_time()
        self._starved_at_start = _seconds_waited_for_a_core()
        self._task = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def report(self) -> WorkerHealth:
        """So far."""
        wall_s = max(time.monotonic() - self._started, 1e-9)
        return WorkerHealth(
            loop_lag_p99_s=percentile(self._lags, 99) or 0.0,
            loop_lag_max_s=max(self._lags, default=0.0),
            cpu_share=(time.process_time() - self._cpu_at_start) / wall_s,
            starved_share=(_seconds_waited_for_a_core() - self._starved_at_start) / wall_s,
            wall_s=wall_s,
            memory_growth_bytes=_growth(self._resident),
        )

    async def _tick(self) -> None:
        weighed_at = -WEIGH_EVERY_S
        while True:
            if time.monotonic() - weighed_at >= WEIGH_EVERY_S:
                weighed_at = time.monotonic()
                self._resident.append(_resident_bytes())
            asleep_since = time.monotonic()
            await asyncio.sleep(TICK_EVERY_S)
            self._lags.append(max(0.0, time.monotonic() - asleep_since - TICK_EVERY_S))


def load_health(
    *,
    due: int,
    sent: int,
    send_lags_s: Sequence[float],
    workers: Sequence[WorkerHealth],
    duration_s: float,
    bounds: HealthBounds,
) -> LoadHealth:
    """Put the workers' reports together and hold them against the bounds."""
    # A short burst may well use a whole core for a moment; shares and rare ticks mean something only over some time.
    wall_s = max((each.wall_s for each in workers), default=0.0)
    judged = (wall_s >= LOOP_JUDGED_FROM_S, wall_s >= CPU_JUDGED_FROM_S)
    measured = {
        "send_lag_p99_s": percentile(send_lags_s, 99) or 0.0,
        "loop_lag_p99_s": max((each.loop_lag_p99_s for each in workers), default=0.0),
        "cpu_share": max((each.cpu_share for each in workers), default=0.0),
    }
    return LoadHealth(
        due=due,
        sent=sent,
        send_lag_max_s=max(send_lags_s, default=0.0),
        starved_share=max((each.starved_share for each in workers), default=0.0),
        memory_growth_bytes=sum(each.memory_growth_bytes for each in workers),
        offered_rate=due / duration_s,
        achieved_rate=sent / duration_s,
        workers=len(workers),
        saturated="; ".join(_passed_bounds(measured, sent, due, bounds, *judged)) or None,
        **measured,
    )


def raise_file_limit(wanted: int) -> None:
    """Lift the soft limit of open files to the hard one. Raises UsageError if `wanted` connections still do not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard not in (resource.RLIM_INFINITY, -1) and wanted + SPARE_FILES > hard:
        raise UsageError(
            f"{wanted} connections at once need more open files than the limit of {hard}; raise `ulimit -Hn`"
        )


def _passed_bounds(
    measured: dict[str, float], sent: int, due: int, bounds: HealthBounds, judge_loop: bool, judge_cpu: bool
) -> list[str]:
    reasons = []
    if measured["send_lag_p99_s"] > bounds.send_lag_p99_s:
        reasons.append(_late("requests were sent", measured["send_lag_p99_s"], bounds.send_lag_p99_s))
    if judge_loop and measured["loop_lag_p99_s"] > bounds.loop_lag_p99_s:
        reasons.append(_late("the client's event loop ran", measured["loop_lag_p99_s"], bounds.loop_lag_p99_s))
    if judge_cpu and measured["cpu_share"] > bounds.cpu_share:
        reasons.append(f"the client used {measured['cpu_share']:.0%} of a core, over {bounds.cpu_share:.0%}")
    if due and sent / due < bounds.achieved_share:
        reasons.append(f"only {sent} of {due} due requests were sent, under {bounds.achieved_share:.0%}")
    return reasons


def _late(what: str, lag_s: float, bound_s: float) -> str:
    return f"{what} {lag_s * 1000:.0f} ms late (99th percentile), over {bound_s * 1000:.0f} ms"


def _resident_bytes() -> float:
    """Of this process; 0 where /proc does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a plain read beside a running load
            return float(int(file.read().split()[1]) * resource.getpagesize())
    except (OSError, ValueError, IndexError):
        return 0.0


def _growth(resident: Sequence[float]) -> float:
    """The first quarter is warm-up: buffers, connections and code that was never run before."""
    quarter = len(resident) // 4
    if not quarter:
        return 0.0
    second, last = resident[quarter : 2 * quarter], resident[-quarter:]
    return sum(last) / quarter - sum(second) / quarter


def _seconds_waited_for_a_core() -> float:
    """Run-queue wait of this process's main thread by /proc/self/schedstat; 0 where there is none."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:  # noqa: PTH123 - a plain read, many times a second
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
