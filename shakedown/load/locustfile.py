"""Locust's face on our own client: its users, its web UI and its workers on many machines; our measurement.

Locust says how many users there are, and shows what comes in. The users themselves live on an event loop in a thread of
its own and ask through `StreamingClient`: what is measured is what `shakedown load` measures. Always run in a process
of its own with LOCUST_SKIP_MONKEY_PATCH=1: a patched socket would be a slower one.
"""

import asyncio
import collections
import os
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import httpx
import msgspec
from gevent.monkey import patch_time
from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from shakedown.judge.latency import ttft
from shakedown.judge.records import Outcome, RequestRecord
from shakedown.load.arrivals import ClosedLoop
from shakedown.load.client import monotonic
from shakedown.load.open_loop import CONTROL_TIMEOUT_S, served_models
from shakedown.load.prompts import PromptMaker, calibrated_prompts
from shakedown.load.records_file import RecordsFile
from shakedown.load.sender import LoadPlan
from shakedown.load.workload import RequestPlan, TrafficClass, Workload

# Locust's own loops sleep between looks at their workers; with a real sleep their messages would never be read.
patch_time()

RECORDS_VARIABLE = "SHAKEDOWN_RECORDS"
"""Where this process, or the master of a distributed run, writes one line for each request."""
RECORDS_MESSAGE = "shakedown-records"
DRAIN_EVERY_S = 0.2
LAST_ANSWERS_WITHIN_S = 60.0
BATCH = 200


class Readers:
    """The users of this process: an event loop in a native thread, told what to do by Locust's greenlets."""

    def __init__(self, plan: LoadPlan, think_time_s: float) -> None:
        self.finished: collections.deque[RequestRecord] = collections.deque()
        self._plan, self._think_time_s = plan, think_time_s
        self._plans = iter(plan.workload.plans())
        self._reading: set[int] = set()
        self._offset = time.time() - monotonic()
        self._loop = asyncio.new_event_loop()
        self._client = plan.client(self.finished.append, self._offset)
        threading.Thread(target=self._run, name="readers", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._client.__aenter__(), self._loop).result()

    @property
    def in_flight(self) -> int:
        return self._client.in_flight

    def come(self, reader: int) -> None:
        """A user begins to ask, and asks again after each answer and a pause."""
        self._loop.call_soon_threadsafe(self._come, reader)

    def go(self, reader: int) -> None:
        """A user asks no more; the answer under way is read to its end."""
        self._loop.call_soon_threadsafe(self._reading.discard, reader)

    def abandon_all(self) -> None:
        self._loop.call_soon_threadsafe(self._client.abandon_all)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _come(self, reader: int) -> None:
        self._reading.add(reader)
        self._ask(reader)

    def _ask(self, reader: int) -> None:
        if reader in self._reading:
            plan: RequestPlan = next(self._plans)
            request = self._plan.outgoing(monotonic(), plan)
            self._client.send(request, lambda _: self._think(reader))

    def _think(self, reader: int) -> None:
        self._loop.call_later(self._think_time_s, self._ask, reader)


class Reader(User):  # type: ignore[misc]
    """A user as Locust counts them; what it does, it does on the readers' own loop."""

    def on_start(self) -> None:
        readers_of(self.environment).come(id(self))

    def on_stop(self) -> None:
        readers_of(self.environment).go(id(self))

    @task  # type: ignore[untyped-decorator]
    def read(self) -> None:
        gevent.sleep(1)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--prompt-tokens", type=int, default=128, help="Tokens of each question")
    parser.add_argument("--max-tokens", type=int, default=128, help="Tokens of each answer")
    parser.add_argument("--think-time", type=float, default=0.0, help="Seconds between answer and next question")
    parser.add_argument("--seed", type=int, default=0, help="Of the questions")


@events.init.add_listener  # type: ignore[untyped-decorator]
def _init(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        gather = _Records()
        environment.runner.register_message(RECORDS_MESSAGE, lambda environment, msg: gather.take(msg.data))


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def _start(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        return
    options, url = environment.parsed_options, environment.host
    talk = TrafficClass(prompt_tokens=options.prompt_tokens, max_tokens=options.max_tokens)
    workload = Workload((talk,), seed=options.seed + _place(environment))
    model, prompts = asyncio.run(_model_and_prompts(url))
    run = f"locust-{secrets.token_hex(4)}"  # process ids repeat from pod to pod
    plan = LoadPlan(
        run=run,
        targets=(url,),
        arrivals=ClosedLoop(users=1),
        workload=workload,
        model=model,
        prompts=replace(prompts, prompt_set=run),
        duration_s=0.0,
    )
    environment.shakedown_readers = Readers(plan, options.think_time)
    environment.shakedown_records = None if isinstance(environment.runner, WorkerRunner) else _Records()
    environment.shakedown_drain = gevent.spawn(_drain_for_ever, environment)


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def _stop(environment: Environment, **_: Any) -> None:
    """Every answer that was begun is read to its end, within a limit, and every record is handed in."""
    if isinstance(environment.runner, MasterRunner):
        return
    readers = readers_of(environment)
    with gevent.Timeout(LAST_ANSWERS_WITHIN_S, False):
        while readers.in_flight:
            gevent.sleep(DRAIN_EVERY_S)
    readers.abandon_all()
    gevent.sleep(DRAIN_EVERY_S)
    environment.shakedown_drain.kill()
    _drain(environment)


async def _model_and_prompts(url: str) -> tuple[str, PromptMaker]:
    async with httpx.AsyncClient(timeout=CONTROL_TIMEOUT_S, trust_env=False) as control:
        model = (await served_models(control, url))[0]
        return model, await calibrated_prompts(control, url, model)


def readers_of(environment: Environment) -> Readers:
    readers: Readers = environment.shakedown_readers
    return readers


def _place(environment: Environment) -> int:
    """Workers ask different questions of one seed."""
    return getattr(environment.runner, "worker_index", 0) or 0


def _drain_for_ever(environment: Environment) -> None:
    while True:
        gevent.sleep(DRAIN_EVERY_S)
        _drain(environment)


def _drain(environment: Environment) -> None:
    finished = readers_of(environment).finished
    batch: list[RequestRecord] = []
    while finished:
        batch.append(finished.popleft())
        _show(batch[-1])
        if len(batch) >= BATCH:
            _hand_in(environment, batch)
            batch = []
    if batch:
        _hand_in(environment, batch)


def _hand_in(environment: Environment, batch: list[RequestRecord]) -> None:
    if isinstance(environment.runner, WorkerRunner):
        environment.runner.send_message(RECORDS_MESSAGE, msgspec.json.encode(batch).decode())
    elif environment.shakedown_records is not None:
        environment.shakedown_records.write(batch)


def _show(record: RequestRecord) -> None:
    """One request as Locust's statistics take it: the wait for the first word, and the whole answer."""
    failed = None if record.outcome is Outcome.COMPLETED else RuntimeError(record.error or record.outcome.value)
    wait = ttft(record)
    if wait is not None:
        events.request.fire(
            request_type="first word",
            name=record.traffic_class,
            response_time=wait * 1000,
            response_length=0,
            exception=None,
            context={},
        )
    events.request.fire(
        request_type="answer",
        name=record.traffic_class,
        response_time=(record.finished_at - record.due_at) * 1000,
        response_length=record.completion_tokens or 0,
        exception=failed,
        context={},
    )


class _Records:
    """The file of records, if somebody wants one."""

    def __init__(self) -> None:
        path = os.environ.get(RECORDS_VARIABLE)
        self._file = RecordsFile(Path(path)) if path else None

    def take(self, message: str) -> None:
        self.write(msgspec.json.decode(message, type=list[RequestRecord]))

    def write(self, batch: list[RequestRecord]) -> None:
        if self._file is not None:
            for record in batch:
                self._file.append(record)
