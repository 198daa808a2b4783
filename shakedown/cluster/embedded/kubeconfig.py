"""Kubeconfig files: credentials embedded, so that a file works wherever it is taken."""

import base64
import json

from shakedown.cluster.embedded.certificates import Pair
from shakedown.cluster.embedded.layout import API_PORT, CONTROL_PLANE_ADDRESS


def kubeconfig(cluster: str, user: str, authority: bytes, pair: Pair) -> bytes:
    """A kubeconfig (JSON, which is YAML) for `user`; its server answers inside the cluster's network namespace only."""
    server = {
        "server": f"https://{CONTROL_PLANE_ADDRESS}:{API_PORT}",
        "certificate-authority-data": _encoded(authority),
    }
    credentials = {"client-certificate-data": _encoded(pair.certificate), "client-key-data": _encoded(pair.key)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": server}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        "current-context": cluster,
    }
    return json.dumps(content, indent=1).encode()


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
