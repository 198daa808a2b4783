"""The block structure of an nginx configuration: directives, and blocks in blocks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{};]|(?:\$\{[^}]*\}|\\.|[^\s{};"'#\\])+|\S""")
TIME = re.compile(r"(\d+)(ms|s|m|h|d|)")
SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LOOKS_LIKE_NGINX = re.compile(r"^\s*(proxy_pass\s|upstream\s+\S+\s*\{|server\s*\{|location\s)", re.M)


class NotNginx(ValueError):
    """The braces do not match."""


@dataclass(slots=True, eq=False)
class Block:
    """One block, such as `location / { … }`; the file itself is the block without a name."""

    words: tuple[str, ...] = ()
    directives: list[tuple[str, ...]] = field(default_factory=list)
    blocks: list["Block"] = field(default_factory=list)
    parent: "Block | None" = None

    @property
    def name(self) -> str:
        return self.words[0] if self.words else ""

    def here(self, directive: str) -> list[tuple[str, ...]]:
        """The arguments of each use of a directive in this very block."""
        return [words[1:] for words in self.directives if words[0] == directive]

    def effective(self, directive: str) -> list[tuple[str, ...]]:
        """As nginx inherits: the innermost block that uses a directive decides."""
        return next((found for block in self.outward() if (found := block.here(directive))), [])

    def value(self, directive: str, default: str) -> str:
        """The last effective argument list, as one string."""
        found = self.effective(directive)
        return " ".join(found[-1]) if found else default

    def outward(self) -> Iterator["Block"]:
        """This block and those around it."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent

    def walk(self) -> Iterator["Block"]:
        yield self
        for block in self.blocks:
            yield from block.walk()

    @property
    def path(self) -> str:
        """Its names from the outside in: "server, location /"."""
        names = [" ".join(block.words) for block in self.outward() if block.name not in ("", "http")]
        return ", ".join(reversed(names))


def parse(text: str) -> Block:
    """Read a configuration. Raises NotNginx if its braces do not match."""
    current = Block()
    words: list[str] = []
    for token in TOKEN.findall(text):
        if token.startswith("#"):
            continue
        if token not in ("{", "}", ";"):
            words.append(_unquoted(token))
            continue
        current = _structure(current, token, tuple(words))
        words = []
    if current.parent is not None:
        raise NotNginx(f"the block {current.path or current.name} is not closed")
    return current


def _structure(current: Block, token: str, words: tuple[str, ...]) -> Block:
    """Take in what stands before a brace or a semicolon; returns the block that goes on."""
    if token == "{":
        inner = Block(words=words, parent=current)
        current.blocks.append(inner)
        return inner
    if words:
        current.directives.append(words)
    if token == ";":
        return current
    if current.parent is None:
        raise NotNginx("a } without its {")
    return current.parent


def seconds(value: str) -> float | None:
    """ "1m30s" in seconds; None for what is no time."""
    parts = TIME.findall(value)
    whole = "".join(number + unit for number, unit in parts)
    return sum(int(number) * SECONDS[unit] for number, unit in parts) if parts and whole == value else None


def _unquoted(token: str) -> str:
    return token[1:-1] if len(token) > 1 and token[0] == token[-1] and token[0] in "\"'" else token
