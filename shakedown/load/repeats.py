"""The chunk that comes again and again: the same bytes as before but for the text of the token.

Nearly every read of a stream is one HTTP chunk with one event that differs from the previous one in nothing but its
content. Such a read says "one more token" and nothing else, which two comparisons and one match can see, at a fifth of
the cost of framing, splitting and decoding it (figures in docs/load.md). Anything that is not exactly so takes the
general path; the fuzz tests prove that both read the same.
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
    def of(cls, data: bytes, content: str) -> "RepeatedChunk | None":
        """The shape of `data`, which is known to hold one event whose only news is `content`; None if it has none."""
        size, separator, rest = data.partition(b"\r\n")
        places = list(_CONTENT.finditer(rest))
        if not separator or len(places) != 1 or size != b"%x" % (len(rest) - 2):
            return None
        text_from = places[0].end()
        text_to = text_from + len(_encode(content)) - 2
        if rest[text_from - 1 : text_to + 1] != _encode(content):
            return None
        return cls(rest[:text_from], rest[text_to:])

    def matches(self, data: bytes) -> bool:
        """Whether `data` is that chunk with another, non-empty text."""
        size = len(data)
        prefix = self._prefixes.get(size)
        if prefix is None:
            prefix = self._prefixes[size] = self._prefix_of(size)
        end = self._end
        return (
            data.startswith(prefix)
            and data.endswith(end)
            and _PLAIN_TEXT.fullmatch(data, len(prefix), size - len(end)) is not None
        )

    def _prefix_of(self, size: int) -> bytes:
        """How a chunk of `size` bytes, its size line included, has to begin."""
        for digits in range(1, 9):
            line = b"%x\r\n" % max(0, size - digits - 4)
            if len(line) == digits + 2:
                return line + self._start
        return b"\xff"
