"""`shakedown drill` and `shakedown recover`: one fault on a cluster, and taking back what a dead runner left."""

import asyncio
import re
import secrets
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from shakedown.chaos import Access, Count, Journal, Ledger, Percent, Safety, Target, run_experiment
from shakedown.chaos.audit import differences, snapshot
from shakedown.chaos.experiment import SteadyState, experiment
from shakedown.chaos.faults import FAULTS, AnyFault, build
from shakedown.chaos.toolkit import as_many_ready_as_now
from shakedown.cli.access import access_of, cluster_options, inside_embedded
from shakedown.cluster.api import ApiRefusal, Cluster
from shakedown.errors import UsageError
from shakedown.judge.records import Mark
from shakedown.judge.verdict import Verdict

UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """90, 90s, 1.5m, 1h as seconds. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no duration; say 30s, 5m or 1h")
    return float(match[1]) * UNITS_S[match[2]]


def target_of(namespace: str | None, selector: str | None, count: int | None, percent: int | None) -> Target:
    """The target from the options; nothing about it is ever assumed. Raises UsageError."""
    if not namespace or not selector:
        raise UsageError("say whom to hit: --namespace NAME --selector LABEL=VALUE")
    if (count is None) == (percent is None):
        raise UsageError("say how many to hit: either --count N or --percent P")
    how_many = Count(count) if count is not None else Percent(percent or 0)
    return Target(namespace=namespace, selector=selector, how_many=how_many)


def verdict_of(journal: Journal) -> tuple[Verdict, str]:
    """What a drill found out, and why."""
    if not journal.fault_landed:
        return Verdict.UNKNOWN, "; ".join(journal.failed_activities) or f"the experiment was {journal.status}"
    if journal.deviated:
        return Verdict.DEVIATED, "the steady state did not come back in time"
    if journal.status != "completed" or not journal.rolled_back:
        return Verdict.UNKNOWN, "; ".join(journal.failed_activities) or f"the experiment was {journal.status}"
    return Verdict.HELD, journal.evidence


@click.command(epilog="Faults: " + "; ".join(f"{fault.kind}: {fault.summary}" for fault in FAULTS))
@click.argument("fault", metavar="FAULT")
@click.option("--namespace", "-n", help="Namespace of the pods to hit. Never assumed.")
@click.option("--selector", "-l", help="Label selector of the pods to hit; for node faults the nodes under them.")
@click.option("--count", type=int, help="How many to hit…")
@click.option("--percent", type=int, help="…or which share of them, at least one.")
@click.option("--duration", help="How long the fault lasts once it has landed: 30s, 5m.")
@click.option("--within", help="pod-evict, drain: how long PodDisruptionBudgets may refuse.")
@click.option("--factor", type=float, help="engine-slow: how much longer each step takes.")
@click.option("--replicas", type=int, help="scale: to how many.")
@click.option("--effect", help="taint: NoSchedule or NoExecute.")
@click.option("--by", help="engine-hang: knobs (twin) or signal (any vLLM).")
@click.option("--title", help="container-kill: how the process's title begins; empty for all of them.")
@click.option("--port", type=int, help="network-partition: the port on which it is proven.")
@click.option("--whole-node", is_flag=True, default=None, help="drain: evict the pods of every namespace.")
@click.option("--delete-emptydir-data", is_flag=True, default=None, help="drain: evict pods that lose emptyDir data.")
@click.option("--recover-within", default="3m", show_default=True, help="How long the pods may take to be Ready again.")
@click.option("--all", "allow_all", is_flag=True, help="Allow a fault that leaves nothing unharmed.")
@click.option("--allow-namespace", multiple=True, help="Another, or a protected, namespace that may be harmed.")
@click.option("--folder", type=click.Path(path_type=Path), help="[default: reports/drills/RUN-ID]")
@click.option("--dry-run", is_flag=True, help="Print the experiment and what it would hit now, and do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def drill(fault: str, **options: Any) -> int:
    """Inject one fault into a running cluster, prove that it landed, and take it back.

    \b
    Examples:
      shakedown drill pod-kill -n llm-serving -l app=vllm --count 1 --dry-run
      shakedown drill drain -n llm-serving -l app=vllm --count 1 --duration 2m --context staging
      shakedown drill engine-hang -n llm-serving -l app=vllm --count 1 --duration 30s --by signal
    Ctrl-C rolls back. SHAKEDOWN_NAMESPACES=a,b limits every drill to these namespaces.
    """
    if options["cluster"] == "embedded":
        return asyncio.run(inside_embedded(options["name"]))
    parameters = {
        name: options[name]
        for name in ("factor", "replicas", "effect", "by", "title", "port", "whole_node", "delete_emptydir_data")
        if options[name] is not None
    }
    for option, field in (("duration", "duration_s"), ("within", "within_s")):
        if options[option] is not None:
            parameters[field] = seconds(options[option])
    target = target_of(options["namespace"], options["selector"], options["count"], options["percent"])
    value = build(fault, target, **parameters)
    run_id = f"drill-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    order = _Order(
        fault=value,
        run_id=run_id,
        access=access_of(options),
        safety=Safety.from_environment(frozenset(options["allow_namespace"]), allow_all=options["allow_all"]),
        folder=options["folder"] or Path("reports/drills") / run_id,
        recover_within_s=seconds(options["recover_within"]),
        as_json=options["as_json"],
        yes=options["yes"],
    )
    return asyncio.run(_preview(order) if options["dry_run"] else _drill(order))


@click.command()
@click.option("--namespace", "-n", help="Only what was done to this namespace.  [default: all]")
@click.option("--force", is_flag=True, help="Take every runner for dead, also one that is alive.")
@cluster_options
def recover(namespace: str | None, force: bool, as_json: bool, **options: Any) -> int:
    """Take back what a runner that died left behind; safe to repeat.

    \b
    Examples:
      shakedown recover --cluster embedded
      shakedown recover --context staging --namespace llm-serving
    """
    if options["cluster"] == "embedded":
        return asyncio.run(inside_embedded(options["name"]))
    return asyncio.run(_recover(access_of(options), namespace, force=force, as_json=as_json))


commands: tuple[click.Command, ...] = (drill, recover)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """A drill as it was ordered."""

    fault: AnyFault
    run_id: str
    access: Access
    safety: Safety
    folder: Path
    recover_within_s: float
    as_json: bool
    yes: bool

    async def steady_state(self, cluster: Cluster) -> SteadyState | None:
        now = await as_many_ready_as_now(cluster, self.fault)
        if now is None:
            return None
        return SteadyState(
            namespace=now.namespace,
            selector=now.selector,
            ready_pods=now.ready_pods,
            within_s=self.recover_within_s,
        )


async def _preview(order: _Order) -> int:
    async with await order.access.connect() as cluster:
        plan = await order.fault.preview(cluster, order.run_id)
        rendered = experiment(order.fault, plan, None, await order.steady_state(cluster))
        victims = [str(victim) for victim in plan.victims]
        click.echo(_pretty({"victims": victims, "undo": [str(s) for s in plan.undo], "experiment": rendered}))
        order.safety.check(order.fault, plan)
    return 0


async def _drill(order: _Order) -> int:
    async with await order.access.connect() as cluster:
        await _ask(order, cluster)
        namespace = order.fault.target.namespace
        before = await snapshot(cluster, namespace)
        journal = await run_experiment(
            cluster,
            order.fault,
            access=order.access,
            run_id=order.run_id,
            folder=order.folder,
            hypothesis=await order.steady_state(cluster),
            safety=order.safety,
            on_mark=_show_mark,
        )
        left = differences(before, await snapshot(cluster, namespace))
    return _say(order, journal, left)


async def _ask(order: _Order, cluster: Cluster) -> None:
    """Name the victims and have them confirmed. Raises UsageError where nobody can answer."""
    plan = await order.fault.preview(cluster, order.run_id)
    order.safety.check(order.fault, plan)
    victims = ", ".join(str(victim) for victim in plan.victims)
    if order.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{order.fault.kind} would hit {victims}; say --yes, as there is no terminal to ask on")
    click.confirm(f"{order.fault.kind} will hit {victims}. Go on?", abort=True, err=True)


def _show_mark(mark: Mark) -> None:
    when = time.strftime("%H:%M:%S", time.localtime(mark.at))
    click.echo(f"{when}  {mark.kind.value.replace('_', ' ')}: {mark.text}", err=True)


def _say(order: _Order, journal: Journal, left: tuple[str, ...]) -> int:
    verdict, why = verdict_of(journal)
    if order.as_json:
        found = {"run_id": order.run_id, "verdict": verdict, "why": why, "left": left, "folder": str(order.folder)}
        click.echo(_pretty({**found, "journal": asdict(journal)}))
        return verdict.exit_code
    click.echo(f"{verdict.value}: {why}")
    click.echo("left behind: " + ("; ".join(left) if left else "nothing"))
    click.echo(f"experiment and journal: {order.folder}")
    return verdict.exit_code


async def _recover(access: Access, namespace: str | None, *, force: bool, as_json: bool) -> int:
    async with await access.connect() as cluster:
        try:
            outcomes = await (await Ledger.of(cluster)).recover(namespace, force=force)
        except ApiRefusal as refusal:
            if refusal.status == 403 and namespace is None:
                raise UsageError(
                    f"not allowed to look at every namespace; say --namespace NAME ({refusal})"
                ) from refusal
            raise
    if as_json:
        plain = [{"entry": o.entry.id, "fault": o.entry.fault, "done": o.done, "text": o.text} for o in outcomes]
        click.echo(_pretty({"entries": plain}))
    else:
        for outcome in outcomes:
            click.echo(f"{'taken back' if outcome.done else 'open'}  {outcome.entry.fault}: {outcome.text}")
        if not outcomes:
            click.echo("nothing to take back")
    return 0 if all(outcome.done for outcome in outcomes) else Verdict.UNKNOWN.exit_code


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
