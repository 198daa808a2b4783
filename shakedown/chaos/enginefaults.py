"""Faults inside an engine: it hangs, slows down, or its device fails.

On the twin they are knobs that turn while it runs. A hang needs no knob: SIGSTOP on the engine core does it to any
vLLM.
"""

import asyncio
from dataclasses import replace
from typing import ClassVar, Literal

import httpx
import msgspec

from shakedown.chaos.plan import Plan, landing
from shakedown.chaos.podfaults import ENGINE_CORE, containers_restarted, pod_plan, signal_command
from shakedown.chaos.target import NotExercised, Target, Victim
from shakedown.chaos.undo import ContinueProcess, ReleaseKnobs, UndoStep
from shakedown.cluster.api import Cluster
from shakedown.engine import knobs
from shakedown.engine.metrics import GENERATION_TOKENS, read_metrics
from shakedown.errors import FaultDidNotLand, HarnessError, UsageError

TOKEN_GAPS_SUM = "vllm:inter_token_latency_seconds_sum"
TOKEN_GAPS_COUNT = "vllm:inter_token_latency_seconds_count"
ENGINE_PORT = 8000
KNOBS_PORT = 8001
SILENCE_S = 2.0
"""A healthy engine that has work makes tokens every 10 to 200 ms; two silent seconds are no coincidence."""
CANARY_TOKENS = 16
CANARY_LIMIT_S = 30.0
SLOW_WITHIN_S = 30.0
NOTICED_SHARE = 0.5
"""The measured slow-down must be at least this share of the ordered one: queueing and CPU time are not slowed."""


class EngineHang(msgspec.Struct, frozen=True, kw_only=True, tag="engine-hang"):
    """The engine makes no progress while its process lives and /health answers."""

    kind: ClassVar[str] = "engine-hang"
    summary: ClassVar[str] = "stop the engine's progress; process and /health stay alive"
    target: Target
    duration_s: float
    by: Literal["knobs", "signal"] = "knobs"
    """"knobs" needs the twin; "signal" stops the engine core process of any vLLM."""

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        plan = await pod_plan(cluster, self.target, run_id)
        if self.by == "knobs":
            return await with_released_knobs(plan)
        return msgspec.structs.replace(plan, undo=tuple(_continue(victim) for victim in plan.victims))

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        if self.by == "knobs":
            return await turn_all(plan, hang=True)
        return "; ".join([await self._stop(cluster, victim) for victim in plan.victims])

    async def _stop(self, cluster: Cluster, victim: Victim) -> str:
        command = signal_command("STOP", ENGINE_CORE)
        said = await cluster.exec(victim.namespace or "", victim.name, command, container=victim.container)
        if not said.strip():
            raise FaultDidNotLand(f"{victim} has no process called {ENGINE_CORE}")
        return f"{victim}: {said.strip()}"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        return "; ".join(await asyncio.gather(*(no_progress(victim) for victim in plan.victims)))

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return await released(cluster, plan) if self.by == "knobs" else "the engine core continues"


class EngineSlow(msgspec.Struct, frozen=True, kw_only=True, tag="engine-slow"):
    """Each step of the engine takes a multiple of its time, as on a throttled or shared device."""

    kind: ClassVar[str] = "engine-slow"
    summary: ClassVar[str] = "make each engine step take a multiple of its time (twin)"
    target: Target
    duration_s: float
    factor: float

    def __post_init__(self) -> None:
        if self.factor <= 1:
            raise UsageError(f"a slow engine needs a factor above 1, not {self.factor:g}")

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        plan = await with_released_knobs(await pod_plan(cluster, self.target, run_id))
        gaps = await asyncio.gather(*(token_gap_s(victim) for victim in plan.victims))
        return msgspec.structs.replace(plan, before={v.uid: gap for v, gap in zip(plan.victims, gaps, strict=True)})

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        return await turn_all(plan, step_slowdown=self.factor)

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        return "; ".join(await asyncio.gather(*(self._slower(victim, plan) for victim in plan.victims)))

    async def _slower(self, victim: Victim, plan: Plan) -> str:
        before = plan.before[victim.uid]
        bar = before * (1 + (self.factor - 1) * NOTICED_SHARE)
        now = await landing(
            f"token gap of {victim.name} above {bar * 1e3:.1f} ms",
            lambda: token_gap_s(victim),
            lambda gap: gap >= bar,
            SLOW_WITHIN_S,
        )
        return f"{victim.name}: {before * 1e3:.1f} ms a token before, {now * 1e3:.1f} ms now"

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return await released(cluster, plan)


class EngineOom(msgspec.Struct, frozen=True, kw_only=True, tag="engine-oom"):
    """The device runs out of memory in mid-flight; the engine dies and its container restarts."""

    kind: ClassVar[str] = "engine-oom"
    summary: ClassVar[str] = "device out of memory in mid-flight (twin)"
    target: Target
    duration_s: float = 0.0

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        return await with_released_knobs(await pod_plan(cluster, self.target, run_id))

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        return await turn_all(plan, oom=True)

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        return await engine_died(cluster, plan)

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return await released(cluster, plan)


class EngineMemoryPressure(msgspec.Struct, frozen=True, kw_only=True, tag="engine-memory-pressure"):
    """Fragmentation or a neighbour takes device memory after the start; an engine without that much headroom dies."""

    kind: ClassVar[str] = "engine-memory-pressure"
    summary: ClassVar[str] = "take device memory from outside the engine's budget (twin)"
    target: Target
    duration_s: float
    gib: float

    def __post_init__(self) -> None:
        if not self.gib > 0:
            raise UsageError(f"memory pressure needs more than 0 GiB, not {self.gib:g}")

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        return await with_released_knobs(await pod_plan(cluster, self.target, run_id))

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        return await turn_all(plan, memory_pressure_gib=self.gib)

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        return "; ".join(await asyncio.gather(*(self._borne_or_not(cluster, victim) for victim in plan.victims)))

    async def _borne_or_not(self, cluster: Cluster, victim: Victim) -> str:
        """A step decides: either the engine made one with that memory gone, or it ended."""
        if await canary(victim, CANARY_LIMIT_S, tokens=1):
            held = (await knobs.read(_url(victim, KNOBS_PORT))).memory_pressure_gib
            if held != self.gib:
                raise FaultDidNotLand(f"{victim.name} runs with {held:g} GiB taken instead of {self.gib:g} GiB")
            return f"{victim.name} computes although {self.gib:g} GiB more are taken"
        return await containers_restarted(cluster, (victim,))

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return await released(cluster, plan)


class EngineDeviceError(msgspec.Struct, frozen=True, kw_only=True, tag="engine-device-error"):
    """The device raises an error (an Xid, an uncorrectable ECC error); the engine dies and its container restarts."""

    kind: ClassVar[str] = "engine-device-error"
    summary: ClassVar[str] = "device error in mid-flight (twin)"
    target: Target
    duration_s: float = 0.0

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        return await with_released_knobs(await pod_plan(cluster, self.target, run_id))

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        return await turn_all(plan, device_error=True)

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        return await engine_died(cluster, plan)

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return await released(cluster, plan)


async def counters(victim: Victim) -> dict[str, float]:
    """One scrape of an engine pod, by metric name. Raises HarnessError if it does not answer."""
    return await read_metrics(_url(victim, ENGINE_PORT))


async def canary(victim: Victim, limit_s: float, tokens: int = CANARY_TOKENS) -> bool:
    """Send one small request straight to the pod; True if it was answered within `limit_s`."""
    try:
        async with httpx.AsyncClient(base_url=_url(victim, ENGINE_PORT), timeout=limit_s, trust_env=False) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            body = {"model": model, "prompt": "canary", "max_tokens": tokens, "ignore_eos": True}
            return (await client.post("/v1/completions", json=body)).status_code == 200
    except (httpx.HTTPError, ValueError, LookupError):
        return False


async def no_progress(victim: Victim) -> str:
    """Proof of a hang: no token in SILENCE_S while requests run; an idle engine is given one request first."""
    asking = asyncio.create_task(canary(victim, SILENCE_S * 2))
    try:
        first = await counters(victim)
        answered = (await asyncio.wait({asking}, timeout=SILENCE_S))[0]
        second = await counters(victim)
    finally:
        asking.cancel()
    made = second.get(GENERATION_TOKENS, 0.0) - first.get(GENERATION_TOKENS, 0.0)
    if made or (answered and asking.result()):
        raise FaultDidNotLand(f"{victim.name} made {made:g} tokens in {SILENCE_S:g} s although it should hang")
    return f"{victim.name}: token counter flat for {SILENCE_S:g} s while it had a request"


async def token_gap_s(victim: Victim) -> float:
    """Mean gap between tokens over one canary request and whatever else runs meanwhile."""
    first = await counters(victim)
    await canary(victim, CANARY_LIMIT_S)
    second = await counters(victim)
    grown = {name: second.get(name, 0.0) - first.get(name, 0.0) for name in (TOKEN_GAPS_SUM, TOKEN_GAPS_COUNT)}
    if not grown[TOKEN_GAPS_COUNT]:
        raise HarnessError(f"{victim.name} made no token that could be timed")
    return grown[TOKEN_GAPS_SUM] / grown[TOKEN_GAPS_COUNT]


async def engine_died(cluster: Cluster, plan: Plan) -> str:
    """Proof that the engine ended. A device fails only when it works, so each gets one request."""
    asking = [asyncio.create_task(canary(victim, CANARY_LIMIT_S)) for victim in plan.victims]
    try:
        return await containers_restarted(cluster, plan.victims)
    finally:
        for task in asking:
            task.cancel()


async def with_released_knobs(plan: Plan) -> Plan:
    """The plan with an undo for each victim: its knobs as they are now. Raises NotExercised without knobs."""
    undo: list[UndoStep] = []
    for victim in plan.victims:
        url = _url(victim, KNOBS_PORT)
        try:
            now = await knobs.read(url)
        except (HarnessError, httpx.HTTPError, OSError) as error:
            raise NotExercised(f"{victim.name} has no fault knobs at {url} (only the twin has): {error}") from error
        undo.append(
            ReleaseKnobs(
                namespace=victim.namespace or "",
                name=victim.name,
                uid=victim.uid,
                url=url,
                step_slowdown=now.step_slowdown,
                hang=now.hang,
                device_error=now.device_error,
                oom=now.oom,
                memory_pressure_gib=now.memory_pressure_gib,
            )
        )
    return msgspec.structs.replace(plan, undo=tuple(undo))


async def turn_all(plan: Plan, **turned: float | bool) -> str:
    """Turn the same knobs of every victim and leave the others where they are."""
    for victim in plan.victims:
        url = _url(victim, KNOBS_PORT)
        await knobs.turn(url, replace(await knobs.read(url), **turned))  # type: ignore[arg-type]
    return f"turned {', '.join(f'{k}={v}' for k, v in turned.items())} on {', '.join(v.name for v in plan.victims)}"


async def released(cluster: Cluster, plan: Plan) -> str:
    """Proof that the knobs are where they were; the step plays only what is still turned."""
    for step in plan.undo:
        await step.play(cluster)
    return "its knobs are where they were"


def _url(victim: Victim, port: int) -> str:
    return f"http://{victim.ip}:{port}"


def _continue(victim: Victim) -> ContinueProcess:
    return ContinueProcess(
        namespace=victim.namespace or "",
        name=victim.name,
        uid=victim.uid,
        container=victim.container or "",
        command=signal_command("CONT", ENGINE_CORE),
    )
