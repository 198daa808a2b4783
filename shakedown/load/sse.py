"""Server-sent events out of bytes, however the bytes are cut.

Follows the event-stream grammar of the WHATWG HTML standard: lines end with LF, CR or CRLF and with nothing else, a
leading byte order mark is dropped, comments are ignored, one space after the colon is dropped, and an event that no
blank line ended is never dispatched. Everything is done on bytes: in UTF-8 no byte of a longer character looks like a
line end, so a character that two reads share needs no special care.
"""

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One dispatched event."""

    data: bytes
    event: bytes = b""


class SseParser:
    """Feed it bytes, get the events they complete."""

    __slots__ = ("_data_lines", "_event", "_mark_checked", "_skip_line_feed", "_tail", "comments")

    def __init__(self) -> None:
        self._tail = b""
        self._data_lines: list[bytes] = []
        self._event = b""
        self._mark_checked = False
        self._skip_line_feed = False
        self.comments = 0
        """Comment lines seen: heartbeats, mostly."""

    @property
    def between_events(self) -> bool:
        """Nothing of an event has come that is not dispatched yet."""
        return not (self._tail or self._data_lines or self._event or self._skip_line_feed) and self._mark_checked

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes, in order."""
        if self._is_whole_events(chunk):
            return self._whole_events(chunk)
        return self._any_bytes(chunk)

    def _is_whole_events(self, chunk: bytes) -> bool:
        """The common case, worth a path of its own: one read holds whole events with plain line feeds."""
        return chunk.endswith(b"\n\n") and b"\r" not in chunk and self.between_events

    def _whole_events(self, chunk: bytes) -> list[SseEvent]:
        events = []
        for part in chunk[:-2].split(b"\n\n"):
            if part.startswith(b"data: ") and b"\n" not in part:
                events.append(SseEvent(part[6:]))
            else:
                for line in part.split(b"\n"):
                    self._take_line(line, events)
                self._take_line(b"", events)
        return events

    def _any_bytes(self, chunk: bytes) -> list[SseEvent]:
        buffered = self._tail + chunk
        if self._skip_line_feed and buffered:
            self._skip_line_feed = False
            buffered = buffered.removeprefix(b"\n")
        if not self._mark_checked:
            if len(buffered) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(buffered):
                self._tail = buffered
                return []
            self._mark_checked = True
            buffered = buffered.removeprefix(_BYTE_ORDER_MARK)
        # A CR ends its line now; if an LF follows in the next read, it belongs to that CR.
        self._skip_line_feed = self._skip_line_feed or buffered.endswith(b"\r")
        *lines, self._tail = _LINE_END.split(buffered)
        events: list[SseEvent] = []
        for line in lines:
            self._take_line(line, events)
        return events

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        if not line:
            if self._data_lines:
                events.append(SseEvent(b"\n".join(self._data_lines), self._event))
            self._data_lines, self._event = [], b""
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data_lines.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.removeprefix(b" ")
        elif not name:
            self.comments += 1
