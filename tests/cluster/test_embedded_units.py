"""Parts of the embedded cluster that need no cluster: credentials, images, cache keys, and what is refused."""

import base64
import contextlib
import hashlib
import io
import json
import os
import ssl
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shakedown.cluster.embedded import build, record
from shakedown.cluster.embedded.certificates import Authority, Pair
from shakedown.cluster.embedded.credentials import write_credentials
from shakedown.cluster.embedded.images import Image, coredns_image, machine_image, pause_image
from shakedown.cluster.embedded.layout import (
    API_SERVICE_ADDRESS,
    CONTROL_PLANE_ADDRESS,
    Layout,
    layout_of,
)
from shakedown.cluster.embedded.machine import require_free_space, require_root
from shakedown.cluster.embedded.record import Record
from shakedown.errors import MissingPrerequisite, SetupError, UsageError

EXABYTE = 10**18


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A cluster of two nodes whose files lie in a folder of the test."""
    for name in ("RUN_ROOT", "STATE_ROOT"):
        monkeypatch.setattr(f"shakedown.cluster.embedded.layout.{name}", tmp_path / name)
    (tmp_path / "RUN_ROOT" / "unit").mkdir(parents=True)
    return layout_of("unit", nodes=2, gpus_per_node=1)


def certificate(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def alternatives(pair: Pair) -> x509.SubjectAlternativeName:
    return certificate(pair.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_a_server_certificate_is_signed_by_its_authority_and_no_other() -> None:
    authority, stranger = Authority("shakedown"), Authority("shakedown")
    issued = certificate(authority.issue("kube-apiserver", names=("localhost",), serves=True).certificate)
    issued.verify_directly_issued_by(certificate(authority.pair.certificate))
    with pytest.raises(InvalidSignature):
        issued.verify_directly_issued_by(certificate(stranger.pair.certificate))


def test_an_authority_may_sign_certificates_and_what_it_signs_may_not() -> None:
    authority = Authority("shakedown")
    leaf = certificate(authority.issue("node-1").certificate)
    for signed, may in ((certificate(authority.pair.certificate), True), (leaf, False)):
        assert signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is may
        assert signed.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is may


def test_names_and_addresses_become_names_and_addresses() -> None:
    named = alternatives(Authority("a").issue("s", names=("kubernetes.default.svc", "10.96.0.1"), serves=True))
    assert named.get_values_for_type(x509.DNSName) == ["kubernetes.default.svc"]
    assert [str(address) for address in named.get_values_for_type(x509.IPAddress)] == ["10.96.0.1"]


@pytest.mark.parametrize(
    ("serves", "purpose"), [(True, ExtendedKeyUsageOID.SERVER_AUTH), (False, ExtendedKeyUsageOID.CLIENT_AUTH)]
)
def test_a_certificate_is_for_a_server_or_for_a_client(serves: bool, purpose: x509.ObjectIdentifier) -> None:
    issued = certificate(Authority("a").issue("x", organization="system:nodes", serves=serves).certificate)
    assert list(issued.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
    (organization,) = issued.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert organization.value == "system:nodes"


def test_a_private_key_is_that_of_its_certificate() -> None:
    pair = Authority("a").issue("x")
    key = serialization.load_pem_private_key(pair.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == certificate(pair.certificate).public_key()


def test_every_certificate_of_a_cluster_belongs_to_its_key_and_its_authority(layout: Layout) -> None:
    write_credentials(layout)
    directory = layout.certificates
    authority = certificate((directory / "ca.crt").read_bytes())
    for name in ("apiserver", "node-1", "node-2", "kubelet-client", "admin"):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
        certificate((directory / f"{name}.crt").read_bytes()).verify_directly_issued_by(authority)


@pytest.mark.parametrize("host", [CONTROL_PLANE_ADDRESS, API_SERVICE_ADDRESS, "kubernetes.default.svc", "localhost"])
def test_a_client_and_the_api_server_shake_hands_under_each_name(layout: Layout, host: str) -> None:
    write_credentials(layout)
    shake_hands(layout.certificates, host)


def test_a_client_refuses_the_api_server_under_another_name(layout: Layout) -> None:
    write_credentials(layout)
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shake_hands(layout.certificates, "10.10.0.99")


def shake_hands(directory: Path, host: str) -> None:
    """TLS with certificates on both sides, in memory."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "ca.crt"))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(directory / "apiserver.crt", directory / "apiserver.key")
    client = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    client.load_cert_chain(directory / "admin.crt", directory / "admin.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in list(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
    assert ends == []


def test_the_api_server_is_called_by_every_name_that_pods_and_people_use(layout: Layout) -> None:
    write_credentials(layout)
    pair = Pair((layout.certificates / "apiserver.crt").read_bytes(), b"")
    names = alternatives(pair).get_values_for_type(x509.DNSName)
    addresses = {str(address) for address in alternatives(pair).get_values_for_type(x509.IPAddress)}
    assert {"kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"} <= set(names)
    assert addresses == {"127.0.0.1", CONTROL_PLANE_ADDRESS, API_SERVICE_ADDRESS}


def test_a_node_is_called_by_its_own_name_and_address(layout: Layout) -> None:
    write_credentials(layout)
    for node in layout.nodes:
        pair = Pair((layout.certificates / f"{node.name}.crt").read_bytes(), b"")
        assert alternatives(pair).get_values_for_type(x509.DNSName) == [node.name]
        assert [str(address) for address in alternatives(pair).get_values_for_type(x509.IPAddress)] == [node.address]


def test_keys_and_kubeconfigs_are_for_their_owner_only(layout: Layout) -> None:
    write_credentials(layout)
    secrets = [*layout.certificates.glob("*.key"), *layout.certificates.glob("*.kubeconfig"), layout.kubeconfig]
    assert len(secrets) > 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_a_kubelet_is_known_to_the_node_authorizer_by_the_certificate_in_its_kubeconfig(layout: Layout) -> None:
    write_credentials(layout)
    content = yaml.safe_load((layout.certificates / "node-2-kubelet.kubeconfig").read_text())
    (user,) = content["users"]
    subject = certificate(base64.b64decode(user["user"]["client-certificate-data"])).subject
    assert subject.rfc4514_string() == "CN=system:node:node-2,O=system:nodes"
    assert content["clusters"][0]["cluster"]["server"] == f"https://{CONTROL_PLANE_ADDRESS}:6443"


def programs(tmp_path: Path) -> Path:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF and so on")
    return program


@pytest.mark.parametrize("kind", ["pause", "coredns", "machine"])
def test_an_image_archive_holds_the_layer_that_its_configuration_vouches_for(kind: str, tmp_path: Path) -> None:
    program = programs(tmp_path)
    image = {"pause": pause_image(program), "coredns": coredns_image(program), "machine": machine_image()}[kind]
    config, manifest, layer = opened(image, tmp_path / "image.tar")
    assert manifest["RepoTags"] == [image.reference]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert (config["architecture"], config["os"]) == ("amd64", "linux")
    assert config["config"]["Entrypoint"] == (list(image.entrypoint) or None)
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        entries = {entry.name: entry for entry in archive}
        for name, content in {**image.files, **dict.fromkeys(image.programs, program.read_bytes())}.items():
            file = archive.extractfile(name)
            assert file is not None
            assert file.read() == content
    assert {entries[name].mode for name in image.programs} <= {0o755}
    assert {name: entries[name].mode for name in image.directories} == dict(image.directories)


def opened(image: Image, path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Configuration, manifest and layer of an archive, as `ctr image import` finds them."""
    image.write(path)
    with tarfile.open(path) as archive:
        members = {name: file.read() for name in archive.getnames() if (file := archive.extractfile(name))}
    (manifest,) = json.loads(members["manifest.json"])
    config = members[manifest["Config"]]
    assert manifest["Config"] == f"{hashlib.sha256(config).hexdigest()}.json"
    return json.loads(config), manifest, members[manifest["Layers"][0]]


def test_a_directory_comes_before_what_lies_in_it() -> None:
    image = Image(reference="x:1", files={"a/b/c": b"1"}, directories={"a/b": 0o700})
    with tarfile.open(fileobj=io.BytesIO(image._layer())) as layer:
        assert [(entry.name, entry.mode) for entry in layer] == [("a", 0o755), ("a/b", 0o700), ("a/b/c", 0o644)]


def test_an_image_made_twice_has_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        machine_image().write(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.fixture
def module(tmp_path: Path) -> Path:
    folder = tmp_path / "module"
    folder.mkdir()
    for name, text in (("go.mod", "module m\n"), ("go.sum", "x h1:1=\n"), ("main.go", "package main\n")):
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go", "another.go"])
def test_a_changed_source_is_a_different_binary(module: Path, name: str) -> None:
    before = build.cache_key(module)
    with (module / name).open("a") as file:
        file.write("// changed\n")
    assert build.cache_key(module) != before
    assert len(before) == 16


def test_a_renamed_source_is_a_different_binary(module: Path) -> None:
    before = build.cache_key(module)
    (module / "main.go").rename(module / "renamed.go")
    assert build.cache_key(module) != before


def test_what_the_compiler_does_not_read_leaves_the_binary_as_it_is(module: Path) -> None:
    before = build.cache_key(module)
    (module / "README.md").write_text("words")
    os.utime(module / "main.go", (0, 0))
    assert build.cache_key(module) == before


def test_text_moved_from_one_source_to_the_next_is_a_different_binary(module: Path) -> None:
    (module / "a.go").write_text("12")
    (module / "b.go").write_text("3")
    before = build.cache_key(module)
    (module / "a.go").write_text("1")
    (module / "b.go").write_text("23")
    assert build.cache_key(module) != before


def test_components_report_the_release_that_the_module_requires(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module m\n\nrequire (\n\tk8s.io/api v0.34.4\n\tk8s.io/kubernetes v1.34.4\n)\n")
    assert build.kubernetes_version(tmp_path) == "v1.34.4"
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.4" in build.version_stamp(tmp_path)
    assert "-X k8s.io/client-go/pkg/version.gitMinor=34" in build.version_stamp(tmp_path)


def test_without_root_the_refusal_says_what_root_is_for_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        MissingPrerequisite, match=r"needs root; run the same command with sudo, or .*--cluster current"
    ):
        require_root()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    require_root()


def test_a_full_disk_is_refused_with_need_place_and_what_is_free(tmp_path: Path) -> None:
    place = tmp_path / "not" / "yet" / "there"
    with pytest.raises(SetupError) as refusal:
        require_free_space(place, EXABYTE, "a cluster")
    told = str(refusal.value)
    assert told.startswith(f"a cluster needs {EXABYTE / 1024**3:.1f} GiB in {place}, but only ")
    assert told.endswith("make room and run the same command again")
    require_free_space(place, 0, "nothing")


@pytest.mark.parametrize("name", ["", "1st", "Upper", "with_underscore", "dots.too", "../up", "a" * 32, "x\n"])
def test_a_name_that_cannot_be_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a cluster: start with a lower-case letter"):
        layout_of(name)


@pytest.mark.parametrize(
    ("nodes", "gpus", "told"),
    [(65, 0, "65 nodes"), (-1, 0, "-1 nodes"), (1, 65, "65 GPUs"), (1, -1, "-1 GPUs")],
)
def test_a_size_that_cannot_be_is_refused(nodes: int, gpus: int, told: str) -> None:
    with pytest.raises(UsageError, match=f"{told}.* cannot be: choose"):
        layout_of("unit", nodes=nodes, gpus_per_node=gpus)


def test_no_two_nodes_share_anything(layout: Layout) -> None:
    for attribute in ("name", "address", "pod_subnet", "netns", "link", "cgroup", "run_dir", "state_dir", "gpus"):
        assert len({getattr(node, attribute) for node in layout.nodes}) == len(layout.nodes), attribute


def ordered() -> Record:
    return Record(name="unit", nodes=2, gpus_per_node=1, kubernetes="v1.34.4", programs={"pause": "/p"})


def test_a_record_is_read_back_as_it_was_written(layout: Layout) -> None:
    record.save(ordered())
    assert record.load(layout) == ordered()
    assert record.load(layout_of("unit")) == ordered()
    assert [path.name for path in layout.state_dir.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize("keep", [0, 1, 30, -1])
def test_a_torn_record_is_no_record(layout: Layout, keep: int) -> None:
    record.save(ordered())
    path = record.record_path(layout)
    path.write_bytes(path.read_bytes()[:keep])
    assert record.load(layout) is None


@pytest.mark.parametrize("text", ["[]", "{}", '{"name": 3}', "\xff"])
def test_a_file_that_is_something_else_is_no_record(layout: Layout, text: str) -> None:
    path = record.record_path(layout)
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    assert record.load(layout) is None


def test_a_cluster_that_was_never_made_has_no_record(layout: Layout) -> None:
    assert record.load(layout) is None
