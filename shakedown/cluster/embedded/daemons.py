"""Long-running programs of the cluster: started so that they can always be found, by pid file and by cgroup."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shakedown.cluster.embedded.cgroups import Hierarchies
from shakedown.cluster.embedded.layout import Layout
from shakedown.process import run

LAUNCH_LIMIT_S = 20.0
# The process enters the cluster's cgroup before it is anything else, so that none is ever out of sight.
_LAUNCH = """
echo $$ >"$1/cgroup.procs" && echo $$ >"$2" || exit 1
exec >>"$3" 2>&1 </dev/null
shift 3
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Daemons:
    """The daemons of one cluster."""

    layout: Layout
    found: Hierarchies

    @property
    def cgroup(self) -> Path:
        return self.found.tracking / self.layout.cgroup / "daemons"

    async def start(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Start `argv` unless it runs already; what was started is remembered, to be started again if it dies."""
        if self.pid(name) is not None:
            return
        words = [*(f"{key}={value}" for key, value in (env or {}).items()), *map(str, argv)]
        self.layout.pids.mkdir(parents=True, exist_ok=True)
        self.layout.logs.mkdir(parents=True, exist_ok=True)
        pid_file, log = self.layout.pids / f"{name}.pid", self.log(name)
        pid_file.unlink(missing_ok=True)
        (self.layout.pids / f"{name}.json").write_text(json.dumps(words))
        launch: list[str | Path] = [
            "setsid",
            "--fork",
            "sh",
            "-c",
            _LAUNCH,
            "launch",
            self.cgroup,
            pid_file,
            log,
            "env",
            *words,
        ]
        await run(launch, timeout_s=LAUNCH_LIMIT_S)

    async def restart_dead(self) -> tuple[str, ...]:
        """Start again what should run and does not; return the names."""
        dead = tuple(name for name in self.names() if self.pid(name) is None)
        for name in dead:
            words = json.loads((self.layout.pids / f"{name}.json").read_text())
            await self.start(name, words)
        return dead

    def ended(self) -> tuple[str, ...]:
        """Those that were started and are gone; one that is just being started has no pid file yet."""
        return tuple(
            name for name in self.names() if (self.layout.pids / f"{name}.pid").exists() and self.pid(name) is None
        )

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(path.stem for path in self.layout.pids.glob("*.json")))

    def log(self, name: str) -> Path:
        return self.layout.logs / f"{name}.log"

    def pid(self, name: str) -> int | None:
        """The daemon's process id, if it is alive and is ours and not a stranger with a recycled id."""
        try:
            pid = int((self.layout.pids / f"{name}.pid").read_text())
            membership = Path(f"/proc/{pid}/cgroup").read_text()
            ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except (OSError, ValueError):
            return None
        return pid if f"/{self.layout.cgroup}/" in membership and not ended else None

    def last_words(self, name: str, lines: int = 5) -> str:
        """The end of the daemon's log, for a message about its death."""
        try:
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(it wrote no log)"
