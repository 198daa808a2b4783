"""A load from several nodes: Locust's master and workers as Jobs, with the same client inside; or Locust's web UI here.

One process per core is enough for tens of thousands of tokens a second. More machines are for more network, and for
clients that are not beside the engine.
"""

import copy
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest, Pod
from shakedown.errors import ClusterUnreachable, HarnessError, ManifestRejected
from shakedown.judge.records import RequestRecord
from shakedown.load.records_file import write_records
from shakedown.serving.deployment import remove_namespace
from shakedown.serving.rendering import MANIFESTS, render
from shakedown.settings import RunSettings
from shakedown.waiting import wait_until

NAMESPACE = "llm-load"
MASTER = "app=load-master"
WORKERS = "app=load-worker"
STARTED_WITHIN_S = 120.0
END_MARGIN_S = 120.0
"""Over the load's own time: the last answers, and the master's good-bye to its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedLoad:
    """What to send, and from how many places."""

    url: str
    """As pods of the cluster reach it."""
    users: int
    think_time_s: float = 0.0
    prompt_tokens: int = 128
    max_tokens: int = 128
    duration_s: float = 30.0
    workers: int = 2
    seed: int = 0

    def options(self) -> tuple[str, ...]:
        """Locust's words for it."""
        return (
            *("--host", self.url, "--prompt-tokens", str(self.prompt_tokens), "--max-tokens", str(self.max_tokens)),
            *("--think-time", f"{self.think_time_s:g}", "--seed", str(self.seed)),
        )

    def master_options(self) -> tuple[str, ...]:
        """The same, with how many users for how long."""
        crowd = ("--users", str(self.users), "--spawn-rate", str(self.users))
        return (*self.options(), *crowd, "--run-time", f"{self.duration_s:g}s", "--stop-timeout", "60")


@dataclass(frozen=True, slots=True)
class DistributedResult:
    """Every request of all workers, and where they ran."""

    records: tuple[RequestRecord, ...]
    nodes: tuple[str, ...]


async def run_distributed(
    cluster: Cluster, load: DistributedLoad, settings: RunSettings, records: Path
) -> DistributedResult:
    """Run the load as Jobs and write its records; the Jobs are gone afterwards.

    Raises HarnessError when workers do not start or the master fails, WaitTimeout when it does not end.
    """
    hosted = settings.engine in ("twin", "cpu")
    folder = MANIFESTS / "load" / ("overlays/hosted" if hosted else "base")
    try:
        await cluster.apply(jobs(await render(folder, settings.kubectl), load))
        nodes = await _started(cluster, load)
        taken = await _awaited_records(cluster, load)
    finally:
        await remove_namespace(cluster, NAMESPACE)
    write_records(records, taken)
    return DistributedResult(taken, nodes)


def jobs(manifests: list[Manifest], load: DistributedLoad) -> list[Manifest]:
    """The Jobs of `manifests/load` for this load."""
    result = copy.deepcopy(manifests)
    for job in (each for each in result if each["kind"] == "Job"):
        is_master = job["metadata"]["name"] == "load-master"
        words = load.master_options() if is_master else load.options()
        told = {"OPTIONS": shlex.join(words), "WORKERS": str(load.workers)}
        environment = job["spec"]["template"]["spec"]["containers"][0]["env"]
        environment.extend({"name": name, "value": value} for name, value in told.items())
        if not is_master:
            job["spec"].update(parallelism=load.workers, completions=load.workers)
    return result


async def _started(cluster: Cluster, load: DistributedLoad) -> tuple[str, ...]:
    async def running() -> tuple[Pod, ...]:
        return tuple(pod for pod in await cluster.pods(NAMESPACE, WORKERS) if pod.phase == "Running")

    pods = await wait_until(
        f"{load.workers} workers", running, lambda pods: len(pods) == load.workers, within_s=STARTED_WITHIN_S
    )
    return tuple(sorted(str(pod.node) for pod in pods))


async def _awaited_records(cluster: Cluster, load: DistributedLoad) -> tuple[RequestRecord, ...]:
    master = (await cluster.pods(NAMESPACE, MASTER))[0].name

    async def status() -> str:
        return (await cluster.exec(NAMESPACE, master, ("sh", "-c", "cat /records/status 2>/dev/null || true"))).strip()

    ended = await wait_until(
        "the end of the distributed load",
        status,
        bool,
        within_s=STARTED_WITHIN_S + load.duration_s + END_MARGIN_S,
        every_s=1.0,
        tolerate=(ClusterUnreachable, ManifestRejected),
    )
    text = await cluster.exec(NAMESPACE, master, ("cat", "/records/requests.jsonl"))
    await cluster.exec(NAMESPACE, master, ("touch", "/records/taken"))
    try:
        taken = tuple(msgspec.json.decode(line, type=RequestRecord) for line in text.splitlines() if line)
    except msgspec.DecodeError as error:
        raise HarnessError(f"the records of the distributed load cannot be read: {error}; {text[-300:]}") from error
    if not taken:
        said = await cluster.logs(NAMESPACE, master, tail_lines=20)
        raise HarnessError(f"the distributed load recorded nothing (Locust ended with {ended}):\n{said}")
    return tuple(sorted(taken, key=lambda record: record.due_at))


def web_ui(load: DistributedLoad, port: int) -> list[str]:
    """The command of Locust's web UI on this machine, users and times as given to begin with."""
    crowd = ("--users", str(load.users), "--spawn-rate", str(load.users))
    place = ("--web-host", "127.0.0.1", "--web-port", str(port))
    return [sys.executable, "-m", "shakedown.load", *load.options(), *crowd, *place]
