"""The probes and actions that Chaos Toolkit calls, in its child process: synchronous, JSON in, JSON out.

The child ends with its parent: a runner that was killed must not leave a fault behind that nobody watches.
"""

import asyncio
import ctypes
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from shakedown.chaos.access import Access
from shakedown.chaos.faults import AnyFault, Plan, from_plain
from shakedown.chaos.ledger import Entry, Ledger
from shakedown.chaos.undo import play_all
from shakedown.clock import SYSTEM_CLOCK
from shakedown.cluster.api import Cluster
from shakedown.errors import FaultDidNotLand, WaitTimeout
from shakedown.judge.records import Mark, MarkKind
from shakedown.waiting import wait_until

MARKS = "SHAKEDOWN_MARKS"
RUNNER_PID = "SHAKEDOWN_RUNNER_PID"
LEDGER_FOLDER = "SHAKEDOWN_LEDGER"
PR_SET_PDEATHSIG = 1
EVERY_S = 0.2

T = TypeVar("T")


def ready_pods(namespace: str, selector: str, at_least: int, within_s: float) -> int:
    """Probe: how many pods are Ready, once there are `at_least` so many, or after `within_s`."""

    async def count(cluster: Cluster) -> int:
        async def observe() -> int:
            return sum(pod.ready for pod in await cluster.pods(namespace, selector))

        try:
            return await wait_until(
                f"{at_least} Ready pods", observe, lambda n: n >= at_least, within_s=within_s, every_s=EVERY_S
            )
        except WaitTimeout:
            return await observe()

    return _with_cluster(count)


def act(fault: dict[str, Any], plan: dict[str, Any]) -> str:
    """Action: do it."""
    value, planned = _read(fault, plan)
    _end_with_the_runner()
    _mark(MarkKind.FAULT_STARTED, value)
    done = _with_cluster(lambda cluster: value.act(cluster, planned))
    _mark(MarkKind.NOTE, value, done)
    return done


def landed(fault: dict[str, Any], plan: dict[str, Any]) -> str:
    """Probe: the proof that it had its effect."""
    value, planned = _read(fault, plan)
    if not _marked(MarkKind.NOTE):
        raise FaultDidNotLand("the action failed, so there is no effect to look for")
    evidence = _with_cluster(lambda cluster: value.landed(cluster, planned))
    _mark(MarkKind.FAULT_LANDED, value, evidence)
    if not value.duration_s:
        _mark(MarkKind.FAULT_ENDED, value, "it was over at once")
    return evidence


def hold(duration_s: float) -> str:
    """Action: let it last. Ends at once if it did not land."""
    if not _marked(MarkKind.FAULT_LANDED):
        raise FaultDidNotLand("there is nothing to hold: the fault did not land")
    threading.Event().wait(duration_s)
    return f"lasted {duration_s:g} s"


def undo(fault: dict[str, Any], plan: dict[str, Any]) -> str:
    """Action: take it back and prove that it is gone."""
    value, planned = _read(fault, plan)

    async def take_back(cluster: Cluster) -> str:
        proofs = await play_all(cluster, planned.undo)
        return "; ".join((*proofs, await value.gone(cluster, planned)))

    said = _with_cluster(take_back)
    if _marked(MarkKind.FAULT_STARTED) and not _marked(MarkKind.FAULT_ENDED):
        _mark(MarkKind.FAULT_ENDED, value, said)
    return said


def settle(fault: dict[str, Any], plan: dict[str, Any], entry: dict[str, Any]) -> str:
    """Action, for rollbacks: take it back whatever happened before, and strike it out of the ledger."""
    said = undo(fault, plan)

    async def close(cluster: Cluster) -> str:
        intent = msgspec.convert(entry, Entry)
        await Ledger(cluster, intent.cluster, Path(os.environ[LEDGER_FOLDER])).close(intent)
        return said

    return _with_cluster(close)


def _read(fault: dict[str, Any], plan: dict[str, Any]) -> tuple[AnyFault, Plan]:
    return from_plain(fault), msgspec.convert(plan, Plan)


def _with_cluster(work: Callable[[Cluster], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with await Access.from_environment().connect() as cluster:
            return await work(cluster)

    return asyncio.run(connected())


def _end_with_the_runner() -> None:
    """Have the kernel interrupt us, so that rollbacks are played, when the runner dies; refuse if it is dead."""
    signal.signal(signal.SIGINT, _interrupt_once)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() != int(os.environ[RUNNER_PID]):
        raise FaultDidNotLand("the runner is gone, so nothing is started")


def _interrupt_once(_signal: int, _frame: object) -> NoReturn:
    """End the method, and let nothing end the rollbacks.

    The kernel tells of the runner's death once for each of its threads, so a second interrupt is not a second wish.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _mark(kind: MarkKind, fault: AnyFault, text: str = "") -> None:
    mark = Mark(at=SYSTEM_CLOCK.now(), kind=kind, text=text or str(fault.target), subject=fault.kind)
    with Path(os.environ[MARKS]).open("ab") as sink:
        sink.write(msgspec.json.encode(mark) + b"\n")


def _marked(kind: MarkKind) -> bool:
    path = Path(os.environ[MARKS])
    lines = path.read_bytes().splitlines() if path.exists() else []
    return any(msgspec.json.decode(line, type=Mark).kind is kind for line in lines)
