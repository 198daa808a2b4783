"""Container images made without a registry: docker-archive files written by hand.

The bytes depend on nothing but the arguments, so an image made twice has one digest.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

PAUSE_IMAGE = "shakedown.local/pause:1"
COREDNS_IMAGE = "shakedown.local/coredns:1"
PROMETHEUS_IMAGE = "shakedown.local/prometheus:1"
KEDA_IMAGE = "shakedown.local/keda:1"
KEDA_ADAPTER_IMAGE = "shakedown.local/keda-adapter:1"
NOBODY = "65534"
MACHINE_IMAGE = "shakedown.local/machine:1"
OPEN_TO_ALL = 0o1777
MACHINE_DIRECTORIES: Mapping[str, int] = {
    **dict.fromkeys(("bin", "dev", "dev/shm", "etc", "home", "lib", "lib64", "mnt", "opt", "opt/engine"), 0o755),
    **dict.fromkeys(("opt/models", "opt/python", "opt/twin", "proc", "root", "run", "sbin", "srv", "sys"), 0o755),
    **dict.fromkeys(("usr", "var", "var/log"), 0o755),
    **dict.fromkeys(("tmp", "var/tmp"), OPEN_TO_ALL),
}
MACHINE_FILES: Mapping[str, bytes] = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files dns\n",
}
_SYSTEM_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EPOCH = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of one layer. Paths are relative to the root of the image."""

    reference: str
    directories: Mapping[str, int] = field(default_factory=dict)
    """Path to mode."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    programs: Mapping[str, Path] = field(default_factory=dict)
    """Static binaries: path in the image to file on this machine."""
    entrypoint: Sequence[str] = ()
    user: str = ""
    """Numeric where a pod insists on not being root."""

    def write(self, path: Path) -> None:
        """Write the image as a docker-archive, which `ctr image import` reads."""
        layer = self._layer()
        config = self._config(hashlib.sha256(layer).hexdigest())
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = [{"Config": config_name, "RepoTags": [self.reference], "Layers": ["layer.tar"]}]
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, config_name, config)
            _add(archive, "layer.tar", layer)
            _add(archive, "manifest.json", json.dumps(manifest).encode())

    def _layer(self) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as layer:
            for directory, mode in sorted(self._all_directories().items()):
                entry = tarfile.TarInfo(directory)
                entry.type, entry.mode = tarfile.DIRTYPE, mode
                layer.addfile(entry)
            for name, content in sorted(self.files.items()):
                _add(layer, name, content)
            for name, program in sorted(self.programs.items()):
                _add(layer, name, program.read_bytes(), mode=0o755)
        return buffer.getvalue()

    def _all_directories(self) -> dict[str, int]:
        implied = {
            str(parent): 0o755
            for path in (*self.directories, *self.files, *self.programs)
            for parent in PurePosixPath(path).parents
            if str(parent) != "."
        }
        return {**implied, **self.directories}

    def _config(self, layer_digest: str) -> bytes:
        config = {
            "architecture": "amd64",
            "os": "linux",
            "created": _EPOCH,
            "config": {
                "Entrypoint": list(self.entrypoint) or None,
                "Env": [_SYSTEM_PATH],
                "WorkingDir": "/",
                "User": self.user,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
            "history": [{"created": _EPOCH, "created_by": "shakedown"}],
        }
        return json.dumps(config, sort_keys=True).encode()


def pause_image(pause: Path) -> Image:
    """The image of pod sandboxes."""
    return Image(reference=PAUSE_IMAGE, programs={"pause": pause}, entrypoint=("/pause",))


def coredns_image(coredns: Path) -> Image:
    """The image of the cluster's DNS server."""
    return Image(
        reference=COREDNS_IMAGE,
        programs={"coredns": coredns},
        directories={"tmp": OPEN_TO_ALL, "etc/coredns": 0o755},
        entrypoint=("/coredns",),
    )


def prometheus_image(prometheus: Path) -> Image:
    """The image of the metrics server."""
    return Image(
        reference=PROMETHEUS_IMAGE,
        programs={"bin/prometheus": prometheus},
        directories={"tmp": OPEN_TO_ALL, "etc/prometheus": 0o755, "prometheus": OPEN_TO_ALL},
        entrypoint=("/bin/prometheus",),
        user=NOBODY,
    )


def keda_image(operator: Path) -> Image:
    """The image of KEDA's operator."""
    return Image(
        reference=KEDA_IMAGE, programs={"keda": operator}, directories={"tmp": OPEN_TO_ALL, "certs": 0o755}, user=NOBODY
    )


def keda_adapter_image(adapter: Path) -> Image:
    """The image of KEDA's metrics server."""
    return Image(
        reference=KEDA_ADAPTER_IMAGE,
        programs={"keda-adapter": adapter},
        directories={"tmp": OPEN_TO_ALL, "certs": 0o755},
        user=NOBODY,
    )


def machine_image() -> Image:
    """An empty root of mount points, which pods fill with hostPath mounts of the machine's own directories.

    6 GB of engine would take minutes to copy into a snapshotter; mounted they take nothing.
    """
    return Image(reference=MACHINE_IMAGE, directories=MACHINE_DIRECTORIES, files=MACHINE_FILES)


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
