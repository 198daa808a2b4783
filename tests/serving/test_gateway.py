"""The gateway's lines decide about streams, and its upstreams are the pools that were deployed."""

import copy
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from shakedown.cluster.objects import Manifest
from shakedown.errors import SetupError
from shakedown.serving.deployment import ServingDeployment
from shakedown.serving.gateway import NAMESPACE, changed, restart_for, routed
from shakedown.serving.rendering import MANIFESTS

GATEWAY = MANIFESTS / "gateway" / "base"
CONFIGURATION = (GATEWAY / "nginx.conf").read_text()


def pool(host: str) -> ServingDeployment:
    return cast(ServingDeployment, SimpleNamespace(service_host=host))


def manifests() -> list[Manifest]:
    return [
        {
            "kind": "ConfigMap",
            "metadata": {"name": "gateway-nginx", "namespace": "llm-serving"},
            "data": {"nginx.conf": CONFIGURATION},
        },
        yaml.safe_load((GATEWAY / "deployment.yaml").read_text()),
    ]


def route(rendered: list[Manifest]) -> list[dict[str, Any]]:
    return routed(rendered, interactive=pool("vllm.llm-a.svc"), batch=pool("vllm.llm-b.svc"))


def upstream(text: str, name: str) -> str:
    block = re.search(rf"upstream {name} {{(.*?)}}", text, re.DOTALL)
    assert block is not None
    return block[1]


def test_each_upstream_is_the_service_of_its_own_pool() -> None:
    text = next(manifest for manifest in route(manifests()) if manifest["kind"] == "ConfigMap")["data"]["nginx.conf"]
    assert "server vllm.llm-a.svc:8000;" in upstream(text, "interactive")
    assert "server vllm.llm-b.svc:8000;" in upstream(text, "batch")
    assert "_POOL" not in text


def test_the_gateway_lives_in_a_namespace_that_comes_first() -> None:
    namespace, *others = route(manifests())
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", NAMESPACE)
    assert {manifest["metadata"]["namespace"] for manifest in others} == {NAMESPACE}
    assert len(others) == len(manifests())


def test_routing_leaves_the_rendered_manifests_alone() -> None:
    rendered = manifests()
    before = copy.deepcopy(rendered)
    route(rendered)
    assert rendered == before


def test_pods_are_replaced_when_their_configuration_changes_and_only_then() -> None:
    plain, same, other = manifests(), manifests(), changed(manifests(), lambda text: text.replace("900s", "90s"))
    for each in (plain, same, other):
        restart_for(each[1], each[0])
    templates = [each[1]["spec"]["template"] for each in (plain, same, other)]
    assert templates[0] == templates[1] != templates[2]


def test_a_change_that_finds_nothing_to_change_is_an_error() -> None:
    with pytest.raises(SetupError, match="leaves nginx"):
        changed(manifests(), lambda text: text.replace("proxy_read_timeout 1s", ""))


@pytest.mark.parametrize(
    "line",
    [
        "proxy_buffering off;",
        "proxy_next_upstream off;",
        "proxy_connect_timeout 2s;",
        "proxy_read_timeout 900s;",
        "proxy_send_timeout 900s;",
        "proxy_http_version 1.1;",
        'proxy_set_header Connection "";',
        'proxy_set_header X-Priority "";',
        "proxy_ignore_client_abort off;",
        "add_header X-Accel-Buffering no always;",
    ],
)
def test_what_is_proxied_streams_once_and_patiently(line: str) -> None:
    location = re.search(r"location / {(.*?)\n    }", CONFIGURATION, re.DOTALL)
    assert location is not None
    directives = [text.strip() for text in location[1].splitlines()]
    assert directives.count(line) == 1


@pytest.mark.parametrize("name", ["interactive", "batch"])
def test_idle_connections_end_before_the_engine_ends_them(name: str) -> None:
    assert "keepalive_timeout 3s;" in upstream(CONFIGURATION, name)
