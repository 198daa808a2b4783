"""Shakedown and its peers against one canned server, one after another, on the same two cores.

    uv run python benchmarks/load_generators.py [--only NAME]... [--streams 250,500] [--equality] [--earlier FILE]...

The server (benchmarks/canned_server.c, pinned to the first core) streams 100 tokens at 20 ms each to everybody, so a
stream lasts two seconds. The client (pinned to the second core) opens N / 2 of them a second at equal distances, which
keeps N open. Chunks are counted, and first tokens and gaps are timed, by the server as well as by the client.

A level is sustained when
- requests were sent on time: 99th percentile of schedule lag under 10 ms, by the tool's own figure where it has one
  *and* by the server's clock where the tool's schedule is even (the k-th arrival is due k / rate after the first);
- at least 95 % of the chunks that N streams make (50 N a second) were served;
- the tool saw them in time: its median TTFT is within 10 ms of the server's. A client that is late measures itself.

Peers come from PyPI into environments of their own (benchmarks/peers.toml), `vllm bench serve` out of the engine's.
What cannot be installed or run is in the table with the reason. The last line of the output is one JSON object;
`--earlier` takes files with such a line, so that tools measured apart come into one table.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.canned import CHUNKS_PER_STREAM_S, STREAM_S, CannedServer, ServerClock, compiled
from benchmarks.cores import CoreWatch
from benchmarks.equality import Equality, compare
from benchmarks.tools import TOOLS, NotRun, Place, Said, Tool
from shakedown.engine.environment import EngineEnvironment, ensure_environment
from shakedown.waiting import wait_until

LASTS_S = 10.0
ENDS_WITHIN_S = 120.0
LAG_P99_MS, SERVED_SHARE, BIAS_MS = 10.0, 0.95, 10.0
BIAS_STREAMS = 500
DISTURBED_SHARE = 0.2
"""Of a core, used by others: no run begins so, and one that was run so is repeated."""
RUNS = 2
LOOKS_S, QUIET_WITHIN_S = 1.0, 120.0
SERVER_CORE, CLIENT_CORE = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One tool at one number of streams."""

    streams: int
    chunks_per_s: float
    said: Said
    server_ttft_p50_ms: float | None
    server_ttft_p99_ms: float | None
    server_itl_p50_ms: float | None
    server_itl_p99_ms: float | None
    server_late_share: float
    schedule_lag_p99_ms: float | None
    """By the server's clock; None for a schedule that is not even."""
    cpu_share: float
    """Of its core, by all of its processes, while requests arrived."""
    others_cpu: float
    """Cores that neither tool nor server used, on average."""
    load_average_before: float

    @property
    def offered_per_s(self) -> float:
        return self.streams * CHUNKS_PER_STREAM_S

    @property
    def lag_ms(self) -> float | None:
        """The worse of what the tool says and what the server saw."""
        return max(
            (lag for lag in (self.said.schedule_lag_p99_ms, self.schedule_lag_p99_ms) if lag is not None), default=None
        )

    @property
    def ttft_bias_ms(self) -> float | None:
        """Client's median less server's."""
        if self.said.ttft_p50_ms is None or self.server_ttft_p50_ms is None:
            return None
        return self.said.ttft_p50_ms - self.server_ttft_p50_ms

    @property
    def missed(self) -> tuple[str, ...]:
        """What kept the level from being sustained."""
        lag, bias = self.lag_ms, self.ttft_bias_ms
        checks = {
            "lag": lag is not None and lag < LAG_P99_MS,
            "chunks": self.chunks_per_s >= SERVED_SHARE * self.offered_per_s,
            "TTFT": bias is not None and abs(bias) <= BIAS_MS,
        }
        return tuple(name for name, met in checks.items() if not met)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        derived = {"offered_per_s": self.offered_per_s, "ttft_bias_ms": self.ttft_bias_ms, "missed": self.missed}
        return {**asdict(self), **derived, "sustained": not self.missed}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Level":
        """Back from JSON."""
        fields = {name: plain[name] for name in cls.__dataclass_fields__}
        return cls(**{**fields, "said": Said(**plain["said"])})


Results = dict[str, list[Level] | str]
"""Levels of each tool, ascending, or why there are none."""


def measured(tool: Tool, streams: int, program: Path, engine: EngineEnvironment) -> Level:
    """Run a tool, and again if it missed or if something else used the cores: the best of the runs counts.

    Raises NotRun with its last words.
    """
    levels: list[Level] = []
    while not levels or (len(levels) < RUNS and (levels[-1].missed or levels[-1].others_cpu > DISTURBED_SHARE)):
        levels.append(measured_once(tool, streams, program, engine))
        print(f"{line_of(tool.name, levels[-1])} others {levels[-1].others_cpu:.2f}", file=sys.stderr)
    return min(levels, key=lambda level: (len(level.missed), level.lag_ms or 0.0))


def measured_once(tool: Tool, streams: int, program: Path, engine: EngineEnvironment) -> Level:
    asyncio.run(wait_until("the machine to be quiet", others_now, quiet, within_s=QUIET_WITHIN_S))
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        with CoreWatch() as cores, CannedServer(program, core=str(SERVER_CORE)) as server:
            place = Place(url=server.url, rate=streams / STREAM_S, lasts_s=LASTS_S, scratch=Path(folder), engine=engine)
            ended = finished(tool, place)
        try:
            said = tool.said(Path(folder), ended.stdout)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise NotRun(f"gave no figures ({error!r:.80}); it said: {ended.last_words}") from error
    clock = server.clock
    assert clock is not None
    return level_of(tool, streams, said, clock, cores, ended.pid, load_average)


async def others_now() -> float:
    """Cores in use while nothing of ours runs."""
    with CoreWatch() as cores:
        await asyncio.sleep(LOOKS_S)
    return cores.others_cpu


def quiet(others_cpu: float) -> bool:
    return others_cpu <= DISTURBED_SHARE


def level_of(
    tool: Tool, streams: int, said: Said, clock: ServerClock, cores: CoreWatch, pid: int, load_average: float
) -> Level:
    if not clock.asked_s:
        raise NotRun("sent no request")
    return Level(
        streams=streams,
        chunks_per_s=clock.chunks_per_s,
        said=said,
        server_ttft_p50_ms=clock.ttft_p50_ms,
        server_ttft_p99_ms=clock.ttft_p99_ms,
        server_itl_p50_ms=clock.itl_p50_ms,
        server_itl_p99_ms=clock.itl_p99_ms,
        server_late_share=clock.late_share,
        schedule_lag_p99_ms=clock.schedule_lag_p99_ms(streams / STREAM_S) if tool.keeps_even_schedule else None,
        cpu_share=cores.cpu_share(pid, clock.scheduled()[0] + STREAM_S, clock.asked_s[-1]),
        others_cpu=cores.others_cpu,
        load_average_before=load_average,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A tool's run."""

    stdout: str
    last_words: str
    pid: int


def finished(tool: Tool, place: Place) -> Ended:
    """Run a tool on its core to its end. Raises NotRun if it does not end."""
    command = ["taskset", "-c", str(CLIENT_CORE), *tool.command(place)]
    env = {**os.environ, "HF_HOME": str(place.scratch / "hf"), **tool.env}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=place.scratch,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=place.lasts_s + ENDS_WITHIN_S)
        except subprocess.TimeoutExpired as late:
            os.killpg(process.pid, signal.SIGKILL)
            raise NotRun(f"did not end within {late.timeout:g} s") from late
    said = (stderr or stdout).strip().splitlines() or ["nothing"]
    return Ended(stdout=stdout, last_words=said[-1][:200], pid=process.pid)


def climb(tool: Tool, levels: Sequence[int], program: Path, engine: EngineEnvironment) -> list[Level] | str:
    """Level by level until one is not sustained."""
    found: list[Level] = []
    for streams in levels:
        try:
            found.append(measured(tool, streams, program, engine))
        except NotRun as why:
            print(f"{tool.name} at {streams}: {why}", file=sys.stderr)
            return found or str(why)
        if found[-1].missed:
            break
    return found


def table(results: Results) -> str:
    """Markdown."""
    lines = [
        "| tool | streams | chunks/s | TTFT p50 / p99 ms | the server's | ITL p50 / p99 ms | the server's "
        "| TTFT bias ms | schedule lag p99 ms | CPU | sustained |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, levels in results.items():
        if isinstance(levels, str):
            lines.append(f"| {name} | – | – | – | – | – | – | – | – | – | not run: {levels} |")
        else:
            lines += [line_of(name, level) for level in levels]
    return "\n".join(lines)


def line_of(name: str, level: Level) -> str:
    said = level.said
    cells = (
        name,
        f"{level.streams:,}",
        f"{level.chunks_per_s:,.0f} ({level.chunks_per_s / level.offered_per_s:.0%})",
        f"{ms(said.ttft_p50_ms)} / {ms(said.ttft_p99_ms)}",
        f"{ms(level.server_ttft_p50_ms)} / {ms(level.server_ttft_p99_ms)}",
        f"{ms(said.itl_p50_ms)} / {ms(said.itl_p99_ms)}",
        f"{ms(level.server_itl_p50_ms)} / {ms(level.server_itl_p99_ms)}",
        ms(level.ttft_bias_ms, digits=2),
        ms(level.lag_ms, digits=2),
        f"{level.cpu_share:.0%}",
        f"no: {', '.join(level.missed)}" if level.missed else "yes",
    )
    return f"| {' | '.join(cells)} |"


def ms(value: float | None, *, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def best(levels: list[Level] | str) -> int:
    """The highest sustained number of streams; 0 if none was."""
    return 0 if isinstance(levels, str) else max((level.streams for level in levels if not level.missed), default=0)


def summary(results: Results, equality: Equality | None) -> dict[str, Any]:
    """The last line of the output."""
    ours = results.get("shakedown", [])
    theirs = max((best(levels) for name, levels in results.items() if name != "shakedown"), default=0)
    at_bias = [level.ttft_bias_ms for level in ours if not isinstance(level, str) and level.streams == BIAS_STREAMS]
    return {
        "tools": {
            name: levels if isinstance(levels, str) else [level.plain() for level in levels]
            for name, levels in results.items()
        },
        "highest_sustained_streams": {name: best(levels) for name, levels in results.items()},
        "shakedown_times_best_peer": best(ours) / theirs if theirs else None,
        "shakedown_ttft_bias_ms_at_500_streams": at_bias[0] if at_bias else None,
        "equality": None if equality is None else asdict(equality),
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


def earlier(paths: Sequence[Path]) -> tuple[Results, Equality | None]:
    """What other runs found, by their last lines."""
    results: Results = {}
    equality = None
    for path in paths:
        said = json.loads(path.read_text().strip().splitlines()[-1])
        for name, levels in said["tools"].items():
            results[name] = levels if isinstance(levels, str) else [Level.of(level) for level in levels]
        equality = Equality.of(said["equality"]) if said["equality"] else equality
    return results, equality


def main() -> int:
    os.sched_setaffinity(0, {SERVER_CORE})  # what watches must not disturb what is measured
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*(tool.name for tool in TOOLS), "none"])
    parser.add_argument(
        "--streams", default="50,100,150,200,250,300,400,500,600,750,1000,1250,1500,2000", help="levels, ascending"
    )
    parser.add_argument("--equality", action="store_true", help="hold Shakedown's numbers against vLLM's arithmetic")
    parser.add_argument("--earlier", action="append", type=Path, default=[], help="output of a run before this one")
    options = parser.parse_args()
    engine = asyncio.run(ensure_environment(report=lambda line: print(line, file=sys.stderr)))
    results, equality = earlier(options.earlier)
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        for tool in TOOLS:
            if not options.only or tool.name in options.only:
                results[tool.name] = climb(tool, [int(word) for word in options.streams.split(",")], program, engine)
        if options.equality:
            equality = compare(program, engine, lambda tool, place: finished(tool, place).stdout)
    results = {tool.name: results[tool.name] for tool in TOOLS if tool.name in results}
    print(table(results))
    if equality is not None:
        print(f"\n{equality.table()}")
    print(json.dumps(summary(results, equality)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
