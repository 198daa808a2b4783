"""Shakedown and its peers against one canned server, one after another, on the same two cores.

    uv run python benchmarks/load_generators.py [--only NAME]... [--streams 250,500,1000]

The server (benchmarks/canned_server.c, pinned to the first core) streams 100 tokens at 20 ms each to everybody; the
client (pinned to the second) keeps N streams open. What arrived is counted by the server, not by the client. A level is
sustained when the server delivered at least 95 % of what N streams make (50 N chunks a second) while the client's own
median wait for the first token was within 10 ms of the server's 20 ms: a client that is late measures itself.

Peers come from PyPI into environments of their own (benchmarks/peers.toml); `vllm bench serve` from the engine's. What
cannot be installed or run is in the table with the reason. The last line of the output is one JSON object.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shakedown.engine.environment import EngineEnvironment, ensure_environment
from shakedown.load import ClosedLoop, OpenLoop, TrafficClass, Workload
from shakedown.load.client import monotonic
from shakedown.process import uv_program
from shakedown.settings import cache_root

HERE = Path(__file__).parent
TOKENS, STEP_MS = 100, 20
SERVED_TTFT_MS = 20.0
CHUNKS_PER_STREAM_S = 1000 / STEP_MS
LASTS_S = 12.0
STARTED_WITHIN_S = 120.0
SUSTAINED_SHARE, SUSTAINED_BIAS_MS = 0.95, 10.0
BIAS_STREAMS = 500
SERVER_CORE, CLIENT_CORE = "0", "1"
VLLM_BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())
"""


class NotRun(Exception):
    """Why a peer has no figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One tool at one number of streams."""

    streams: int
    chunks_per_s: float
    offered_per_s: float
    ttft_p50_ms: float | None
    """As the tool says."""
    cpu_share: float
    """Of the client's core, its start included."""

    @property
    def sustained(self) -> bool:
        late = self.ttft_p50_ms is None or abs(self.ttft_p50_ms - SERVED_TTFT_MS) > SUSTAINED_BIAS_MS
        return self.chunks_per_s >= SUSTAINED_SHARE * self.offered_per_s and not late


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run happens."""

    url: str
    streams: int
    scratch: Path
    engine: EngineEnvironment

    @property
    def tokenizer(self) -> Path:
        return self.engine.models_root / "llama-3-8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """How a load generator is called, and where its own number is."""

    name: str
    command: Callable[[Place], list[str]]
    ttft_p50_ms: Callable[[Place, str], float | None]
    env: dict[str, str]


def shakedown(place: Place) -> list[str]:
    words = ["load", place.url, "--users", str(place.streams), "--duration", str(LASTS_S), "--max-tokens", str(TOKENS)]
    return [str(Path(sys.executable).with_name("shakedown")), *words, "--prompt-tokens", "16", "--json"]


def vllm_bench(place: Place) -> list[str]:
    requests = int(place.streams * LASTS_S * CHUNKS_PER_STREAM_S / TOKENS)
    return [
        *(str(place.engine.venv / "bin" / "python"), "-c", VLLM_BENCH, "--backend", "openai-chat"),
        *("--base-url", place.url, "--endpoint", "/v1/chat/completions", "--model", "canned"),
        *("--tokenizer", str(place.tokenizer), "--dataset-name", "random", "--random-input-len", "16"),
        *("--random-output-len", str(TOKENS), "--num-prompts", str(requests)),
        *("--max-concurrency", str(place.streams), "--disable-tqdm"),
        *("--save-result", "--result-dir", str(place.scratch), "--result-filename", "vllm.json"),
    ]


def guidellm(place: Place) -> list[str]:
    return [
        *(str(peer("guidellm", "guidellm")), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={place.url},model=canned"),
        *("--profile", f"kind=concurrent,streams={place.streams}"),
        *("--constraint", f"kind=max_duration,seconds={LASTS_S:g}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={TOKENS}"),
        *("--tokenizer", f"kind=hf_auto,model={place.tokenizer}"),
        *("--output", f"kind=json,path={place.scratch / 'guidellm.json'}"),
    ]


def inference_perf(place: Place) -> list[str]:
    rate = place.streams * CHUNKS_PER_STREAM_S / TOKENS
    stages = json.dumps([{"rate": rate, "duration": LASTS_S}])
    return [
        *(str(peer("inference-perf", "inference-perf")), "--api.type", "chat", "--api.streaming", "true"),
        *("--data.type", "mock", "--load.type", "constant", "--load.stages", stages, "--load.num_workers", "1"),
        *("--load.worker_max_concurrency", str(place.streams * 4), "--server.type", "vllm"),
        *("--load.worker_max_tcp_connections", str(place.streams * 4)),
        *("--server.model_name", "canned", "--server.base_url", place.url, "--server.ignore_eos", "true"),
        *("--tokenizer.pretrained_model_name_or_path", str(place.tokenizer)),
        *("--storage.local_storage.path", str(place.scratch / "inference-perf")),
    ]


def aiperf(place: Place) -> list[str]:
    cached_tokenizer(place)
    return [
        *(str(peer("aiperf", "aiperf")), "profile", "-m", "canned", "-u", place.url, "--endpoint-type", "chat"),
        *("--streaming", "--concurrency", str(place.streams), "--benchmark-duration", f"{LASTS_S:g}"),
        *("--tokenizer", "canned/tokenizer", "--isl", "16", "--osl", str(TOKENS), "--ui", "none"),
        *("--output-artifact-dir", str(place.scratch / "aiperf")),
    ]


def locust(place: Place) -> list[str]:
    crowd = ("-u", str(place.streams), "-r", str(place.streams), "-t", f"{LASTS_S:g}s", "--json")
    return [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(HERE / "locust_peer.py"),
        "--host",
        place.url,
        "--headless",
        *crowd,
    ]


def peer(name: str, program: str) -> Path:
    """The program of a peer, installed if it is not. Raises NotRun."""
    pinned: dict[str, str] = tomllib.loads((HERE / "peers.toml").read_text())[name]
    venv = cache_root() / "peers" / pinned["requirement"].replace("==", "-")
    found = venv / "bin" / program
    if not found.exists():
        for words in (
            ["venv", "--quiet", "--clear", "--python", pinned["python"], str(venv)],
            ["pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), pinned["requirement"]],
        ):
            done = subprocess.run([uv_program(), *words], capture_output=True, text=True, check=False)
            if done.returncode:
                raise NotRun(f"cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return found


def cached_tokenizer(place: Place) -> None:
    """The tokenizer in the folders of a Hugging Face cache, for a tool that takes no path."""
    revision = "0" * 40
    model = place.scratch / "hf" / "hub" / "models--canned--tokenizer"
    (model / "refs").mkdir(parents=True, exist_ok=True)
    (model / "refs" / "main").write_text(revision)
    shutil.copytree(place.tokenizer, model / "snapshots" / revision, dirs_exist_ok=True)


def in_json(name: str, *path: str | int, factor: float = 1.0) -> Callable[[Place, str], float | None]:
    """A number in a file that the tool wrote into its scratch folder."""

    def read(place: Place, _: str) -> float | None:
        return number_at(json.loads((place.scratch / name).read_text()), path, factor)

    return read


def number_at(content: Any, path: tuple[str | int, ...], factor: float = 1.0) -> float | None:
    """The number at a path of keys; None where there is none."""
    for key in path:
        try:
            content = content[key]
        except (KeyError, IndexError, TypeError):
            return None
    return float(content) * factor if isinstance(content, int | float) else None


def of_shakedown(_: Place, stdout: str) -> float | None:
    return number_at(json.loads(stdout.strip().splitlines()[-1]), ("summary", "ttft", "p50_s"), 1000)


def of_locust(_: Place, stdout: str) -> float | None:
    """The median by Locust's own table of rounded response times."""
    entries = json.loads(stdout[stdout.index("[") :])
    times: dict[str, float] = next((each["response_times"] for each in entries if each["method"] == "first word"), {})
    spread = sorted((float(time), count) for time, count in times.items())
    half, seen = sum(count for _, count in spread) / 2, 0.0
    for time_ms, count in spread:
        seen += count
        if seen >= half:
            return time_ms
    return None


OFFLINE = {"HF_HUB_OFFLINE": "1"}
TTFT = "time_to_first_token"
TOOLS = (
    Tool(name="shakedown", command=shakedown, ttft_p50_ms=of_shakedown, env={}),
    Tool(
        name="vllm bench serve",
        command=vllm_bench,
        ttft_p50_ms=in_json("vllm.json", "median_ttft_ms"),
        env={**OFFLINE, "VLLM_TARGET_DEVICE": "cpu"},
    ),
    Tool(
        name="guidellm",
        command=guidellm,
        ttft_p50_ms=in_json("guidellm.json", "benchmarks", 0, "metrics", f"{TTFT}_ms", "successful", "median"),
        env=OFFLINE,
    ),
    Tool(
        name="inference-perf",
        command=inference_perf,
        ttft_p50_ms=in_json(
            "inference-perf/summary_lifecycle_metrics.json", "successes", "latency", TTFT, "median", factor=1000
        ),
        env=OFFLINE,
    ),
    Tool(
        name="aiperf",
        command=aiperf,
        ttft_p50_ms=in_json("aiperf/profile_export_aiperf.json", TTFT, "p50"),
        env=OFFLINE,
    ),
    Tool(name="locust", command=locust, ttft_p50_ms=of_locust, env={}),
)


@contextmanager
def canned_server(scratch: Path, *options: str) -> Iterator[str]:
    """The server on its core; yields its URL."""
    program = scratch / "canned_server"
    subprocess.run(["cc", "-O2", "-o", program, HERE / "canned_server.c"], check=True)
    port = "18999"
    words: list[str | Path] = [
        "taskset",
        "-c",
        SERVER_CORE,
        program,
        port,
        str(TOKENS),
        str(STEP_MS),
        str(STEP_MS),
        *options,
    ]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + STARTED_WITHIN_S
        while True:
            try:
                asked(url)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
        yield url
    finally:
        server.kill()
        server.wait()


def asked(url: str) -> dict[str, Any]:
    """The server's own count since it was asked last."""
    with urllib.request.urlopen(f"{url}/stats", timeout=5) as answer:
        content: dict[str, Any] = json.loads(answer.read())
        return content


def steady_chunks_per_s(per_half_second: list[int]) -> float:
    """Median of the middle half of the half seconds in which chunks flowed."""
    flowing = [count for count in per_half_second if count]
    quarter = len(flowing) // 4
    middle = flowing[quarter : len(flowing) - quarter] or flowing or [0]
    return statistics.median(middle) * 2


def measured(tool: Tool, streams: int, engine: EngineEnvironment) -> Level:
    """Run a tool once. Raises NotRun with its last words."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with canned_server(scratch) as url:
            place = Place(url=url, streams=streams, scratch=scratch, engine=engine)
            command = ["taskset", "-c", CLIENT_CORE, *tool.command(place)]
            env = {**os.environ, "HF_HOME": str(scratch / "hf"), **tool.env}
            before, began = os.times(), time.monotonic()
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, env=env, cwd=scratch, timeout=LASTS_S + 120
                )
            except subprocess.TimeoutExpired as late:
                raise NotRun(f"did not end within {late.timeout:g} s") from late
            after, took_s = os.times(), time.monotonic() - began
            counted = asked(url)
            try:
                ttft_ms = tool.ttft_p50_ms(place, done.stdout)
            except (OSError, ValueError, KeyError) as error:
                said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
                raise NotRun(f"gave no figures ({error}); it said: {said[0][:200]}") from error
        used_s = after.children_user + after.children_system - before.children_user - before.children_system
        return Level(
            streams=streams,
            chunks_per_s=steady_chunks_per_s(counted["per_half_second"]),
            offered_per_s=streams * CHUNKS_PER_STREAM_S,
            ttft_p50_ms=ttft_ms,
            cpu_share=used_s / took_s,
        )


async def bias_ms(streams: int) -> dict[str, float]:
    """Client's clock against the server's: when a first token was seen, less when it was written. Milliseconds."""
    with tempfile.TemporaryDirectory() as folder, canned_server(Path(folder), "--stamp") as url:
        talk = TrafficClass(prompt_tokens=16, max_tokens=TOKENS, keep_text=True)
        offset = time.time() - monotonic()
        os.sched_setaffinity(0, {int(CLIENT_CORE)})
        async with OpenLoop(
            url, arrivals=ClosedLoop(users=streams), workload=Workload((talk,)), duration_s=LASTS_S / 2
        ) as load:
            await load.done()
        late = sorted(
            (record.token_times[0] - offset - int((record.text or "0").split()[0]) / 1e6) * 1000
            for record in load.records
            if record.token_times and record.text
        )
    return {"p50": statistics.median(late), "p99": late[int(len(late) * 0.99)], "requests": float(len(late))}


def table(results: dict[str, list[Level] | str]) -> str:
    """Markdown."""
    lines = [
        "| tool | streams | chunks/s | of what was offered | its median TTFT (server: 20 ms) | CPU | sustained |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, levels in results.items():
        if isinstance(levels, str):
            lines.append(f"| {name} | – | – | – | – | – | not run: {levels} |")
            continue
        for level in levels:
            ttft = f"{level.ttft_p50_ms:.0f} ms" if level.ttft_p50_ms is not None else "–"
            share = level.chunks_per_s / level.offered_per_s
            lines.append(
                f"| {name} | {level.streams:,} | {level.chunks_per_s:,.0f} | {share:.0%} | {ttft} | "
                f"{level.cpu_share:.0%} | {'yes' if level.sustained else 'no'} |"
            )
    return "\n".join(lines)


def best(levels: list[Level] | str) -> float:
    """The highest sustained rate, in chunks a second."""
    sustained = [] if isinstance(levels, str) else [level.chunks_per_s for level in levels if level.sustained]
    return max(sustained, default=0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[tool.name for tool in TOOLS])
    parser.add_argument("--streams", default="100,250,500,1000,1500,2000", help="levels, ascending")
    parser.add_argument("--no-bias", action="store_true")
    options = parser.parse_args()
    levels = [int(word) for word in options.streams.split(",")]
    engine = asyncio.run(ensure_environment(report=lambda line: print(line, file=sys.stderr)))
    load_before = os.getloadavg()[0]
    results: dict[str, list[Level] | str] = {}
    for tool in TOOLS:
        if options.only and tool.name not in options.only:
            continue
        results[tool.name] = climb(tool, levels, engine)
    bias = {} if options.no_bias else asyncio.run(bias_ms(BIAS_STREAMS))
    print(table(results))
    ours = best(results.get("shakedown", []))
    theirs = max((best(found) for name, found in results.items() if name != "shakedown"), default=0.0)
    print(
        json.dumps(
            {
                "tools": {k: v if isinstance(v, str) else [asdict(level) for level in v] for k, v in results.items()},
                "highest_sustained_chunks_per_s": {name: best(found) for name, found in results.items()},
                "shakedown_times_best_peer": ours / theirs if theirs else None,
                "ttft_bias_ms_at_500_streams": bias,
                "load_average_before": load_before,
            }
        )
    )
    return 0


def climb(tool: Tool, levels: list[int], engine: EngineEnvironment) -> list[Level] | str:
    """Level by level until one is not sustained."""
    found: list[Level] = []
    for streams in levels:
        try:
            found.append(measured(tool, streams, engine))
        except NotRun as why:
            print(f"{tool.name} at {streams}: {why}", file=sys.stderr)
            return found or str(why)
        print(f"{tool.name} at {streams}: {found[-1].chunks_per_s:,.0f} chunks/s", file=sys.stderr)
        if not found[-1].sustained:
            break
    return found


if __name__ == "__main__":
    raise SystemExit(main())
