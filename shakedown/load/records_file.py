"""requests.jsonl: one RequestRecord a line, each on its way to the disk when its request ends."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from shakedown.errors import HarnessError
from shakedown.judge.records import RequestRecord

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RequestRecord).decode


class RecordsFile:
    """Appends records. Each line is one write to the kernel, so a killed process loses nothing it recorded."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, record: RequestRecord) -> None:
        line = _encode(record) + b"\n"
        while line:  # a signal or a nearly full disk may cut a write short
            line = line[os.write(self._descriptor, line) :]

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> "RecordsFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_records(*paths: Path) -> Iterator[RequestRecord]:
    """The records of all files, in file order. A line that a killed writer left unfinished at the end is skipped."""
    for path in paths:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    yield _decode(line)
                except msgspec.DecodeError as error:
                    raise HarnessError(f"{path}:{number} is not a request record: {error}") from error


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write `records` as the whole file, replacing it only when all are written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.writelines(_encode(record) + b"\n" for record in records)
    unfinished.replace(path)
