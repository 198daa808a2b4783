"""The frame of one HTTP/1.1 response: status, headers, and where its body ends. Pure; no I/O.

Written for the one thing the load client needs, because it is several times cheaper per streamed chunk than a general
client (figures in docs/load.md).
"""

from enum import Enum

HEAD_LIMIT_BYTES = 64 * 1024
CHUNK_LINE_LIMIT_BYTES = 1024


class MalformedResponse(ValueError):
    """The peer does not speak HTTP/1.1."""


class Body(Enum):
    """How the end of the body is told."""

    UNKNOWN = "no head yet"
    NONE = "no body"
    LENGTH = "content-length"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


class ChunkedBody:
    """Takes the chunked transfer coding off a body."""

    __slots__ = ("_awaits", "_buffer", "_remaining", "complete")

    def __init__(self) -> None:
        self.complete = False
        self._buffer = b""
        self._remaining = 0
        self._awaits = _Line.SIZE

    def feed(self, data: bytes) -> bytes:
        """The content in `data`. Raises MalformedResponse."""
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        parts = []
        position, end = 0, len(data)
        while position < end and not self.complete:
            if self._remaining:
                part = data[position : position + self._remaining]
                parts.append(part)
                position += len(part)
                self._remaining -= len(part)
                continue
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._keep(data[position:])
                break
            self._take_line(data[position:line_end])
            position = line_end + 2
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def between_chunks(self) -> bool:
        return self._awaits is _Line.SIZE and not self._remaining and not self._buffer

    def _keep(self, unfinished_line: bytes) -> None:
        if len(unfinished_line) > CHUNK_LINE_LIMIT_BYTES:
            raise MalformedResponse("a line of the chunked coding has no end")
        self._buffer = unfinished_line

    def _take_line(self, line: bytes) -> None:
        if self._awaits is _Line.SIZE:
            self._remaining = _chunk_size(line)
            self._awaits = _Line.CLOSING if self._remaining else _Line.TRAILER
        elif self._awaits is _Line.TRAILER:
            self.complete = not line
        elif line:
            raise MalformedResponse("a chunk is longer than it said")
        else:
            self._awaits = _Line.SIZE


class ResponseFrame:
    """Feed it bytes, get body bytes."""

    __slots__ = ("_buffer", "_chunked", "_remaining", "body", "complete", "headers", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        """Names in lower case; of a repeated header the last value."""
        self.body = Body.UNKNOWN
        self.complete = False
        """The body has ended as its framing says it does."""
        self._buffer = b""
        self._remaining = 0
        self._chunked = ChunkedBody()

    def feed(self, data: bytes) -> bytes:
        """The body bytes that `data` yields. Raises MalformedResponse."""
        if self.body is Body.CHUNKED:
            content = self._chunked.feed(data)
            self.complete = self._chunked.complete
            return content
        if self.body is Body.UNKNOWN:
            rest = self._head(data)
            return self.feed(rest) if rest else b""
        if self.body is Body.LENGTH:
            content = data[: self._remaining]
            self._remaining -= len(content)
            self.complete = self._remaining == 0
            return content
        return data if self.body is Body.UNTIL_CLOSE else b""

    @property
    def between_chunks(self) -> bool:
        """The body is chunked and the last chunk is whole."""
        return self.body is Body.CHUNKED and self._chunked.between_chunks

    def end_of_stream(self) -> bool:
        """The peer closed: whether that is where this response may end."""
        if self.body is Body.UNTIL_CLOSE:
            self.complete = True
        return self.complete

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request."""
        wants_close = self.headers.get("connection", "").lower() == "close"
        return self.complete and self.body is not Body.UNTIL_CLOSE and not wants_close

    def _head(self, data: bytes) -> bytes:
        """What follows the head, once there is a whole one."""
        rest = self._buffer + data
        while True:
            head, separator, after = rest.partition(b"\r\n\r\n")
            if not separator:
                self._keep_head(rest)
                return b""
            rest = after
            status, headers = _parsed_head(head)
            if not 100 <= status < 200:  # informational answers precede the real one
                break
        self._buffer = b""
        self.status, self.headers = status, headers
        self._decide_body()
        return rest

    def _keep_head(self, unfinished: bytes) -> None:
        if len(unfinished) > HEAD_LIMIT_BYTES:
            raise MalformedResponse("the response head has no end")
        if not unfinished.startswith(b"HTTP/"[: len(unfinished)]):
            raise MalformedResponse(f"not an HTTP response: {unfinished[:60]!r}")
        self._buffer = unfinished

    def _decide_body(self) -> None:
        if self.status in (204, 304):
            self.body, self.complete = Body.NONE, True
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self.body = Body.CHUNKED
        elif (length := self.headers.get("content-length")) is not None:
            if not length.isdecimal():
                raise MalformedResponse(f"content-length is {length[:40]!r}")
            self.body, self._remaining = Body.LENGTH, int(length)
            self.complete = self._remaining == 0
        else:
            self.body = Body.UNTIL_CLOSE


class _Line(Enum):
    """What the next line of a chunked body is."""

    SIZE = "chunk size"
    CLOSING = "end of a chunk's content"
    TRAILER = "trailer"


def _chunk_size(line: bytes) -> int:
    digits = line if line.isalnum() else line.partition(b";")[0].strip()
    try:
        if digits.isalnum():  # int() would take signs and underscores too
            return int(digits, 16)
    except ValueError:
        pass
    raise MalformedResponse(f"chunk size is {line[:40]!r}")


def _parsed_head(head: bytes) -> tuple[int, dict[str, str]]:
    status_line, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not code.isdecimal() or len(code) != 3:
        raise MalformedResponse(f"not an HTTP response: {status_line[:60]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(code), headers
