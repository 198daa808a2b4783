"""CoreDNS as the cluster's DNS: an in-cluster Deployment behind the Service that every pod is told about."""

from typing import Any

from shakedown.cluster.embedded.images import COREDNS_IMAGE
from shakedown.cluster.embedded.inside import ApiInside
from shakedown.cluster.embedded.layout import DNS_ADDRESS, DNS_DOMAIN

Object = dict[str, Any]

DEPLOYMENT_PATH = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
SERVES_NAMES = {"k8s-app": "kube-dns"}
MEMORY_LIMIT = "170Mi"

COREFILE = f""".:53 {{
    errors
    health {{
        lameduck 5s
    }}
    ready
    kubernetes {DNS_DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        ttl 5
    }}
    cache 5
    reload
}}
"""


async def deploy_dns(api: ApiInside, replicas: int) -> None:
    """Create what CoreDNS needs; what exists already is left alone."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    system = "/api/v1/namespaces/kube-system"
    await api.create(f"{system}/serviceaccounts", _named("v1", "ServiceAccount", "coredns", {}))
    await api.create(f"{rbac}/clusterroles", _role())
    await api.create(f"{rbac}/clusterrolebindings", _role_binding())
    await api.create(f"{system}/configmaps", _named("v1", "ConfigMap", "coredns", {"data": {"Corefile": COREFILE}}))
    await api.create(f"{system}/services", _service())
    await api.create("/apis/apps/v1/namespaces/kube-system/deployments", deployment(replicas))


def is_available(deployed: Object | None) -> bool:
    """True when every replica answers."""
    return deployed is not None and deployed["spec"]["replicas"] == deployed["status"].get("availableReplicas", 0)


def deployment(replicas: int) -> Object:
    """The Deployment. No two replicas share a node: names must resolve while a node is lost."""
    probe = {"periodSeconds": 1, "httpGet": {"path": "/ready", "port": 8181}}
    container = {
        "name": "coredns",
        "image": COREDNS_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "30Mi"}, "limits": {"memory": MEMORY_LIMIT}},
        "readinessProbe": probe,
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}, "timeoutSeconds": 5, "failureThreshold": 5},
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": SERVES_NAMES}}
    pod = {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "dnsPolicy": "Default",
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}],
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
        },
        "containers": [container],
        "volumes": [{"name": "configuration", "configMap": {"name": "coredns"}}],
    }
    template = {"metadata": {"labels": SERVES_NAMES}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": SERVES_NAMES}, "template": template}
    return _named("apps/v1", "Deployment", "coredns", {"spec": spec})


def _service() -> Object:
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
    ]
    return _named(
        "v1", "Service", "kube-dns", {"spec": {"clusterIP": DNS_ADDRESS, "selector": SERVES_NAMES, "ports": ports}}
    )


def _role() -> Object:
    watch = ["list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": watch},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
    ]
    return _named("rbac.authorization.k8s.io/v1", "ClusterRole", "system:coredns", {"rules": rules})


def _role_binding() -> Object:
    content = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"},
        "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
    }
    return _named("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "system:coredns", content)


def _named(api_version: str, kind: str, name: str, content: Object) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": SERVES_NAMES}, **content}
