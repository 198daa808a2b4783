"""The command as a user meets it: files in, lines and an exit code out, never a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shakedown.cli.main import main
from shakedown.errors import UsageError
from shakedown.serving.lint.check import RULES, check
from shakedown.serving.lint.findings import Assumptions
from shakedown.serving.lint.loading import load
from shakedown.serving.lint.nginx_syntax import NotNginx, parse, seconds
from shakedown.serving.rendering import MANIFESTS

BROKEN = """
kind: Deployment
metadata: {name: llama}
spec: {template: {spec: {containers: [{name: e, image: vllm/vllm-openai, livenessProbe: {httpGet: {}}}]}}}
"""
KINDS = (
    *("Deployment", "Pod", "CronJob", "Service", "PodDisruptionBudget", "PersistentVolumeClaim", "Ingress"),
    *("ScaledObject", "HorizontalPodAutoscaler", "ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap", "List"),
    *("HTTPRoute", "Gateway", "ProxySettingsPolicy"),
)
WORDS = (
    *(
        "spec",
        "template",
        "containers",
        "args",
        "image",
        "resources",
        "limits",
        "triggers",
        "metadata",
        "query",
        "type",
    ),
    *("timeouts", "retry", "codes", "parentRefs", "targetRefs", "_format_version", "services", "routes", "_info"),
    *("selector", "matchLabels", "metrics", "groups", "rules", "expr", "seriesQuery", "name", "items", "data", "ports"),
)


def code(*args: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["lint", *args])
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("way", ["scaledobject.yaml", "adapter"])
def test_our_own_manifests_have_no_error_whichever_way_they_scale(way: str) -> None:
    others = [str(folder) for folder in MANIFESTS.iterdir() if folder.is_dir() and folder.name != "autoscaling"]
    assert code(*others, str(MANIFESTS / "autoscaling" / way)) == 0


def test_errors_exit_1_and_are_told_with_their_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(BROKEN)
    assert code(str(tmp_path)) == 1
    told = capsys.readouterr().out
    assert "a.yaml: error liveness-kills-load: Deployment llama" in told
    assert "change: add a startupProbe" in told


def test_warnings_fail_only_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(BROKEN.replace("livenessProbe", "startupProbe: {httpGet: {}, failureThreshold: 90}, x"))
    assert code(str(file)) == 0
    assert code(str(file), "--strict") == 1


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(BROKEN)
    code(str(tmp_path), "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["clean"] is False
    assert told["errors"] == sum(finding["severity"] == "error" for finding in told["findings"]) > 0


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.yaml", "a: [1", "is not YAML in line"),
        ("a.yaml", "a: {{ .Values.x }}\nb: {{", "helm template"),
        ("a.yaml", "a: 2020-99-99", "is not YAML"),
        ("a.yaml", "[" * 5000, "is not YAML"),
        ("a.yaml", "- just\n- words", "no Kubernetes object"),
        ("a.conf", "server { location / {", "not an nginx configuration"),
        ("a.txt", "", "no .yaml"),
    ],
)
def test_bad_files_are_one_line_and_exit_4(
    name: str, content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    assert code(str(tmp_path)) == 4
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_a_missing_file_and_a_binary_one_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    assert code(str(tmp_path / "none.yaml")) == code(str(tmp_path / "b.yaml")) == 4
    assert capsys.readouterr().err.count("\n") == 2


def test_a_kustomization_gives_image_and_namespace_and_its_patches_are_no_objects(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BROKEN)
    (tmp_path / "patch.yaml").write_text(BROKEN.replace("llama", "patched"))
    images = [{"name": "vllm/vllm-openai", "newTag": "v0.30.1"}]
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"namespace": "prod", "images": images, "patches": [{"path": "patch.yaml"}]})
    )
    world = load([str(tmp_path)])
    assert [(placed.item.name, placed.item.namespace, placed.engine.version) for placed in world.engines()] == [
        ("llama", "prod", (0, 30))
    ]


def test_lists_are_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"kind": "List", "items": [yaml.safe_load(BROKEN)]}))
    assert code(str(tmp_path)) == 1


def odd() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS)
    keys = st.sampled_from(WORDS) | st.integers() | st.text(max_size=3)
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(KINDS), metadata=odd(), spec=odd(), data=odd())
def test_no_yaml_is_so_odd_that_it_crashes(tmp_path: Path, kind: str, metadata: Any, spec: Any, data: Any) -> None:
    document = {"kind": kind, "metadata": metadata, "spec": spec, "data": data, "rules": spec, "items": [spec]}
    (tmp_path / "a.yaml").write_text(f"{yaml.safe_dump(document)}\n---\n{BROKEN}")
    check(load([str(tmp_path)]), Assumptions())


@pytest.mark.parametrize("value", [None, 7, "text", [], [None], {}, {"x": None}, {1: 2}, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_field_of_any_kind_may_have_any_shape(kind: str, value: Any, tmp_path: Path) -> None:
    container = {"image": "vllm/vllm-openai", "args": value, "resources": value, "env": value, "startupProbe": value}
    pod = {"containers": [container, value], "volumes": value, "terminationGracePeriodSeconds": value}
    rest = {"triggers": [value, {"type": "prometheus", "metadata": value}], "metrics": [value], "selector": value}
    spec = {"template": {"metadata": value, "spec": pod}, "replicas": value, "strategy": value, **pod, **rest}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([{"kind": kind, "metadata": value, "spec": spec}, value]))
    check(load([str(tmp_path)]), Assumptions())


def test_nginx_blocks_inherit_and_quotes_and_comments_are_understood() -> None:
    root = parse('http { proxy_buffering off; # } \n server { location "/a b" { proxy_set_header X "{;}"; } } }')
    location = root.blocks[0].blocks[0].blocks[0]
    assert location.words == ("location", "/a b")
    assert location.value("proxy_buffering", "on") == "off"
    assert location.effective("proxy_set_header") == [("X", "{;}")]
    with pytest.raises(NotNginx):
        parse("http { } }")


@pytest.mark.parametrize(("text", "value"), [("60", 60), ("1m30s", 90), ("500ms", 0.5), ("1h", 3600), ("soon", None)])
def test_nginx_times(text: str, value: float | None) -> None:
    assert seconds(text) == value


def test_a_folder_without_manifests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no \.yaml"):
        load([str(tmp_path)])


def test_an_included_nginx_file_inherits_from_where_it_is_included(tmp_path: Path) -> None:
    (tmp_path / "nginx.conf").write_text("http { proxy_buffering off; include /etc/nginx/conf.d/*.conf; }")
    (tmp_path / "site.conf").write_text(
        "include nginx.conf; server { location / { proxy_pass http://a; include p.conf; } }"
    )
    (tmp_path / "p.conf").write_text("proxy_read_timeout 900s; proxy_connect_timeout 2s;")
    assert check(load([str(tmp_path)]), Assumptions()) == ()
    (tmp_path / "p.conf").unlink()
    assert [finding.rule for finding in check(load([str(tmp_path)]), Assumptions())] == [
        "gateway-read-timeout",
        "gateway-connect-timeout",
    ]


def test_the_documentation_lists_every_rule_as_it_is() -> None:
    documented = (MANIFESTS.parent / "docs" / "lint.md").read_text()
    missing = [rule.id for rule in RULES if f"| `{rule.id}` | {rule.severity} | {rule.effect} |" not in documented]
    assert missing == []
