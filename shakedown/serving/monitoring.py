"""Prometheus: deployed where there is none, and asked as an autoscaler asks it."""

import copy
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import yaml

from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest
from shakedown.errors import ClusterUnreachable, HarnessError, NotAllowed, UsageError
from shakedown.serving.configuration import only
from shakedown.serving.reach import await_answer
from shakedown.serving.rendering import MANIFESTS, render
from shakedown.settings import RunSettings
from shakedown.waiting import wait_until

NAMESPACE = "llm-monitoring"
NAME = "prometheus"
SELECTOR = "app=prometheus"
ROLLOUT_LIMIT_S = 90.0
QUERY_LIMIT_S = 5.0
QUERY_PATH = "/api/v1/query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A live Prometheus."""

    url: str
    """As we reach it."""
    address: str
    """As pods of the cluster reach it."""

    async def query(self, promql: str) -> float | None:
        """The value of an instant query that yields one number; None where the series is absent, which is not zero.

        Raises HarnessError when it does not answer, refuses the query, or answers with several series; NotAllowed
        when it does not let us ask.
        """
        result = await self._result(promql)
        if len(result) > 1:
            raise HarnessError(f"{promql} yields {len(result)} series; an autoscaler needs one")
        return float(result[0]["value"][1]) if result else None

    async def count(self, promql: str) -> int:
        """How many series an instant query yields. Raises HarnessError as `query` does."""
        return len(await self._result(promql))

    async def _result(self, promql: str) -> list[Manifest]:
        try:
            content: Manifest = json.loads(await self._ask({"query": promql}))
        except ValueError as error:
            raise HarnessError(f"what answers at {self.url} is no Prometheus") from error
        if content.get("status") != "success":
            raise HarnessError(f"Prometheus refused {promql}: {content.get('error', str(content)[:200])}")
        result: list[Manifest] = content["data"]["result"]
        return result

    async def _ask(self, query: dict[str, str]) -> str:
        try:
            async with httpx.AsyncClient(timeout=QUERY_LIMIT_S, trust_env=False) as client:
                answer = await client.get(f"{self.url}{QUERY_PATH}", params=query)
        except httpx.HTTPError as error:
            raise HarnessError(f"Prometheus at {self.url} did not answer: {error or type(error).__name__}") from error
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise NotAllowed(f"Prometheus at {self.url} does not let us ask: {answer.status_code}")
        return answer.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedPrometheus(Prometheus):
    """One that is asked by way of the API server: pods reach it, we may not."""

    cluster: Cluster
    namespace: str
    service: str
    port: int
    path: str

    async def _ask(self, query: dict[str, str]) -> str:
        path = f"{self.path}{QUERY_PATH}"
        return await self.cluster.get_through(self.namespace, "services", self.service, self.port, path, query)


def prometheus_at(address: str, cluster: Cluster, namespace: str) -> Prometheus:
    """The Prometheus at an address as a pod of `namespace` uses it. Raises UsageError for what is no address."""
    try:
        parts = urlsplit(address.strip().rstrip("/"))
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise UsageError(f"{address!r} is not the address of a Prometheus: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"{address!r} is not the address of a Prometheus; it looks like http://prometheus.ns.svc:9090")
    labels = host.removesuffix(".").removesuffix(".cluster.local").removesuffix(".svc").split(".")
    inside = len(labels) <= 2 and not labels[-1].isdigit() and host != "localhost"
    if not inside:
        return Prometheus(url=address.rstrip("/"), address=address)
    service, where = labels[0], labels[1] if len(labels) == 2 else namespace
    if parts.scheme == "https":
        service = f"https:{service}"
    return ProxiedPrometheus(
        url=address, address=address, cluster=cluster, namespace=where, service=service, port=port, path=parts.path
    )


async def deploy_prometheus(cluster: Cluster, settings: RunSettings, scrape_every_s: int) -> Prometheus:
    """Deploy the Prometheus of `manifests/monitoring` and wait until it answers."""
    folder = "overlays/embedded" if settings.cluster == "embedded" else "base"
    manifests = scraping_every(await render(MANIFESTS / "monitoring" / folder, settings.kubectl), scrape_every_s)
    applied = await cluster.apply(manifests)
    await wait_until(
        "the rollout of Prometheus",
        lambda: cluster.deployment(NAMESPACE, NAME),
        lambda seen: seen.rolled_out,
        within_s=ROLLOUT_LIMIT_S,
        tolerate=(ClusterUnreachable,),
    )
    service = only(applied, "Service")["spec"]
    port = service["ports"][0]["port"]
    live = Prometheus(url=f"http://{service['clusterIP']}:{port}", address=f"http://{NAME}.{NAMESPACE}.svc:{port}")
    await await_answer(f"{live.url}/-/ready")
    return live


def scraping_every(manifests: list[Manifest], every_s: int) -> list[Manifest]:
    """The manifests with another scrape interval; a scrape may take no longer than that."""
    result = copy.deepcopy(manifests)
    data = only(result, "ConfigMap")["data"]
    configuration = yaml.safe_load(data["prometheus.yml"])
    timeout_s = min(every_s, int(configuration["global"]["scrape_timeout"].rstrip("s")))
    configuration["global"].update(scrape_interval=f"{every_s}s", scrape_timeout=f"{timeout_s}s")
    data["prometheus.yml"] = yaml.safe_dump(configuration, sort_keys=False)
    return result
