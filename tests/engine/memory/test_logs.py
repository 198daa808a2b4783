"""Memory lines of engines since 0.4, as their sources print them, alone and in what surrounds them in a cluster.

The wordings stand in `worker.py`, `executor_base.py` and `gpu_executor.py` of 0.4 to 0.8 (also quoted in vllm#10517, vllm#15815
and vllm#13882) and in `gpu_worker.py`, `kv_cache_utils.py` and `mem_utils.py` of 0.11.0, 0.20.2 and 0.32.0.
"""

import json
from pathlib import Path

import pytest

from shakedown.cli.main import _exit_code
from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.logs import read_log

LLAMA_8B = Demand(layers=32, kv_heads=8, head_dim=128)
V0_4 = """INFO 04-22 09:10:11 model_runner.py:104] Loading model weights took 14.9595 GB
INFO 04-22 09:10:15 gpu_executor.py:94] # GPU blocks: 27892, # CPU blocks: 2048
"""
V0_6 = """INFO 11-20 10:00:00 model_runner.py:1072] Loading model weights took 14.9888 GB
INFO 11-20 10:00:04 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.51GiB \
peak_torch_memory=17.06GiB memory_usage_post_profile=15.57GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB \
gpu_memory_utilization=0.90
INFO 11-20 10:00:04 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048
INFO 11-20 10:00:04 gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x
"""
V0_8 = """INFO 03-31 02:03:00 [worker.py:267] Memory profiling takes 3.81 seconds
INFO 03-31 02:03:00 [worker.py:267] the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.90) = 21.22GiB
INFO 03-31 02:03:00 [worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch activation peak memory takes \
2.07GiB; the rest of the memory reserved for KV Cache is 3.81GiB.
INFO 03-31 02:03:00 [executor_base.py:111] # cuda blocks: 1952, # CPU blocks: 2048
INFO 03-31 02:03:00 [executor_base.py:116] Maximum concurrency for 20000 tokens per request: 1.56x
"""
V1_EARLY = """INFO 03-31 02:03:00 [gpu_model_runner.py:1329] Model loading took 14.9889 GB and 2.618 seconds
INFO 03-31 02:03:00 [kv_cache_utils.py:537] GPU KV cache size: 476,016 tokens
INFO 03-31 02:03:00 [kv_cache_utils.py:540] Maximum concurrency for 8,192 tokens per request: 58.11x
"""
V1_11 = """INFO 10-02 02:03:00 [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 2.618000 seconds
INFO 10-02 02:03:00 [gpu_worker.py:298] Available KV cache memory: 58.11 GiB
INFO 10-02 02:03:00 [kv_cache_utils.py:1087] GPU KV cache size: 476,016 tokens
INFO 10-02 02:03:00 [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per request: 58.11x
INFO 10-02 02:03:09 [gpu_model_runner.py:3480] Graph capturing finished in 9 secs, took 0.55 GiB
"""
V1_32 = """INFO 12-01 02:03:00 [gpu_model_runner.py:5150] Model loading took 14.99 GiB memory and 2.618000 seconds
INFO 12-01 02:03:00 [gpu_worker.py:760] Available KV cache memory: 58.11 GiB
INFO 12-01 02:03:00 [kv_cache_utils.py:2328] GPU KV cache size: 476,016 tokens, Maximum concurrency for 8,192 tokens per request: 58.11x
INFO 12-01 02:03:00 [gpu_worker.py:972] CUDA graph pool memory: 0.55 GiB (actual), 0.6 GiB (estimated), difference: 0.05 GiB (9.1%).
INFO 12-01 02:03:00 [gpu_worker.py:1013] Free memory on device cuda:0 (78.61/79.19 GiB) on startup. Desired GPU memory utilization is \
(0.95, 75.23 GiB). Actual usage is 15.24 GiB for consumed memory (weights + non-torch), 1.89 GiB for peak activation, and 0.55 GiB \
for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=60000000000` (55.88 GiB) to fit into requested \
memory, or `--kv-cache-memory=63000000000` (58.67 GiB) to fully utilize gpu memory. Current kv cache memory in use is 58.11 GiB.
"""
VERSIONS = {
    "0.4": (V0_4, {"weights_gib": 14.9595, "gpu_blocks": 27892, "cpu_blocks": 2048}),
    "0.6": (
        V0_6,
        {
            "weights_gib": 14.9888,
            "total_gib": 23.58,
            "utilization": 0.9,
            "non_torch_gib": 0.35,
            "kv_gib": 3.81,
            "gpu_blocks": 1952,
            "concurrency": 1.56,
        },
    ),
    "0.8 V0": (
        V0_8,
        {
            "weights_gib": 14.99,
            "total_gib": 23.58,
            "utilization": 0.9,
            "non_torch_gib": 0.35,
            "activation_gib": 2.07,
            "kv_gib": 3.81,
            "gpu_blocks": 1952,
            "cpu_blocks": 2048,
            "max_model_len": 20000,
        },
    ),
    "0.8 V1": (V1_EARLY, {"weights_gib": 14.9889, "kv_tokens": 476016, "max_model_len": 8192, "concurrency": 58.11}),
    "0.11": (V1_11, {"kv_gib": 58.11, "kv_tokens": 476016, "concurrency": 58.11, "graphs_gib": 0.55}),
    "0.32": (
        V1_32,
        {
            "weights_gib": 14.99,
            "kv_gib": 58.11,
            "kv_tokens": 476016,
            "max_model_len": 8192,
            "concurrency": 58.11,
            "total_gib": 79.19,
            "utilization": 0.95,
            "activation_gib": 1.89,
            "graphs_gib": 0.55,
        },
    ),
}
each_version = pytest.mark.parametrize("version", VERSIONS)


@each_version
def test_the_lines_of_a_version_are_read_and_agree(version: str) -> None:
    log, expected = VERSIONS[version]

    reading = read_log(log, LLAMA_8B)

    assert {name: reading.found.get(name) for name in expected} == expected
    assert reading.consistent, reading.disagreements


@each_version
@pytest.mark.parametrize(
    "prefix",
    [
        "2026-12-01T09:00:00.123456789Z stdout F ",
        "vllm-5d9c7b7f4-abcde vllm ",
        "\x1b[1;36m(EngineCore_DP0 pid=63)\x1b[0;0m \x1b[32m",
        "\\u001b[36m(Worker_TP0 pid=7)\\u001b[0m ",
        "[pod/vllm-0/vllm] (VllmWorkerProcess pid=1) ",
    ],
)
def test_what_a_cluster_puts_around_a_line_does_not_matter(version: str, prefix: str) -> None:
    log, expected = VERSIONS[version]

    reading = read_log("".join(prefix + line for line in log.splitlines(keepends=True)), LLAMA_8B)

    assert {name: reading.found.get(name) for name in expected} == expected
    assert reading.consistent, reading.disagreements


@each_version
def test_a_log_cut_anywhere_is_read_as_far_as_it_goes(version: str) -> None:
    log, expected = VERSIONS[version]

    for end in range(0, len(log), 7):
        found = read_log(log[:end], LLAMA_8B).found
        assert {name: value for name, value in found.items() if value != expected.get(name, value)} == {}


@each_version
def test_a_changed_number_is_noticed(version: str) -> None:
    """Every wording that prints a pool and what it holds is checked against the price of a token."""
    changes = {
        "0.4": None,
        "0.6": ("kv_cache_size=3.81", "kv_cache_size=5.81"),
        "0.8 V0": ("Cache is 3.81", "Cache is 5.81"),
        "0.8 V1": ("476,016", "376,016"),
        "0.11": ("memory: 58.11", "memory: 48.11"),
        "0.32": ("476,016", "376,016"),
    }
    change = changes[version]
    if change is None:
        assert read_log(V0_4).consistent
        return
    assert not read_log(VERSIONS[version][0].replace(*change), LLAMA_8B).consistent


def test_of_several_ranks_the_smallest_pool_and_the_largest_weights_count() -> None:
    ranks = "".join(
        f"(Worker_TP{rank} pid={rank}) INFO [gpu_worker.py:298] Available KV cache memory: {gib} GiB\n"
        f"(Worker_TP{rank} pid={rank}) INFO [x.py:1] Model loading took {weights} GiB and 1.0 seconds\n"
        f"(EngineCore pid=9) INFO [kv_cache_utils.py:1087] GPU KV cache size: {tokens} tokens\n"
        for rank, gib, weights, tokens in ((0, 30.5, 7.51, "499,712"), (1, 30.0, 7.52, "491,520"))
    )

    found = read_log(ranks, Demand(layers=32, kv_heads=8, head_dim=128, tensor_parallel=2))

    assert (found.found["kv_gib"], found.found["weights_gib"], found.found["kv_tokens"]) == (30.0, 7.52, 491520)
    assert found.consistent, found.disagreements


def test_one_rank_of_v0_that_does_not_add_up_is_found() -> None:
    other = V0_8.replace("Cache is 3.81", "Cache is 9.81")

    assert read_log(V0_8 + V0_8).consistent
    assert len(read_log(V0_8 + other).disagreements) == 1


def test_the_last_start_counts() -> None:
    banner = "INFO 12-01 [api_server.py:1] vLLM API server version 0.11.0\n"

    again = read_log(banner + V1_11.replace("58.11", "1.00") + banner + V1_11, LLAMA_8B)

    assert again.consistent, again.disagreements
    assert again.found["kv_gib"] == 58.11


def test_a_hybrid_is_not_checked_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(V1_11)

    assert _exit_code(["plan", "--log", str(log), "--model", "openai/gpt-oss-20b", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "consistent"
    assert "no fixed price" in told["reasons"][0]


@each_version
def test_the_command_prints_the_promised_keys_for_a_log(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(VERSIONS[version][0])

    assert (
        _exit_code(["plan", "--log", str(log), "--json", *["--layers", "32", "--kv-heads", "8", "--head-dim", "128"]])
        == 0
    )

    told = json.loads(capsys.readouterr().out)
    promised = {"verdict", "bytes_per_token", "kv_pool_gib", "kv_blocks", "kv_tokens", "max_concurrency"}
    assert promised | {"reasons", "suggestions", "intervals"} <= told.keys()
    assert told["verdict"] == "consistent"


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"\x1f\x8b\x08\x00binary\xff\xfe", "данные".encode("utf-16")])
def test_a_log_without_a_known_line_says_so(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)

    assert _exit_code(["plan", "--log", str(log)]) == 0
    assert "no memory line" in capsys.readouterr().out
