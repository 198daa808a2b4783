"""How each program of the control plane is called. Pure: layout in, argument list out."""

from pathlib import Path

from shakedown.cluster.embedded.layout import (
    API_PORT,
    CONTROL_PLANE_ADDRESS,
    DNS_DOMAIN,
    POD_NETWORK,
    SERVICE_NETWORK,
    Layout,
)

ETCD_URL = "http://127.0.0.1:2379"
ETCD_PEER_URL = "http://127.0.0.1:2380"
HPA_SYNC_S = 5
"""Kubernetes' default is 15 s; a run of minutes cannot wait for three of those before it sees a scaling decision."""
NODE_GRACE_S = 20
"""Kubernetes' default is 50 s: how long a silent node still counts as Ready."""


def etcd(layout: Layout) -> list[str]:
    """etcd on loopback. Without fsync: the cluster is thrown away, and disks of CI machines are slow."""
    return [
        "etcd",
        "--name=shakedown",
        f"--data-dir={layout.state_dir / 'etcd'}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={ETCD_PEER_URL}",
        f"--initial-advertise-peer-urls={ETCD_PEER_URL}",
        f"--initial-cluster=shakedown={ETCD_PEER_URL}",
        "--unsafe-no-fsync",
        "--auto-compaction-retention=5m",
        "--log-level=warn",
    ]


def api_server(layout: Layout) -> list[str]:
    """kube-apiserver, with what HPA metric adapters need (aggregation) and without looking node names up in DNS."""
    keys = layout.certificates
    return [
        "kube-apiserver",
        f"--advertise-address={CONTROL_PLANE_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--etcd-servers={ETCD_URL}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={keys / 'ca.crt'}",
        f"--tls-cert-file={keys / 'apiserver.crt'}",
        f"--tls-private-key-file={keys / 'apiserver.key'}",
        f"--kubelet-certificate-authority={keys / 'ca.crt'}",
        f"--kubelet-client-certificate={keys / 'kubelet-client.crt'}",
        f"--kubelet-client-key={keys / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer=https://kubernetes.default.svc.{DNS_DOMAIN}",
        f"--service-account-key-file={keys / 'service-accounts.key'}",
        f"--service-account-signing-key-file={keys / 'service-accounts.key'}",
        "--enable-aggregator-routing=true",
        f"--requestheader-client-ca-file={keys / 'front-proxy-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={keys / 'front-proxy-client.crt'}",
        f"--proxy-client-key-file={keys / 'front-proxy-client.key'}",
    ]


def controller_manager(layout: Layout) -> list[str]:
    """kube-controller-manager, alone (no leader election), with the shortened waits declared above."""
    keys = layout.certificates
    return [
        "kube-controller-manager",
        *_identity(keys / "controller-manager.kubeconfig"),
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={keys / 'service-accounts.key'}",
        f"--root-ca-file={keys / 'ca.crt'}",
        f"--cluster-signing-cert-file={keys / 'ca.crt'}",
        f"--cluster-signing-key-file={keys / 'ca.key'}",
        f"--cluster-cidr={POD_NETWORK}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--flex-volume-plugin-dir={layout.state_dir / 'volume-plugins'}",
        f"--horizontal-pod-autoscaler-sync-period={HPA_SYNC_S}s",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
        "--node-monitor-period=2s",
        # The default of 20 requests a second makes its forty controllers take six seconds to start.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def scheduler(layout: Layout) -> list[str]:
    """kube-scheduler, alone (no leader election)."""
    return ["kube-scheduler", *_identity(layout.certificates / "scheduler.kubeconfig"), "--leader-elect=false"]


def kube_proxy(layout: Layout, node_name: str) -> list[str]:
    """kube-proxy of a node. It leaves conntrack's machine-wide limits alone: other namespaces share them."""
    return [
        "kube-proxy",
        f"--kubeconfig={layout.certificates / 'kube-proxy.kubeconfig'}",
        f"--hostname-override={node_name}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_NETWORK}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ]


def _identity(kubeconfig: Path) -> list[str]:
    return [f"--{use}kubeconfig={kubeconfig}" for use in ("", "authentication-", "authorization-")]
