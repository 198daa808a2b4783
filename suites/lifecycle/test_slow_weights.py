"""Weights take minutes to load, and the startup probe decides whether that is a start or a boot loop.

The probe gives an engine 60 s + 30 × 10 s. A load within that budget must end Ready without one restart. A longer
one is killed by the kubelet, again and again; it looks like a crash and is none.
"""

import pytest

from shakedown.judge.expectations import fact
from shakedown.serving.boot import BootState
from shakedown.serving.configuration import Serving
from shakedown.waiting import wait_until

WITHIN_THE_BUDGET_S = 270.0
BEYOND_THE_BUDGET_S = 600.0

pytestmark = pytest.mark.smoke


@pytest.mark.serving(Serving(replicas=1, weights_load_s=WITHIN_THE_BUDGET_S))
async def test_weights_that_load_within_the_budget_make_ready_without_a_restart(vllm, scenario):
    """Weights that take 270 s of the 360 s budget: Ready, zero restarts, and not before the weights were there."""
    await vllm.await_rolled_out()

    (pod,) = await vllm.ready_pods()
    ready_at = next(condition.last_transition_at for condition in pod.conditions if condition.type == "Ready")
    scenario.fact("restarts", pod.restarts)
    scenario.fact("seconds from container start to Ready", ready_at - pod.containers[0].running_since)
    scenario.expect(fact("restarts"), equals=0)
    scenario.expect(
        fact("seconds from container start to Ready"),
        between=(scenario.scaled(WITHIN_THE_BUDGET_S) - 1, vllm.startup_budget_s + 5),
    )


@pytest.mark.serving(Serving(replicas=1, weights_load_s=BEYOND_THE_BUDGET_S, becomes_ready=False))
async def test_weights_that_load_beyond_the_budget_are_named_a_probe_kill(vllm, scenario):
    """Weights that take 600 s of a 360 s budget: the boot loop is recognised as the kubelet's doing, not as a crash."""
    boots = await wait_until(
        f"a restart of the only pod of {vllm}",
        vllm.boot,
        lambda seen: any(boot.restarts > 0 for boot in seen),
        within_s=vllm.startup_budget_s + 60,
    )

    (boot,) = boots
    scenario.fact("diagnosis", boot.state.value)
    scenario.fact("sentence", boot.sentence)
    scenario.fact("pods that got Ready", len(await vllm.ready_pods()))
    scenario.expect(fact("diagnosis"), equals=BootState.PROBE_KILL.value)
    scenario.expect(fact("pods that got Ready"), equals=0)
