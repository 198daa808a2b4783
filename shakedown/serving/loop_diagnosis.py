"""Why an autoscaling loop does nothing: each link is asked, from the engines on, and the first broken one is named.

To the HPA a wrong name, a label that does not join, a Prometheus that is away and a metrics API without an answer are
all `<unknown>`; to KEDA, by its default, they are an empty queue.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shakedown.engine.metrics import REQUESTS_RUNNING, exposition
from shakedown.errors import HarnessError
from shakedown.serving.configuration import engine_container, flag_value
from shakedown.serving.lint.promql import series_in
from shakedown.serving.scaling import ScaledDeployment

_MATCHER = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:\\.|[^"\\])*")')


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """What is broken, what it does, and what to change."""

    link: str
    sentence: str
    fix: str


async def diagnose_loop(scaled: ScaledDeployment) -> BrokenLink | None:
    """The first broken link of a loop whose engines are Ready; None if every link gives an answer."""
    checks: tuple[Callable[[ScaledDeployment], Awaitable[BrokenLink | None]], ...] = (
        _name_is_exported,
        _target_can_be_reached,
        _prometheus_answers,
        _engines_are_scraped,
        _query_has_a_sample,
        _metrics_api_answers,
        _hpa_computes,
    )
    for check in checks:
        if broken := await check(scaled):
            return broken
    return None


async def _name_is_exported(scaled: ScaledDeployment) -> BrokenLink | None:
    exported = [await exposition(url) for url in (await scaled.engine.ready_engine_urls()).values()]
    for name in (series.name for series in series_in(scaled.query)):
        if _exports(exported, name):
            continue
        colon = name.replace("vllm_", "vllm:", 1)
        return BrokenLink(
            "the query",
            f"no engine exports {name}, so the query finds nothing, whatever the queue",
            f"ask Prometheus for {colon}"
            if _exports(exported, colon)
            else "use a metric that GET /metrics of the engine lists",
        )
    return None


def _exports(texts: Sequence[str], name: str) -> bool:
    return any(re.search(rf"^{re.escape(name)}[{{ ]", text, re.MULTILINE) for text in texts)


async def _target_can_be_reached(scaled: ScaledDeployment) -> BrokenLink | None:
    names = [series.name for series in series_in(scaled.query)]
    slots = flag_value(engine_container(scaled.engine.rendered.deployment).get("args", []), "--max-num-seqs")
    if names != [REQUESTS_RUNNING] or slots is None or scaled.wanted.threshold < int(slots):
        return None
    return BrokenLink(
        "the target",
        f"an engine never runs more than {slots} requests (--max-num-seqs), and a replica is added only above "
        f"{scaled.wanted.threshold:g}",
        "scale on vllm:num_requests_waiting, or set the threshold well below --max-num-seqs",
    )


async def _prometheus_answers(scaled: ScaledDeployment) -> BrokenLink | None:
    try:
        await scaled.prometheus.count("up")
    except HarnessError as error:
        return BrokenLink("Prometheus", f"Prometheus gives no answer: {error}", "bring Prometheus back")
    if scaled.wanted.server not in (None, scaled.prometheus.address):
        return await _address_answers(scaled)
    return None


async def _address_answers(scaled: ScaledDeployment) -> BrokenLink | None:
    """The autoscaler's own address of Prometheus counts, and only its metrics API can tell whether it answers."""
    try:
        value = await scaled.metrics_api()
    except HarnessError:
        value = None
    if value is not None:
        return None
    return BrokenLink(
        "Prometheus",
        f"the trigger asks {scaled.wanted.server}, from where no answer comes; {scaled.prometheus.address} answers",
        f"set serverAddress to {scaled.prometheus.address}",
    )


async def _engines_are_scraped(scaled: ScaledDeployment) -> BrokenLink | None:
    ready = len(await scaled.engine.ready_pods())
    up = await scaled.prometheus.count(f'up{{namespace="{scaled.engine.namespace}"}} == 1')
    if up >= ready:
        return None
    return BrokenLink(
        "the scrape",
        f"Prometheus scrapes {up} of {ready} Ready engines of {scaled.engine.namespace}",
        "give it a scrape job (or a ServiceMonitor) that selects the engines' pods, not a router's",
    )


async def _query_has_a_sample(scaled: ScaledDeployment) -> BrokenLink | None:
    if await scaled.prometheus.count(scaled.query):
        return None
    for series in series_in(scaled.query):
        for label, operator, value in _MATCHER.findall(scaled.query):
            selected = f"{series.name}{{{label}{operator}{value}}}"
            if label in series.labels and not await scaled.prometheus.count(selected):
                return BrokenLink(
                    "the query",
                    f"{series.name} is there, and no series of it has {label}{operator}{value}",
                    f"correct or drop the label {label}; an absent series is not an empty queue",
                )
    return BrokenLink("the query", "the query has no answer in Prometheus, which is not zero", "try it by hand")


async def _metrics_api_answers(scaled: ScaledDeployment) -> BrokenLink | None:
    try:
        value = await scaled.metrics_api()
    except HarnessError as error:
        return BrokenLink("the metrics API", f"{error}", "look at KEDA's operator and metrics server")
    if value is None:
        return BrokenLink(
            "the metrics API",
            f"it serves no metric for the ScaledObject {scaled.name}",
            f"kubectl describe scaledobject {scaled.name} says why",
        )
    return None


async def _hpa_computes(scaled: ScaledDeployment) -> BrokenLink | None:
    seen = await scaled.hpa()
    if seen is None:
        return BrokenLink("the HPA", "KEDA has made no HPA", f"kubectl describe scaledobject {scaled.name} says why")
    if not seen.active:
        return BrokenLink("the HPA", f"the HPA computes nothing: {seen.why_inactive}", "follow its condition")
    return None
