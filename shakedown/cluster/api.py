"""The one door to a Kubernetes API: plain verbs, our objects, our errors.

Requests go through the client's own authentication and connection pool, but answers are read as JSON: the typed
models of the client cost ten times the request and nobody above this file may see one.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, cast

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.stream import WsApiClient

from shakedown.cluster.objects import Deployment, Event, Manifest, Node, Pod
from shakedown.cluster.reading import read_deployment, read_event, read_node, read_pod, read_quantity
from shakedown.errors import ClusterUnreachable, ManifestRejected, NotAllowed, UsageError

FIELD_MANAGER = "shakedown"
REQUEST_LIMIT_S = 30.0
FORBIDDEN = (401, 403)


class ApiRefusal(ManifestRejected):
    """The API server answered with an error status."""

    def __init__(self, verb: str, path: str, status: int, message: str) -> None:
        super().__init__(f"Kubernetes refused {verb} {path}: {status} {message}")
        self.status = status


class Cluster:
    """A Kubernetes cluster, reached with the rights of one kubeconfig context."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None, context: str | None = None) -> Self:
        """Load a kubeconfig (None: the user's own, else the pod's service account).

        Raises UsageError for a file that cannot be read or a context it does not have.
        """
        configuration = Configuration()
        if kubeconfig is not None and not kubeconfig.is_file():
            raise UsageError(f"the kubeconfig {kubeconfig} does not exist or is not a file")
        try:
            await load_kube_config(
                str(kubeconfig) if kubeconfig else None,
                context,
                client_configuration=configuration,
                persist_config=False,
            )
        except (ConfigException, OSError, ValueError, TypeError, AttributeError) as problem:
            configuration = _service_account_configuration(kubeconfig, problem)
        configuration.retries = None
        return cls(ApiClient(configuration))

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def version(self) -> str:
        """The API server's version, such as "v1.34.4"."""
        return str((await self._request("GET", "/version"))["gitVersion"])

    async def pods(self, namespace: str, selector: str = "") -> tuple[Pod, ...]:
        """Pods of a namespace that match a label selector."""
        return tuple(read_pod(item) for item in await self.list_objects("v1", "Pod", namespace, selector))

    async def deployment(self, namespace: str, name: str) -> Deployment:
        """One Deployment. Raises ManifestRejected when there is none."""
        return read_deployment(await self._request("GET", await self._path("apps/v1", "Deployment", namespace, name)))

    async def nodes(self) -> tuple[Node, ...]:
        return tuple(read_node(item) for item in await self.list_objects("v1", "Node"))

    async def events(self, namespace: str) -> tuple[Event, ...]:
        """Events of a namespace, oldest first."""
        items = await self.list_objects("v1", "Event", namespace)
        return tuple(sorted((read_event(item) for item in items), key=lambda event: event.at))

    async def logs(
        self,
        namespace: str,
        pod: str,
        *,
        container: str | None = None,
        previous: bool = False,
        tail_lines: int | None = None,
    ) -> str:
        """A container's output; of its run before the last restart with `previous`."""
        query = {
            "container": container,
            "previous": "true" if previous else None,
            "tailLines": str(tail_lines) if tail_lines is not None else None,
        }
        return await self._request_text("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query=query)

    async def exec(self, namespace: str, pod: str, argv: Iterable[str], *, container: str | None = None) -> str:
        """Run a command in a container and return what it printed on both streams."""
        query: list[tuple[str, Any]] = [("command", list(argv)), ("stdout", "true"), ("stderr", "true")]
        if container is not None:
            query.append(("container", container))
        async with WsApiClient(self._client.configuration) as streaming:
            _, url, headers, _, _ = await streaming.param_serialize(
                "GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/exec", auth_settings=["BearerToken"]
            )
            try:
                response = await asyncio.wait_for(
                    streaming.request("GET", url, query_params=query, headers=headers), REQUEST_LIMIT_S
                )
            except (aiohttp.ClientError, TimeoutError) as error:
                raise ClusterUnreachable(f"exec in pod {namespace}/{pod} failed: {error}") from error
        return cast(bytes, response.data).decode(errors="replace")

    async def apply(self, manifests: Iterable[Manifest], *, dry_run: bool = False) -> list[Manifest]:
        """Server-side apply, in the order given; returns what the server made of each."""
        query = {
            "fieldManager": FIELD_MANAGER,
            "force": "true",
            "dryRun": "All" if dry_run else None,
        }
        applied = []
        for manifest in manifests:
            meta = manifest["metadata"]
            path = await self._path(manifest["apiVersion"], manifest["kind"], meta.get("namespace"), meta["name"])
            applied.append(
                await self._request(
                    "PATCH", path, query=query, body=manifest, content_type="application/apply-patch+yaml"
                )
            )
        return applied

    async def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Create an object; raises ManifestRejected when it is there already. Returns it with the server's defaults."""
        meta = manifest["metadata"]
        path = await self._path(manifest["apiVersion"], manifest["kind"], meta.get("namespace"))
        return await self._request("POST", path, query={"dryRun": "All" if dry_run else None}, body=manifest)

    async def read(self, api_version: str, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """One object as the server has it; None if there is none."""
        try:
            return await self._request("GET", await self._path(api_version, kind, namespace, name))
        except ApiRefusal as refusal:
            if refusal.status == 404:
                return None
            raise

    async def list_objects(
        self, api_version: str, kind: str, namespace: str | None = None, selector: str = ""
    ) -> list[Manifest]:
        """All objects of a kind, in a namespace or (None) everywhere."""
        path = await self._path(api_version, kind, namespace)
        answer = await self._request("GET", path, query={"labelSelector": selector or None})
        return [{"apiVersion": api_version, "kind": kind, **item} for item in answer["items"]]

    async def patch(self, api_version: str, kind: str, namespace: str | None, name: str, body: Manifest) -> Manifest:
        """JSON merge patch."""
        path = await self._path(api_version, kind, namespace, name)
        return await self._request("PATCH", path, body=body, content_type="application/merge-patch+json")

    async def delete(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        grace_s: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Delete an object; with `uid`, only if it still is that one. That it is gone already is no error."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        path = await self._path(api_version, kind, namespace, name)
        try:
            await self._request("DELETE", path, body=body)
        except ApiRefusal as refusal:
            gone = refusal.status == 404 or (refusal.status == 409 and uid is not None)
            if not gone:
                raise

    async def evict(self, namespace: str, pod: str) -> None:
        """Evict through the eviction API; raises ManifestRejected (429) while a PodDisruptionBudget forbids it."""
        await self._request(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction",
            body={
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod, "namespace": namespace},
            },
        )

    async def can_i(self, verb: str, resource: str, namespace: str | None, group: str = "") -> bool:
        """Ask the cluster whether we may (SelfSubjectAccessReview)."""
        resource, _, subresource = resource.partition("/")
        attributes = {
            "verb": verb,
            "resource": resource,
            "subresource": subresource,
            "group": group,
            "namespace": namespace or "",
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
        return bool(answer["status"]["allowed"])

    async def external_metric(self, namespace: str, name: str, selector: str) -> float | None:
        """A metric of the external metrics API, summed over what it lists; None if it has no such metric.

        Raises ClusterUnreachable when the API or what stands behind it does not answer, NotAllowed if not to us.
        """
        path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{name}"
        return await self._metric(path, {"labelSelector": selector or None})

    async def pods_metric(self, namespace: str, name: str) -> float | None:
        """A metric of the custom metrics API, summed over the pods of a namespace. Else as `external_metric`."""
        path = f"/apis/custom.metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/*/{name}"
        return await self._metric(path, {})

    async def _metric(self, path: str, query: Mapping[str, str | None]) -> float | None:
        try:
            answer = await self._request("GET", path, query=query)
        except ApiRefusal as refusal:
            if refusal.status == 404:
                return None
            if refusal.status in FORBIDDEN:
                raise NotAllowed(str(refusal)) from refusal
            raise ClusterUnreachable(f"the metrics API: {refusal}") from refusal
        values = [read_quantity(item["value"]) for item in answer["items"]]
        return sum(values) if values else None

    async def get_through(
        self, namespace: str, kind: str, name: str, port: int, path: str, query: Mapping[str, str | None] | None = None
    ) -> str:
        """GET a path of a pod or a Service by way of the API server; `kind` is "pods" or "services".

        Raises ClusterUnreachable when nothing answers there, NotAllowed when the API server or the server refuses us.
        """
        where = f"/api/v1/namespaces/{namespace}/{kind}/{name}:{port}/proxy{path}"
        try:
            return await self._request_text("GET", where, query=query)
        except ApiRefusal as refusal:
            if refusal.status in FORBIDDEN:
                raise NotAllowed(str(refusal)) from refusal
            raise ClusterUnreachable(str(refusal)) from refusal

    async def serves(self, group_version: str) -> bool:
        """True if the API server has that group and version, such as "chaos-mesh.org/v1alpha1"."""
        try:
            await self._request("GET", f"/apis/{group_version}")
        except ApiRefusal as refusal:
            if refusal.status in (404, 503):
                return False
            raise
        return True

    async def _path(self, api_version: str, kind: str, namespace: str | None, name: str | None = None) -> str:
        root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        if (api_version, kind) not in self._plurals:
            await self._discover(root, api_version)
        if (api_version, kind) not in self._plurals:
            raise ManifestRejected(f"the cluster does not know {kind} of {api_version}; is its operator installed?")
        plural, namespaced = self._plurals[api_version, kind]
        middle = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return f"{root}{middle}/{plural}" + (f"/{name}" if name else "")

    async def _discover(self, root: str, api_version: str) -> None:
        try:
            answer = await self._request("GET", root)
        except ApiRefusal as refusal:
            if refusal.status != 404:
                raise
            return
        for resource in answer["resources"]:
            if "/" not in resource["name"]:
                self._plurals[api_version, resource["kind"]] = resource["name"], resource["namespaced"]

    async def _request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str | None] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        text = await self._request_text(verb, path, query=query, body=body, content_type=content_type)
        return cast(Manifest, json.loads(text))

    async def _request_text(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str | None] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> str:
        pairs = [(key, value) for key, value in (query or {}).items() if value is not None]
        request = await self._client.param_serialize(
            verb,
            path,
            query_params=pairs,
            header_params={"Accept": "application/json, */*", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = await self._client.call_api(*request, _request_timeout=REQUEST_LIMIT_S)
            data = cast(bytes, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            host = self._client.configuration.host
            raise ClusterUnreachable(
                f"the API server at {host} did not answer {verb} {path}: {error or type(error).__name__}"
            ) from error
        text = data.decode(errors="replace")
        if response.status >= 400:
            raise ApiRefusal(verb, path, response.status, _message_of(text))
        return text


def _service_account_configuration(kubeconfig: Path | None, problem: Exception) -> Configuration:
    if kubeconfig is not None:
        why = problem if isinstance(problem, (ConfigException, OSError)) else "it is not a kubeconfig"
        raise UsageError(f"the kubeconfig {kubeconfig} cannot be used: {why}") from problem
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        raise UsageError(
            f"no cluster to talk to: no usable kubeconfig ({problem}); set KUBECONFIG or pass --kubeconfig"
        ) from error
    return configuration


def _message_of(text: str) -> str:
    try:
        return str(json.loads(text).get("message", text))
    except (ValueError, AttributeError):
        return text[:500]
