"""Shakedown's numbers beside those of `vllm bench serve`, where a difference can only come from a definition.

Twice: one run's records in vLLM's own arithmetic (vllm.benchmarks.serve.calculate_metrics), which must give the same to
the hundredth of a millisecond that it prints; and a run of each at the same low rate against the same server.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.canned import STREAM_S, CannedServer
from benchmarks.tools import OFFLINE, SHAKEDOWN, VLLM, Place, Tool, number_at
from shakedown.engine.environment import EngineEnvironment

STREAMS, LASTS_S = 50, 10.0
PRINTED_TO = 0.01
"""vLLM prints two decimals."""
LATENCIES = {"TTFT": ("ttft", "ttft"), "TPOT": ("tpot", "tpot"), "ITL": ("itl", "itl"), "E2E": ("e2e", "e2el")}
SPREAD = {"mean": "mean_s", "p50": "p50_s", "p99": "p99_s"}
VLLM_ARITHMETIC = """
import json, sys
from itertools import pairwise
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics
records = [json.loads(line) for line in open(sys.argv[1])]
outputs = [
    RequestFuncOutput(
        success=True, start_time=record["due_at"], output_tokens=record["completion_tokens"],
        ttft=record["token_times"][0] - record["due_at"], latency=record["finished_at"] - record["due_at"],
        itl=[later - earlier for earlier, later in pairwise(record["token_times"])], prompt_len=record["prompt_tokens"],
    )
    for record in records
]
lasted = max(record["finished_at"] for record in records) - min(record["due_at"] for record in records)
found, _ = calculate_metrics([], outputs, lasted, None, [50, 99], {})
told = {"request_throughput": found.request_throughput, "output_throughput": found.output_throughput}
for name in ("ttft", "tpot", "itl", "e2el"):
    told[f"mean_{name}_ms"] = getattr(found, f"mean_{name}_ms")
    told.update({f"p{at:g}_{name}_ms": value for at, value in getattr(found, f"percentiles_{name}_ms")})
print(json.dumps({name: float(value) for name, value in told.items()}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number; milliseconds, or a rate."""

    name: str
    shakedown: float
    vllm_arithmetic: float
    """vLLM's formulas on Shakedown's records."""
    vllm_run: float
    """What `vllm bench serve` says of a run of its own."""

    @property
    def equal(self) -> bool:
        """Within what vLLM prints."""
        return abs(self.shakedown - self.vllm_arithmetic) <= PRINTED_TO


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """All numbers of one comparison."""

    streams: int
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Equality":
        """Back from JSON."""
        return cls(streams=plain["streams"], rows=tuple(Row(**row) for row in plain["rows"]))

    def table(self) -> str:
        """Markdown."""
        head = (
            "| equality | shakedown | vLLM's arithmetic, same records | equal | a run of `vllm bench serve` |",
            "|---|---|---|---|---|",
        )
        rows = (
            f"| {row.name} | {row.shakedown:,.2f} | {row.vllm_arithmetic:,.2f} | {'yes' if row.equal else 'no'} "
            f"| {row.vllm_run:,.2f} |"
            for row in self.rows
        )
        return "\n".join((*head, *rows))


def compare(program: Path, engine: EngineEnvironment, finished: Callable[[Tool, Place], str]) -> Equality:
    """Run both tools at a low rate. `finished` runs a tool to its end and gives its output."""
    with tempfile.TemporaryDirectory() as folder:
        said = {}
        for tool in (SHAKEDOWN, VLLM):
            with CannedServer(program, core="0") as server:
                place = Place(
                    url=server.url, rate=STREAMS / STREAM_S, lasts_s=LASTS_S, scratch=Path(folder), engine=engine
                )
                said[tool.name] = finished(tool, place)
        arithmetic = subprocess.run(
            [engine.venv / "bin" / "python", "-c", VLLM_ARITHMETIC, Path(folder) / "records.jsonl"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **OFFLINE, "VLLM_TARGET_DEVICE": "cpu"},
        ).stdout
        return Equality(
            streams=STREAMS,
            rows=rows_of(
                json.loads(said[SHAKEDOWN.name].strip().splitlines()[-1])["summary"],
                json.loads(arithmetic.strip().splitlines()[-1]),
                json.loads((Path(folder) / "vllm.json").read_text()),
            ),
        )


def rows_of(ours: dict[str, Any], arithmetic: dict[str, Any], run: dict[str, Any]) -> tuple[Row, ...]:
    """The same numbers of all three. Raises KeyError or ValueError for one that is missing."""
    rows = [
        row(f"{label} {at}, ms", number_at(ours, name, field, factor=1000), arithmetic, run, f"{at}_{theirs}_ms")
        for label, (name, theirs) in LATENCIES.items()
        for at, field in SPREAD.items()
    ]
    rows.append(row("requests/s", number_at(ours, "request_throughput"), arithmetic, run, "request_throughput"))
    rows.append(row("tokens/s", number_at(ours, "output_token_throughput"), arithmetic, run, "output_throughput"))
    return tuple(rows)


def row(name: str, ours: float | None, arithmetic: dict[str, Any], run: dict[str, Any], theirs: str) -> Row:
    if ours is None:
        raise ValueError(f"Shakedown has no {name}")
    return Row(name=name, shakedown=ours, vllm_arithmetic=float(arithmetic[theirs]), vllm_run=float(run[theirs]))
