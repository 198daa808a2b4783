"""Who is who in the cluster: every certificate, key and kubeconfig, written once before anything starts."""

from shakedown.cluster.embedded.certificates import Authority, signing_key, write_secret
from shakedown.cluster.embedded.kubeconfig import kubeconfig
from shakedown.cluster.embedded.layout import (
    API_SERVICE_ADDRESS,
    CONTROL_PLANE_ADDRESS,
    DNS_DOMAIN,
    Layout,
    NodePlan,
)

API_SERVER_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{DNS_DOMAIN}",
    "localhost",
    "127.0.0.1",
    CONTROL_PLANE_ADDRESS,
    API_SERVICE_ADDRESS,
)
ADMINISTRATORS = "system:masters"


def write_credentials(layout: Layout) -> None:
    """Write all certificates and kubeconfigs of a new cluster."""
    directory = layout.certificates
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    authority, front_proxy = Authority("shakedown"), Authority("shakedown-front-proxy")
    authority.pair.write(directory, "ca")
    front_proxy.pair.write(directory, "front-proxy-ca")
    front_proxy.issue("front-proxy-client").write(directory, "front-proxy-client")
    authority.issue("kube-apiserver", names=API_SERVER_NAMES, serves=True).write(directory, "apiserver")
    authority.issue("kube-apiserver-kubelet-client", organization=ADMINISTRATORS).write(directory, "kubelet-client")
    write_secret(directory / "service-accounts.key", signing_key())
    _write_kubeconfigs(layout, authority)
    for node in layout.nodes:
        authority.issue(node.name, names=(node.name, node.address), serves=True).write(directory, node.name)


def _write_kubeconfigs(layout: Layout, authority: Authority) -> None:
    admin = authority.issue("shakedown-admin", organization=ADMINISTRATORS)
    admin.write(layout.certificates, "admin")
    write_secret(layout.kubeconfig, kubeconfig(layout.name, "admin", authority.pair.certificate, admin))
    identities = [
        ("controller-manager", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
        ("kube-proxy", "system:kube-proxy", None),
        *((f"{node.name}-kubelet", node_identity(node), "system:nodes") for node in layout.nodes),
    ]
    for file, user, organization in identities:
        pair = authority.issue(user, organization=organization)
        content = kubeconfig(layout.name, user, authority.pair.certificate, pair)
        write_secret(layout.certificates / f"{file}.kubeconfig", content)


def node_identity(node: NodePlan) -> str:
    """The user name under which the API server's node authorizer knows a kubelet."""
    return f"system:node:{node.name}"
