"""Configurations that cannot work, deployed for real: each must be recognised from its pod and named with its remedy.

In `kubectl get pods` they all look alike: CrashLoopBackOff. What differs is the flag to change.
"""

import pytest

from shakedown.judge.expectations import fact
from shakedown.serving.configuration import Serving
from shakedown.serving.failure import await_failure

KNOWN_WITHIN_S = 120.0
"""An engine needs ten seconds to come as far as its error, and several start beside it on two cores."""


def broken(*engine_args: tuple[str, str], **other: object) -> Serving:
    """One replica of a configuration that never gets Ready."""
    return Serving(replicas=1, becomes_ready=False, engine_args=engine_args, **other)  # type: ignore[arg-type]


MATRIX = {
    "one sequence is larger than the cache": (
        broken(("--gpu-memory-utilization", "0.75"), ("--max-model-len", "8192"), device="L4"),
        "does-not-fit",
        "--max-model-len",
    ),
    "utilisation leaves nothing for the sampler": (
        broken(("--gpu-memory-utilization", "0.997")),
        "oom-at-warm-up",
        "--max-num-seqs",
    ),
    "somebody else is on the card": (broken(other_tenant_gib=20.0), "free-memory-gate", "card"),
    "heads that cannot be split over three cards": (
        broken(("--tensor-parallel-size", "3")),
        "invalid",
        "--tensor-parallel-size",
    ),
    "weights larger than the card": (
        broken(("--model", "/opt/models/llama-3.1-70b"), device="L4"),
        "oom-at-start",
        "--tensor-parallel-size",
    ),
    "a container limit below the engine": (broken(memory_limit="300Mi"), "node-oom-kill", "resources.limits.memory"),
}


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        pytest.param(kind, remedy, id=name, marks=pytest.mark.serving(serving))
        for name, (serving, kind, remedy) in MATRIX.items()
    ],
)
async def test_a_misconfiguration_is_recognised_with_its_remedy(vllm, scenario, kind, remedy):
    """The engine's end is classified from the pod's status and log, and the sentence names the flag to change."""
    failure = await await_failure(vllm, KNOWN_WITHIN_S)

    scenario.fact("class of the failure", failure.kind)
    scenario.fact("what it means", failure.sentence)
    scenario.fact("what to change", failure.fix)
    scenario.fact("the change names the flag", remedy in failure.fix)
    scenario.fact("pods that got Ready", len(await vllm.ready_pods()))
    scenario.expect(fact("class of the failure"), equals=kind)
    scenario.expect(fact("the change names the flag"), equals=True)
    scenario.expect(fact("pods that got Ready"), equals=0)
