"""What a fault may touch: checked against the victims that it would hit now, before anything is written or done."""

import os
from dataclasses import dataclass
from typing import Self

from shakedown.chaos.faults import AnyFault, Plan
from shakedown.errors import UsageError

ONLY_NAMESPACES = "SHAKEDOWN_NAMESPACES"
"""Environment variable: a comma-separated list; when it is set, no fault may touch any other namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Safety:
    """The limits of one drill."""

    allowed: frozenset[str] = frozenset()
    """Namespaces that may be harmed beside the target's own; protected ones must be named here."""
    only: frozenset[str] | None = None
    """The cluster owner's list, if there is one."""
    allow_all: bool = False
    """Whether a fault may hit every replica or every node there is."""

    @classmethod
    def from_environment(cls, allowed: frozenset[str] = frozenset(), *, allow_all: bool = False) -> Self:
        listed = os.environ.get(ONLY_NAMESPACES)
        only = None if listed is None else frozenset(name.strip() for name in listed.split(",") if name.strip())
        return cls(allowed=allowed, only=only, allow_all=allow_all)

    def check(self, fault: AnyFault, plan: Plan) -> None:
        """Raises UsageError naming the rule that forbids it and the option that lifts it."""
        touched = {victim.namespace for victim in plan.victims if victim.namespace} | {fault.target.namespace}
        for namespace in sorted(touched):
            self._check_namespace(namespace, fault.target.namespace)
        if plan.bystanders <= 0 and not self.allow_all:
            raise UsageError(
                f"{fault.kind} would leave none of {fault.target.namespace}/{fault.target.selector} unharmed; "
                "lower the count or say --all"
            )

    def _check_namespace(self, namespace: str, own: str) -> None:
        if self.only is not None and namespace not in self.only:
            raise UsageError(f"{ONLY_NAMESPACES} does not allow namespace {namespace}")
        if namespace in self.allowed:
            return
        if protected(namespace):
            raise UsageError(f"namespace {namespace} is protected; say --allow-namespace {namespace} if you mean it")
        if namespace != own:
            raise UsageError(f"this would also hit pods of namespace {namespace}; say --allow-namespace {namespace}")


def protected(namespace: str) -> bool:
    """True for the namespaces that a cluster lives on, and for the one that people use by mistake."""
    return namespace.startswith("kube-") or namespace == "default"
