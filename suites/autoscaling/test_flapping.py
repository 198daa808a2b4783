"""A load that comes and goes: an autoscaler without patience follows each wave, and pays a boot for it.

A replica that is taken away in a trough is missed in the next crest, and its successor is Ready when that crest is
over. A stabilisation window longer than the wave keeps it, if each crest is seen: requests in flight show it however
many replicas there are, and waiting requests do not once there are enough.
"""

import pytest

from shakedown.judge.expectations import changes_of_mind, lost_requests, peak, percentile_ttft
from shakedown.judge.loop import READY
from shakedown.load import Steps, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.scaling import Autoscaling, requests_in_flight

WAVES, CREST_S, TROUGH_S = 3, 20.0, 25.0
CREST, TROUGH = 7.0, 0.5
"""Answers a second: an L4 with 16 sequences gives 3.5, two give the crest."""
LOAD = Steps(((CREST, CREST_S), (TROUGH, TROUGH_S)) * WAVES)
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),), drain_s=30)
IMPATIENT = Autoscaling(threshold=5, maximum=2, scale_down_window_s=0)
IN_FLIGHT_EACH = 12
"""Of 16 sequences: three quarters."""

pytestmark = [
    pytest.mark.certify,
    pytest.mark.serving(ENGINE),
    pytest.mark.compared("A load in waves under two scale-down windows"),
]


async def test_without_a_window_the_autoscaler_follows_every_wave(vllm, autoscale, open_loop, scenario):
    """The failure is real, and found: replicas go in each trough and come in each crest."""
    await in_waves(vllm, autoscale, open_loop, scenario, IMPATIENT)

    scenario.expect(changes_of_mind(), at_least=2 * (WAVES - 1))


async def test_with_a_window_longer_than_a_wave_the_replicas_stay(vllm, autoscale, open_loop, scenario):
    """By requests in flight and with a window longer than a wave, the second replica comes once and stays."""
    # The default window of 300 s is 60 s at the time scale of a run: longer than a wave of 45 s.
    patient = Autoscaling(threshold=IN_FLIGHT_EACH, maximum=2, query=requests_in_flight(vllm))
    await in_waves(vllm, autoscale, open_loop, scenario, patient)

    scenario.expect(changes_of_mind(), at_most=0)
    scenario.expect(peak(READY), equals=2)
    scenario.expect(percentile_ttft(50), at_most=3.0)
    scenario.expect(lost_requests(), at_most=0)


async def in_waves(vllm, autoscale, open_loop, scenario, policy) -> None:
    await autoscale(vllm, policy)
    load = open_loop(vllm, LOAD, Workload((TALK,), seed=scenario.seed), duration_s=WAVES * (CREST_S + TROUGH_S))
    async with load as waves:
        await waves.done()
