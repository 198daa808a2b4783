"""Real failures of autoscalers and gateways, and what of Shakedown catches each: rules, tests, scenarios on a cluster.

An index that fails when a proof is renamed or taken away. The rules' own examples are in tests/lint, and each rule has
a broken and a sound one.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from shakedown.serving.lint.check import RULES
from tests.load.wire import CASES as ANSWERS

ROOT = Path(__file__).parents[2]
SIMULATOR = "tests/serving/autoscaling/test_simulator.py"
WIRE = "tests/load/test_wire.py"
GATEWAY = "suites/routing/test_gateway.py"
LOOPS = "suites/autoscaling/test_broken_links.py::test_a_broken_link_is_named_with_its_remedy"


@dataclass(frozen=True)
class Failure:
    """One public report."""

    id: str
    seen: str
    rules: tuple[str, ...] = ()
    """Of `shakedown lint`: found before anything is deployed."""
    tests: tuple[str, ...] = ()
    """Of the harness, and scenarios that deploy it for real."""
    answers: tuple[str, ...] = ()
    """Answers on the wire that are read in one right way, however the bytes are cut."""


FAILURES = (
    Failure(
        "D01",
        "kthena#868: vllm_num_requests_waiting asked of Prometheus, which has vllm:num_requests_waiting",
        ("query-underscore-name", "hpa-metric-colon"),
        (LOOPS, "tests/serving/test_loop_diagnosis.py::test_the_first_broken_link_is_named"),
    ),
    Failure(
        "D02",
        "production-stack#341: the adapter's rule gives one metric, and the HPA names another",
        ("metric-not-served",),
        ("tests/lint/test_our_own_manifests.py::test_a_metric_that_the_adapters_rules_do_not_give_is_found",),
    ),
    Failure(
        "D05",
        "production-stack#318, OPEA#431: the router is scraped, whose series are all zero",
        ("scrape-misses-engine", "scrape-port-missing"),
        ("tests/serving/test_loop_diagnosis.py::test_the_first_broken_link_is_named",),
    ),
    Failure(
        "D06",
        "LLMKube#482: a target on running requests that the slots of a pod never reach",
        ("target-out-of-reach",),
        (LOOPS, f"{SIMULATOR}::test_d06_a_target_on_running_requests_at_the_slots_is_never_exceeded_and_this_is_said"),
    ),
    Failure(
        "D07",
        "aibrix#2670: 2, 4, 8, 16 replicas wanted while the first new ones load",
        (),
        (
            f"{SIMULATOR}::test_d07_default_policies_cascade_while_the_weights_load",
            f"{SIMULATOR}::test_d07_a_policy_as_long_as_the_load_time_bounds_the_overshoot",
            "suites/autoscaling/test_slow_pods.py::test_a_hasty_policy_wants_every_gpu_for_a_need_of_one",
            "suites/autoscaling/test_slow_pods.py::test_a_policy_as_long_as_the_load_time_wants_what_is_needed",
        ),
    ),
    Failure(
        "D10",
        "llm-d#2492: ignoreNullValues is true by default, and no series is taken for no queue",
        ("null-is-zero",),
        (f"{SIMULATOR}::test_d10_series_that_are_gone_look_like_an_idle_engine_unless_null_values_count",),
    ),
    Failure(
        "D11",
        "keda#1850: the source of the metric is down, and the workload is scaled to 0",
        ("fallback-missing",),
        (
            f"{SIMULATOR}::test_d11_an_outage_takes_a_workload_to_zero_and_it_never_comes_back",
            "suites/autoscaling/test_metrics_outage.py::test_a_blind_autoscaler_keeps_its_replicas_and_sees_again",
            "suites/autoscaling/test_scale_out.py::test_600_users_keep_three_replicas_while_prometheus_is_away",
        ),
    ),
    Failure(
        "D15",
        "vllm PR#18053: each API server process exports the gauges again",
        ("api-servers-double",),
        (f"{SIMULATOR}::test_d15_gauges_that_are_exported_twice_ask_for_twice_the_replicas",),
    ),
    Failure(
        "D17",
        "llm-d-autoscaling#1213: the new pod is Pending for want of a GPU, and scaling is called done",
        (),
        (
            f"{SIMULATOR}::test_d17_success_is_ready_and_not_wanted",
            "suites/autoscaling/test_no_gpus_left.py::test_a_replica_without_a_gpu_is_pending_and_said_to_be",
        ),
    ),
    Failure(
        "D20",
        "vllm#7918: a gauge that is there with 0.0 is called missing",
        ("metric-unknown",),
        (
            f"{SIMULATOR}::test_d20_an_idle_engine_scales_in_and_an_absent_series_does_not",
            "tests/judge/test_loop.py::test_a_link_without_an_answer_is_an_outage_with_its_name",
        ),
    ),
    Failure(
        "E01",
        "dstack#4269: nginx gathers 16 kB of tokens before it sends any",
        ("stream-buffered",),
        (
            f"{GATEWAY}::test_a_hop_that_buffers_is_seen_to",
            "tests/judge/test_expectations.py::test_a_hop_that_buffers_is_told_by_events_per_read",
        ),
    ),
    Failure(
        "E05",
        "Omega#351: a read timeout below the answer's time, and a client that asks three times",
        ("gateway-read-timeout",),
        (
            f"{GATEWAY}::test_a_gateway_less_patient_than_its_queue_is_seen_to",
            f"{GATEWAY}::test_a_question_is_asked_once_at_the_engine",
        ),
    ),
    Failure(
        "E08",
        "open-asm#451: 60 s without a byte while the request waits in the queue",
        ("gateway-read-timeout",),
        (f"{GATEWAY}::test_a_gateway_less_patient_than_its_queue_is_seen_to",),
    ),
    Failure(
        "E09",
        "vllm PR#18472: the engine closes idle connections before the gateway does",
        ("gateway-keepalive-long",),
        ("tests/serving/test_gateway.py::test_idle_connections_end_before_the_engine_ends_them",),
    ),
    Failure(
        "E10",
        "openresty#200: a POST that is sent to another replica after the first has begun it",
        ("gateway-retries-generation",),
        (f"{GATEWAY}::test_a_question_is_asked_once_at_the_engine",),
    ),
    Failure(
        "E12",
        "vllm#9428: the reader has left, and the engine goes on",
        ("client-abort-ignored",),
        (
            f"{GATEWAY}::test_a_reader_who_leaves_is_passed_on_to_the_engine",
            f"{GATEWAY}::test_a_gateway_that_hides_the_leaving_is_seen_to",
        ),
    ),
    Failure("E17", "vllm PR#40986: a 200 that holds nothing but [DONE]", answers=("only [DONE]",)),
    Failure(
        "E19",
        "vllm-mlx#101: a finish reason, no [DONE], and the connection stays open",
        tests=("tests/load/test_load.py::test_silence_is_told_from_a_missing_end",),
    ),
    Failure(
        "E22",
        "aisix#111: a character of three or four bytes that two reads share",
        tests=(f"{WIRE}::test_one_cut_anywhere_changes_nothing", f"{WIRE}::test_any_text_arrives_whole"),
    ),
    Failure(
        "E24",
        "kortix/suna#3696: heartbeats keep a silent connection open, and are no tokens",
        tests=("tests/load/test_load.py::test_heartbeats_do_not_keep_a_request_alive_beyond_its_limit",),
    ),
    Failure(
        "E26",
        "ingress-nginx#2974: headers with an underscore are dropped without a word",
        ("header-underscore",),
        (f"{GATEWAY}::test_the_header_decides_the_pool_unless_the_key_does",),
    ),
)


@cache
def functions_of(path: str) -> frozenset[str]:
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_a_known_failure_is_caught_by_what_is_said_to_catch_it(failure: Failure) -> None:
    assert failure.rules or failure.tests or failure.answers
    assert set(failure.rules) <= {rule.id for rule in RULES}
    assert set(failure.answers) <= {answer.name for answer in ANSWERS}
    for proof in failure.tests:
        path, _, name = proof.partition("::")
        assert name in functions_of(path), proof


def test_every_rule_that_names_a_report_is_in_the_index() -> None:
    """A rule's reference begins with the id that it has here."""
    known = {failure.id for failure in FAILURES}
    for rule in RULES:
        named = {word.strip(",") for word in rule.reference.replace("(", " ").split() if word[:1] in "DE"}
        for id_ in named & {f"{letter}{number:02d}" for letter in "DE" for number in range(1, 40)}:
            assert id_ in known, (rule.id, id_)
            assert rule.id in next(failure for failure in FAILURES if failure.id == id_).rules
