"""A load over loopback: every request has its record, whatever the server does and however the load ends."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shakedown.errors import HarnessError, UsageError
from shakedown.judge.records import Outcome, RequestRecord
from shakedown.load import (
    Burst,
    ClosedLoop,
    Constant,
    HealthBounds,
    Limits,
    OpenLoop,
    PromptMaker,
    TrafficClass,
    Workload,
    read_records,
    write_records,
)
from shakedown.load.client import base_url
from shakedown.load.health import WorkerHealth, load_health
from tests.load.wire import FINISH, ONE, SOUND, STREAM_HEAD, chunked, whole

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]
WORKLOAD = Workload(model="m")
QUICK = Limits(silence_s=0.1, request_s=0.3, done_grace_s=0.05, connect_s=0.2)


@asynccontextmanager
async def serving(say: Say, bodies: list[bytes] | None = None) -> AsyncIterator[str]:
    """A server that reads one request a connection, keeps its body in `bodies`, and says what it is told to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            if bodies is not None:
                bodies.append(body)
            await say(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def saying(*parts: bytes, then: asyncio.Event | None = None) -> Say:
    async def say(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if then is not None:
            await then.wait()

    return say


async def records_of(say: Say, traffic: TrafficClass | None = None, count: int = 3) -> tuple[RequestRecord, ...]:
    async with serving(say) as url:
        load = OpenLoop(
            url,
            arrivals=Burst(count),
            workload=Workload((traffic or TrafficClass(),), "m"),
            duration_s=1,
            prompts=PromptMaker(),
            limits=QUICK,
            workers=0,
        )
        async with load:
            await load.done()
    assert len(load.records) == count
    return load.records


async def test_a_sound_answer_is_recorded_with_its_times_in_order() -> None:
    for record in await records_of(saying(whole(*SOUND).replace(b"200 OK\r\n", b"200 OK\r\nx-served-by: pod-7\r\n"))):
        assert record.outcome is Outcome.COMPLETED
        assert (record.prompt_tokens, record.completion_tokens, record.served_by) == (5, 2, "pod-7")
        assert record.first_byte_at is not None
        times = [record.due_at, record.sent_at, record.first_byte_at, *record.token_times, record.finished_at]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("parts", "outcome", "says"),
    [
        ((), Outcome.HUNG, "no byte for 0.1 s"),
        ((STREAM_HEAD, chunked(ONE)), Outcome.HUNG, "no byte for 0.1 s"),
        ((STREAM_HEAD, chunked(ONE, FINISH)), Outcome.TRUNCATED, "no [DONE] within 0.05 s"),
    ],
)
async def test_silence_is_told_from_a_missing_end(parts: tuple[bytes, ...], outcome: Outcome, says: str) -> None:
    forever = asyncio.Event()
    for record in await records_of(saying(*parts, then=forever)):
        assert record.outcome is outcome
        assert says in (record.error or "")
    forever.set()


async def test_heartbeats_do_not_keep_a_request_alive_beyond_its_limit() -> None:
    async def beat(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while True:
            writer.write(chunked(b": ping\n\n"))
            await writer.drain()
            await asyncio.sleep(0.02)

    assert {(record.outcome, record.token_times) for record in await records_of(beat)} == {(Outcome.TIMED_OUT, ())}


async def test_users_leave_after_their_tokens() -> None:
    forever = asyncio.Event()
    leaving = TrafficClass(abandon_after_tokens=1)
    records = await records_of(saying(STREAM_HEAD + chunked(ONE), then=forever), leaving)
    forever.set()
    assert {(record.outcome, len(record.token_times)) for record in records} == {(Outcome.ABANDONED, 1)}


async def asked(prompt_set: str | None) -> list[bytes]:
    bodies: list[bytes] = []
    async with serving(saying(whole(*SOUND)), bodies) as url:
        workload = Workload(model="m", prompt_set=prompt_set)
        load = OpenLoop(url, arrivals=Burst(3), workload=workload, duration_s=1, prompts=PromptMaker(), workers=0)
        async with load:
            await load.done()
    return sorted(bodies)


async def test_no_load_asks_what_another_asked_unless_it_is_meant_to() -> None:
    first, second = await asked(None), await asked(None)
    assert len({*first, *second}) == 6
    assert await asked("the same") == await asked("the same")


async def test_nobody_listening_is_a_lost_connection() -> None:
    async with serving(saying(b"")) as url:
        pass
    load = OpenLoop(url, arrivals=Burst(2), workload=WORKLOAD, duration_s=1, prompts=PromptMaker(), workers=0)
    async with load:
        await load.done()
    assert {record.outcome for record in load.records} == {Outcome.CONNECTION_LOST}
    with pytest.raises(HarnessError, match="ended before it had 1 completed"):
        await load.until(completed=1)


async def test_a_load_that_is_left_by_an_error_accounts_for_what_was_under_way(tmp_path: Path) -> None:
    forever, path = asyncio.Event(), tmp_path / "requests.jsonl"
    async with serving(saying(STREAM_HEAD + chunked(ONE), then=forever)) as url:
        load = OpenLoop(
            url, arrivals=Burst(5), workload=WORKLOAD, duration_s=9, records=path, prompts=PromptMaker(), workers=0
        )
        with contextlib.suppress(KeyError):
            async with load:
                await load.until(tokens=5)
                raise KeyError
        forever.set()
    assert Counter(record.outcome for record in read_records(path)) == {Outcome.ABANDONED: 5}


async def test_closed_loop_users_ask_again_only_when_they_were_answered() -> None:
    async with serving(saying(whole(*SOUND))) as url:
        load = OpenLoop(
            url,
            arrivals=ClosedLoop(2, think_time_s=0.01),
            workload=WORKLOAD,
            duration_s=0.15,
            prompts=PromptMaker(),
            workers=0,
        )
        async with load:
            await load.done()
    records = load.records
    assert len(records) > 4
    under_way = [sum(other.sent_at <= one.sent_at < other.finished_at for other in records) for one in records]
    assert max(under_way) <= 2


async def test_two_processes_send_exactly_the_requests_of_one(tmp_path: Path) -> None:
    async with serving(saying(whole(*SOUND))) as url:
        path = tmp_path / "requests.jsonl"
        load = OpenLoop(
            url,
            arrivals=Constant(100),
            workload=WORKLOAD,
            duration_s=0.2,
            records=path,
            prompts=PromptMaker(),
            workers=2,
        )
        async with load:
            await load.done()
    records = load.records
    assert [int(record.id.rpartition("-")[2]) for record in records] == list(range(20))
    assert {record.outcome for record in records} == {Outcome.COMPLETED}
    assert [record.due_at - load.started_at for record in records] == pytest.approx(
        [n / 100 for n in range(20)], abs=1e-4
    )
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_loses_only_the_line_it_was_writing(tmp_path: Path) -> None:
    record = RequestRecord(id="a", due_at=1, sent_at=1, finished_at=2, outcome=Outcome.EMPTY)
    path = tmp_path / "requests.jsonl"
    write_records(path, [record, record])
    path.write_bytes(path.read_bytes()[:-5])
    assert list(read_records(path)) == [record]
    path.write_bytes(b"{}\n")
    with pytest.raises(HarnessError, match=r"requests\.jsonl:1 is not"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("lag_s", "worker", "sent", "says"),
    [
        (0.06, WorkerHealth(), 100, "requests were sent 60 ms late"),
        (0.0, WorkerHealth(loop_lag_p99_s=0.2, wall_s=10), 100, "event loop ran 200 ms late"),
        (0.0, WorkerHealth(cpu_share=0.99, wall_s=10), 100, "used 99% of a core"),
        (0.0, WorkerHealth(), 80, "only 80 of 100 due requests"),
    ],
)
def test_a_client_past_a_bound_says_which(lag_s: float, worker: WorkerHealth, sent: int, says: str) -> None:
    def health(lag_s: float, worker: WorkerHealth, sent: int) -> str | None:
        return load_health(
            due=100, sent=sent, send_lags_s=[lag_s] * sent, workers=[worker], duration_s=10, bounds=HealthBounds()
        ).saturated

    assert says in (health(lag_s, worker, sent) or "")
    assert health(0.01, WorkerHealth(cpu_share=0.5, loop_lag_p99_s=0.01, wall_s=10), 99) is None


def test_base_urls_are_understood_or_refused() -> None:
    assert base_url(" http://h:8000/v1/ ") == "http://h:8000"
    assert base_url("https://h/prefix/v1") == "https://h/prefix"
    for wrong in ("h:8000", "ftp://h", "http://", "http://h:99999", "http://h x", ""):
        with pytest.raises(UsageError, match="is not the URL"):
            base_url(wrong)
