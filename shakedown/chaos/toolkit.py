"""Runs an experiment in a Chaos Toolkit child: it installs signal handlers and blocks, so it cannot share our process.

Nothing is reported to anybody: the version check is off, and the user's settings (they may notify or load controls) are
not read.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

import shakedown
from shakedown.chaos.access import Access
from shakedown.chaos.activities import LEDGER_FOLDER, MARKS, RUNNER_PID
from shakedown.chaos.experiment import SteadyState, experiment
from shakedown.chaos.faults import AnyFault, Plan
from shakedown.chaos.journal import Journal, read_journal
from shakedown.chaos.ledger import Entry, Ledger
from shakedown.chaos.safety import Safety
from shakedown.cluster.api import Cluster
from shakedown.errors import HarnessError, RollbackFailed
from shakedown.judge.records import Mark
from shakedown.process import Completed, run
from shakedown.waiting import wait_until

ROLLBACK_GRACE_S = 240.0
"""How long an interrupted child may take to put things back before we do it ourselves."""
ACTIVITIES_LIMIT_S = 900.0
"""What acting, proving and undoing may take at most, beside the duration and the hypothesis."""
MARKS_EVERY_S = 0.1


def ignore_mark(_: Mark) -> None:
    """For callers that do not watch."""


async def run_experiment(
    cluster: Cluster,
    fault: AnyFault,
    *,
    access: Access,
    run_id: str,
    folder: Path,
    hypothesis: SteadyState | None = None,
    safety: Safety | None = None,
    on_mark: Callable[[Mark], None] = ignore_mark,
    ledger_folder: Path | None = None,
) -> Journal:
    """Inject one fault, prove it, let it last, take it back; leave experiment.json and journal.json in `folder`.

    `access` must reach the same cluster, for the child. The default hypothesis is as many Ready pods as now.
    Cancelling rolls back. Raises UsageError when safety forbids it, NotExercised for a missing capability,
    FaultDidNotLand when there are too few targets, RollbackFailed when the world could not be put back (then
    `shakedown recover` tries again).
    """
    plan = await fault.preview(cluster, run_id)
    (safety or Safety.from_environment()).check(fault, plan)
    steady_state = hypothesis or await as_many_ready_as_now(cluster, fault)
    folder.mkdir(parents=True, exist_ok=True)
    ledger = await Ledger.of(cluster, ledger_folder)
    entry = await ledger.open(run_id, fault.target.namespace, _in_words(fault, plan), plan.undo, fault.duration_s)
    try:
        path = folder / "experiment.json"
        rendered = experiment(fault, plan, entry, steady_state)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(rendered), indent=2))
        limit_s = fault.duration_s + 2 * (steady_state.within_s if steady_state else 0.0) + ACTIVITIES_LIMIT_S
        child = await _play(path, access, ledger, on_mark, limit_s)
    finally:
        await _make_sure(ledger, entry)
    return _journal_of(folder, child)


async def as_many_ready_as_now(cluster: Cluster, fault: AnyFault) -> SteadyState | None:
    """The default hypothesis; None when the selector matches no Ready pod now."""
    target = fault.target
    ready = sum(pod.ready for pod in await cluster.pods(target.namespace, target.selector))
    return SteadyState(namespace=target.namespace, selector=target.selector, ready_pods=ready) if ready else None


def toolkit_command(path: Path) -> list[str]:
    """The child's argument list for the experiment at `path`."""
    return [
        *(sys.executable, "-m", "chaostoolkit", "--no-version-check", "--no-log-file", "--settings", os.devnull),
        *("run", "--journal-path", str(path.with_name("journal.json")), "--rollback-strategy", "always", str(path)),
    ]


async def _play(
    path: Path, access: Access, ledger: Ledger, on_mark: Callable[[Mark], None], limit_s: float
) -> Completed:
    path = path.absolute()
    marks = path.with_name("marks.jsonl")
    for left_from_before in (marks, path.with_name("journal.json")):
        left_from_before.unlink(missing_ok=True)
    package_root = str(Path(shakedown.__file__).parents[1])
    environment = {
        **access.environment(),
        MARKS: str(marks),
        RUNNER_PID: str(os.getpid()),
        LEDGER_FOLDER: str(ledger.folder.absolute()),
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH")))),
    }
    follower = _Follower(marks, on_mark)
    following = asyncio.create_task(follower.follow(limit_s))
    try:
        return await run(
            toolkit_command(path),
            timeout_s=limit_s,
            env=environment,
            cwd=path.parent,
            check=False,
            interrupt_grace_s=ROLLBACK_GRACE_S,
        )
    finally:
        following.cancel()
        follower.catch_up()


class _Follower:
    """Hands on the marks that the child writes, each once."""

    def __init__(self, path: Path, on_mark: Callable[[Mark], None]) -> None:
        self._path, self._on_mark, self._handed_on = path, on_mark, 0

    async def follow(self, limit_s: float) -> None:
        async def observe() -> bool:
            self.catch_up()
            return False

        await wait_until("the end of the experiment", observe, bool, within_s=limit_s, every_s=MARKS_EVERY_S)

    def catch_up(self) -> None:
        whole = self._path.read_bytes().split(b"\n")[:-1] if self._path.exists() else []
        for line in whole[self._handed_on :]:
            self._handed_on += 1
            self._on_mark(msgspec.json.decode(line, type=Mark))


async def _make_sure(ledger: Ledger, entry: Entry) -> None:
    """The child strikes the entry out when its rollbacks are proven; if it did not, we put things back."""
    if not await ledger.is_open(entry):
        return
    outcome = await ledger.settle(entry)
    if not outcome.done:
        raise RollbackFailed(f"{entry.fault}: {outcome.text}; run `shakedown recover` to try again")


def _journal_of(folder: Path, child: Completed) -> Journal:
    path = folder / "journal.json"
    if not path.exists():
        tail = (child.stderr or child.stdout)[-2000:]
        raise HarnessError(f"Chaos Toolkit ended with status {child.returncode} and left no journal\n{tail}")
    return read_journal(path)


def _in_words(fault: AnyFault, plan: Plan) -> str:
    return f"{fault.kind} of {', '.join(str(victim) for victim in plan.victims)}"
