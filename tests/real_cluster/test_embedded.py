"""The embedded cluster is a real one: nodes, pods, Services, DNS, GPUs, and it takes the manifests of users."""

import json
from pathlib import Path

import yaml

from shakedown.cluster.embedded import EmbeddedCluster
from shakedown.process import run
from shakedown.serving.rendering import MANIFESTS
from shakedown.waiting import wait_until
from tests.real_cluster.conftest import Kubectl

HOST_FOLDERS = ("usr", "lib", "lib64", "bin")
GREETER = "import http.server,os; open('/tmp/index.html','w').write('hello'); os.chdir('/tmp'); "
SERVE = GREETER + "http.server.ThreadingHTTPServer(('',8000),http.server.SimpleHTTPRequestHandler).serve_forever()"
ASK = (
    "import urllib.request; print(urllib.request.urlopen('http://greeter.greetings:8000/', timeout=5).read().decode())"
)
GREETINGS = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "greetings"}},
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "greeter", "namespace": "greetings"},
        "spec": {"selector": {"app": "greeter"}, "ports": [{"port": 8000}]},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "greeter", "namespace": "greetings"},
        "spec": {
            "selector": {"matchLabels": {"app": "greeter"}},
            "template": {
                "metadata": {"labels": {"app": "greeter"}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [
                        {
                            "name": "greeter",
                            "image": "shakedown.local/machine:1",
                            "imagePullPolicy": "Never",
                            "command": ["/usr/bin/python3", "-c", SERVE],
                            "volumeMounts": [
                                {"name": name, "mountPath": f"/{name}", "readOnly": True} for name in HOST_FOLDERS
                            ],
                        }
                    ],
                    "volumes": [{"name": name, "hostPath": {"path": f"/{name}"}} for name in HOST_FOLDERS],
                },
            },
        },
    },
]


async def test_two_nodes_are_ready_and_offer_gpus_through_a_device_plugin(kubectl: Kubectl) -> None:
    nodes = json.loads(await kubectl("get", "nodes", "-o", "json"))["items"]

    ready = [c["status"] for node in nodes for c in node["status"]["conditions"] if c["type"] == "Ready"]
    assert ready == ["True", "True"]
    assert all(node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.34.") for node in nodes)
    assert [node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes] == ["4", "4"]


async def test_pods_run_on_both_nodes_and_reach_a_service_by_name(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(GREETINGS))
    await kubectl("-n", "greetings", "rollout", "status", "daemonset/greeter", "--timeout=60s")
    pods = json.loads(await kubectl("-n", "greetings", "get", "pods", "-o", "json"))["items"]

    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}
    for pod in pods:
        answer = await kubectl("-n", "greetings", "exec", pod["metadata"]["name"], "--", "/usr/bin/python3", "-c", ASK)
        assert answer.strip() == "hello"
    await kubectl("delete", "namespace", "greetings", "--wait=false")


async def test_a_broken_gpu_is_no_longer_allocatable(cluster: EmbeddedCluster, kubectl: Kubectl) -> None:
    node = cluster.nodes[1]

    async def allocatable() -> str:
        path = r"{.status.allocatable.nvidia\.com/gpu}"
        return await kubectl("get", "node", node.name, "-o", f"jsonpath={path}")

    await cluster.set_gpu_health(node.name, node.gpus[0], healthy=False)
    await wait_until("one GPU fewer", allocatable, lambda gpus: gpus == "3", within_s=30)
    await cluster.set_gpu_health(node.name, node.gpus[0], healthy=True)
    await wait_until("all GPUs again", allocatable, lambda gpus: gpus == "4", within_s=30)


async def test_the_api_server_accepts_every_overlay_and_the_rbac(kubectl: Kubectl) -> None:
    await kubectl("create", "namespace", "llm-serving")
    overlays = sorted(path.parent for path in (MANIFESTS / "vllm" / "overlays").glob("*/kustomization.yaml"))

    assert {overlay.name for overlay in overlays} >= {"cpu", "gpu", "twin"}
    for overlay in overlays:
        accepted = await kubectl("apply", "--dry-run=server", "-k", str(overlay))
        assert "deployment.apps/vllm-llama3-deployment created (server dry run)" in accepted
    await kubectl("delete", "namespace", "llm-serving", "--wait=false")


async def test_what_is_offered_under_a_name_can_be_replaced(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    for content in ("first", "second", "second"):
        folder = tmp_path / content
        folder.mkdir(exist_ok=True)
        (folder / "content").write_text(content)
        await cluster.offer("test-folder", folder)

        for node in cluster.nodes:
            seen = await run(cluster.enter_node(node.name, ["cat", "/srv/shakedown/test-folder/content"]), timeout_s=10)
            assert seen.stdout == content
