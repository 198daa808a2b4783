"""Record how each engine version says that it failed, and what it calls its metrics.

    python scripts/record_engine_words.py [--version 0.11.0] [CASE ...]

Starts the real engine on CPU with every case of tests/engine/words/cases.toml, on the paths and with the environment of
a pod, in namespaces of its own with no network but loopback (so as root), and writes

    tests/engine/words/<version>/<case>.log       what the engine said at its end, as `kubectl logs` would show it
    tests/engine/words/<version>/outcomes.toml    how each case ended: serves, unhealthy, exit status
    tests/engine/data/metrics-<version>.txt       /metrics after a few requests
    manifests/vllm/metric-families/<version>.txt  the families therein

Clock times, process ids and what is random become fixed, so that recording again shows only what an engine changed.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx

from shakedown.engine.environment import EngineEnvironment, ensure_environment, known_versions
from shakedown.process import run
from shakedown.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
WORDS = ROOT / "tests" / "engine" / "words"
METRICS = ROOT / "tests" / "engine" / "data"
FAMILIES = ROOT / "manifests" / "vllm" / "metric-families"
MODEL = "meta-llama/Meta-Llama-3-8B-Instruct"
URL = "http://127.0.0.1:8000"
ARGS = {
    "--model": "/opt/models/tiny-llama",
    "--served-model-name": MODEL,
    "--port": "8000",
    "--max-model-len": "1024",
    "--block-size": "32",
    "--num-gpu-blocks-override": "64",
    "--max-num-seqs": "64",
}
ENVIRONMENT = {
    "PATH": "/opt/python/bin:/usr/bin:/bin",
    "PYTHONPATH": "/opt/twin:/opt/engine/lib/python3/site-packages",
    "LD_LIBRARY_PATH": "/opt/python/lib",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "HOME": "/tmp",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CACHE_ROOT": "/opt/models/cache",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}
"""As manifests/vllm/components/hosted-engine and overlays/cpu set it."""
START_LIMIT_S = 150.0
END_LIMIT_S = 40.0
TAIL_LINES = 40
SERVER = "vllm.entrypoints.openai.api_server"
NURSERY = f"""
import json, os, runpy, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import {SERVER}
del sys.modules["{SERVER}"]
for line in sys.stdin:
    job = json.loads(line)
    if (pid := os.fork()) == 0:
        os.setsid()
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1), os.dup2(log, 2)
        os.environ.update(job["env"])
        sys.argv[1:] = job["argv"]
        sys.exit(runpy.run_module("{SERVER}", run_name="__main__", alter_sys=True) and None)
    print(pid, file=answers, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)
"""
"""`python3 -m SERVER` as often as asked, with its imports, most of a start, done once."""
COLOUR = r"(?:\x1b\[[\d;]*m)*"
PREFIX = rf"{COLOUR}(?:\(\w+ pid=\d+\){COLOUR} )?(?:{COLOUR}ERROR{COLOUR} [\d:. -]+{COLOUR}\[\S+?\]{COLOUR} )?"
FRAME = re.compile(rf'{PREFIX}(?:  File ".*", line \d+, in .*|    .*|\s*[\^~]+\s*)$')
"""A stack frame, its source line and its markers: where in the engine, not what."""
VARIABLE = (
    (re.compile(r"(?<=\[W)\d{4} \d\d:\d\d:\d\d\.\d+"), "0101 00:00:00.0"),
    (re.compile(r"\b\d+\.\d+ ?(?=seconds|it/s)"), "0.0 "),
    (re.compile(r"vllm_dist_[0-9a-f]+|(?<=/)tmp[a-z0-9_]{8}\b"), "scratch"),
    (re.compile(r"Available RAM: \S+ GiB"), "Available RAM: 20 GiB"),
    (re.compile(r"127\.0\.0\.1:\d{5}"), "127.0.0.1:50000"),
    (re.compile(r"\b\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?"), "01-01 00:00:00"),
    (re.compile(r"\bpid=\d+|(?<=process \[)\d+(?=\])|(?<=PID )\d+"), "pid"),
    (re.compile(r"\bcmpl-[0-9a-f-]{32,}"), "cmpl-0"),
    (re.compile(r"ipc:///\S+?(?=['\")\s])|(?<=/)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "socket"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration of cases.toml; an empty value takes an argument of the base away."""

    name: str
    args: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    when_ready: str = ""
    expected: str = ""
    remedy: str = ""

    @property
    def argv(self) -> list[str]:
        words = [word for pair in {**ARGS, **self.args}.items() if pair[1] for word in pair]
        return [*words, "--enforce-eager", *self.flags]


@dataclass(slots=True, kw_only=True)
class Engine:
    """An API server that the nursery forked."""

    pid: int
    ended: asyncio.Task[int]

    @property
    def returncode(self) -> int | None:
        return self.ended.result() if self.ended.done() else None


def cases() -> list[Case]:
    """All of cases.toml."""
    return [Case(**entry) for entry in tomllib.loads((WORDS / "cases.toml").read_text())["case"]]


@click.command(help=__doc__)
@click.option("--version", "versions", multiple=True, default=known_versions(), show_default=True)
@click.option("--inside", nargs=4, type=click.Path(path_type=Path), hidden=True)
@click.argument("names", nargs=-1)
def main(versions: tuple[str, ...], inside: tuple[Path, ...] | None, names: tuple[str, ...]) -> None:
    wanted = [case for case in cases() if not names or case.name in names]
    if inside:
        asyncio.run(_record(versions[0], inside, wanted))
        return
    for version in versions:
        place = asyncio.run(ensure_environment(version, report=click.echo))
        _in_namespaces(version, place, [case.name for case in wanted])


def _in_namespaces(version: str, place: EngineEnvironment, names: list[str]) -> None:
    """Run this script again where the paths are a pod's and what an engine leaves behind dies with us."""
    folders = (place.python_home, place.venv, place.twin_root, place.models_root)
    namespaces = ("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    command = (*namespaces, sys.executable, __file__, "--version", version, "--inside", *folders, *names)
    subprocess.run(command, check=True)


async def _record(version: str, folders: Sequence[Path], wanted: list[Case]) -> None:
    await _furnish(folders)
    out = WORDS / version
    out.mkdir(exist_ok=True)
    outcomes_file = out / "outcomes.toml"
    outcomes = tomllib.loads(outcomes_file.read_text()) if outcomes_file.is_file() else {}
    nursery = await asyncio.create_subprocess_exec(
        *("python3", "-c", NURSERY),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        cwd="/",
    )
    for case in wanted:
        outcome, log = await _observe(nursery, case, version)
        click.echo(f"{version} {case.name}: {outcome}")
        outcomes[case.name] = outcome
        file = out / f"{case.name}.log"
        file.unlink(missing_ok=True)
        if outcome != "serves":
            file.write_text(_as_recorded(log))
        ordered = {known.name: outcomes[known.name] for known in cases() if known.name in outcomes}
        outcomes_file.write_text("".join(f'{name} = "{said}"\n' for name, said in ordered.items()))


async def _furnish(folders: Sequence[Path]) -> None:
    """The mounts, host name and loopback of a pod."""
    socket.sethostname("vllm-llama3-deployment-0")
    await run(["ip", "link", "set", "lo", "up"], timeout_s=10)
    await run(["mount", "-t", "tmpfs", "tmpfs", "/opt"], timeout_s=10)
    for name, folder in zip(("python", "engine", "twin", "models"), folders, strict=True):
        target = Path("/opt") / name
        target.mkdir()
        await run(["mount", "--bind", "-o", "ro", folder, target], timeout_s=10)


async def _observe(nursery: asyncio.subprocess.Process, case: Case, version: str) -> tuple[str, str]:
    """Start the engine, do what the case says, and return how it ended and all that it said."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        async with (
            _before(case),
            _engine(nursery, case, log) as engine,
            httpx.AsyncClient(base_url=URL, timeout=60) as client,
        ):
            await wait_until(f"{case.name} to serve or end", _state(engine, client), bool, within_s=START_LIMIT_S)
            if engine.returncode is None:
                await WHEN_READY[case.when_ready](client, version)
            if engine.returncode is None and case.when_ready in FATAL:
                await asyncio.wait([engine.ended], timeout=END_LIMIT_S)
            serves = engine.returncode is None and await _answers(client)
            outcome = "serves" if serves else "unhealthy" if engine.returncode is None else f"exit {engine.returncode}"
        if raw := os.environ.get("RAW"):
            (Path(raw) / f"{version}-{case.name}.log").write_text(log.read_text())
        return outcome, log.read_text()


@asynccontextmanager
async def _engine(nursery: asyncio.subprocess.Process, case: Case, log: Path) -> AsyncIterator[Engine]:
    assert nursery.stdin
    assert nursery.stdout
    job = {"argv": case.argv, "env": dict(case.env), "log": str(log)}
    nursery.stdin.write(json.dumps(job).encode() + b"\n")
    pid = int(await nursery.stdout.readline())
    engine = Engine(pid=pid, ended=asyncio.create_task(_status(nursery.stdout)))
    try:
        yield engine
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        await engine.ended


async def _status(words: asyncio.StreamReader) -> int:
    return int(await words.readline())


@asynccontextmanager
async def _before(case: Case) -> AsyncIterator[None]:
    if case.before != "take-the-port":
        yield
        return
    with socket.create_server(("", 8000)):
        yield


def _state(engine: Engine, client: httpx.AsyncClient) -> Callable[[], Awaitable[str]]:
    async def observe() -> str:
        if engine.returncode is not None:
            return "ended"
        return "serves" if await _answers(client) else ""

    return observe


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health", timeout=2)).status_code == 200
    except httpx.HTTPError:
        return False


async def _nothing(client: httpx.AsyncClient, version: str) -> None:
    """The version accepts the case."""


async def _requests(client: httpx.AsyncClient, version: str) -> None:
    """Answers that end by themselves, at their limit and by a client that leaves; then the metrics."""
    for words in ("the same again", "the same again", "another"):
        (await _complete(client, words, 16)).raise_for_status()
    async with client.stream("POST", "/v1/completions", json=_body("long", 900) | {"stream": True}) as answer:
        await anext(answer.aiter_bytes())
    text = (await client.get("/metrics")).text
    lines = (line for line in text.splitlines() if re.match(r"(?:# \w+ )?vllm:", line))
    kept = [re.sub(r"(?<=\} )\S+$", "1.0e+09", line) if "_created" in line else line for line in lines]
    (METRICS / f"metrics-{version}.txt").write_text("\n".join(kept) + "\n")
    declared = (line for line in kept if line.startswith("# TYPE ") and "_created" not in line)
    families = sorted({" ".join(line.split()[2:4]) for line in declared})
    (FAMILIES / f"{version}.txt").write_text("\n".join(families) + "\n")


async def _kill_the_engine(client: httpx.AsyncClient, version: str) -> None:
    """End the engine's process while an answer is under way, as a device fault or the kernel would."""
    answer = asyncio.create_task(_complete(client, "a long answer", 900))
    await wait_until("a running request", lambda: _running(client), lambda count: count > 0, within_s=20)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if "EngineCore" in (process / "cmdline").read_text() or "EngineCor" in (process / "comm").read_text():
                os.kill(int(process.name), signal.SIGKILL)
    await asyncio.wait([answer], timeout=END_LIMIT_S)


async def _running(client: httpx.AsyncClient) -> float:
    text = (await client.get("/metrics")).text
    return sum(float(value) for value in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE))


async def _priorities(client: httpx.AsyncClient, version: str) -> None:
    """vllm#23347: unimportant long requests fill the cache, then important ones arrive beside them."""
    unimportant = [asyncio.create_task(_complete(client, f"low {n} " * 40, 400, priority=10)) for n in range(16)]
    await wait_until("running requests", lambda: _running(client), lambda count: count >= 2, within_s=20)
    important = [asyncio.create_task(_complete(client, f"high {n} " * 40, 200, priority=n % 5)) for n in range(24)]
    await asyncio.wait([*unimportant, *important], timeout=120)


def _body(words: str, tokens: int) -> dict[str, object]:
    return {"model": MODEL, "prompt": words, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


async def _complete(client: httpx.AsyncClient, words: str, tokens: int, **more: object) -> httpx.Response:
    return await client.post("/v1/completions", json=_body(words, tokens) | more, timeout=120)


WHEN_READY = {
    "": _nothing,
    "requests": _requests,
    "kill-the-engine": _kill_the_engine,
    "priorities": _priorities,
}
FATAL = ("kill-the-engine",)


def _as_recorded(log: str) -> str:
    """The end of a log without stack frames and without what differs each time."""
    lines = [line.rstrip() for line in log.splitlines() if not FRAME.match(line)]
    text = "\n".join(lines[-TAIL_LINES:]) + "\n"
    for pattern, fixed in VARIABLE:
        text = pattern.sub(fixed, text)
    return text


if __name__ == "__main__":
    main()
