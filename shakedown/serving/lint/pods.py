"""Rules about the pod around the engine: GPUs, shared memory, environment, image, flags."""

import re
from collections.abc import Iterator

from shakedown.serving.lint.engines import Engine, gpus_of
from shakedown.serving.lint.findings import Assumptions, Fault, Severity, error, warning
from shakedown.serving.lint.tree import at, mappings, text
from shakedown.serving.lint.world import Placed, World

READ_BY_VLLM = frozenset(
    ("VLLM_PORT", "VLLM_DP_MASTER_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_MOONCAKE_BOOTSTRAP_PORT")
)
HIGH_UTILIZATION = 0.95
FLOATING_TAGS = ("", "latest", "nightly", "main", "stable")


@error(
    "service-link-collision",
    effect="Kubernetes sets that variable to tcp://… in every pod of the namespace, and the engine fails on it",
    fix="set enableServiceLinks: false in the pod, or give the Service another name",
    reference="vLLM's service-link trap",
)
def service_link_collision(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        if placed.workload.pod.get("enableServiceLinks") is False:
            continue
        for service in world.of("Service"):
            variable = f"{service.name.upper().replace('-', '_')}_PORT"
            # A variable that the container sets itself wins over a service link.
            if variable in READ_BY_VLLM - placed.engine.environment.keys() and service.beside(placed.item):
                yield Fault(
                    placed.place, f'Service "{service.name}" in its namespace defines {variable}, which vLLM reads'
                )


@error(
    "shared-memory-small",
    effect="the workers of a tensor-parallel engine talk through /dev/shm, of which a container has 64 MiB: NCCL fails",
    fix="mount an emptyDir with medium: Memory at /dev/shm",
    reference="vLLM deployment on several GPUs",
)
def shared_memory_small(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        engine, pod = placed.engine, placed.workload.pod
        parallel = engine.number("--tensor-parallel-size", 1) or 1
        if parallel <= 1 or pod.get("hostIPC") is True or _shared_memory_mounted(placed):
            continue
        yield Fault(placed.place, f"tensor-parallel-size is {parallel:g} and no memory volume is mounted at /dev/shm")


def _shared_memory_mounted(placed: Placed) -> bool:
    mounts = mappings(placed.engine.container.get("volumeMounts"))
    names = {text(mount.get("name")) for mount in mounts if text(mount.get("mountPath")).rstrip("/") == "/dev/shm"}
    volumes = mappings(placed.workload.pod.get("volumes"))
    return any(
        text(volume.get("name")) in names and (at(volume, "emptyDir", "medium") == "Memory" or "hostPath" in volume)
        for volume in volumes
    )


@error(
    "gpu-count-mismatch",
    effect="with too few GPUs the engine does not start; GPUs that it does not use stay idle and are paid for",
    fix="make the GPU limit equal to tensor-parallel-size × pipeline-parallel-size",
    reference="KV cache size misconfiguration",
)
def gpu_count_mismatch(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        flags = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
        tensor, pipeline, data = (placed.engine.number(flag, 1) or 1 for flag in flags)
        gpus = gpus_of(placed.engine.container)
        # Stages and data-parallel ranks may live in other pods.
        fitting = {tensor, tensor * pipeline, tensor * data, tensor * pipeline * data}
        if (gpus is None and tensor == 1) or gpus in fitting:
            continue
        needed = tensor * pipeline
        yield Fault(
            placed.place,
            f"the engine wants {needed:g} GPU(s) ({tensor:g} × {pipeline:g}), and the container's limit is {gpus or 0}",
            severity=Severity.WARNING if (gpus or 0) > needed else None,
        )


@warning(
    "image-floating",
    effect="replicas that start on different days run different engines, and a rollback brings back nothing",
    fix="pin the image by version tag or digest",
    reference="pinned images",
)
def image_floating(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        image = text(placed.engine.container.get("image"))
        tag = image.rpartition("/")[2].partition(":")[2]
        if image and "@" not in image and tag in FLOATING_TAGS:
            yield Fault(placed.place, f'the image "{image}" names no version')


@warning(
    "memory-utilization-high",
    effect="a burst finds no room for activations and graphs: preemptions, latency spikes, or CUDA out of memory",
    fix="set --gpu-memory-utilization to 0.90, and look at `shakedown plan`",
    reference="GPU memory thrashing under high concurrency",
)
def memory_utilization_high(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        share = placed.engine.number("--gpu-memory-utilization")
        if share is not None and HIGH_UTILIZATION <= share <= 1:
            yield Fault(placed.place, f"gpu-memory-utilization is {share:g}")


@error(
    "flag-out-of-range",
    effect="the engine refuses to start",
    fix="correct the flag",
    reference="vLLM engine arguments",
)
def flag_out_of_range(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        for sentence in _impossible(placed.engine):
            yield Fault(placed.place, sentence)


def _impossible(engine: Engine) -> Iterator[str]:
    share = engine.number("--gpu-memory-utilization")
    if share is not None and not 0 < share <= 1:
        yield f"gpu-memory-utilization is {share:g} and must be more than 0 and at most 1"
    for flag in ("--max-num-seqs", "--max-num-batched-tokens", "--tensor-parallel-size"):
        value = engine.number(flag)
        written = engine.flags.get(flag)
        if written is not None and not re.match(r"^\$", written) and (value is None or value < 1):
            yield f'{flag.removeprefix("--")} is "{written}" and must be a whole number from 1'
    sequences, tokens = engine.number("--max-num-seqs"), engine.number("--max-num-batched-tokens")
    if sequences is not None and tokens is not None and tokens < sequences:
        yield f"max-num-batched-tokens {tokens:g} is less than max-num-seqs {sequences:g}"
    length = engine.number("--max-model-len")
    unchunked = "--no-enable-chunked-prefill" in engine.flags
    if unchunked and tokens is not None and length is not None and tokens < length:
        yield f"without chunked prefill max-num-batched-tokens {tokens:g} is less than max-model-len {length:g}"


@warning(
    "model-length-unset",
    effect="the model's own maximum decides: one request that long must fit the KV cache or the engine does not start",
    fix="set --max-model-len to what the workload needs, such as 4096",
    reference="KV cache size misconfiguration",
)
def model_length_unset(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        configured = {"--max-model-len", "--config"} & placed.engine.flags.keys()
        if placed.engine.flags and not configured:
            yield Fault(placed.place, "max-model-len is not set")


@warning(
    "api-servers-double",
    effect="each API server process exports the gauges again: sums over them count the same queue several times",
    fix="use one API server (--api-server-count 1), or take the maximum over the processes of a pod before summing",
    reference="D15 (vllm PR#18053)",
)
def api_servers_double(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        count = placed.engine.number("--api-server-count", 1) or 1
        if count > 1:
            yield Fault(placed.place, f"api-server-count is {count:g}")


RULES = (
    service_link_collision,
    shared_memory_small,
    gpu_count_mismatch,
    image_floating,
    memory_utilization_high,
    flag_out_of_range,
    model_length_unset,
    api_servers_double,
)
