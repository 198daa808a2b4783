"""Who does the sending: this process, or one process per core whose records are merged exactly."""

import asyncio
import contextlib
import gc
import pickle
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import shakedown
from shakedown import process
from shakedown.errors import CommandFailed, HarnessError
from shakedown.judge.records import Outcome, RequestRecord
from shakedown.load.board import Board, WorkerReport
from shakedown.load.client import StreamingClient, monotonic
from shakedown.load.health import SelfWatch
from shakedown.load.records_file import RecordsFile, read_records, write_records
from shakedown.load.sender import LoadPlan, Sender
from shakedown.waiting import wait_until

READY_WITHIN_S = 60.0
START_AHEAD_S = 0.05
LEAVE_WITHIN_S = 10.0
REPORT_EVERY_S = 0.05
AFTER_THE_LAST_LIMIT_S = 120.0


class Crew(Protocol):
    """Sends one plan. `start` returns the monotonic time of the first instant."""

    async def start(self) -> float: ...

    async def done(self) -> None:
        """Return when everything is sent and has ended; raise what stopped it."""
        ...

    def order_stop(self) -> None:
        """Send nothing more, abandon what is under way."""
        ...

    async def leave(self) -> None:
        """Stop whatever still goes on; afterwards the records are complete."""
        ...

    def reports(self) -> list[WorkerReport]: ...

    @property
    def over(self) -> bool: ...


class OwnProcess:
    """Sends on the running event loop."""

    def __init__(self, plan: LoadPlan, records: Path, wall_offset: float) -> None:
        self._plan = plan
        self._path = records
        self._client: StreamingClient = plan.client(self._take, wall_offset)
        self._sender = Sender(plan, self._client)
        self._watch = SelfWatch()
        self._file: RecordsFile | None = None
        self._sending: asyncio.Task[None] | None = None
        self._ended = self._completed = 0

    async def prepare(self) -> None:
        """All that may take a moment."""
        self._file = RecordsFile(self._path)
        await self._client.__aenter__()
        self._sender.prepare()

    async def start(self) -> float:
        await self.prepare()
        return self.start_at(monotonic())

    def start_at(self, started: float) -> float:
        self._watch.start()
        self._sending = asyncio.create_task(self._sender.run(started))
        return started

    async def done(self) -> None:
        assert self._sending is not None
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._sending)
            return
        # Either our caller was cancelled, which must go on, or the load was stopped, which is an end like any other.
        if not self._sending.cancelled():
            raise asyncio.CancelledError

    def order_stop(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        self._client.abandon_all()

    async def leave(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._client.__aexit__()
        await self._watch.stop()
        if self._file is not None:
            self._file.close()

    def reports(self) -> list[WorkerReport]:
        health = self._watch.report()
        return [
            WorkerReport(
                ready=1.0,
                due=self._sender.due_count,
                sent=self._sender.sent_count,
                ended=self._ended,
                completed=self._completed,
                tokens=self._client.tokens_seen,
                loop_lag_p99_s=health.loop_lag_p99_s,
                loop_lag_max_s=health.loop_lag_max_s,
                cpu_share=health.cpu_share,
                starved_share=health.starved_share,
                wall_s=health.wall_s,
                memory_growth_bytes=health.memory_growth_bytes,
            )
        ]

    @property
    def over(self) -> bool:
        return self._sending is not None and self._sending.done()

    def _take(self, record: RequestRecord) -> None:
        assert self._file is not None
        self._ended += 1
        self._completed += record.outcome is Outcome.COMPLETED
        self._file.append(record)


class Processes:
    """Splits the plan over child processes: each sends every n-th request of the same seeded sequence."""

    def __init__(self, plan: LoadPlan, records: Path, wall_offset: float, workers: int) -> None:
        self._plan = plan
        self._records = records
        self._workers = workers
        self._offset = wall_offset
        self._scratch = Path(tempfile.mkdtemp(prefix="shakedown-load-"))
        self._board = Board(self._scratch / "board", workers)
        self._last_reports: list[WorkerReport] | None = None
        self._children: asyncio.Task[None] | None = None

    async def start(self) -> float:
        for worker in range(self._workers):
            share = replace(self._plan, share=worker, shares=self._workers)
            plan_file = self._scratch / f"plan-{worker}"
            plan_file.write_bytes(pickle.dumps((share, str(self._part(worker)), self._offset)))
        self._children = asyncio.create_task(self._run_children())

        async def ready() -> int:
            assert self._children is not None
            if self._children.done():
                self._children.result()
                raise HarnessError("the load workers ended before they began")
            return sum(report.ready > 0 for report in self._board.reports())

        await wait_until(
            "the load workers to be ready",
            ready,
            lambda count: count == self._workers,
            within_s=READY_WITHIN_S,
            every_s=0.02,
        )
        self._board.start = started = monotonic() + START_AHEAD_S
        return started

    async def done(self) -> None:
        assert self._children is not None
        await asyncio.shield(self._children)

    def order_stop(self) -> None:
        self._board.order_stop()

    async def leave(self) -> None:
        if self._last_reports is not None:
            return
        self.order_stop()
        if self._children is not None:
            await asyncio.wait([self._children], timeout=LEAVE_WITHIN_S)
            self._children.cancel()
            await asyncio.gather(self._children, return_exceptions=True)
        self._last_reports = self._board.reports()
        self._board.close()
        self._merge()
        for leftover in self._scratch.iterdir():
            leftover.unlink()
        self._scratch.rmdir()

    def reports(self) -> list[WorkerReport]:
        return self._board.reports() if self._last_reports is None else self._last_reports

    @property
    def over(self) -> bool:
        return self._children is not None and self._children.done()

    def part_paths(self) -> tuple[Path, ...]:
        """Where records are while the load runs."""
        parts = tuple(self._part(worker) for worker in range(self._workers))
        return tuple(part for part in parts if part.exists())

    def _part(self, worker: int) -> Path:
        """One worker appends to the file itself, several to one each beside it, until they are merged."""
        if self._workers == 1:
            return self._records
        return self._records.with_name(f"{self._records.stem}.worker-{worker}{self._records.suffix}")

    def _merge(self) -> None:
        parts = self.part_paths()
        if self._workers > 1:
            write_records(self._records, sorted(read_records(*parts), key=lambda record: record.due_at))
            for part in parts:
                part.unlink()

    async def _run_children(self) -> None:
        limit_s = self._plan.duration_s + self._plan.limits.request_s + AFTER_THE_LAST_LIMIT_S
        root = str(Path(shakedown.__file__).resolve().parents[1])
        runs = [
            asyncio.create_task(
                process.run(
                    [
                        sys.executable,
                        "-m",
                        "shakedown.load.worker",
                        self._scratch / f"plan-{worker}",
                        self._scratch / "board",
                    ],
                    timeout_s=limit_s,
                    env={"PYTHONPATH": root},
                )
            )
            for worker in range(self._workers)
        ]
        try:
            await asyncio.gather(*runs)
        except CommandFailed as failure:
            raise HarnessError(f"a load worker died: {failure.output_tail.splitlines()[-1:] or failure}") from failure
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)


async def work(plan: LoadPlan, records: Path, wall_offset: float, board: Board, parent_lives: "ParentWatch") -> None:
    """A worker's life: get ready, start with the others, report, leave when all has ended or the parent says so."""
    crew = OwnProcess(plan, records, wall_offset)
    await crew.prepare()
    gc.freeze()  # what is there now stays: a full collection would look at all of it and send late meanwhile
    board.report(plan.share, WorkerReport(ready=1.0))
    try:
        await wait_until(
            "the parent's starting signal",
            lambda: _start_or_stop(board, parent_lives),
            lambda start: start != 0,
            within_s=READY_WITHIN_S + LEAVE_WITHIN_S,
            every_s=0.005,
        )
        if not board.stop:
            crew.start_at(board.start)
            sending = asyncio.create_task(crew.done())
            while not sending.done() and not board.stop and parent_lives():
                board.report(plan.share, crew.reports()[0])
                await asyncio.wait([sending], timeout=REPORT_EVERY_S)
            if sending.done():
                sending.result()
            else:
                crew.order_stop()
                await asyncio.gather(sending, return_exceptions=True)
    finally:
        await crew.leave()
        board.report(plan.share, crew.reports()[0])


class ParentWatch(Protocol):
    """Says whether the process that ordered the load still lives."""

    def __call__(self) -> bool: ...


async def _start_or_stop(board: Board, parent_lives: ParentWatch) -> float:
    return board.start if not board.stop and parent_lives() else time.monotonic()
