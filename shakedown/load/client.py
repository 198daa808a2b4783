"""The streaming client of the hot path: one asyncio protocol per request, no retries, no task per stream.

Why not a general HTTP client: docs/load.md, section "Why this client", with figures.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from shakedown.errors import UsageError
from shakedown.judge.records import Outcome, RequestRecord
from shakedown.load.session import Session
from shakedown.load.stream import Answer
from shakedown.load.workload import TrafficClass

monotonic = time.monotonic

WATCH_EVERY_S = 0.1
LINGER_S = 1.0
RESOLVE_AGAIN_S = 10.0
POD_HEADERS = ("x-served-by", "x-pod-name")
CHAT_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a client waits for what. Seconds."""

    connect_s: float = 10.0
    silence_s: float = 120.0
    """Without any byte, the wait for the first included."""
    request_s: float = 600.0
    """From sending to the end."""
    done_grace_s: float = 5.0
    """For [DONE], once a finish reason has come."""

    def watch_every_s(self) -> float:
        shortest = min(self.connect_s, self.silence_s, self.request_s, self.done_grace_s)
        return max(0.005, min(WATCH_EVERY_S, shortest / 4))


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    tls: bool
    authority: str
    path: str

    @classmethod
    def of(cls, url: str, path: str = CHAT_PATH) -> "Target":
        """Of a server's base URL, with or without /v1. Raises UsageError."""
        base = base_url(url)
        parts = urlsplit(base)
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname or "", port, tls, parts.netloc.rpartition("@")[2], parts.path + path)


def base_url(url: str) -> str:
    """The URL without a trailing slash or /v1. Raises UsageError with one line."""
    stripped = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(stripped)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() or ord(character) < 32 for character in stripped):
        raise UsageError(f"{url!r} is not the URL of a server; it looks like http://host:8000")
    return stripped


@dataclass(slots=True)
class OutgoingRequest:
    """A request ready to be sent: its body is made before it is due."""

    id: str
    traffic_class: TrafficClass
    body: bytes
    due: float
    """Monotonic seconds."""
    may_abandon: bool = True
    session: Session | None = None
    """The conversation that it belongs to; it is told the answer."""


class _Connection(asyncio.Protocol):
    """One connection carrying one request at a time."""

    __slots__ = (
        "abandon_after_s",
        "abandon_after_tokens",
        "answer",
        "client",
        "connecting",
        "head",
        "on_end",
        "recorded",
        "request",
        "reused",
        "sent",
        "target",
        "transport",
    )

    def __init__(self, client: "StreamingClient", target: Target) -> None:
        self.client = client
        self.target = target
        self.transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.reused = False

    def start(
        self, request: OutgoingRequest, head: bytes, sent: float, on_end: Callable[[RequestRecord], None] | None
    ) -> None:
        traffic_class = request.traffic_class
        self.request, self.head, self.sent, self.on_end = request, head, sent, on_end
        self.answer = Answer(keep_text=traffic_class.keep_text or request.session is not None)
        self.recorded = False
        self.abandon_after_s = traffic_class.abandon_after_s if request.may_abandon else None
        self.abandon_after_tokens = traffic_class.abandon_after_tokens if request.may_abandon else None
        if self.transport is not None:
            self.transport.write(head + request.body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        if self.recorded:
            transport.abort()
        else:
            transport.write(self.head + self.request.body)

    def data_received(self, data: bytes) -> None:
        answer = self.answer
        answer.feed(data, monotonic())
        if answer.outcome is not None:
            self._ended()
        elif self.abandon_after_tokens is not None and len(answer.token_times) >= self.abandon_after_tokens:
            self.give_up(Outcome.ABANDONED, monotonic(), None)

    def eof_received(self) -> bool:
        self.answer.end_of_stream(monotonic())
        self._ended()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.client.forget(self)
        if not self.recorded:
            # A clean close was told by eof_received before.
            reason = f"the connection broke: {error or 'reset'}"
            if self.reused and self.answer.first_byte_at is None:
                reason += " (a kept-alive connection that the server may have closed before this request)"
            self.answer.connection_failed(monotonic(), reason)
            self._ended()

    def give_up(self, outcome: Outcome, at: float, reason: str | None) -> None:
        self.answer.give_up(outcome, at, reason)
        self._ended()
        self.drop()

    def failed_to_connect(self) -> None:
        self._ended()
        self.client.forget(self)

    def drop(self) -> None:
        if self.connecting is not None and not self.connecting.done():
            self.connecting.cancel()
        if self.transport is not None:
            self.transport.abort()
        else:
            self.client.forget(self)

    def _ended(self) -> None:
        if not self.recorded:
            self.recorded = True
            self.client.record(self)
        if self.answer.body_complete:
            self.client.release(self)
        elif self.answer.outcome is Outcome.CONNECTION_LOST and self.transport is not None:
            self.transport.abort()


class StreamingClient:
    """Sends requests when told and hands a RequestRecord for each, exactly once, to `on_record`.

    `wall_offset` is what turns monotonic seconds into seconds since the epoch, the same for all records of a load.
    With `keep_alive`, connections idle for less than `LINGER_S` are used again; by default each request has its own, so
    that no failure of an old connection is taken for a failure of the server.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        on_record: Callable[[RequestRecord], None],
        wall_offset: float,
        limits: Limits | None = None,
        headers: Mapping[str, str] | None = None,
        pod_headers: Sequence[str] = POD_HEADERS,
        keep_alive: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self._ended_tokens = 0
        self._targets = tuple(targets)
        self._on_record = on_record
        self._wall_offset = wall_offset
        self._headers = dict(headers or {})
        self._pod_headers = tuple(name.lower() for name in pod_headers)
        self._keep_alive = keep_alive
        self._heads: dict[tuple[Target, str], bytes] = {}
        self._addresses: dict[Target, tuple[float, str]] = {}
        self._tls: ssl.SSLContext | None = None
        self._open: set[_Connection] = set()
        self._idle: dict[Target, list[tuple[float, _Connection]]] = {target: [] for target in targets}
        self._next_target = 0
        self._pending = 0
        self._watcher: asyncio.Task[None] | None = None
        self._nothing_pending = asyncio.Event()
        self._nothing_pending.set()

    async def __aenter__(self) -> "StreamingClient":
        if any(target.tls for target in self._targets):
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        for target in self._targets:
            with contextlib.suppress(OSError):  # each request reports that by itself
                await self._address(target)
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Abandon what is still under way, and record it as such."""
        self.abandon_all()
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        connecting = [each.connecting for each in self._open if each.connecting and not each.connecting.done()]
        for each in tuple(self._open):
            each.drop()
        await asyncio.gather(*connecting, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close on the next turn of the loop

    @property
    def in_flight(self) -> int:
        return self._pending

    @property
    def tokens_seen(self) -> int:
        """Content-bearing deltas so far, those of requests under way included."""
        return self._ended_tokens + sum(len(each.answer.token_times) for each in self._open if not each.recorded)

    async def all_ended(self) -> None:
        """Wait until every request sent so far has its record; the limits bound that."""
        await self._nothing_pending.wait()

    def abandon_all(self) -> None:
        now = monotonic()
        for each in tuple(self._open):
            if not each.recorded:
                each.give_up(Outcome.ABANDONED, now, "the load was stopped")

    def send(self, request: OutgoingRequest, on_end: Callable[[RequestRecord], None] | None = None) -> None:
        """Begin a request now. Never raises for what the network does: that becomes the record's outcome."""
        now = monotonic()
        target = self._targets[self._next_target]
        self._next_target = (self._next_target + 1) % len(self._targets)
        connection = self._idle_connection(target, now)
        if connection is None:
            connection = _Connection(self, target)
        self._pending += 1
        self._nothing_pending.clear()
        self._open.add(connection)
        connection.start(request, self._head(target, request), now, on_end)
        if connection.transport is None:
            connection.connecting = asyncio.ensure_future(self._connect(connection))

    def record(self, connection: _Connection) -> None:
        """Called by a connection once its request has ended."""
        answer, request, offset = connection.answer, connection.request, self._wall_offset
        assert answer.outcome is not None
        assert answer.finished_at is not None
        self._pending -= 1
        if self._pending == 0:
            self._nothing_pending.set()
        served_by = next((answer.headers[name] for name in self._pod_headers if name in answer.headers), None)
        record = RequestRecord(
            id=request.id,
            traffic_class=request.traffic_class.name,
            due_at=request.due + offset,
            sent_at=connection.sent + offset,
            first_byte_at=None if answer.first_byte_at is None else answer.first_byte_at + offset,
            token_times=tuple([at + offset for at in answer.token_times]),
            finished_at=answer.finished_at + offset,
            outcome=answer.outcome,
            http_status=answer.http_status,
            finish_reason=answer.finish_reason,
            saw_done=answer.saw_done,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            served_by=served_by,
            error=answer.error,
            text=answer.text if request.traffic_class.keep_text else None,
            reads=answer.reads,
            events=answer.events,
        )
        if request.session is not None:
            request.session.answer = answer.text
        self._ended_tokens += len(answer.token_times)
        self._on_record(record)
        if connection.on_end is not None:
            connection.on_end(record)

    def release(self, connection: _Connection) -> None:
        """The response has ended: keep the connection, or close it."""
        if self._keep_alive and connection.answer.keeps_alive and connection in self._open:
            self._open.discard(connection)
            self._idle[connection.target].append((monotonic(), connection))
        elif connection.transport is not None and connection.answer.headers.get("connection", "").lower() != "close":
            connection.transport.close()
        # A server that said "close" closes first, so that the used-up port waits on its side, not on ours.

    def forget(self, connection: _Connection) -> None:
        """The connection is gone."""
        self._open.discard(connection)
        if self._keep_alive:
            idle = self._idle[connection.target]
            idle[:] = [entry for entry in idle if entry[1] is not connection]

    def _idle_connection(self, target: Target, now: float) -> _Connection | None:
        idle = self._idle[target]
        while idle:
            since, connection = idle.pop()
            if now - since < LINGER_S and connection.transport is not None and not connection.transport.is_closing():
                connection.reused = True
                return connection
            connection.drop()
        return None

    def _head(self, target: Target, request: OutgoingRequest) -> bytes:
        key = (target, request.traffic_class.name)
        constant = self._heads.get(key)
        if constant is None:
            headers = {
                "Host": target.authority,
                "Content-Type": "application/json",
                "Accept": "text/event-stream",
                "Accept-Encoding": "identity",
                "User-Agent": "shakedown",
                **({} if self._keep_alive else {"Connection": "close"}),
                **self._headers,
                **request.traffic_class.headers,
            }
            lines = [f"POST {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
            if any("\r" in line or "\n" in line for line in lines):
                raise UsageError("a header cannot hold a line end")
            constant = self._heads[key] = "\r\n".join(lines).encode("latin-1")
        return b"%b\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % (
            constant,
            request.id.encode(),
            len(request.body),
        )

    async def _connect(self, connection: _Connection) -> None:
        target = connection.target
        try:
            address = await self._address(target)
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                address,
                target.port,
                ssl=self._tls if target.tls else None,
                server_hostname=target.host if target.tls else None,
            )
        except OSError as error:
            connection.answer.connection_failed(monotonic(), f"cannot connect: {error.strerror or error}")
            connection.failed_to_connect()

    async def _address(self, target: Target) -> str:
        """The target's address, looked up once in a while and not once per request."""
        now = monotonic()
        known = self._addresses.get(target)
        if known is not None and now - known[0] < RESOLVE_AGAIN_S:
            return known[1]
        if known is not None:  # one request looks again, the others go on with what is known
            self._addresses[target] = (now, known[1])
        found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        address = str(found[0][4][0])
        self._addresses[target] = (now, address)
        return address

    async def _watch(self) -> None:
        every_s = self.limits.watch_every_s()
        while True:
            await asyncio.sleep(every_s)
            now = monotonic()
            for connection in tuple(self._open):
                if connection.recorded:
                    if now - (connection.answer.finished_at or now) > LINGER_S:
                        connection.drop()
                elif (end := self._overdue(connection, now)) is not None:
                    connection.give_up(*end)

    def _overdue(self, connection: _Connection, now: float) -> tuple[Outcome, float, str | None] | None:
        """Whether, as what, and as of when a request is given up."""
        limits, answer, age = self.limits, connection.answer, now - connection.sent
        silence = now - (answer.last_byte_at or connection.sent)
        if connection.abandon_after_s is not None and age >= connection.abandon_after_s:
            return Outcome.ABANDONED, now, None
        if connection.transport is None and age > limits.connect_s:
            return Outcome.CONNECTION_LOST, now, f"no connection within {limits.connect_s:g} s"
        if age > limits.request_s:
            return Outcome.TIMED_OUT, now, f"not ended within {limits.request_s:g} s"
        if answer.finish_reason and answer.last_byte_at is not None and silence > limits.done_grace_s:
            # The user had the whole answer when the last byte came; waiting for [DONE] is not latency.
            return Outcome.TRUNCATED, answer.last_byte_at, f"no [DONE] within {limits.done_grace_s:g} s of the finish"
        if silence > limits.silence_s:
            return Outcome.HUNG, now, f"no byte for {limits.silence_s:g} s"
        return None
