"""KEDA's own manifests are fitted to the embedded cluster, and nothing of them is lost that scaling needs."""

from typing import Any

from shakedown.cluster.embedded import addons, images

Object = dict[str, Any]


def operator() -> Object:
    probe = {"httpGet": {"path": "/healthz", "port": 8081}, "initialDelaySeconds": 25}
    container = {
        "name": "keda-operator",
        "image": "ghcr.io/kedacore/keda:latest",
        "imagePullPolicy": "Always",
        "args": ["--leader-elect", "--enable-cert-rotation=true"],
        "livenessProbe": dict(probe),
        "readinessProbe": dict(probe),
    }
    return {
        "kind": "Deployment",
        "metadata": {"name": "keda-operator"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def named(kind: str, name: str) -> Object:
    return {"kind": kind, "metadata": {"name": name}}


def test_keda_runs_from_local_images_without_waiting_on_purpose() -> None:
    (deployment,) = addons.embedded_keda([operator()])
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == images.KEDA_IMAGE
    assert container["imagePullPolicy"] == "Never"
    assert container["args"] == ["--enable-cert-rotation=true"]
    assert container["readinessProbe"]["initialDelaySeconds"] == 0


def test_only_the_admission_webhook_is_left_out_and_the_namespace_comes_first() -> None:
    objects = [
        named("CustomResourceDefinition", "scaledobjects.keda.sh"),
        named("ValidatingWebhookConfiguration", "keda-admission"),
        named("Deployment", "keda-admission"),
        named("APIService", "v1beta1.external.metrics.k8s.io"),
        named("Namespace", "keda"),
    ]
    assert [each["metadata"]["name"] for each in addons.embedded_keda(objects)] == [
        "keda",
        "scaledobjects.keda.sh",
        "v1beta1.external.metrics.k8s.io",
    ]
