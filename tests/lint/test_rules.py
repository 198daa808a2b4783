"""Each rule finds its misconfiguration, and only that."""

from pathlib import Path
from typing import Any

import pytest

from shakedown.serving.lint.check import RULES
from shakedown.serving.lint.findings import Assumptions, Severity
from tests.lint.sound import Change, Sound, findings

ERROR, WARNING = Severity.ERROR, Severity.WARNING
RUNNING = 'sum(vllm:num_requests_running{model_name="llama"})'


def without(name: str) -> Change:
    return lambda sound: sound.container.pop(name)


def set_in(place: str, *path: str | int, to: Any) -> Change:
    """Set a value under a path of one of the sound objects."""

    def change(sound: Sound) -> None:
        node = getattr(sound, place)
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = to

    return change


def flag(*words: str) -> Change:
    return lambda sound: sound.flag(*words)


def query(text: str, **metadata: str) -> Change:
    return lambda sound: sound.query(text, **metadata)


def nginx(old: str, new: str) -> Change:
    def change(sound: Sound) -> None:
        assert old in sound.nginx
        sound.nginx = sound.nginx.replace(old, new)

    return change


def both(*changes: Change) -> Change:
    return lambda sound: [change(sound) for change in changes]


def second_model(sound: Sound) -> None:
    sound.second_engine("qwen")


def service_named(name: str) -> Change:
    return set_in("service", "metadata", "name", to=name)


def alert(text: str) -> Change:
    return set_in("alerts", "spec", "groups", 0, "rules", 0, "expr", to=text)


def image(tag: str) -> Change:
    return set_in("container", "image", to=f"vllm/vllm-openai{tag}")


def annotation(name: str, value: str) -> Change:
    return set_in("ingress", "metadata", "annotations", f"nginx.ingress.kubernetes.io/{name}", to=value)


def a_recording_rule(sound: Sound) -> None:
    rules = sound.alerts["spec"]["groups"][0]["rules"]
    rules.append({"record": "vllm_waiting", "expr": "sum(vllm:num_requests_waiting)"})
    sound.query('sum(vllm_waiting{model_name="llama"})')


def a_gateway_trigger(sound: Sound) -> None:
    sound.scaler["spec"]["minReplicaCount"] = 0
    metadata = {"query": "sum(nginx_connections_active)", "threshold": "1", "ignoreNullValues": "false"}
    sound.scaler["spec"]["triggers"].append({"type": "prometheus", "metadata": metadata})


def hpa_beside_keda(sound: Sound) -> None:
    sound.hpa["spec"]["scaleTargetRef"]["name"] = "llama"


def nameless(name: str) -> Change:
    return set_in("metric", "pods", "metric", "name", to=name)


NO_STARTUP = without("startupProbe")
SLOW_LIVENESS = set_in("container", "livenessProbe", "failureThreshold", to=100)
TRUSTED = nginx("$http_x_traffic_class", "$http_x_priority")
SINGLE_WRITER = set_in("claim", "spec", "accessModes", to=["ReadWriteOnce"])

BROKEN: list[tuple[str, Severity, Change]] = [
    ("liveness-kills-load", ERROR, NO_STARTUP),
    ("startup-probe-missing", WARNING, both(NO_STARTUP, SLOW_LIVENESS)),
    ("startup-probe-missing", WARNING, both(NO_STARTUP, without("livenessProbe"))),
    ("startup-budget-short", ERROR, set_in("container", "startupProbe", "failureThreshold", to=35)),
    ("probe-timeout-one-second", WARNING, lambda sound: sound.container["livenessProbe"].pop("timeoutSeconds")),
    ("ready-before-weights", ERROR, both(NO_STARTUP, set_in("container", "readinessProbe", to={"tcpSocket": {}}))),
    ("ready-before-weights", WARNING, set_in("container", "readinessProbe", to={"tcpSocket": {"port": 8000}})),
    ("ready-before-weights", ERROR, both(NO_STARTUP, without("readinessProbe"))),
    ("service-link-collision", ERROR, service_named("vllm")),
    ("service-link-collision", ERROR, service_named("vllm-dp-master")),
    ("shared-memory-small", ERROR, lambda sound: sound.container.pop("volumeMounts")),
    ("shared-memory-small", ERROR, set_in("pod", "volumes", 0, "emptyDir", to={})),
    ("gpu-count-mismatch", ERROR, set_in("container", "resources", "limits", "nvidia.com/gpu", to=1)),
    ("gpu-count-mismatch", WARNING, set_in("container", "resources", "limits", "nvidia.com/gpu", to="8")),
    ("gpu-count-mismatch", ERROR, both(flag("-tp", "4"), flag("--tensor-parallel-size=4"))),
    ("image-floating", WARNING, image(":latest")),
    ("image-floating", WARNING, image("")),
    ("memory-utilization-high", WARNING, flag("--gpu-memory-utilization", "0.95")),
    ("flag-out-of-range", ERROR, flag("--gpu-memory-utilization=90")),
    ("flag-out-of-range", ERROR, flag("--max-num-seqs=0")),
    ("flag-out-of-range", ERROR, flag("--max-num-batched-tokens=32")),
    ("flag-out-of-range", ERROR, flag("--max-num-batched-tokens=2k", "--no-enable-chunked-prefill")),
    ("model-length-unset", WARNING, lambda sound: sound.container["args"].remove("--max-model-len=4096")),
    ("api-servers-double", WARNING, flag("--api-server-count=4")),
    ("grace-shorter-than-drain", WARNING, set_in("pod", "terminationGracePeriodSeconds", to=30)),
    (
        "grace-shorter-than-drain",
        WARNING,
        set_in("container", "lifecycle", to={"preStop": {"exec": {"command": ["sh", "-c", "sleep 120"]}}}),
    ),
    ("surge-needs-gpu", WARNING, lambda sound: sound.deployment["spec"].pop("strategy")),
    ("disruption-budget-deadlock", ERROR, set_in("budget", "spec", "minAvailable", to=2)),
    ("disruption-budget-deadlock", ERROR, set_in("budget", "spec", "minAvailable", to="51%")),
    ("disruption-budget-deadlock", ERROR, set_in("budget", "spec", "maxUnavailable", to=0)),
    (
        "disruption-budget-deadlock",
        ERROR,
        both(set_in("deployment", "spec", "replicas", to=4), set_in("scaler", "spec", "minReplicaCount", to=1)),
    ),
    ("cache-single-writer", ERROR, SINGLE_WRITER),
    ("cache-single-writer", ERROR, both(SINGLE_WRITER, set_in("deployment", "spec", "replicas", to=1))),
    ("query-underscore-name", ERROR, query('sum(vllm_num_requests_waiting{model_name="llama"})')),
    ("query-underscore-name", ERROR, alert("vllm_num_requests_waiting > 3")),
    ("hpa-metric-colon", ERROR, nameless("vllm:num_requests_waiting")),
    ("metric-gone", ERROR, alert("vllm:gpu_cache_usage_perc > 0.9")),
    ("metric-gone", WARNING, both(image("@sha256:0"), alert("vllm:gpu_cache_usage_perc > 0.9"))),
    ("metric-gone", WARNING, both(image(":v0.11.0"), alert("vllm:gpu_cache_usage_perc > 0.9"))),
    ("metric-gone", ERROR, alert("rate(vllm:time_per_output_token_seconds_sum[5m]) > 1")),
    ("metric-gone", ERROR, alert('{__name__="vllm:num_requests_swapped"} > 0')),
    ("metric-not-yet", ERROR, both(image(":v0.8.5"), alert("vllm:kv_cache_usage_perc > 0.9"))),
    ("metric-unknown", WARNING, alert("vllm:num_request_waiting > 5")),
    ("metric-not-served", ERROR, nameless("vllm_kv_cache_usage_perc")),
    ("metric-not-served", ERROR, set_in("adapter", "rules", 0, "name", "as", to="llm_$1")),
    ("target-out-of-reach", ERROR, query(RUNNING, threshold="64")),
    (
        "target-out-of-reach",
        ERROR,
        set_in(
            "metric", "pods", to={"metric": {"name": "vllm_num_requests_running"}, "target": {"averageValue": "2k"}}
        ),
    ),
    ("share-as-percent", ERROR, query('sum(vllm:kv_cache_usage_perc{model_name="llama"})', threshold="80")),
    ("null-is-zero", ERROR, lambda sound: sound.trigger["metadata"].pop("ignoreNullValues")),
    ("null-is-zero", ERROR, set_in("trigger", "metadata", "ignoreNullValues", to=True)),
    ("fallback-missing", WARNING, lambda sound: sound.scaler["spec"].pop("fallback")),
    (
        "fallback-missing",
        ERROR,
        both(lambda sound: sound.scaler["spec"].pop("fallback"), set_in("scaler", "spec", "minReplicaCount", to=0)),
    ),
    ("sum-mixes-models", WARNING, query("sum(vllm:num_requests_waiting)")),
    ("sum-mixes-models", WARNING, query('sum(vllm:num_requests_waiting{namespace="prod"})')),
    ("sum-mixes-models", ERROR, both(second_model, query("sum(vllm:num_requests_waiting)"))),
    (
        "average-of-non-sum",
        ERROR,
        query(
            "histogram_quantile(0.95, sum by (le) "
            '(rate(vllm:time_to_first_token_seconds_bucket{model_name="llama"}[2m])))'
        ),
    ),
    ("scale-to-zero-blind", ERROR, set_in("scaler", "spec", "minReplicaCount", to=0)),
    ("scale-to-zero-blind", ERROR, lambda sound: sound.scaler["spec"].pop("minReplicaCount")),
    ("scale-to-zero-blind", ERROR, set_in("hpa", "spec", "minReplicas", to=0)),
    ("two-autoscalers", ERROR, hpa_beside_keda),
    ("scrape-misses-engine", ERROR, set_in("monitor", "spec", "selector", "matchLabels", to={"app": "router"})),
    ("scrape-misses-engine", WARNING, set_in("monitor", "spec", "selector", "matchLabels", to={"app": "elsewhere"})),
    ("scrape-port-missing", ERROR, set_in("monitor", "spec", "endpoints", to=[{"port": "metrics"}])),
    ("stream-buffered", ERROR, nginx("proxy_buffering off;", "")),
    ("stream-buffered", ERROR, annotation("proxy-buffering", "on")),
    ("gateway-read-timeout", ERROR, nginx("proxy_read_timeout 900s;", "")),
    ("gateway-read-timeout", WARNING, nginx("proxy_read_timeout 900s;", "proxy_read_timeout 5m;")),
    ("gateway-read-timeout", ERROR, lambda sound: sound.ingress["metadata"].pop("annotations")),
    ("gateway-connect-timeout", WARNING, nginx("proxy_connect_timeout 2s;", "")),
    ("gateway-connect-timeout", WARNING, nginx("proxy_connect_timeout 2s;", "proxy_connect_timeout 1m;")),
    ("gateway-connect-timeout", WARNING, annotation("proxy-connect-timeout", "30")),
    ("gateway-keepalive-long", ERROR, nginx("keepalive_timeout 3s;", "")),
    ("gateway-keepalive-long", ERROR, nginx("keepalive_timeout 3s;", "keepalive_timeout 5s;")),
    ("gateway-retries-generation", ERROR, nginx("upstream off", "upstream error timeout non_idempotent")),
    (
        "client-abort-ignored",
        ERROR,
        nginx("proxy_buffering off;", "proxy_buffering off; proxy_ignore_client_abort on;"),
    ),
    ("keepalive-unused", WARNING, nginx("proxy_http_version 1.1;", "")),
    ("keepalive-unused", WARNING, nginx('proxy_set_header Connection "";', "")),
    ("header-underscore", WARNING, nginx("http {", "http { underscores_in_headers on;")),
    ("header-underscore", WARNING, nginx("proxy_buffering", "proxy_set_header X_Class batch; proxy_buffering")),
    ("priority-header-trusted", ERROR, TRUSTED),
]

SOUND: list[tuple[str, Change]] = [
    ("liveness-kills-load", both(NO_STARTUP, SLOW_LIVENESS)),
    ("startup-probe-missing", lambda sound: None),
    ("startup-budget-short", set_in("container", "startupProbe", "failureThreshold", to=36)),
    ("probe-timeout-one-second", lambda sound: sound.container["startupProbe"].pop("timeoutSeconds")),
    ("ready-before-weights", without("readinessProbe")),
    ("service-link-collision", service_named("vllm-llama")),
    ("service-link-collision", both(service_named("vllm"), set_in("pod", "enableServiceLinks", to=False))),
    ("service-link-collision", both(service_named("vllm"), set_in("service", "metadata", "namespace", to="other"))),
    (
        "service-link-collision",
        both(service_named("vllm"), set_in("container", "env", to=[{"name": "VLLM_PORT", "value": "9"}])),
    ),
    ("shared-memory-small", both(without("volumeMounts"), flag("--tensor-parallel-size=1"))),
    ("gpu-count-mismatch", both(without("resources"), flag("--tensor-parallel-size=1"))),
    ("image-floating", image("@sha256:0123")),
    ("memory-utilization-high", flag("--gpu-memory-utilization=0.94")),
    ("flag-out-of-range", flag("--max-num-batched-tokens=2k")),
    ("model-length-unset", flag("--max_model_len", "32k")),
    ("api-servers-double", flag("--api-server-count=1")),
    (
        "grace-shorter-than-drain",
        set_in("container", "lifecycle", to={"preStop": {"sleep": {"seconds": 10}}}),
    ),
    ("surge-needs-gpu", both(lambda sound: sound.deployment["spec"].pop("strategy"), without("resources"))),
    ("disruption-budget-deadlock", set_in("budget", "spec", "minAvailable", to="50%")),
    ("disruption-budget-deadlock", set_in("budget", "spec", "selector", to={"matchLabels": {"app": "x"}})),
    ("cache-single-writer", both(SINGLE_WRITER, set_in("claim", "metadata", "name", to="unused"))),
    ("query-underscore-name", a_recording_rule),
    ("query-underscore-name", query('sum(vllm:num_requests_waiting{model_name="llama",x="vllm_y"}) by (vllm_z)')),
    ("hpa-metric-colon", lambda sound: None),
    ("metric-gone", both(image(":v0.6.3"), alert("vllm:gpu_cache_usage_perc > 0.9"))),
    ("metric-not-yet", both(image("@sha256:0"), alert("vllm:kv_cache_usage_perc > 0.9"))),
    ("metric-unknown", alert("rate(vllm:e2e_request_latency_seconds_sum[1m]) > 1")),
    ("metric-not-served", nameless("vllm_num_requests_running")),
    ("metric-not-served", lambda sound: sound.adapter.update(rules=[])),
    ("target-out-of-reach", query(RUNNING, threshold="48")),
    ("share-as-percent", query('100 * sum(vllm:kv_cache_usage_perc{model_name="llama"})', threshold="80")),
    ("null-is-zero", set_in("trigger", "metadata", "ignoreNullValues", to=False)),
    ("fallback-missing", set_in("scaler", "spec", "fallback", "replicas", to=1)),
    ("sum-mixes-models", query('sum(vllm:num_requests_waiting{pod=~"llama-.*"})')),
    ("average-of-non-sum", both(query('max(vllm:x{pod="y"})'), set_in("trigger", "metricType", to="Value"))),
    ("scale-to-zero-blind", a_gateway_trigger),
    ("two-autoscalers", both(hpa_beside_keda, set_in("hpa", "metadata", "namespace", to="other"))),
    ("scrape-misses-engine", set_in("monitor", "spec", "namespaceSelector", to={"matchNames": ["prod"]})),
    ("scrape-port-missing", lambda sound: None),
    ("stream-buffered", nginx("server {", "server { location = /health { proxy_pass http://a; }")),
    ("gateway-read-timeout", nginx("proxy_read_timeout 900s;", "proxy_read_timeout 10m;")),
    ("gateway-connect-timeout", nginx("proxy_connect_timeout 2s;", "proxy_connect_timeout 5s;")),
    ("gateway-connect-timeout", annotation("proxy-connect-timeout", "4")),
    (
        "gateway-keepalive-long",
        both(
            nginx("keepalive_timeout 3s;", ""),
            set_in("container", "env", to=[{"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": "120"}]),
        ),
    ),
    ("gateway-retries-generation", nginx("upstream off", "upstream error timeout")),
    ("client-abort-ignored", nginx("proxy_buffering", "proxy_ignore_client_abort off; proxy_buffering")),
    ("keepalive-unused", nginx("keepalive 16; keepalive_timeout 3s;", "")),
    ("header-underscore", nginx("http {", "http { # underscores_in_headers on;")),
    (
        "priority-header-trusted",
        both(TRUSTED, nginx("proxy_buffering", 'proxy_set_header X-Priority ""; proxy_buffering')),
    ),
]


def test_the_sound_deployment_has_no_finding(tmp_path: Path) -> None:
    assert findings(tmp_path, lambda sound: None) == ()


@pytest.mark.parametrize(("rule", "severity", "change"), BROKEN, ids=[f"{row[0]}-{i}" for i, row in enumerate(BROKEN)])
def test_a_misconfiguration_is_found(rule: str, severity: Severity, change: Change, tmp_path: Path) -> None:
    found = [finding for finding in findings(tmp_path, change) if finding.rule == rule]
    assert {finding.severity for finding in found} == {severity}
    assert all(finding.object and finding.wrong and finding.effect and finding.fix for finding in found)


@pytest.mark.parametrize(("rule", "change"), SOUND, ids=[f"{row[0]}-{i}" for i, row in enumerate(SOUND)])
def test_what_is_right_is_left_alone(rule: str, change: Change, tmp_path: Path) -> None:
    assert [finding.wrong for finding in findings(tmp_path, change) if finding.rule == rule] == []


def test_every_rule_has_a_broken_and_a_sound_example() -> None:
    names = {rule.id for rule in RULES}
    assert names == {row[0] for row in BROKEN} == {row[0] for row in SOUND}


def test_a_longer_load_needs_a_longer_startup_budget(tmp_path: Path) -> None:
    slow = findings(tmp_path, lambda sound: None, Assumptions(load_s=601))
    assert [finding.rule for finding in slow] == ["startup-budget-short"]
    assert "600 s" in slow[0].wrong
    assert "601 s" in slow[0].wrong


def test_a_shell_script_is_read_like_an_argument_list(tmp_path: Path) -> None:
    def script(sound: Sound) -> None:
        sound.container["args"] = []
        sound.container["command"] = ["sh", "-c", "exec vllm serve llama -tp 4 \\\n --max-model-len 4096"]

    wrong = [finding.wrong for finding in findings(tmp_path, script)]
    assert any("wants 4 GPU(s)" in sentence for sentence in wrong)


def test_nginx_in_a_config_map_is_judged_too(tmp_path: Path) -> None:
    def moved(sound: Sound) -> None:
        text = sound.nginx.replace("proxy_buffering off;", "")
        sound.more.append({"kind": "ConfigMap", "metadata": {"name": "gw"}, "data": {"site": text}})

    found = findings(tmp_path, moved)
    assert [(finding.rule, finding.object) for finding in found] == [
        ("stream-buffered", "ConfigMap gw, site, server, location /")
    ]
