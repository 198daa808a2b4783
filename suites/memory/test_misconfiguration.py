"""Configurations that cannot work, deployed for real: each must be recognised from its pod and named with its remedy.

In `kubectl get pods` they all look alike: CrashLoopBackOff. What differs is the flag to change, and whoever follows
the sentence that says so must get an engine that serves.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from shakedown.engine.memory.failures import FailureDiagnosis
from shakedown.judge.expectations import fact
from shakedown.serving.configuration import Serving
from shakedown.serving.failure import await_failure

KNOWN_WITHIN_S = 120.0
"""An engine needs ten seconds to come as far as its error, and several start beside it on two cores."""

Flags = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Case:
    """What is deployed, what it must be called, what the sentence must name, and who follows it changes that."""

    serving: Serving
    kind: str
    remedy: str
    follow: Callable[[FailureDiagnosis, Serving], Serving]


def broken(*engine_args: tuple[str, str], **other: object) -> Serving:
    """One replica of a configuration that never gets Ready."""
    return Serving(replicas=1, becomes_ready=False, engine_args=engine_args, **other)  # type: ignore[arg-type]


def with_flag(flag: str, value: Callable[[FailureDiagnosis], str]) -> Callable[[FailureDiagnosis, Serving], Serving]:
    """Set a flag to what the diagnosis says."""
    return lambda said, serving: replace(
        serving, engine_args=(*(pair for pair in serving.engine_args if pair[0] != flag), (flag, value(said)))
    )


def number(pattern: str) -> Callable[[FailureDiagnosis], str]:
    """The number that the diagnosis gives in these words."""

    def found(said: FailureDiagnosis) -> str:
        match = re.search(pattern, f"{said.sentence} {said.fix}")
        assert match is not None, f"the diagnosis gives no number like {pattern!r}: {said.sentence} {said.fix}"
        return match[1]

    return found


def below_what_is_free(said: FailureDiagnosis) -> str:
    """Free of total memory, less a GiB for what no budget holds (the sampler's buffers), as a share rounded down."""
    free, total = float(number(r"([\d.]+) GiB of")(said)), float(number(r"of ([\d.]+) GiB")(said))
    return f"{math.floor((free - 1) / total * 100) / 100:g}"


def largest_divisor_up_to(most: int) -> Callable[[FailureDiagnosis], str]:
    """For heads that must be split evenly."""
    return lambda said: str(max(n for n in range(1, most + 1) if int(number(r"divides (\d+)")(said)) % n == 0))


MATRIX = {
    "one sequence is larger than the cache": Case(
        broken(("--gpu-memory-utilization", "0.75"), ("--max-model-len", "8192"), device="L4"),
        "does-not-fit",
        "--max-model-len",
        with_flag("--max-model-len", number(r"--max-model-len to (\d+)")),
    ),
    "utilisation leaves nothing for the sampler": Case(
        broken(("--gpu-memory-utilization", "0.997")),
        "oom-at-warm-up",
        "--max-num-seqs",
        with_flag("--max-num-seqs", lambda said: "16"),
    ),
    "somebody else is on the card": Case(
        broken(other_tenant_gib=20.0),
        "free-memory-gate",
        "--gpu-memory-utilization",
        with_flag("--gpu-memory-utilization", below_what_is_free),
    ),
    "heads that cannot be split over three cards": Case(
        broken(("--tensor-parallel-size", "3")),
        "invalid",
        "--tensor-parallel-size",
        with_flag("--tensor-parallel-size", largest_divisor_up_to(2)),
    ),
    "weights larger than the card": Case(
        # A card's own default for batches; the engine behind the twin multiplies it by the number of cards.
        broken(("--model", "/opt/models/llama-3.1-70b"), ("--max-num-batched-tokens", "2048"), device="L4"),
        "oom-at-start",
        "--tensor-parallel-size",
        with_flag("--tensor-parallel-size", lambda said: "8"),
    ),
    "a KV dtype that this release does not know": Case(
        broken(("--kv-cache-dtype", "fp7")),
        "invalid",
        "--kv-cache-dtype",
        with_flag("--kv-cache-dtype", lambda said: "auto"),
    ),
    "a flag that was valid before the engine was upgraded": Case(
        broken(("--swap-space", "4")),
        "invalid",
        "--swap-space",
        lambda said, serving: replace(serving, engine_args=()),
    ),
    "a container limit below the engine": Case(
        broken(memory_limit="300Mi"),
        "node-oom-kill",
        "resources.limits.memory",
        lambda said, serving: replace(serving, memory_limit="4Gi"),
    ),
}


def marks_of(case: Case) -> list[pytest.MarkDecorator]:
    """Each is thirty seconds of two engines; one that says why and one that cannot are enough for a night."""
    often = case.kind in ("does-not-fit", "node-oom-kill")
    return [pytest.mark.serving(case.serving), *(() if often else (pytest.mark.certify,))]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=marks_of(case)) for name, case in MATRIX.items()],
)
async def test_a_misconfiguration_is_recognised_and_its_remedy_works(vllm, deploy_too, scenario, case):
    """The engine's end is classified from status and log, and who follows the sentence has an engine that serves."""
    failure = await await_failure(vllm, KNOWN_WITHIN_S)
    scenario.fact("class of the failure", failure.kind)
    scenario.fact("what it means", failure.sentence)
    scenario.fact("what to change", failure.fix)
    scenario.fact("the change names the flag", case.remedy in failure.fix)
    scenario.fact("pods that got Ready", len(await vllm.ready_pods()))

    mended = await deploy_too(replace(case.follow(failure, case.serving), becomes_ready=True))
    scenario.fact("pods that got Ready when it was followed", len(await mended.ready_pods()))

    scenario.expect(fact("class of the failure"), equals=case.kind)
    scenario.expect(fact("the change names the flag"), equals=True)
    scenario.expect(fact("pods that got Ready"), equals=0)
    scenario.expect(fact("pods that got Ready when it was followed"), equals=1)
