"""A deployment without a known misconfiguration, to be broken one thing at a time."""

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from shakedown.serving.lint.check import check
from shakedown.serving.lint.findings import Assumptions, Finding
from shakedown.serving.lint.loading import load

WAITING = 'sum(vllm:num_requests_waiting{model_name="llama"})'
HEALTH = {"httpGet": {"path": "/health", "port": 8000}, "timeoutSeconds": 5}
ARGS = [
    "--model=llama",
    "--tensor-parallel-size=2",
    "--max-model-len=4096",
    "--max-num-seqs=64",
    "--gpu-memory-utilization=0.90",
]
NGINX = """
http {
  map $http_x_traffic_class $pool { default interactive; batch batch; }
  upstream interactive { server a:8000; keepalive 16; keepalive_timeout 3s; }
  upstream batch { server b:8000; keepalive 16; keepalive_timeout 3s; }
  server {
    location / {
      proxy_pass http://$pool;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 900s;
      proxy_connect_timeout 2s;
      proxy_next_upstream off;
    }
  }
}
"""


def _object(api: str, kind: str, name: str, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "prod"}, **rest}


class Sound:
    """Objects by a short name, and the gateway's configuration; a breakage changes them in place."""

    def __init__(self) -> None:
        self.nginx = NGINX
        self.container: dict[str, Any] = {
            "name": "engine",
            "image": "vllm/vllm-openai:v0.32.0",
            "args": list(ARGS),
            "resources": {"limits": {"nvidia.com/gpu": "2"}},
            "startupProbe": {**HEALTH, "periodSeconds": 10, "failureThreshold": 60},
            "livenessProbe": dict(HEALTH),
            "readinessProbe": dict(HEALTH),
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        }
        self.pod: dict[str, Any] = {
            "terminationGracePeriodSeconds": 120,
            "containers": [self.container],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "cache", "persistentVolumeClaim": {"claimName": "weights"}},
            ],
        }
        self.deployment = _object(
            "apps/v1",
            "Deployment",
            "llama",
            spec={
                "replicas": 2,
                "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
                "selector": {"matchLabels": {"app": "llama"}},
                "template": {"metadata": {"labels": {"app": "llama"}}, "spec": self.pod},
            },
        )
        self.service = _object(
            "v1", "Service", "llama", spec={"selector": {"app": "llama"}, "ports": [{"name": "http", "port": 8000}]}
        )
        self.service["metadata"]["labels"] = {"app": "llama"}
        self.router = _object(
            "v1", "Service", "router", spec={"selector": {"app": "router"}, "ports": [{"name": "http", "port": 80}]}
        )
        self.router["metadata"]["labels"] = {"app": "router"}
        self.budget = _object(
            "policy/v1",
            "PodDisruptionBudget",
            "llama",
            spec={"minAvailable": 1, "selector": {"matchLabels": {"app": "llama"}}},
        )
        self.claim = _object("v1", "PersistentVolumeClaim", "weights", spec={"accessModes": ["ReadWriteMany"]})
        self.trigger: dict[str, Any] = {
            "type": "prometheus",
            "metadata": {"query": WAITING, "threshold": "5", "ignoreNullValues": "false"},
        }
        self.scaler = _object(
            "keda.sh/v1alpha1",
            "ScaledObject",
            "llama",
            spec={
                "scaleTargetRef": {"name": "llama"},
                "minReplicaCount": 2,
                "maxReplicaCount": 4,
                "fallback": {"failureThreshold": 3, "replicas": 3},
                "triggers": [self.trigger],
            },
        )
        self.metric: dict[str, Any] = {
            "type": "Pods",
            "pods": {"metric": {"name": "vllm_num_requests_waiting"}, "target": {"averageValue": "5"}},
        }
        self.hpa = _object(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            "other",
            spec={"scaleTargetRef": {"name": "other"}, "minReplicas": 1, "metrics": [self.metric]},
        )
        self.adapter: dict[str, Any] = {
            "rules": [
                {
                    "seriesQuery": '{__name__=~"^vllm:num_requests_.*"}',
                    "name": {"matches": "^vllm:(.*)$", "as": "vllm_${1}"},
                    "metricsQuery": "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
                }
            ]
        }
        self.monitor = _object(
            "monitoring.coreos.com/v1",
            "ServiceMonitor",
            "vllm",
            spec={"selector": {"matchLabels": {"app": "llama"}}, "endpoints": [{"port": "http"}]},
        )
        self.alerts = _object(
            "monitoring.coreos.com/v1",
            "PrometheusRule",
            "vllm",
            spec={"groups": [{"rules": [{"alert": "Full", "expr": "avg(vllm:kv_cache_usage_perc) > 0.9"}]}]},
        )
        self.ingress = _object(
            "networking.k8s.io/v1", "Ingress", "chat", spec={"ingressClassName": "nginx", "rules": []}
        )
        self.ingress["metadata"]["annotations"] = {"nginx.ingress.kubernetes.io/proxy-read-timeout": "900"}
        self.more: list[dict[str, Any]] = []

    def flag(self, *words: str) -> None:
        """Replace a flag of the engine, or add it."""
        name = words[0].partition("=")[0]
        self.container["args"] = [word for word in self.container["args"] if not word.startswith(name)] + list(words)

    def query(self, text: str, **metadata: str) -> None:
        self.trigger["metadata"].update(query=text, **metadata)

    def second_engine(self, model: str) -> dict[str, Any]:
        other = copy.deepcopy(self.deployment)
        other["metadata"]["name"] = model
        other["spec"]["template"]["spec"]["containers"][0]["args"][0] = f"--model={model}"
        self.more.append(other)
        return other

    def objects(self) -> Iterable[dict[str, Any]]:
        adapter = _object("v1", "ConfigMap", "adapter", data={"config.yaml": json.dumps(self.adapter)})
        return (
            *(self.deployment, self.service, self.router, self.budget, self.claim, self.scaler, self.hpa, adapter),
            *(self.monitor, self.alerts, self.ingress, *self.more),
        )


Change = Callable[[Sound], object]


def findings(folder: Path, change: Change, assumptions: Assumptions | None = None) -> tuple[Finding, ...]:
    """What lint says about the sound deployment after a change, read from files as a user has them."""
    sound = Sound()
    change(sound)
    (folder / "all.yaml").write_text("\n---\n".join(json.dumps(document) for document in sound.objects()))
    (folder / "nginx.conf").write_text(sound.nginx)
    return check(load([str(folder)]), assumptions or Assumptions())
