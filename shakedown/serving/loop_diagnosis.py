"""Why an autoscaling loop does nothing: each link is asked, from the engines on, until one is broken.

To the HPA a wrong name, a label that does not join, a Prometheus that is away and a metrics API without an answer are
all `<unknown>`; to KEDA, by its default, they are an empty queue.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shakedown.engine.metrics import REQUESTS_RUNNING
from shakedown.errors import HarnessError, NotAllowed, UsageError
from shakedown.serving.boot import BootState
from shakedown.serving.lint.promql import series_in
from shakedown.serving.live_loop import LiveLoop

_MATCHER = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:\\.|[^"\\])*")')


@dataclass(frozen=True, slots=True)
class Link:
    """What one link says: what is seen there, and, where it is broken, what to change."""

    name: str
    seen: str
    fix: str = ""

    @property
    def broken(self) -> bool:
        return bool(self.fix)


Check = Callable[[LiveLoop], Awaitable[Link]]


async def trace_loop(loop: LiveLoop) -> tuple[Link, ...]:
    """Every link up to the first broken one, which is the last.

    Raises NotAllowed where one may not be asked.
    """
    seen: list[Link] = []
    for check in (_scaler_acts, *(QUERY_LINKS if loop.asks is not None else ()), *METRICS_LINKS):
        seen.append(await check(loop))
        if seen[-1].broken:
            break
    return tuple(seen)


async def diagnose_loop(loop: LiveLoop) -> Link | None:
    """The first broken link; None if every link gives an answer."""
    last = (await trace_loop(loop))[-1]
    return last if last.broken else None


async def _scaler_acts(loop: LiveLoop) -> Link:
    if loop.paused_by:
        return Link(
            "the autoscaler", f"KEDA is told to leave {loop} alone", f"take its annotation {loop.paused_by} away"
        )
    return Link("the autoscaler", f"{loop} scales {loop.scales}")


async def _engines_export(loop: LiveLoop) -> Link:
    try:
        exported = await loop.expositions()
    except NotAllowed:
        raise
    except HarnessError as error:
        return Link(
            "the engines", f"one is Ready and its GET /metrics has no answer: {error}", "look at that pod's log"
        )
    names = list(dict.fromkeys(series.name for series in series_in(loop.query)))
    if not exported:
        return Link("the engines", "none is Ready, and nobody can say what they export")
    for name in names:
        if _exports(exported, name):
            continue
        colon = name.replace("vllm_", "vllm:", 1)
        return Link(
            "the query",
            f"no engine exports {name}, so the query finds nothing, whatever the queue",
            f"ask Prometheus for {colon}"
            if _exports(exported, colon)
            else "use a metric that GET /metrics of the engine lists",
        )
    ready = f"{len(exported)} {'is' if len(exported) == 1 else 'are'} Ready"
    return Link("the engines", f"{ready} and {_verb(exported)} {' and '.join(names)}" if names else ready)


def _verb(exported: Sequence[str]) -> str:
    return "exports" if len(exported) == 1 else "export"


def _exports(texts: Sequence[str], name: str) -> bool:
    return any(re.search(rf"^{re.escape(name)}[{{ ]", text, re.MULTILINE) for text in texts)


async def _target_can_be_reached(loop: LiveLoop) -> Link:
    names = [series.name for series in series_in(loop.query)]
    if names == [REQUESTS_RUNNING] and loop.slots is not None and loop.threshold >= loop.slots:
        return Link(
            "the target",
            f"an engine never runs more than {loop.slots} requests (--max-num-seqs), and a replica is added only above "
            f"{loop.threshold:g}",
            "scale on vllm:num_requests_waiting, or set the threshold well below --max-num-seqs",
        )
    return Link("the target", f"a replica is added above {loop.threshold:g} for each")


async def _prometheus_answers(loop: LiveLoop) -> Link:
    try:
        scraped = await loop.prometheus.count("up")
    except NotAllowed:
        raise
    except UsageError as error:
        return Link("Prometheus", str(error), "set the trigger's serverAddress")
    except HarnessError as error:
        return Link(
            "Prometheus",
            f"Prometheus gives no answer: {error}",
            f"bring Prometheus back, or set serverAddress to one that answers; it is {loop.asks}",
        )
    return Link("Prometheus", f"{loop.asks} answers; it scrapes {scraped} targets")


async def _engines_are_scraped(loop: LiveLoop) -> Link:
    ready = sum(boot.state is BootState.READY for boot in await loop.boot())
    up = await loop.prometheus.count(f'up{{namespace="{loop.namespace}"}} == 1')
    if up < ready:
        return Link(
            "the scrape",
            f"Prometheus scrapes {up} of {ready} Ready engines of {loop.namespace}",
            "give it a scrape job (or a ServiceMonitor) that selects the engines' pods, not a router's",
        )
    return Link("the scrape", f"{up} targets of {loop.namespace} are up, for {ready} Ready engines")


async def _query_has_a_sample(loop: LiveLoop) -> Link:
    try:
        found = await loop.prometheus.count(loop.query)
    except NotAllowed:
        raise
    except HarnessError as error:
        return Link("the query", f"Prometheus does not answer it: {error}", "correct the query")
    if found == 1:
        return Link("the query", f"{loop.query} has one answer")
    if found > 1:
        return Link("the query", f"it has {found} answers and an autoscaler takes one", "put sum(…) around it")
    for series in series_in(loop.query):
        for label, operator, value in _MATCHER.findall(loop.query):
            selected = f"{series.name}{{{label}{operator}{value}}}"
            if label in series.labels and not await loop.prometheus.count(selected):
                return Link(
                    "the query",
                    f"{series.name} is there, and no series of it has {label}{operator}{value}",
                    f"correct or drop the label {label}; an absent series is not an empty queue",
                )
    return Link("the query", "the query has no answer in Prometheus, which is not zero", "try it by hand")


async def _metrics_api_answers(loop: LiveLoop) -> Link:
    try:
        value = await loop.metrics_api()
    except NotAllowed:
        raise
    except HarnessError as error:
        return Link("the metrics API", f"{error}", "look at KEDA's operator and metrics server, or at the adapter")
    if value is None:
        return Link(
            "the metrics API",
            f"it serves no metric for {loop}",
            _describe(loop),
        )
    return Link("the metrics API", f"it answers {value:g}")


def _describe(loop: LiveLoop) -> str:
    return f"`kubectl describe {loop.kind.lower()} {loop.name}` says why, of one that has just been made after 15 s"


async def _hpa_computes(loop: LiveLoop) -> Link:
    seen = await loop.hpa()
    if seen is None:
        return Link("the HPA", "KEDA has made no HPA", _describe(loop))
    if not seen.active:
        return Link("the HPA", f"the HPA computes nothing: {seen.why_inactive}", _describe(loop))
    limited = f"; it wants more and may not: {seen.why_limited}" if seen.why_limited else ""
    return Link("the HPA", f"it has {seen.current} replicas and wants {seen.desired}{limited}")


async def _replicas_start(loop: LiveLoop) -> Link:
    boots = await loop.boot()
    stuck = [boot for boot in boots if boot.state not in (BootState.READY, BootState.LOADING)]
    if stuck:
        return Link("the pods", stuck[0].sentence, REMEDIES.get(stuck[0].state, "follow what is said there"))
    loading = sum(boot.state is BootState.LOADING for boot in boots)
    return Link("the pods", f"{len(boots) - loading} are Ready, {loading} on the way")


REMEDIES = {
    BootState.PENDING: "add nodes with free GPUs, or lower the autoscaler's maximum",
    BootState.IMAGE: "correct the image or the pull secret",
}

QUERY_LINKS: tuple[Check, ...] = (
    _engines_export,
    _target_can_be_reached,
    _prometheus_answers,
    _engines_are_scraped,
    _query_has_a_sample,
)
"""What can be asked where the query is in the autoscaler and not an adapter's."""
METRICS_LINKS: tuple[Check, ...] = (_metrics_api_answers, _hpa_computes, _replicas_start)
