"""The chunk that comes again and again: the same bytes as before but for the text of the token.

Nearly every read of a stream is one HTTP chunk with one event that differs from the previous one in nothing but its
content. Such a read says "one more token" and nothing else, which two comparisons and one match can see, at a fifth of
the cost of framing, splitting and decoding it (figures in docs/load.md). A client that fell behind finds several in one
read, and must not pay more for each just then. Anything that is not exactly so takes the general path; the fuzz tests
prove that both read the same.
"""

import re

import msgspec

_CONTENT = re.compile(rb'"content": ?"')
_PLAIN_TEXT = re.compile(rb'[^"\\\x00-\x1f]+')
_encode = msgspec.json.Encoder().encode


class RepeatedChunk:
    """Recognises reads of one shape."""

    __slots__ = ("_end", "_prefixes", "_start")

    def __init__(self, start: bytes, end: bytes) -> None:
        self._start = start
        self._end = end
        self._prefixes: dict[int, bytes] = {}

    @classmethod
    def last_of(cls, data: bytes, event: bytes, content: str) -> "RepeatedChunk | None":
        """The shape of the chunk that ends `data`, if it holds nothing but `event`, whose only news is `content`."""
        chunk = b"data: %b\n\n\r\n" % event
        size_line = b"%x\r\n" % (len(chunk) - 2)
        before = len(data) - len(chunk) - len(size_line)
        if not data.endswith(size_line + chunk) or not (before == 0 or data.endswith(b"\r\n", 0, before)):
            return None
        places = list(_CONTENT.finditer(chunk))
        if len(places) != 1:
            return None
        text_from = places[0].end()
        text_to = text_from + len(_encode(content)) - 2
        if chunk[text_from - 1 : text_to + 1] != _encode(content):
            return None
        return cls(chunk[:text_from], chunk[text_to:])

    def count(self, data: bytes) -> int:
        """How many such chunks, each with a text of its own that is not empty, `data` is; 0 if it is anything else."""
        end = self._end
        if not data.endswith(end):
            return 0
        if self._is_start(data, len(data) - len(end)):
            return 1
        # The end begins with the quote that closes the text, so that it comes once a chunk.
        starts = data.split(end)[:-1]
        return len(starts) if all(self._is_start(start, len(start)) for start in starts) else 0

    def _is_start(self, data: bytes, size: int) -> bool:
        """Whether the first `size` bytes of `data` are such a chunk without its end."""
        prefix = self._prefixes.get(size)
        if prefix is None:
            prefix = self._prefixes[size] = self._prefix_of(size + len(self._end))
        return data.startswith(prefix) and _PLAIN_TEXT.fullmatch(data, len(prefix), size) is not None

    def _prefix_of(self, size: int) -> bytes:
        """How a chunk of `size` bytes, its size line included, has to begin."""
        for digits in range(1, 9):
            line = b"%x\r\n" % max(0, size - digits - 4)
            if len(line) == digits + 2:
                return line + self._start
        return b"\xff"
