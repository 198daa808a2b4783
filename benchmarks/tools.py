"""The load generators: how each is called, where it comes from, and where it says its own numbers."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.canned import STREAM_S, TOKENS
from shakedown.engine.environment import EngineEnvironment
from shakedown.judge.percentiles import percentile
from shakedown.process import uv_program
from shakedown.settings import cache_root

HERE = Path(__file__).parent
PROMPT_TOKENS = "16"
EVENLY = "1e9"
"""As --burstiness: gaps that are equal for every purpose."""
VLLM_BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())
"""


class NotRun(Exception):
    """Why a tool has no figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What is to be run, and where."""

    url: str
    rate: float
    """Requests a second, at equal distances."""
    lasts_s: float
    scratch: Path
    engine: EngineEnvironment

    @property
    def requests(self) -> int:
        return round(self.rate * self.lasts_s)

    @property
    def tokenizer(self) -> Path:
        return self.engine.models_root / "llama-3-8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A tool's own figures, in milliseconds; None where it has none."""

    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    schedule_lag_p99_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A load generator. `said` reads its figures from its scratch folder and its output; raises what parsers raise."""

    name: str
    command: Callable[[Place], list[str]]
    said: Callable[[Path, str], Said]
    env: Mapping[str, str] = field(default_factory=dict)
    keeps_even_schedule: bool = True
    """Its constant rate is a request each 1/rate seconds, so that the server can tell how late they are."""


def shakedown(place: Place) -> list[str]:
    return [
        *(str(Path(sys.executable).with_name("shakedown")), "load", place.url, "--rate", f"{place.rate:g}"),
        *("--burstiness", EVENLY, "--duration", f"{place.lasts_s:g}", "--max-tokens", str(TOKENS)),
        *("--prompt-tokens", PROMPT_TOKENS, "--records", str(place.scratch / "records.jsonl"), "--json"),
    ]


def said_by_shakedown(_: Path, stdout: str) -> Said:
    told = json.loads(stdout.strip().splitlines()[-1])
    return Said(
        ttft_p50_ms=number_at(told, "summary", "ttft", "p50_s", factor=1000),
        ttft_p99_ms=number_at(told, "summary", "ttft", "p99_s", factor=1000),
        itl_p50_ms=number_at(told, "summary", "itl", "p50_s", factor=1000),
        itl_p99_ms=number_at(told, "summary", "itl", "p99_s", factor=1000),
        schedule_lag_p99_ms=number_at(told, "health", "send_lag_p99_s", factor=1000),
    )


def vllm_bench(place: Place) -> list[str]:
    return [
        *(str(place.engine.venv / "bin" / "python"), "-c", VLLM_BENCH, "--backend", "openai-chat"),
        *("--base-url", place.url, "--endpoint", "/v1/chat/completions", "--model", "canned"),
        *("--tokenizer", str(place.tokenizer), "--dataset-name", "random", "--random-input-len", PROMPT_TOKENS),
        *("--random-output-len", str(TOKENS), "--num-prompts", str(place.requests), "--disable-tqdm"),
        *("--request-rate", f"{place.rate:g}", "--burstiness", "inf", "--ready-check-timeout-sec", "0"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"),
        *("--save-result", "--result-dir", str(place.scratch), "--result-filename", "vllm.json"),
    ]


def said_by_vllm_bench(scratch: Path, _: str) -> Said:
    told = json.loads((scratch / "vllm.json").read_text())
    return Said(
        ttft_p50_ms=number_at(told, "median_ttft_ms"),
        ttft_p99_ms=number_at(told, "p99_ttft_ms"),
        itl_p50_ms=number_at(told, "median_itl_ms"),
        itl_p99_ms=number_at(told, "p99_itl_ms"),
    )


def guidellm(place: Place) -> list[str]:
    return [
        *(str(peer("guidellm")), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={place.url},model=canned"),
        *("--profile", f"kind=constant,rate={place.rate:g}"),
        *("--constraint", f"kind=max_duration,seconds={place.lasts_s:g}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"),
        *("--tokenizer", f"kind=hf_auto,model={place.tokenizer}"),
        *("--output", f"kind=json,path={place.scratch / 'guidellm.json'}"),
    ]


def said_by_guidellm(scratch: Path, _: str) -> Said:
    told = json.loads((scratch / "guidellm.json").read_text())["benchmarks"][0]
    timings = [request["info"]["timings"] for request in told["requests"]["successful"]]
    settled_at = min(each["targeted_start"] for each in timings) + STREAM_S  # as by the server's clock
    settled = [each for each in timings if each["targeted_start"] >= settled_at]
    lags_ms = [(each["request_start"] - each["targeted_start"]) * 1000 for each in settled]
    ttft, itl = (told["metrics"][f"{name}_ms"]["successful"] for name in ("time_to_first_token", "inter_token_latency"))
    return Said(
        ttft_p50_ms=number_at(ttft, "median"),
        ttft_p99_ms=number_at(ttft, "percentiles", "p99"),
        itl_p50_ms=number_at(itl, "median"),
        itl_p99_ms=number_at(itl, "percentiles", "p99"),
        schedule_lag_p99_ms=percentile(lags_ms, 99),
    )


def inference_perf(place: Place) -> list[str]:
    stages = json.dumps([{"rate": place.rate, "duration": place.lasts_s}])
    at_once = str(round(place.rate * place.lasts_s))
    return [
        *(str(peer("inference-perf")), "--api.type", "chat", "--api.streaming", "true", "--data.type", "mock"),
        *("--load.type", "constant", "--load.stages", stages, "--load.num_workers", "1"),
        *("--load.worker_max_concurrency", at_once, "--load.worker_max_tcp_connections", at_once),
        *("--server.type", "vllm", "--server.model_name", "canned", "--server.base_url", place.url),
        *("--server.ignore_eos", "true", "--tokenizer.pretrained_model_name_or_path", str(place.tokenizer)),
        *("--storage.local_storage.path", str(place.scratch / "inference-perf")),
    ]


def said_by_inference_perf(scratch: Path, _: str) -> Said:
    told = json.loads((scratch / "inference-perf" / "summary_lifecycle_metrics.json").read_text())
    ttft, itl = (told["successes"]["latency"][name] for name in ("time_to_first_token", "inter_token_latency"))
    return Said(
        ttft_p50_ms=number_at(ttft, "median", factor=1000),
        ttft_p99_ms=number_at(ttft, "p99", factor=1000),
        itl_p50_ms=number_at(itl, "median", factor=1000),
        itl_p99_ms=number_at(itl, "p99", factor=1000),
        schedule_lag_p99_ms=number_at(told, "load_summary", "schedule_delay", "p99", factor=1000),
    )


def aiperf(place: Place) -> list[str]:
    cached_tokenizer(place)
    return [
        *(str(peer("aiperf")), "profile", "-m", "canned", "-u", place.url, "--endpoint-type", "chat", "--streaming"),
        *("--request-rate", f"{place.rate:g}", "--arrival-pattern", "constant"),
        *("--benchmark-duration", f"{place.lasts_s:g}", "--tokenizer", "canned/tokenizer"),
        *("--use-server-token-count", "--isl", PROMPT_TOKENS, "--osl", str(TOKENS), "--ui", "none"),
        *("--no-gpu-telemetry", "--no-server-metrics", "--output-artifact-dir", str(place.scratch / "aiperf")),
    ]


def said_by_aiperf(scratch: Path, _: str) -> Said:
    told = json.loads((scratch / "aiperf" / "profile_export_aiperf.json").read_text())
    return Said(
        ttft_p50_ms=number_at(told, "time_to_first_token", "p50"),
        ttft_p99_ms=number_at(told, "time_to_first_token", "p99"),
        itl_p50_ms=number_at(told, "inter_token_latency", "p50"),
        itl_p99_ms=number_at(told, "inter_token_latency", "p99"),
    )


def locust(place: Place) -> list[str]:
    users = str(round(place.rate * 3))  # locust_peer.PACE_S
    told = {"RATE": f"{place.rate:g}", "LASTS_S": f"{place.lasts_s:g}", "FIGURES": str(place.scratch / "locust.json")}
    return [
        *("env", *(f"{name}={value}" for name, value in told.items())),
        *(str(peer("locust")), "-f", str(HERE / "locust_peer.py"), "--host", place.url, "--headless"),
        *("-u", users, "-r", users, "-t", f"{place.lasts_s + 5:g}s", "-s", "5"),
    ]


def said_by_locust(scratch: Path, _: str) -> Said:
    told = json.loads((scratch / "locust.json").read_text())
    return Said(
        ttft_p50_ms=number_at(told, "ttft", "p50_ms"),
        ttft_p99_ms=number_at(told, "ttft", "p99_ms"),
        itl_p50_ms=number_at(told, "itl", "p50_ms"),
        itl_p99_ms=number_at(told, "itl", "p99_ms"),
        schedule_lag_p99_ms=number_at(told, "schedule_lag", "p99_ms"),
    )


def number_at(content: Any, *path: str, factor: float = 1.0) -> float | None:
    """The number at a path of keys; None where there is none."""
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return float(content) * factor if isinstance(content, int | float) else None


def peer(name: str) -> Path:
    """The program of a peer, installed if it is not. Raises NotRun."""
    pinned: dict[str, str] = tomllib.loads((HERE / "peers.toml").read_text())[name]
    venv = cache_root() / "peers" / pinned["requirement"].replace("==", "-")
    program = venv / "bin" / name
    if not program.exists():
        for words in (
            ["venv", "--quiet", "--clear", "--python", pinned["python"], str(venv)],
            ["pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), pinned["requirement"]],
        ):
            done = subprocess.run([uv_program(), *words], capture_output=True, text=True, check=False, env=with_pyenv())
            if done.returncode:
                raise NotRun(f"cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return program


def with_pyenv() -> dict[str, str]:
    """This environment, with the Pythons of a pyenv on PATH: its own shims hide all but one from uv."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin")
    return {**os.environ, "PATH": os.pathsep.join([os.environ["PATH"], *map(str, sorted(roots))])}


def cached_tokenizer(place: Place) -> None:
    """The tokenizer in the folders of a Hugging Face cache, for a tool that takes no path."""
    revision = "0" * 40
    model = place.scratch / "hf" / "hub" / "models--canned--tokenizer"
    (model / "refs").mkdir(parents=True, exist_ok=True)
    (model / "refs" / "main").write_text(revision)
    shutil.copytree(place.tokenizer, model / "snapshots" / revision, dirs_exist_ok=True)


OFFLINE = {"HF_HUB_OFFLINE": "1"}
SHAKEDOWN = Tool(name="shakedown", command=shakedown, said=said_by_shakedown)
VLLM = Tool(
    name="vllm bench serve",
    command=vllm_bench,
    said=said_by_vllm_bench,
    env={**OFFLINE, "VLLM_TARGET_DEVICE": "cpu"},
)
TOOLS = (
    SHAKEDOWN,
    VLLM,
    Tool(name="guidellm", command=guidellm, said=said_by_guidellm, env=OFFLINE),
    Tool(
        name="inference-perf",
        command=inference_perf,
        said=said_by_inference_perf,
        env=OFFLINE,
        keeps_even_schedule=False,  # its "constant" draws exponential gaps
    ),
    Tool(name="aiperf", command=aiperf, said=said_by_aiperf, env=OFFLINE),
    Tool(name="locust", command=locust, said=said_by_locust),
)
