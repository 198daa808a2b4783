"""Rules about probes: slow weights must not look like a dead engine, nor an unloaded engine like a ready one."""

from collections.abc import Iterator, Mapping
from typing import Any

from shakedown.serving.lint.findings import Assumptions, Fault, Severity, error, warning
from shakedown.serving.lint.tree import mapping, number
from shakedown.serving.lint.world import World


def budget_s(probe: Mapping[str, Any]) -> float:
    """Seconds until the kubelet gives up: delay + period × failures, with Kubernetes' defaults 0, 10 and 3."""
    delay, period = number(probe.get("initialDelaySeconds"), 0.0), number(probe.get("periodSeconds"), 10.0)
    return (delay or 0.0) + (period or 0.0) * (number(probe.get("failureThreshold"), 3.0) or 0.0)


@error(
    "liveness-kills-load",
    effect="the kubelet restarts the engine while it loads its weights, for ever: a boot loop that looks like a crash",
    fix="add a startupProbe on /health: initialDelaySeconds + periodSeconds × failureThreshold above the load time",
    reference="startup timeouts during large engine loading",
)
def liveness_kills_load(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        container = placed.engine.container
        liveness = mapping(container.get("livenessProbe"))
        if liveness and not mapping(container.get("startupProbe")) and budget_s(liveness) < assumptions.load_s:
            yield Fault(
                placed.place,
                f"without a startupProbe the livenessProbe gives up after {budget_s(liveness):g} s, and loading "
                f"takes up to {assumptions.load_s:g} s",
            )


@warning(
    "startup-probe-missing",
    effect="nothing tells a slow load from a dead engine: it is restarted too early, or a hung start stays for ever",
    fix="add a startupProbe on /health with room for the load time, and keep the livenessProbe short",
    reference="startup timeouts during large engine loading",
)
def startup_probe_missing(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        container = placed.engine.container
        liveness = mapping(container.get("livenessProbe"))
        killed = bool(liveness) and budget_s(liveness) < assumptions.load_s
        if not mapping(container.get("startupProbe")) and not killed:
            yield Fault(placed.place, "the engine has no startupProbe")


@error(
    "startup-budget-short",
    effect="the kubelet kills the engine before its weights are loaded and starts it again: a boot loop",
    fix="raise failureThreshold until initialDelaySeconds + periodSeconds × failureThreshold exceeds the load time",
    reference="startup timeouts during large engine loading",
)
def startup_budget_short(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        probe = mapping(placed.engine.container.get("startupProbe"))
        if probe and budget_s(probe) < assumptions.load_s:
            yield Fault(
                placed.place,
                f"the startupProbe gives up after {budget_s(probe):g} s, and loading takes up to "
                f"{assumptions.load_s:g} s",
            )


@warning(
    "probe-timeout-one-second",
    effect="a busy API server answers /health late, so that load alone takes replicas out of service or restarts them",
    fix="set timeoutSeconds to 5 or more",
    reference="Kubernetes' default of timeoutSeconds is 1",
)
def probe_timeout_one_second(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        tight = [
            name
            for name in ("livenessProbe", "readinessProbe")
            if (probe := mapping(placed.engine.container.get(name)))
            and mapping(probe.get("httpGet"))
            and (number(probe.get("timeoutSeconds"), 1.0) or 1.0) <= 1
        ]
        if tight:
            verb = "waits" if len(tight) == 1 else "wait"
            yield Fault(placed.place, f"{' and '.join(tight)} {verb} only 1 s for an answer")


@error(
    "ready-before-weights",
    effect="the Service sends requests to an engine that cannot answer them",
    fix="use httpGet on /health (or /v1/models) as the readinessProbe",
    reference="startup timeouts during large engine loading",
)
def ready_before_weights(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        container = placed.engine.container
        readiness = mapping(container.get("readinessProbe"))
        started = "httpGet" in mapping(container.get("startupProbe"))
        if "tcpSocket" in readiness:
            # Once a startup probe has seen an answer, an open port merely hides a dead engine.
            severity = Severity.WARNING if started else None
            yield Fault(placed.place, "the readinessProbe asks only whether the port is open", severity=severity)
        elif not readiness and not started:
            yield Fault(placed.place, "nothing asks whether the engine can answer: there is no readinessProbe")


RULES = (
    liveness_kills_load,
    startup_probe_missing,
    startup_budget_short,
    probe_timeout_one_second,
    ready_before_weights,
)
