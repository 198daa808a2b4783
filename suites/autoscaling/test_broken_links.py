"""Loops that do nothing, each for another reason: to an HPA they are all `<unknown>`, and each must be named.

No load is needed: a loop is broken or sound before anybody waits.
"""

from collections.abc import Callable

import pytest

from shakedown.errors import WaitTimeout
from shakedown.judge.expectations import fact
from shakedown.serving.configuration import Serving
from shakedown.serving.deployment import ServingDeployment
from shakedown.serving.live_loop import find_loop
from shakedown.serving.loop_diagnosis import Link, diagnose_loop
from shakedown.serving.scaling import Autoscaling, waiting_requests
from shakedown.waiting import wait_until

SETTLED_WITHIN_S = 45.0
"""Scrape, KEDA's first query and the HPA's round."""
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),))


def asking(change: Callable[[str], str]) -> Callable[[ServingDeployment], Autoscaling]:
    """The autoscaler that asks the right query with one thing changed."""
    return lambda vllm: Autoscaling(threshold=5, query=change(waiting_requests(vllm)))


LOOPS = {
    "the name with an underscore": (
        asking(lambda query: query.replace("vllm:", "vllm_")),
        "the query",
        "vllm:num_requests_waiting",
    ),
    "a label that does not join": (
        asking(lambda query: query.replace("namespace=", "kubernetes_namespace=")),
        "the query",
        "kubernetes_namespace",
    ),
    "a model that nobody serves": (
        asking(lambda query: query.replace("Meta-Llama-3-8B", "Llama-2-7b")),
        "the query",
        "model_name",
    ),
    "a Prometheus somewhere else": (
        lambda vllm: Autoscaling(threshold=5, server="http://prometheus.monitoring.svc:9090"),
        "Prometheus",
        "serverAddress",
    ),
    "a target that running requests never reach": (
        lambda vllm: Autoscaling(threshold=16, query=waiting_requests(vllm).replace("waiting", "running")),
        "the target",
        "num_requests_waiting",
    ),
    "nothing is wrong": (lambda vllm: Autoscaling(threshold=5), "none", ""),
}


@pytest.mark.serving(ENGINE)
@pytest.mark.parametrize(("scaler", "link", "remedy"), LOOPS.values(), ids=LOOPS.keys())
async def test_a_broken_link_is_named_with_its_remedy(vllm, autoscale, scenario, scaler, link, remedy):
    """The first broken link of the loop is named with what to change; a sound loop is not accused."""
    scaled = await autoscale(vllm, scaler(vllm))

    broken = await settled_diagnosis(scaled, link)
    scenario.fact("broken link", broken.name if broken else "none")
    scenario.fact("what it means", broken.seen if broken else "")
    scenario.fact("what to change", broken.fix if broken else "")
    scenario.fact("the change names it", remedy in (broken.fix if broken else ""))
    scenario.expect(fact("broken link"), equals=link)
    scenario.expect(fact("the change names it"), equals=True)


async def settled_diagnosis(scaled, link: str) -> Link | None:
    """The diagnosis, as `shakedown loop` gives it, once it is the expected one; the last one if it never is."""
    loop = await find_loop(scaled.cluster, scaled.engine.namespace, scaled.name)
    try:
        return await wait_until(
            f"a loop whose broken link is {link}",
            lambda: diagnose_loop(loop),
            lambda broken: (broken.name if broken else "none") == link,
            within_s=SETTLED_WITHIN_S,
        )
    except WaitTimeout:
        return await diagnose_loop(loop)
