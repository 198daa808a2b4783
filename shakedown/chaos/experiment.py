"""A fault as a Chaos Toolkit experiment, in the words of its specification."""

from dataclasses import dataclass
from typing import Any

import msgspec

from shakedown.chaos.faults import AnyFault, Plan, to_plain
from shakedown.chaos.ledger import Entry

ACTIVITIES = "shakedown.chaos.activities"
NO_UPPER_BOUND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """The hypothesis: so many pods are Ready, before the fault and again within `within_s` of its end."""

    namespace: str
    selector: str
    ready_pods: int
    within_s: float = 180.0

    @property
    def title(self) -> str:
        return f"at least {self.ready_pods} pods of {self.namespace}/{self.selector} are Ready"

    def rendered(self) -> dict[str, Any]:
        arguments = {
            "namespace": self.namespace,
            "selector": self.selector,
            "at_least": self.ready_pods,
            "within_s": self.within_s,
        }
        probe = _activity("probe", self.title, "ready_pods", arguments)
        tolerance = {"type": "range", "range": [self.ready_pods, NO_UPPER_BOUND]}
        return {"title": self.title, "probes": [{**probe, "tolerance": tolerance}]}


def experiment(fault: AnyFault, plan: Plan, entry: Entry | None, steady_state: SteadyState | None) -> dict[str, Any]:
    """The experiment as JSON-ready builtins. `entry` is None in a dry run, where nothing is written down yet."""
    both = {"fault": to_plain(fault), "plan": msgspec.to_builtins(plan)}
    settled = {**both, "entry": msgspec.to_builtins(entry)}
    hits = ", ".join(str(victim) for victim in plan.victims)
    method = [
        _activity("action", f"{fault.kind}: {hits}", "act", both),
        _activity("probe", f"{fault.kind} has landed", "landed", both),
        *([_activity("action", "let it last", "hold", {"duration_s": fault.duration_s})] if fault.duration_s else []),
        _activity("action", f"take back {fault.kind}", "undo", both),
    ]
    rendered = {
        "version": "1.0.0",
        "title": f"{fault.kind} on {fault.target}",
        "description": fault.summary,
        "tags": ["shakedown", fault.kind, plan.run_id],
        "method": method,
        "rollbacks": [_activity("action", f"take back {fault.kind}, whatever happened", "settle", settled)],
    }
    return rendered if steady_state is None else {**rendered, "steady-state-hypothesis": steady_state.rendered()}


def _activity(kind: str, name: str, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    provider = {"type": "python", "module": ACTIVITIES, "func": function, "arguments": arguments}
    return {"type": kind, "name": name, "provider": provider}
