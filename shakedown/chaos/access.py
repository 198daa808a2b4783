"""How a child process reaches the same cluster."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shakedown.cluster.api import Cluster

KUBECONFIG = "SHAKEDOWN_KUBECONFIG"
CONTEXT = "SHAKEDOWN_CONTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A kubeconfig and a context; None means the user's own."""

    kubeconfig: Path | None
    context: str | None = None

    async def connect(self) -> Cluster:
        return await Cluster.connect(self.kubeconfig, self.context)

    def environment(self) -> dict[str, str]:
        """For a child."""
        return {KUBECONFIG: str(self.kubeconfig or ""), CONTEXT: self.context or ""}

    @classmethod
    def from_environment(cls) -> Self:
        """In the child."""
        kubeconfig = os.environ.get(KUBECONFIG)
        return cls(kubeconfig=Path(kubeconfig) if kubeconfig else None, context=os.environ.get(CONTEXT) or None)
