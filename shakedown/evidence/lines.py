"""Append-only files of one JSON object a line, and reading them back after the writer was killed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec

T = TypeVar("T")


class LineWriter:
    """Appends values. Each line is on its way to the kernel when `append` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A line that a killed writer left unfinished must not swallow the next one.
        self._torn = path.exists() and not _ends_with_newline(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, value: Any) -> None:
        line = (b"\n" if self._torn else b"") + msgspec.json.encode(value) + b"\n"
        self._torn = False
        while line:
            line = line[os.write(self._descriptor, line) :]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Lines(Generic[T]):
    """What a file held."""

    values: tuple[T, ...]
    torn: int
    """Lines that a killed writer left unfinished."""
    unreadable: tuple[str, ...]
    """One sentence for each whole line that is not what it should be."""


def read_lines(paths: Iterable[Path], type_: type[T]) -> Lines[T]:
    """Read files in order. A missing file holds nothing; a torn last line is counted and left out."""
    decode = msgspec.json.Decoder(type_).decode
    values: list[T] = []
    unreadable: list[str] = []
    torn = 0
    for path in paths:
        if not path.exists():
            continue
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            try:
                values.append(decode(line))
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):
                    torn += 1
                elif line.strip():
                    unreadable.append(f"line {number} of {path.name} cannot be read: {error}")
    return Lines(tuple(values), torn, tuple(unreadable))


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
