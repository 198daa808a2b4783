"""A small Kubernetes API on loopback, with the semantics that chaos depends on.

uids, resourceVersions, generations, 404, 409 and 429 are real; controllers answer at once: an owned pod that goes is
replaced under a new uid, a cordoned node gets its taint, a Deployment is observed and scaled.
"""

import copy
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

Object = dict[str, Any]
KINDS = {
    "v1": {"Pod": "pods", "Node": "nodes", "ConfigMap": "configmaps", "Namespace": "namespaces"},
    "apps/v1": {"Deployment": "deployments", "StatefulSet": "statefulsets", "DaemonSet": "daemonsets"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
}
KINDS["v1"]["PersistentVolumeClaim"] = "persistentvolumeclaims"
CLUSTER_SCOPED = ("nodes", "namespaces")
CORDON_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class FakeKubernetes:
    """The objects by (plural, namespace, name), and the levers of a test."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.evictions_refused = 0
        self.refuse: Callable[[str, str], bool] = lambda verb, path: False
        self.conflicts = 0
        self.requests: list[str] = []
        self._serial = itertools.count(1)
        self.add("namespaces", {"metadata": {"name": "kube-system"}})

    def add(self, plural: str, item: Object) -> Object:
        item = copy.deepcopy(item)
        meta = item["metadata"]
        serial = next(self._serial)
        meta |= {"uid": f"uid-{serial}", "resourceVersion": str(serial), "generation": 1}
        meta["creationTimestamp"] = f"2026-01-01T00:00:{serial % 60:02d}Z"
        self.objects[plural, meta.get("namespace", ""), meta["name"]] = item
        return item

    def add_node(self, name: str) -> Object:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        return self.add("nodes", {"metadata": {"name": name}, "spec": {}, "status": ready})

    def add_pod(self, name: str, node: str = "node-1", namespace: str = "serving", **more: Any) -> Object:
        owner = {"kind": more.get("owner", "ReplicaSet"), "name": "engine", "controller": True}
        status = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "engine", "ready": True, "restartCount": 0, "state": {"running": {}}}],
        }
        meta = {"name": name, "namespace": namespace, "labels": {"app": "engine"}, "ownerReferences": [owner]}
        spec = {"nodeName": node, "containers": [{"name": "engine"}], "volumes": more.get("volumes", [])}
        return self.add("pods", {"metadata": meta, "spec": spec, "status": status})

    def get(self, plural: str, name: str, namespace: str = "serving") -> Object:
        return self.objects[plural, "" if plural in CLUSTER_SCOPED else namespace, name]

    def names(self, plural: str) -> set[str]:
        return {name for kind, _, name in self.objects if kind == plural}

    def restart_container(self, name: str) -> None:
        status = self.get("pods", name)["status"]["containerStatuses"][0]
        status["restartCount"] += 1
        status["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error"}}

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path}")
        if self.refuse(request.method, request.path):
            return _status(403, "forbidden by the test")
        if request.path in ("/api/v1", *(f"/apis/{version}" for version in KINDS)):
            return web.json_response({"resources": _resources(request.path.split("/", 2)[2].removeprefix("apis/"))})
        words = request.path.strip("/").split("/")
        words = words[2:] if words[0] == "api" else words[3:]
        namespace = words[1] if words[:1] == ["namespaces"] and len(words) > 2 else ""
        words = words[2:] if namespace else words
        if not words or words[0] not in {plural for kinds in KINDS.values() for plural in kinds.values()}:
            return _status(404, "no such resource")
        if len(words) == 1:
            return await self._collection(request, words[0], namespace)
        return await self._one(request, words[0], namespace, words[1], "/".join(words[2:]))

    async def _collection(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        if request.method == "POST":
            item = await request.json()
            if (plural, namespace, item["metadata"]["name"]) in self.objects:
                return _status(409, "it exists already")
            return web.json_response(self.add(plural, item))
        wanted = [pair.split("=", 1) for pair in request.query.get("labelSelector", "").split(",") if pair]
        items = [
            item
            for (kind, space, _), item in self.objects.items()
            if kind == plural
            and namespace in ("", space)
            and all(item["metadata"].get("labels", {}).get(key) == value for key, value in wanted)
        ]
        return web.json_response({"items": items})

    async def _one(self, request: web.Request, plural: str, namespace: str, name: str, sub: str) -> web.Response:
        item = self.objects.get((plural, namespace, name))
        body = json.loads(await request.text() or "{}")
        if item is None and not (request.method == "PATCH" and "apply" in request.content_type):
            return _status(404, f"{plural} {name} not found")
        if item is None:
            return web.json_response(self.add(plural, body))
        if sub == "eviction":
            return self._evict(item)
        if request.method == "DELETE":
            if body.get("preconditions", {}).get("uid", item["metadata"]["uid"]) != item["metadata"]["uid"]:
                return _status(409, "the uid in the precondition is not the object's")
            self._remove(plural, item)
        elif request.method == "PATCH":
            return self._patch(plural, item, body)
        return web.json_response(item)

    def _evict(self, pod: Object) -> web.Response:
        if self.evictions_refused:
            self.evictions_refused -= 1
            return _status(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        self._remove("pods", pod)
        return web.json_response({})

    def _remove(self, plural: str, item: Object) -> None:
        meta = item["metadata"]
        del self.objects[plural, meta.get("namespace", ""), meta["name"]]
        if plural == "pods" and any(owner["kind"] == "ReplicaSet" for owner in meta.get("ownerReferences", ())):
            usable = [n for n in self.names("nodes") if not self.get("nodes", n)["spec"].get("unschedulable")]
            self.add_pod(f"{meta['name']}-next", sorted(usable)[0] if usable else "")

    def _patch(self, plural: str, item: Object, body: Object) -> web.Response:
        version = body.get("metadata", {}).pop("resourceVersion", item["metadata"]["resourceVersion"])
        if version != item["metadata"]["resourceVersion"] or self.conflicts:
            self.conflicts = max(0, self.conflicts - 1)
            return _status(409, "the object has been modified")
        _merge(item, body)
        item["metadata"]["resourceVersion"] = str(next(self._serial))
        item["metadata"]["generation"] += 1
        if plural == "nodes":
            others = [t for t in item["spec"].get("taints", []) if t["key"] != CORDON_TAINT["key"]]
            item["spec"]["taints"] = [*others, *([CORDON_TAINT] if item["spec"].get("unschedulable") else [])]
        if plural == "deployments":
            replicas = {"replicas": item["spec"]["replicas"], "observedGeneration": item["metadata"]["generation"]}
            item["status"] = {**item.get("status", {}), **replicas}
        return web.json_response(item)


@asynccontextmanager
async def serving(fake: FakeKubernetes, folder: Path) -> AsyncIterator[Path]:
    """Serve on a free loopback port; yields a kubeconfig."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://{host}:{port}"}}],
        "users": [{"name": "fake", "user": {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    try:
        yield path
    finally:
        await runner.cleanup()


def _resources(version: str) -> list[Object]:
    return [{"name": n, "kind": k, "namespaced": n not in CLUSTER_SCOPED} for k, n in KINDS[version].items()]


def _merge(into: Object, change: Object) -> None:
    for key, value in change.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
