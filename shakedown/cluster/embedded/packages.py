"""What the cluster takes from the distribution: found, or installed with apt-get.

No service is started by an installation: a policy file forbids it while apt-get runs, and is removed afterwards.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shakedown.cluster.embedded.machine import require_free_space, require_root
from shakedown.errors import CommandFailed, MissingPrerequisite
from shakedown.process import run

Report = Callable[[str], None]

CNI_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
APT_LIMIT_S = 900.0
INSTALL_NEEDS_BYTES = 512 * 1024**2
POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT = "#!/bin/sh\n# Made by shakedown while it installs packages: no service may start.\nexit 101\n"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Need:
    """A program (or a CNI plugin) and the Debian package that carries it."""

    program: str
    package: str
    cni_plugin: bool = False

    def found(self) -> bool:
        if self.cni_plugin:
            return any((directory / self.program).is_file() for directory in CNI_DIRECTORIES)
        return shutil.which(self.program, path=_SYSTEM_PATH) is not None


NEEDS = (
    Need("containerd", "containerd"),
    Need("ctr", "containerd"),
    Need("runc", "runc"),
    Need("ptp", "containernetworking-plugins", cni_plugin=True),
    Need("host-local", "containernetworking-plugins", cni_plugin=True),
    Need("portmap", "containernetworking-plugins", cni_plugin=True),
    Need("iptables", "iptables"),
    Need("conntrack", "conntrack"),
    Need("nginx", "nginx-light"),
    Need("ip", "iproute2"),
    Need("nsenter", "util-linux"),
    Need("unshare", "util-linux"),
    Need("mount", "mount"),
)


def cni_directory() -> Path:
    """Where this distribution keeps the CNI plugins."""
    return next((directory for directory in CNI_DIRECTORIES if (directory / "ptp").is_file()), CNI_DIRECTORIES[0])


def missing_packages(needs: tuple[Need, ...] = NEEDS) -> tuple[str, ...]:
    """Debian packages that would bring what is not there, each once, in a stable order."""
    return tuple(dict.fromkeys(need.package for need in needs if not need.found()))


def install_command(packages: tuple[str, ...]) -> list[str]:
    """The command that installs `packages` and asks nothing."""
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


async def ensure_packages(report: Report) -> None:
    """Install what is missing.

    Raises MissingPrerequisite with the exact command when that cannot be done here.
    """
    packages = missing_packages()
    if not packages:
        return
    require_root()
    command = " ".join(install_command(packages))
    if shutil.which("apt-get") is None:
        raise MissingPrerequisite(
            f"missing here: {', '.join(packages)}; there is no apt-get to install them: use this system's package "
            f"manager (on Debian or Ubuntu: {command})"
        )
    require_free_space(Path("/var/cache/apt"), INSTALL_NEEDS_BYTES, f"installing {', '.join(packages)}")
    report(f"installing {', '.join(packages)}")
    try:
        with no_service_starts():
            await _install(packages)
    except CommandFailed as error:
        raise MissingPrerequisite(f"installing packages failed; try it by hand: {command}\n{error}") from error
    if lacking := missing_packages():
        raise MissingPrerequisite(f"apt-get ended well but did not bring {', '.join(lacking)}; try: {command}")


async def _install(packages: tuple[str, ...]) -> None:
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    first = await run(install_command(packages), timeout_s=APT_LIMIT_S, env=quiet, check=False)
    if first.returncode != 0:
        await run(["apt-get", "update"], timeout_s=APT_LIMIT_S, env=quiet)
        await run(install_command(packages), timeout_s=APT_LIMIT_S, env=quiet)


@contextlib.contextmanager
def no_service_starts(policy: Path = POLICY) -> Iterator[None]:
    """Keep package scripts from starting services, and leave the policy file as it was found.

    A file of ours that a killed run left behind is recognised by its text and goes as well.
    """
    if policy.exists() and policy.read_text() != _POLICY_TEXT:
        yield
        return
    policy.write_text(_POLICY_TEXT)
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)
