"""What the bytes of one answer mean: fields of a RequestRecord and exactly one Outcome. Pure; time is handed in.

The rules (docs/load.md has the table with its reasons):
- A token is a delta that carries something: content, reasoning, refusal, a tool call's name or arguments, or a
  completion's text. Roles, empty strings, nulls, heartbeats and usage are not tokens.
- Usage may come with any event; the last one counts, because cumulative usage repeats.
- [DONE] ends the answer; what follows it does not exist.
"""

from typing import Any

import msgspec

from shakedown.judge.records import Outcome
from shakedown.load.http1 import MalformedResponse, ResponseFrame
from shakedown.load.repeats import RepeatedChunk
from shakedown.load.sse import SseEvent, SseParser

ERROR_TEXT_LIMIT = 500
ERROR_BODY_LIMIT_BYTES = 16 * 1024
SHED_STATUSES = (429, 503)


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """Reads one answer as it arrives. `feed`, `end_of_stream`, `connection_failed` and `give_up` may end it."""

    __slots__ = (
        "_error",
        "_error_body",
        "_frame",
        "_keep_text",
        "_malformed_events",
        "_repeated",
        "_saw_error_event",
        "_sse",
        "_texts",
        "completion_tokens",
        "events",
        "finish_reason",
        "finished_at",
        "first_byte_at",
        "last_byte_at",
        "outcome",
        "prompt_tokens",
        "reads",
        "saw_done",
        "token_times",
    )

    def __init__(self, *, keep_text: bool = False) -> None:
        self._frame = ResponseFrame()
        self._sse = SseParser()
        self._keep_text = keep_text
        self._texts: list[str] = []
        self._error: str | None = None
        self._error_body = b""
        self._malformed_events = 0
        self._saw_error_event = False
        self._repeated: RepeatedChunk | None = None
        """Set only while framing and parser stand between two events, so that skipping them leaves them right."""
        self.token_times: list[float] = []
        self.first_byte_at: float | None = None
        self.last_byte_at: float | None = None
        self.finished_at: float | None = None
        self.outcome: Outcome | None = None
        self.finish_reason: str | None = None
        self.saw_done = False
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.reads = 0
        self.events = 0

    @property
    def http_status(self) -> int | None:
        return self._frame.status

    @property
    def headers(self) -> dict[str, str]:
        return self._frame.headers

    @property
    def body_complete(self) -> bool:
        """The response has ended by its framing; the connection is free."""
        return self._frame.complete

    @property
    def keeps_alive(self) -> bool:
        return self._frame.keeps_alive

    @property
    def text(self) -> str | None:
        """The content, if it was to be kept."""
        return "".join(self._texts) if self._keep_text else None

    @property
    def error(self) -> str | None:
        """What went wrong, in the server's words or ours."""
        notes = [self._error] if self._error else []
        if self._malformed_events:
            notes.append(f"{self._malformed_events} events were not JSON of the expected shape")
        return "; ".join(notes)[:ERROR_TEXT_LIMIT] or None

    def feed(self, data: bytes, at: float) -> None:
        """Bytes arrived at `at`. After the end of the answer only the framing is followed."""
        self.last_byte_at = at
        if self._repeated is not None and (count := self._repeated.count(data)):
            self.reads += 1
            self.events += count
            self.token_times += [at] * count
            return
        if self.first_byte_at is None:
            self.first_byte_at = at
        try:
            content = self._frame.feed(data)
        except MalformedResponse as error:
            self._end(Outcome.CONNECTION_LOST, at, f"malformed response: {error}")
            return
        if self.outcome is None:
            self._take(data, content, at)

    def _take(self, data: bytes, content: bytes, at: float) -> None:
        self._repeated = None
        if self._frame.status == 200:
            last = self._take_content(content, at) if content else None
            if last is not None and not self._keep_text and self._frame.between_chunks and self._sse.between_events:
                self._repeated = RepeatedChunk.last_of(data, *last)
        elif len(self._error_body) < ERROR_BODY_LIMIT_BYTES:
            self._error_body += content
        if self._frame.complete and self.outcome is None:
            self._close(at)

    def end_of_stream(self, at: float) -> None:
        """The peer closed its side in good order."""
        if self.outcome is not None:
            return
        if self._frame.end_of_stream() or self._is_refusal():
            self._close(at)
        else:
            self._end(Outcome.CONNECTION_LOST, at, f"the connection closed {self._progress()}")

    def connection_failed(self, at: float, reason: str) -> None:
        """The connection broke, or could not be made."""
        if self.outcome is None and self._is_refusal():
            self._close(at)
        else:
            self._end(Outcome.CONNECTION_LOST, at, reason)

    def give_up(self, outcome: Outcome, at: float, reason: str | None) -> None:
        """We stop waiting."""
        self._end(outcome, at, reason)

    def _take_content(self, content: bytes, at: float) -> tuple[bytes, str] | None:
        """Read the events; return the last one and its text if it brought nothing but that."""
        events = self._sse.feed(content)
        if not events:
            return None
        self.reads += 1
        only_text = None
        for event in events:
            only_text = None
            self.events += 1
            if event.data == b"[DONE]":
                self.saw_done = True
                self._close(at)
                return None
            if event.data:
                only_text = self._take_event(event, at)
        return None if only_text is None else (events[-1].data, only_text)

    def _take_event(self, event: SseEvent, at: float) -> str | None:
        try:
            chunk = _decode(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            repaired = _lenient_chunk(event.data)
            if repaired is None:
                self._malformed_events += 1
            else:
                self._take_chunk(repaired, event, at)
            return None
        self._take_chunk(chunk, event, at)
        return _only_text(chunk)

    def _take_chunk(self, chunk: _Chunk, event: SseEvent, at: float) -> None:
        if chunk.choices:
            self._take_choices(chunk.choices, at)
        if chunk.usage is not None:
            self._take_usage(chunk.usage)
        if chunk.error or chunk.object == "error" or event.event == b"error":
            self._saw_error_event = True
            self._error = self._error or _message_of(chunk.error or chunk.message or event.data)

    def _take_choices(self, choices: list[_Choice], at: float) -> None:
        carries = False
        for choice in choices:
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason
            if choice.text or (choice.delta is not None and _carries_token(choice.delta)):
                carries = True
                if self._keep_text:
                    self._texts.append(_text_of(choice))
        if carries:
            self.token_times.append(at)

    def _take_usage(self, usage: _Usage) -> None:
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self.completion_tokens = usage.completion_tokens

    def _is_refusal(self) -> bool:
        return self._frame.status not in (None, 200)

    def _close(self, at: float) -> None:
        """The answer ended by itself: what was it?"""
        if self._is_refusal():
            self._end(_outcome_of_status(self._frame.status or 0), at, self._refusal_text())
        elif self._saw_error_event or self.finish_reason == "error":
            self._end(Outcome.ERROR_CHUNK, at, self._error or "finish_reason is error")
        elif not self.saw_done:
            missing = "[DONE]" if self.finish_reason else "a finish reason and [DONE]"
            self._end(Outcome.TRUNCATED, at, f"the stream ended without {missing}{self._strange_type()}")
        elif not self.token_times:
            self._end(Outcome.EMPTY, at, "the stream carried no token")
        elif self.finish_reason in (None, "abort"):
            reason = "the engine aborted the request" if self.finish_reason else "[DONE] came without a finish reason"
            self._end(Outcome.TRUNCATED, at, reason)
        else:
            self._end(Outcome.COMPLETED, at, None)

    def _end(self, outcome: Outcome, at: float, reason: str | None) -> None:
        self._repeated = None
        if self.outcome is None:
            self.outcome, self.finished_at = outcome, at
            self._error = "; ".join(dict.fromkeys(note for note in (self._error, reason) if note)) or None

    def _progress(self) -> str:
        if self._frame.status is None:
            return "before an answer" if self.first_byte_at is None else "within the response head"
        return f"after {len(self.token_times)} tokens, within the body"

    def _strange_type(self) -> str:
        kind = self._frame.headers.get("content-type", "")
        return f"; its content-type is {kind}" if kind and "event-stream" not in kind else ""

    def _refusal_text(self) -> str:
        retry_after = self._frame.headers.get("retry-after")
        location = self._frame.headers.get("location")
        notes = [f"HTTP {self._frame.status}"]
        notes += [f"retry after {retry_after}"] if retry_after else []
        notes += [f"redirects to {location}"] if location else []
        return ": ".join(filter(None, (", ".join(notes), _message_of(self._error_body))))


def _carries_token(delta: _Delta) -> bool:
    if delta.content or delta.reasoning or delta.reasoning_content or delta.refusal:
        return True
    functions = [call.function for call in delta.tool_calls or () if call.function]
    if delta.function_call:
        functions.append(delta.function_call)
    return any(function.name or function.arguments for function in functions)


def _only_text(chunk: _Chunk) -> str | None:
    """The content, if the chunk brings that and no other news."""
    if chunk.usage is not None or chunk.error or chunk.choices is None or len(chunk.choices) != 1:
        return None
    delta = chunk.choices[0].delta
    if delta is None or chunk.choices[0].finish_reason or not isinstance(delta.content, str):
        return None
    return delta.content or None


def _text_of(choice: _Choice) -> str:
    content = choice.text or (choice.delta.content if choice.delta else None)
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _lenient_chunk(data: bytes) -> _Chunk | None:
    """A second look at what the strict decoder refused: broken UTF-8 is replaced, strange fields are dropped."""
    try:
        decoded = msgspec.json.decode(data.decode("utf-8", "replace"))
    except msgspec.DecodeError:
        return None
    if not isinstance(decoded, dict):
        return None
    if "error" in decoded:
        return _Chunk(error=decoded["error"], message=decoded.get("message"))
    kept = {}
    for name in ("choices", "usage"):
        try:
            kept[name] = msgspec.convert({name: decoded.get(name)}, _Chunk)
        except msgspec.ValidationError:
            kept[name] = _Chunk()
    chunk = _Chunk(choices=kept["choices"].choices, usage=kept["usage"].usage, message=decoded.get("message"))
    return chunk if chunk.choices is not None or chunk.usage is not None or chunk.message else None


def _outcome_of_status(status: int) -> Outcome:
    if status in SHED_STATUSES:
        return Outcome.REFUSED
    return Outcome.REJECTED if 400 <= status < 500 else Outcome.FAILED


def _message_of(said: object) -> str:
    """The human part of an error, from JSON of the usual shapes, or the text itself on one line."""
    if isinstance(said, bytes):
        try:
            said = msgspec.json.decode(said)
        except (msgspec.DecodeError, UnicodeDecodeError):
            said = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    while isinstance(said, dict):
        inner = said.get("error") or said.get("message") or said.get("detail")
        if inner is None:
            said = msgspec.json.encode(said).decode()
            break
        said = inner
    return " ".join(str(said).split())[:ERROR_TEXT_LIMIT]
