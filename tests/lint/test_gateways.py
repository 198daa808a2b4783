"""Every gateway that we ship a variant for is read, found sound, and accused of what is planted in it."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from shakedown.serving.lint.check import check
from shakedown.serving.lint.findings import Assumptions, Finding, Severity
from shakedown.serving.lint.gateways import routes
from shakedown.serving.lint.loading import load
from shakedown.serving.rendering import MANIFESTS

VARIANTS = MANIFESTS / "gateway" / "variants"
ROUTES = {"ingress-nginx": 2, "gateway-api": 2, "kong": 3}
BUFFERED, IMPATIENT, REPEATED = "stream-buffered", "gateway-read-timeout", "gateway-retries-generation"
UNCONNECTED = "gateway-connect-timeout"
ERROR, WARNING = Severity.ERROR, Severity.WARNING
INGRESS = "nginx.ingress.kubernetes.io/"

PLANTED = [
    ("ingress-nginx", IMPATIENT, ERROR, 'proxy-read-timeout: "900"', 'proxy-read-timeout: "60"'),
    ("ingress-nginx", IMPATIENT, ERROR, f'    {INGRESS}proxy-read-timeout: "900"\n', ""),
    ("ingress-nginx", IMPATIENT, WARNING, 'proxy-read-timeout: "900"', 'proxy-read-timeout: "300"'),
    ("ingress-nginx", BUFFERED, ERROR, 'proxy-buffering: "off"', 'proxy-buffering: "on"'),
    ("ingress-nginx", REPEATED, ERROR, 'next-upstream: "off"', 'next-upstream: "error timeout non_idempotent"'),
    ("gateway-api", IMPATIENT, ERROR, "request: 15m", "request: 30s"),
    ("gateway-api", IMPATIENT, ERROR, "backendRequest: 15m", "backendRequest: 30s"),
    ("gateway-api", IMPATIENT, WARNING, "request: 15m", "request: 5m"),
    ("gateway-api", IMPATIENT, WARNING, "      timeouts:\n        request: 15m\n        backendRequest: 15m\n", ""),
    ("gateway-api", BUFFERED, ERROR, "disable: true", "disable: false"),
    ("gateway-api", BUFFERED, ERROR, "kind: HTTPRoute\n      name: llm", "kind: HTTPRoute\n      name: other"),
    ("gateway-api", BUFFERED, ERROR, "gatewayClassName: nginx", "gatewayClassName: kong"),
    ("gateway-api", REPEATED, ERROR, "      timeouts:", "      retry: {attempts: 3, codes: [503]}\n      timeouts:"),
    ("kong", IMPATIENT, ERROR, "    read_timeout: 900000\n", ""),
    ("kong", IMPATIENT, ERROR, "read_timeout: 900000", "read_timeout: 60000"),
    ("kong", IMPATIENT, WARNING, "read_timeout: 900000", "read_timeout: 300000"),
    ("kong", UNCONNECTED, WARNING, "    connect_timeout: 2000\n", ""),
    ("kong", UNCONNECTED, WARNING, "connect_timeout: 2000", "connect_timeout: 30000"),
    ("kong", BUFFERED, ERROR, "        response_buffering: false\n", ""),
    ("kong", BUFFERED, ERROR, "response_buffering: false", "response_buffering: true"),
    ("kong", REPEATED, ERROR, "    retries: 0\n", ""),
    ("kong", REPEATED, ERROR, "retries: 0", "retries: 2"),
]

SOUND = [
    ("gateway-api", "gatewayClassName: nginx", "gatewayClassName: envoy"),
    ("gateway-api", "kind: HTTPRoute\n      name: llm", "kind: Gateway\n      name: llm"),
    ("gateway-api", "request: 15m", "request: 0s"),
    ("gateway-api", "      timeouts:", "      retry: {attempts: 0}\n      timeouts:"),
    ("kong", "    retries: 0\n", ""),
]
"""Other ways of being right; the last one with Kong's defaults in `_info`."""


def copied(variant: str, folder: Path) -> Path:
    return Path(shutil.copytree(VARIANTS / variant, folder, dirs_exist_ok=True))


def found(folder: Path) -> tuple[Finding, ...]:
    return check(load([str(folder)]), Assumptions())


def replaced(folder: Path, old: str, new: str) -> None:
    """Plant a change wherever it fits. Fails where it fits nowhere."""
    files = list(folder.glob("*.yaml"))
    assert any(old in file.read_text() for file in files)
    for file in files:
        file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize("variant", ROUTES)
def test_a_variant_is_read_and_found_sound(variant: str) -> None:
    assert len(list(routes(load([str(VARIANTS / variant)])))) == ROUTES[variant]
    assert found(VARIANTS / variant) == ()


@pytest.mark.parametrize(
    ("variant", "rule", "severity", "old", "new"), PLANTED, ids=[f"{row[0]}-{i}" for i, row in enumerate(PLANTED)]
)
def test_a_planted_defect_is_found(
    variant: str, rule: str, severity: Severity, old: str, new: str, tmp_path: Path
) -> None:
    replaced(copied(variant, tmp_path), old, new)
    assert {(finding.rule, finding.severity) for finding in found(tmp_path)} == {(rule, severity)}


@pytest.mark.parametrize(("variant", "old", "new"), SOUND, ids=[f"{row[0]}-{i}" for i, row in enumerate(SOUND)])
def test_what_is_right_otherwise_is_left_alone(variant: str, old: str, new: str, tmp_path: Path) -> None:
    replaced(copied(variant, tmp_path), old, new)
    if variant == "kong":
        replaced(
            tmp_path, '_format_version: "3.0"', '_format_version: "3.0"\n_info: {defaults: {service: {retries: 0}}}'
        )
    assert found(tmp_path) == ()


def test_routes_of_kong_beside_their_service_are_read_too(tmp_path: Path) -> None:
    service = {"name": "chat", "host": "vllm", "read_timeout": 900000, "connect_timeout": 2000, "retries": 0}
    document = {"_format_version": "3.0", "services": [service], "routes": [{"name": "r", "service": {"name": "chat"}}]}
    (tmp_path / "kong.yaml").write_text(yaml.safe_dump(document))
    assert [(finding.rule, finding.object) for finding in found(tmp_path)] == [
        (BUFFERED, "Kong service chat, route r"),
    ]


def test_all_variants_route_by_the_same_header_with_the_same_patience_as_the_gateway() -> None:
    nginx = (MANIFESTS / "gateway" / "base" / "nginx.conf").read_text()
    patience_s = re.search(r"proxy_read_timeout (\d+)s", nginx)
    assert patience_s is not None
    for variant in ROUTES:
        read = list(routes(load([str(VARIANTS / variant)])))
        assert {route.patience.seconds for route in read} == {float(patience_s[1])}
        text = "".join(file.read_text() for file in (VARIANTS / variant).glob("*.yaml"))
        assert "X-Traffic-Class" in text
        assert "http_x_traffic_class" in nginx


def test_each_variant_names_both_pools() -> None:
    for variant in ROUTES:
        assert pools(VARIANTS / variant) == {"vllm-interactive", "vllm-batch"}


def pools(folder: Path) -> set[str]:
    documents = [each for file in folder.glob("*.yaml") for each in yaml.safe_load_all(file.read_text())]
    return {word.partition(".")[0] for document in documents for word in words(document) if word.startswith("vllm-")}


def words(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [word for value in node.values() for word in words(value)]
    if isinstance(node, list):
        return [word for value in node for word in words(value)]
    return [node] if isinstance(node, str) else []
