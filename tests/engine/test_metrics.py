"""Metrics are read under their names of today, summed where a sum means something."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shakedown.engine import metrics
from shakedown.engine.environment import known_versions
from shakedown.engine.metrics import (
    cache_shape,
    current_name,
    golden_families,
    histogram,
    missing_families,
    parse_metrics,
)
from shakedown.errors import HarnessError, UsageError

DATA = Path(__file__).parent / "data"
"""Captured by scripts/record_engine_words.py from real engines, after three answers and a client that left."""
CAPTURED = {path.stem.removeprefix("metrics-"): path.read_text() for path in sorted(DATA.glob("metrics-*.txt"))}
NAMES_READ = {value for name, value in vars(metrics).items() if name.isupper() and str(value).startswith("vllm:")}
each_version = pytest.mark.parametrize("version", CAPTURED)


def test_every_pinned_engine_has_been_captured() -> None:
    assert set(CAPTURED) == set(known_versions())


@each_version
def test_a_captured_text_reads_as_a_general_parser_reads_it(version: str) -> None:
    expected: dict[str, float] = {}
    for family in text_string_to_metric_families(CAPTURED[version]):
        for sample in family.samples:
            if sample.name.startswith("vllm:") and not sample.name.endswith(("_bucket", "_created", "_info")):
                expected[sample.name] = expected.get(sample.name, 0.0) + sample.value
    renamed = {current_name(name) for name in expected}

    found = {name: value for name, value in parse_metrics(CAPTURED[version]).items() if "{" not in name}
    assert found.keys() == renamed
    assert {name: value for name, value in expected.items() if name in renamed} == found


@each_version
def test_every_engine_is_read_under_the_names_of_today(version: str) -> None:
    values = parse_metrics(CAPTURED[version])

    assert {name if name != metrics.INTER_TOKEN_LATENCY else f"{name}_count" for name in NAMES_READ} <= values.keys()
    assert values[metrics.GENERATION_TOKENS] >= 3 * 16
    assert values['vllm:request_success_total{finished_reason="length"}'] == 3
    assert values[metrics.REQUESTS_RUNNING] in (0, 1), "the client that left may not have been noticed yet"
    assert 0 <= values[metrics.KV_CACHE_USAGE] <= 1


@each_version
def test_the_families_of_a_captured_text_are_the_golden_ones(version: str) -> None:
    declared = {line.removeprefix("# TYPE ") for line in CAPTURED[version].splitlines() if line.startswith("# TYPE ")}

    assert missing_families(CAPTURED[version], golden_families(version)) == frozenset()
    assert declared - golden_families(version) == {name for name in declared if "_created " in name}


def test_each_finish_reason_is_kept_beside_the_sum() -> None:
    values = parse_metrics(
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0\n'
        'vllm:request_success_total{engine="1",finished_reason="stop",model_name="m"} 2.0\n'
        'vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 1.0\n'
    )

    assert values == {
        "vllm:request_success_total": 6.0,
        'vllm:request_success_total{finished_reason="stop"}': 5.0,
        'vllm:request_success_total{finished_reason="abort"}': 1.0,
    }


def test_queues_of_several_engines_add_up_and_their_cache_shares_do_not() -> None:
    values = parse_metrics(
        'vllm:num_requests_waiting{engine="0"} 4.0\nvllm:num_requests_waiting{engine="1"} 6.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.9\n'
    )

    assert values[metrics.REQUESTS_WAITING] == 10
    assert values[metrics.KV_CACHE_USAGE] == pytest.approx(0.7)


def test_a_histogram_is_its_sum_and_count() -> None:
    values = parse_metrics(
        'vllm:h_bucket{le="1.0"} 1.0\nvllm:h_bucket{le="+Inf"} 2.0\n'
        "vllm:h_count 2.0\nvllm:h_sum 2.5\nvllm:h_created 9e9\n"
    )

    assert values == {"vllm:h_count": 2.0, "vllm:h_sum": 2.5}


def test_an_older_engine_is_read_under_the_names_of_today() -> None:
    values = parse_metrics(
        'vllm:gpu_cache_usage_perc{engine="0"} 0.25\nvllm:time_per_output_token_seconds_sum{engine="0"} 1.5\n'
    )

    assert values == {metrics.KV_CACHE_USAGE: 0.25, "vllm:inter_token_latency_seconds_sum": 1.5}


def test_a_metric_exported_under_both_names_counts_once() -> None:
    values = parse_metrics("vllm:gpu_prefix_cache_hits_total 7.0\nvllm:prefix_cache_hits_total 7.0\n")

    assert values == {metrics.PREFIX_CACHE_HITS: 7.0}


def test_a_name_without_a_successor_stays() -> None:
    assert current_name("vllm:num_requests_swapped") == "vllm:num_requests_swapped"
    assert metrics.HISTORY["vllm:num_requests_swapped"].now is None


def test_a_line_that_is_no_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="broken"):
        parse_metrics("vllm:num_requests_waiting broken\n")


@each_version
def test_every_metric_read_is_in_the_golden_file(version: str) -> None:
    names = {line.split()[0] for line in golden_families(version)}

    assert names >= NAMES_READ
    assert {past.now for past in metrics.HISTORY.values() if past.now} <= names


def test_only_an_old_engine_exports_an_old_name_and_then_beside_the_new_one() -> None:
    old = {
        version: {line.split()[0] for line in golden_families(version)} & metrics.HISTORY.keys() for version in CAPTURED
    }

    assert old == {version: set() for version in CAPTURED} | {"0.11.0": {"vllm:time_per_output_token_seconds"}}


def test_a_family_that_changed_its_type_is_missing() -> None:
    golden = frozenset({"vllm:a gauge", "vllm:b_total counter", "vllm:c gauge"})

    assert missing_families("# TYPE vllm:a gauge\n# TYPE vllm:b_total gauge\n", golden) == {
        "vllm:b_total counter",
        "vllm:c gauge",
    }


def test_a_version_that_was_never_captured_is_said_so() -> None:
    with pytest.raises(UsageError, match=r"vLLM 0\.1\.0 were never captured"):
        golden_families("0.1.0")


def test_the_cut_of_the_cache_is_read_from_the_engines_own_words() -> None:
    shape = cache_shape('vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="2054"} 1.0\n')
    assert (shape.blocks, shape.block_tokens, shape.tokens) == (2054, 16, 32864)
    assert cache_shape(CAPTURED["0.32.0"]).blocks > 0


def test_an_engine_that_does_not_tell_its_blocks_is_said_so() -> None:
    with pytest.raises(HarnessError, match="do not tell how many KV blocks"):
        cache_shape("vllm:num_requests_running 0\n")


def test_a_histogram_is_read_bucket_by_bucket_summed_over_engines() -> None:
    text = "".join(
        f'vllm:request_num_preemptions_bucket{{engine="{engine}",le="{bound}"}} {count}\n'
        for engine in (0, 1)
        for bound, count in (("0.0", 5), ("1.0", 8), ("+Inf", 9))
    )
    assert histogram(text, "vllm:request_num_preemptions") == {0.0: 10, 1.0: 6, float("inf"): 2}
    assert histogram(text, "vllm:no_such") == {}
