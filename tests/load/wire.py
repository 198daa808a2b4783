"""Answers as they look on the wire, and what each of them has to be taken for."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shakedown.judge.records import Outcome
from shakedown.load.stream import Answer

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def delta(*, finish: str | None = None, **fields: Any) -> bytes:
    """An event with one delta."""
    return event({"id": "c", "choices": [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}]})


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def chunked(*bodies: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies)


def whole(*bodies: bytes) -> bytes:
    """A response whose every event is an HTTP chunk of its own, ended in good order."""
    return STREAM_HEAD + chunked(*bodies) + LAST_CHUNK


ROLE = delta(role="assistant", content="")
FINISH = delta(content="", finish="stop")
DONE = b"data: [DONE]\n\n"
ONE, TWO = delta(content="Hello"), delta(content=" world")
SOUND = (ROLE, ONE, TWO, FINISH, usage(5, 2), DONE)


@dataclass(frozen=True)
class Case:
    """One answer and the only right reading of it."""

    name: str
    wire: bytes
    outcome: Outcome
    tokens: int = 0
    completion_tokens: int | None = None
    finish_reason: str | None = None
    text: str = ""
    error: str | None = None
    """Must be part of the record's error; None when there must be none."""
    ends: str = "closed"
    """How the connection ends: closed, reset, or not at all ("open")."""


def read(wire: bytes, cuts: list[int], ends: str, *, keep_text: bool = True) -> Answer:
    """Feed the wire in pieces, one second apart, and end it."""
    answer = Answer(keep_text=keep_text)
    edges = sorted({0, len(wire), *(cut for cut in cuts if 0 < cut < len(wire))})
    at = 0.0
    for at, (start, stop) in enumerate(pairwise(edges), start=1):
        answer.feed(wire[start:stop], float(at))
    if ends == "closed":
        answer.end_of_stream(at + 1.0)
    elif ends == "reset":
        answer.connection_failed(at + 1.0, "the connection broke: reset")
    return answer


CASES = (
    Case("a sound answer", whole(*SOUND), Outcome.COMPLETED, 2, 2, "stop", "Hello world"),
    Case("all in one chunk", whole(b"".join(SOUND)), Outcome.COMPLETED, 2, 2, "stop", "Hello world"),
    Case("no chunked coding", PLAIN_HEAD + b"".join(SOUND), Outcome.COMPLETED, 2, 2, "stop", "Hello world"),
    Case(
        "content-length",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(b"".join(SOUND)) + b"".join(SOUND),
        Outcome.COMPLETED,
        2,
        2,
        "stop",
        "Hello world",
    ),
    Case(
        "chunk extensions and trailers",
        STREAM_HEAD
        + b"%X;name=value\r\n%b\r\n" % (len(ONE + FINISH + DONE), ONE + FINISH + DONE)
        + b"0\r\nx: y\r\n\r\n",
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "Hello",
    ),
    Case(
        "informational answers first",
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + whole(*SOUND),
        Outcome.COMPLETED,
        2,
        2,
        "stop",
        "Hello world",
    ),
    Case(
        "data without a space",
        whole(*(part.replace(b"data: ", b"data:") for part in SOUND)),
        Outcome.COMPLETED,
        2,
        2,
        "stop",
        "Hello world",
    ),
    Case(
        "CRLF lines",
        whole(*(part.replace(b"\n", b"\r\n") for part in SOUND)),
        Outcome.COMPLETED,
        2,
        2,
        "stop",
        "Hello world",
    ),
    Case(
        "CR lines",
        whole(*(part.replace(b"\n", b"\r") for part in SOUND)),
        Outcome.COMPLETED,
        2,
        2,
        "stop",
        "Hello world",
    ),
    Case(
        "mixed line ends",
        whole(ROLE.replace(b"\n", b"\r\n"), ONE.replace(b"\n", b"\r"), TWO, FINISH, DONE),
        Outcome.COMPLETED,
        2,
        None,
        "stop",
        "Hello world",
    ),
    Case("a byte order mark", whole(b"\xef\xbb\xbf" + ONE, FINISH, DONE), Outcome.COMPLETED, 1, None, "stop", "Hello"),
    Case(
        "heartbeats",
        whole(b": keep-alive\n\n", ROLE, b":\n\n", ONE, b": ping\n", b"\n\n\n", TWO, FINISH, DONE),
        Outcome.COMPLETED,
        2,
        None,
        "stop",
        "Hello world",
    ),
    Case(
        "events without data, with ids, with retry",
        whole(b"event: ping\n\n", b"id: 3\nretry: 10\n" + ONE, b"data\n\n", b"data:\n\n", FINISH, DONE),
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "Hello",
    ),
    Case(
        "an event over several data lines",
        whole(b'data: {"choices": [{"delta":\ndata: {"content": "Hello"}}]}\n\n', FINISH, DONE),
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "Hello",
    ),
    Case(
        "characters of two, three and four bytes",
        whole(delta(content="é世🌍"), FINISH, DONE),
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "é世🌍",
    ),
    Case(
        "line separators inside text",
        whole(delta(content="a\u0085b\u2028c\u2029d\x0be\x0cf"), FINISH, DONE),
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "a\u0085b\u2028c\u2029d\x0be\x0cf",
    ),
    Case(
        "escaped quotes and backslashes",
        whole(ONE, ONE, delta(content='"\\'), delta(content="\\\\"), FINISH, DONE),
        Outcome.COMPLETED,
        4,
        None,
        "stop",
        'HelloHello"\\\\\\',
    ),
    Case(
        "[DONE] as a word of the answer",
        whole(delta(content="[DONE]"), FINISH, DONE),
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "[DONE]",
    ),
    Case(
        "broken UTF-8",
        whole(ONE.replace(b"Hello", b"H\xf0\x9f"), FINISH, DONE),
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "H\ufffd",
    ),
    Case(
        "role, null and empty deltas are not tokens",
        whole(
            ROLE,
            delta(role="assistant", content=None),
            delta(content=None),
            delta(),
            ONE,
            delta(content=""),
            FINISH,
            DONE,
        ),
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "Hello",
    ),
    Case(
        "reasoning is tokens but not text",
        whole(ROLE, delta(reasoning="hm"), delta(reasoning_content="so"), ONE, FINISH, DONE),
        Outcome.COMPLETED,
        3,
        None,
        "stop",
        "Hello",
    ),
    Case(
        "tool calls are tokens",
        whole(
            delta(tool_calls=[{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": ""}}]),
            delta(finish="tool_calls"),
            DONE,
        ),
        Outcome.COMPLETED,
        2,
        None,
        "tool_calls",
    ),
    Case(
        "a text completion",
        whole(
            event({"choices": [{"text": "Hello", "finish_reason": None}]}),
            event({"choices": [{"text": "", "finish_reason": "length"}]}),
            DONE,
        ),
        Outcome.COMPLETED,
        1,
        None,
        "length",
        "Hello",
    ),
    Case(
        "several tokens in one delta",
        whole(delta(content="Hello world"), FINISH, usage(5, 7), DONE),
        Outcome.COMPLETED,
        1,
        7,
        "stop",
        "Hello world",
    ),
    Case(
        "the finish reason rides on the last token",
        whole(ONE, delta(content="!", finish="length"), DONE),
        Outcome.COMPLETED,
        2,
        None,
        "length",
        "Hello!",
    ),
    Case("usage first", whole(usage(5, 0), ONE, FINISH, DONE), Outcome.COMPLETED, 1, 0, "stop", "Hello"),
    Case(
        "cumulative usage is not summed",
        whole(
            *(
                event({"choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": 5, "completion_tokens": n}})
                for n in (1, 2, 3)
            ),
            FINISH,
            usage(5, 3),
            DONE,
        ),
        Outcome.COMPLETED,
        3,
        3,
        "stop",
        "xxx",
    ),
    Case(
        "null usage does not erase",
        whole(ONE, usage(5, 1), event({"choices": [], "usage": None}), FINISH, DONE),
        Outcome.COMPLETED,
        1,
        1,
        "stop",
        "Hello",
    ),
    Case(
        "bad JSON in the middle",
        whole(ONE, b"data: {oops\n\n", b"data: 7\n\n", TWO, FINISH, DONE),
        Outcome.COMPLETED,
        2,
        None,
        "stop",
        "Hello world",
        error="2 events were not JSON",
    ),
    Case(
        "a strange field does not hide the token",
        whole(event({"choices": [{"delta": {"content": "x"}}], "usage": "no"}), FINISH, DONE),
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "x",
    ),
    Case(
        "an error inside a 200",
        whole(ONE, event({"error": {"message": "engine died", "code": 500}}), DONE),
        Outcome.ERROR_CHUNK,
        1,
        None,
        None,
        "Hello",
        error="engine died",
    ),
    Case(
        "an error of the older shape",
        whole(event({"object": "error", "message": "engine died"}), DONE),
        Outcome.ERROR_CHUNK,
        error="engine died",
    ),
    Case(
        "an error as an event type",
        whole(ONE, b'event: error\ndata: {"message": "died"}\n\n'),
        Outcome.ERROR_CHUNK,
        1,
        text="Hello",
        error="died",
    ),
    Case("an error that is only text", whole(event({"error": "boom"})), Outcome.ERROR_CHUNK, error="boom"),
    Case(
        "a null error is none",
        whole(event({"choices": [{"delta": {"content": "x"}}], "error": None}), FINISH, DONE),
        Outcome.COMPLETED,
        1,
        None,
        "stop",
        "x",
    ),
    Case("only [DONE]", whole(DONE), Outcome.EMPTY, error="no token"),
    Case(
        "finished without a token",
        whole(ROLE, FINISH, usage(5, 0), DONE),
        Outcome.EMPTY,
        0,
        0,
        "stop",
        error="no token",
    ),
    Case(
        "[DONE] missing", whole(ROLE, ONE, FINISH), Outcome.TRUNCATED, 1, None, "stop", "Hello", error="without [DONE]"
    ),
    Case("[DONE] twice", whole(*SOUND, DONE), Outcome.COMPLETED, 2, 2, "stop", "Hello world"),
    Case(
        "talk after [DONE] does not count",
        whole(*SOUND, TWO, usage(9, 9), event({"error": "late"})),
        Outcome.COMPLETED,
        2,
        2,
        "stop",
        "Hello world",
    ),
    Case("no finish reason", whole(ONE, DONE), Outcome.TRUNCATED, 1, text="Hello", error="without a finish reason"),
    Case(
        "the engine aborted",
        whole(ONE, delta(content="", finish="abort"), DONE),
        Outcome.TRUNCATED,
        1,
        None,
        "abort",
        "Hello",
        error="aborted",
    ),
    Case("the stream just stops, in good order", whole(ONE), Outcome.TRUNCATED, 1, text="Hello", error="finish reason"),
    Case(
        "an event that no blank line ended",
        whole(ONE, FINISH, b"data: [DONE]\n"),
        Outcome.TRUNCATED,
        1,
        None,
        "stop",
        "Hello",
        error="without [DONE]",
    ),
    Case("headers and no body", whole(), Outcome.TRUNCATED, error="without"),
    Case("headers and then nothing", STREAM_HEAD, Outcome.CONNECTION_LOST, error="after 0 tokens"),
    Case(
        "cut inside an event",
        STREAM_HEAD + chunked(ROLE, ONE) + b"ff\r\ndata: {",
        Outcome.CONNECTION_LOST,
        1,
        text="Hello",
        error="after 1 tokens",
    ),
    Case(
        "reset inside the body",
        STREAM_HEAD + chunked(ONE),
        Outcome.CONNECTION_LOST,
        1,
        text="Hello",
        error="reset",
        ends="reset",
    ),
    Case(
        "reset after [DONE]",
        STREAM_HEAD + chunked(*SOUND),
        Outcome.COMPLETED,
        2,
        2,
        "stop",
        "Hello world",
        ends="reset",
    ),
    Case(
        "[DONE] and an open connection",
        STREAM_HEAD + chunked(*SOUND),
        Outcome.COMPLETED,
        2,
        2,
        "stop",
        "Hello world",
        ends="open",
    ),
    Case(
        "content-length not reached",
        b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + ONE,
        Outcome.CONNECTION_LOST,
        1,
        text="Hello",
        error="within the body",
    ),
    Case("closed before an answer", b"", Outcome.CONNECTION_LOST, error="before an answer"),
    Case("cut inside the head", b"HTTP/1.1 200 OK\r\ncont", Outcome.CONNECTION_LOST, error="response head"),
    Case("not HTTP", b"SSH-2.0-OpenSSH_9.2\r\n", Outcome.CONNECTION_LOST, error="not an HTTP response"),
    Case("a broken chunk size", STREAM_HEAD + b"zz\r\n", Outcome.CONNECTION_LOST, error="chunk size"),
    Case("a negative chunk size", STREAM_HEAD + b"-5\r\n", Outcome.CONNECTION_LOST, error="chunk size"),
    Case("too long a chunk", STREAM_HEAD + b"3\r\nabcdef\r\n", Outcome.CONNECTION_LOST, error="longer than it said"),
    Case(
        "a redirect",
        b"HTTP/1.1 307 Moved\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n",
        Outcome.FAILED,
        error="redirects to /x",
    ),
    Case(
        "429", b"HTTP/1.1 429 No\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", Outcome.REFUSED, error="retry after 7"
    ),
    Case("503", b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}", Outcome.REFUSED, error="503"),
    Case(
        "400",
        b'HTTP/1.1 400 Bad\r\ncontent-length: 36\r\n\r\n{"error":{"message":"max_tokens":9}}',
        Outcome.REJECTED,
        error="400",
    ),
    Case(
        "404 of vLLM",
        b"HTTP/1.1 404 No\r\ncontent-length: 38\r\n\r\n" + b'{"error":{"message":"no such model"}} ',
        Outcome.REJECTED,
        error="HTTP 404: no such model",
    ),
    Case(
        "422 of FastAPI",
        b"HTTP/1.1 422 No\r\ncontent-length: 17\r\n\r\n" + b'{"detail": "bad"}',
        Outcome.REJECTED,
        error="bad",
    ),
    Case(
        "500 with HTML", b"HTTP/1.0 500 Oops\r\n\r\n<html>\n<b>nginx</b>", Outcome.FAILED, error="<html> <b>nginx</b>"
    ),
    Case(
        "502 cut short", b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 500\r\n\r\nbad ga", Outcome.FAILED, error="502"
    ),
    Case("204", b"HTTP/1.1 204 No Content\r\n\r\n", Outcome.FAILED, error="204"),
)
