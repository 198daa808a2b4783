"""Why a deployment's engine ended, read as on call: the status, the events, then the log of the run that ended."""

from shakedown.cluster.objects import Pod
from shakedown.engine.memory.failures import FailureDiagnosis, classify
from shakedown.errors import ManifestRejected
from shakedown.serving.boot import BootDiagnosis, BootState
from shakedown.serving.deployment import ServingDeployment
from shakedown.waiting import wait_until

REASONS = {BootState.OOM_KILLED: "OOMKilled", BootState.PROBE_KILL: "probe-kill"}
ENDED = (BootState.CRASH, BootState.OOM_KILLED, BootState.PROBE_KILL)


async def await_failure(vllm: ServingDeployment, within_s: float) -> FailureDiagnosis:
    """Wait until an engine of the deployment has ended, and say of what. Raises WaitTimeout when none ends."""

    def ended(boots: tuple[BootDiagnosis, ...]) -> bool:
        return any(boot.state in ENDED for boot in boots)

    boots = await wait_until(f"an engine of {vllm} to end", vllm.boot, ended, within_s=within_s)
    boot = next(boot for boot in boots if boot.state in ENDED)
    pod = next(pod for pod in await vllm.pods() if pod.name == boot.pod)
    return await _diagnosed(vllm, pod, REASONS.get(boot.state))


async def past_failure(vllm: ServingDeployment) -> FailureDiagnosis | None:
    """Of what an engine ended that has been restarted since; None if none was."""
    pod = next((pod for pod in await vllm.pods() if pod.restarts), None)
    return await _diagnosed(vllm, pod, None) if pod is not None else None


async def _diagnosed(vllm: ServingDeployment, pod: Pod, reason: str | None) -> FailureDiagnosis:
    engine = pod.containers[0]
    end = engine.terminated or engine.last_termination
    return classify(
        await _log_of_the_run_that_ended(vllm, pod),
        exit_code=end.exit_code if end else None,
        reason=reason or (end.reason if end else None),
    )


async def _log_of_the_run_that_ended(vllm: ServingDeployment, pod: Pod) -> str:
    try:
        return await vllm.cluster.logs(vllm.namespace, pod.name, previous=pod.containers[0].terminated is None)
    except ManifestRejected:
        return await vllm.cluster.logs(vllm.namespace, pod.name)
