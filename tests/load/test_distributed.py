"""A distributed load is the same words for every worker, and its Jobs are those of the manifests."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import yaml

from shakedown.cluster.objects import Manifest
from shakedown.load.distributed import DistributedLoad, jobs, web_ui
from shakedown.load.records_file import read_records
from shakedown.process import run
from shakedown.serving.rendering import MANIFESTS

LOAD = DistributedLoad(url="http://10.96.0.9:8000", users=40, think_time_s=2.0, max_tokens=64, duration_s=40, workers=3)
SERVER = Path(__file__).with_name("streaming_server.py")


def manifests() -> list[Manifest]:
    base = MANIFESTS / "load" / "base"
    return [yaml.safe_load((base / name).read_text()) for name in ("master.yaml", "worker.yaml")]


def told(job: Manifest) -> dict[str, str]:
    return {each["name"]: each["value"] for each in job["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_only_the_master_says_how_many_users_for_how_long() -> None:
    master, worker = jobs(manifests(), LOAD)
    assert "--users 40 --spawn-rate 40 --run-time 40s" in told(master)["OPTIONS"]
    assert "--users" not in told(worker)["OPTIONS"]
    assert "--host http://10.96.0.9:8000" in told(worker)["OPTIONS"]
    assert "--think-time 2" in told(worker)["OPTIONS"]


def test_there_are_as_many_workers_as_wanted_and_the_master_waits_for_them() -> None:
    master, worker = jobs(manifests(), LOAD)
    assert (worker["spec"]["parallelism"], worker["spec"]["completions"]) == (3, 3)
    assert told(master)["WORKERS"] == "3"


def test_the_web_ui_stays_on_this_machine() -> None:
    command = web_ui(LOAD, 8089)
    assert command[command.index("--web-host") + 1] == "127.0.0.1"


@pytest.mark.parametrize("option", ["--rate", "--slo-ttft"])
async def test_what_the_web_ui_cannot_do_is_refused(option: str) -> None:
    command: list[str | Path] = [
        Path(sys.executable).with_name("shakedown"),
        "load",
        "http://127.0.0.1:9",
        "--ui",
        option,
        "1",
    ]
    completed = await run(command, timeout_s=30, check=False)
    assert completed.returncode == 4
    assert f"leave out {option}" in completed.stderr


async def test_every_request_that_locust_counts_is_a_record_of_our_own(tmp_path: Path) -> None:
    server = await asyncio.create_subprocess_exec(sys.executable, str(SERVER), stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(await server.stdout.readline())}"
        command = [sys.executable, "-m", "shakedown.load", "--host", url, "--headless", "--json"]
        crowd = ["--users", "8", "--spawn-rate", "8", "--run-time", "2s", "--max-tokens", "40", "--prompt-tokens", "16"]
        records = tmp_path / "requests.jsonl"
        completed = await run([*command, *crowd], timeout_s=60, env={"SHAKEDOWN_RECORDS": str(records)})
    finally:
        server.kill()
        await server.wait()
    counted = {entry["method"]: entry["num_requests"] for entry in json.loads(completed.stdout)}
    kept = list(read_records(records))
    assert counted["answer"] == len(kept) > 8
    assert {len(record.token_times) for record in kept} == {40}


async def test_what_workers_measure_arrives_at_the_master(tmp_path: Path) -> None:
    server = await asyncio.create_subprocess_exec(sys.executable, str(SERVER), stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(await server.stdout.readline())}"
        records = tmp_path / "requests.jsonl"
        base = [sys.executable, "-m", "shakedown.load", "--host", url, "--max-tokens", "40", "--prompt-tokens", "16"]
        crowd = ["--users", "6", "--spawn-rate", "6", "--run-time", "2s", "--stop-timeout", "30", "--headless"]
        port = str(int(url.rpartition(":")[2]) % 10000 + 20000)
        master = ["--master", "--expect-workers", "2", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
        worker = ["--worker", "--master-host", "127.0.0.1", "--master-port", port]
        await asyncio.gather(
            run([*base, *crowd, *master], timeout_s=90, env={"SHAKEDOWN_RECORDS": str(records)}),
            *(run([*base, *worker], timeout_s=90) for _ in range(2)),
        )
    finally:
        server.kill()
        await server.wait()
    kept = list(read_records(records))
    assert len({record.id.rpartition("-")[0] for record in kept}) == 2, "both workers sent"
    assert len({record.id for record in kept}) == len(kept) > 12
