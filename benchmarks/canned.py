"""The canned server on its core, and what truly happened by its clock."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from shakedown.judge.percentiles import percentile

SOURCE = Path(__file__).with_name("canned_server.c")
TOKENS, STEP_MS = 100, 20
STREAM_S = TOKENS * STEP_MS / 1000
CHUNKS_PER_STREAM_S = 1000 / STEP_MS
STOPS_WITHIN_S = 20.0
WARM_UPS, WARM_UP_GAP_S = 5, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerClock:
    """One run as the server saw it. CLOCK_MONOTONIC of this machine."""

    asked_s: tuple[float, ...]
    """When each request had been read whole, ascending."""
    chunks_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    """First token written, less request read."""
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    late_share: float
    """Chunks that it wrote itself more than 5 ms after they were due."""

    @classmethod
    def of(cls, said: dict[str, Any]) -> "ServerClock":
        """Of the JSON object that the server prints at its end."""
        begun = [(asked, first) for asked, first, _ in said["streams"] if first]
        ttfts_ms = [(first - asked) / 1000 for asked, first in begun]
        return cls(
            asked_s=tuple(sorted(asked / 1e6 for asked, _, _ in said["streams"])),
            chunks_per_s=steady_chunks_per_s(said["per_half_second"]),
            ttft_p50_ms=percentile(ttfts_ms, 50),
            ttft_p99_ms=percentile(ttfts_ms, 99),
            itl_p50_ms=of_histogram(said["gaps"], said["gap_us"] / 1000, 50),
            itl_p99_ms=of_histogram(said["gaps"], said["gap_us"] / 1000, 99),
            late_share=said["late_chunks"] / max(said["chunks"], 1),
        )

    def scheduled(self) -> tuple[float, ...]:
        """The arrivals without a tool's warm-up: a few requests at the start, then a pause."""
        for index, (earlier, later) in enumerate(pairwise(self.asked_s[: WARM_UPS + 1]), start=1):
            if later - earlier > WARM_UP_GAP_S:
                return self.asked_s[index:]
        return self.asked_s

    def schedule_lag_p99_ms(self, rate: float) -> float | None:
        """How late requests arrived for a schedule of `rate` a second at equal distances; 99th percentile.

        The k-th arrival was due k / rate after the schedule began; it began when the arrival that was earliest by this
        count says. The first stream's length is left out: a client may warm up.
        """
        late = [at - index / rate for index, at in enumerate(self.scheduled())]
        settled = late[int(rate * STREAM_S) :]
        p99 = percentile(settled, 99)
        return None if p99 is None else (p99 - min(late)) * 1000


class CannedServer:
    """`with CannedServer(program, core="0") as server: …`; `server.clock` afterwards."""

    def __init__(self, program: Path, *, core: str) -> None:
        self._command = ["taskset", "-c", core, str(program), "0", str(TOKENS), str(STEP_MS), str(STEP_MS)]
        self.port = 0
        self.clock: ServerClock | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "CannedServer":
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said.startswith("listening on "):
            self._process.communicate()
            raise RuntimeError("the canned server did not start; its own words are above")
        self.port = int(said.split()[-1])
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._process.terminate()
        try:
            said, _unused = self._process.communicate(timeout=STOPS_WITHIN_S)
        finally:
            self._process.kill()
        if kind is None:
            self.clock = ServerClock.of(json.loads(said))


def compiled(folder: Path) -> Path:
    """The server's program, built into a folder."""
    program = folder / "canned_server"
    subprocess.run(["cc", "-O2", "-o", program, SOURCE], check=True)
    return program


def steady_chunks_per_s(per_half_second: Sequence[int]) -> float:
    """Median of the middle half of the half seconds in which chunks flowed."""
    flowing = [count for count in per_half_second if count]
    quarter = len(flowing) // 4
    middle = flowing[quarter : len(flowing) - quarter] or flowing
    return 2 * (percentile(middle, 50) or 0.0)


def of_histogram(counts: Sequence[int], width: float, q: float) -> float | None:
    """The q-th percentile of a histogram from 0 on, as the middle of its bucket; None of nothing."""
    wanted, seen = sum(counts) * q / 100, 0
    for bucket, count in enumerate(counts):
        seen += count
        if count and seen >= wanted:
            return (bucket + 0.5) * width
    return None
