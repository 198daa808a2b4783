"""Made-up runs that look like real ones: a burst with preemptions, a pod kill with recovery, a boot loop."""

import random
from pathlib import Path

from shakedown.evidence.bundle import RunBundle, RunFacts, ScenarioBundle, ScenarioDescription
from shakedown.evidence.lines import LineWriter
from shakedown.judge import (
    SLO,
    Expectation,
    MarkKind,
    MetricSample,
    Outcome,
    Phase,
    RequestRecord,
    expectation,
    fact,
    goodput,
    increase,
    lost_beyond_in_flight,
    lost_in_flight,
    mark_count,
    outcome_share,
    peak,
    percentile_ttft,
    request_count,
    time_to_recovery,
)

EPOCH = 1_790_000_000.0
USERS_EXPECT = SLO(ttft_s=1.0, tpot_s=0.1)
PODS = ("vllm-llama3-deployment-7c9f4d-x2k8p", "vllm-llama3-deployment-7c9f4d-q9z4m")
KILLED_AT = 42.0
BACK_AT = 71.0


def answered(
    id_: str, due: float, *, ttft: float, tokens: int, gap: float, pod: str, stall_at: float | None = None
) -> RequestRecord:
    """A whole answer; with a stall, its readers see nothing for two seconds from there."""
    times, now = [], due + ttft
    for _ in range(tokens):
        now += gap + (2.0 if stall_at is not None and now < stall_at <= now + gap else 0.0)
        times.append(now)
    return RequestRecord(
        id=id_,
        due_at=due,
        sent_at=due + 0.001,
        first_byte_at=times[0] - 0.001,
        token_times=tuple(times),
        finished_at=times[-1] + 0.002,
        outcome=Outcome.COMPLETED,
        http_status=200,
        finish_reason="length",
        saw_done=True,
        prompt_tokens=120,
        completion_tokens=tokens,
        served_by=pod,
        reads=tokens,
        events=tokens + 2,
    )


def cut(record: RequestRecord, at: float, outcome: Outcome, error: str) -> RequestRecord:
    """The same answer, lost at an instant."""
    got = tuple(time for time in record.token_times if time < at)
    return RequestRecord(
        id=record.id,
        due_at=record.due_at,
        sent_at=record.sent_at,
        first_byte_at=got[0] - 0.001 if got else None,
        token_times=got,
        finished_at=max(at, record.sent_at + 0.003),
        outcome=outcome,
        http_status=200 if got else None,
        served_by=record.served_by,
        error=error,
    )


def write_requests(bundle: ScenarioBundle, records: list[RequestRecord]) -> None:
    with LineWriter(bundle.requests_file) as file:
        for record in sorted(records, key=lambda record: record.finished_at):
            file.append(record)


def finish(bundle: ScenarioBundle, clauses: list[Expectation], description: ScenarioDescription) -> None:
    bundle.expect(clauses)
    bundle.describe(description)
    bundle.conclude()
    bundle.close()


def pod_kill(run: RunBundle, *, recovers: bool = True, seed: int = 7) -> None:
    """One of two replicas dies under 6 requests a second."""
    chance = random.Random(seed)
    start = EPOCH + 100
    kill = start + KILLED_AT
    back = start + (BACK_AT if recovers else 1e6)
    records = []
    for index in range(600):
        due = start + index / 6 + chance.random() * 0.1
        pod = PODS[index % 2]
        alone = kill < due < back
        if alone:
            pod = PODS[1]
        queued = (due - kill) * 0.12 if alone else 0.0
        ttft = 0.08 + chance.random() * 0.15 + (max(0.0, queued - 0.4) if not alone or queued < 3 else 2.6)
        record = answered(
            f"r{index:04d}", due, ttft=ttft, tokens=chance.randint(40, 160), gap=0.022 if not alone else 0.035, pod=pod
        )
        if pod == PODS[0] and due < kill < record.finished_at:
            record = cut(record, kill + 0.2, Outcome.CONNECTION_LOST, "the connection broke: reset")
        elif kill < due < kill + 1.5 and index % 2 == 0:
            record = cut(record, due + 0.003, Outcome.CONNECTION_LOST, "connection refused")
        records.append(record)
    bundle = run.scenario("chaos/test_replica_kill.py::test_users_keep_their_goodput_when_a_replica_is_killed")
    write_requests(bundle, records)
    metrics(bundle, records, start, {PODS[0]: (0.0, KILLED_AT), PODS[1]: (0.0, 110.0)}, seed)
    if recovers:
        metrics(bundle, [], start, {"vllm-llama3-deployment-7c9f4d-h5t2w": (BACK_AT, 110.0)}, seed)
    for at, kind, text, subject in (
        (0.0, MarkKind.LOAD_STARTED, "open loop, Poisson 6 per second", ""),
        (-1.0, MarkKind.KUBERNETES, "already there on node-1", PODS[0]),
        (-1.0, MarkKind.KUBERNETES, "ready", PODS[0]),
        (-1.0, MarkKind.KUBERNETES, "already there on node-2", PODS[1]),
        (-1.0, MarkKind.KUBERNETES, "ready", PODS[1]),
        (KILLED_AT, MarkKind.FAULT_STARTED, "kill 1 of 2 pods with app=vllm-server in llm-serving", "pod-kill"),
        (KILLED_AT + 0.4, MarkKind.FAULT_LANDED, "the pod is gone by its uid", "pod-kill"),
        (KILLED_AT + 0.3, MarkKind.KUBERNETES, "deleted", PODS[0]),
        (KILLED_AT + 0.5, MarkKind.NOTE, "metrics cannot be read: connection refused", PODS[0]),
        (KILLED_AT + 0.8, MarkKind.KUBERNETES, "created on node-1", "vllm-llama3-deployment-7c9f4d-h5t2w"),
        (
            KILLED_AT + 12,
            MarkKind.KUBERNETES,
            "Warning Unhealthy: Startup probe failed: connection refused",
            "vllm-llama3-deployment-7c9f4d-h5t2w",
        ),
    ):
        bundle.mark(start + at, kind, text, subject)
    if recovers:
        bundle.mark(start + BACK_AT, MarkKind.KUBERNETES, "ready", "vllm-llama3-deployment-7c9f4d-h5t2w")
        bundle.mark(start + BACK_AT + 0.5, MarkKind.RECOVERED, "two replicas are Ready again", "pod-kill")
    bundle.mark(start + 100, MarkKind.LOAD_ENDED, "600 requests sent")
    bundle.fact("fault_landed", True)
    finish(
        bundle,
        [
            expectation(fact("fault_landed", title="the fault landed"), guard=True),
            expectation(goodput(USERS_EXPECT), at_least=0.70),
            expectation(goodput(USERS_EXPECT, during=Phase.AFTER), at_least=0.99),
            expectation(lost_in_flight(), at_most=20),
            expectation(lost_beyond_in_flight(), at_most=6),
            expectation(time_to_recovery(USERS_EXPECT), at_most=45),
        ],
        ScenarioDescription(
            id="chaos/test_replica_kill.py::test_users_keep_their_goodput_when_a_replica_is_killed",
            family="chaos",
            title="Users keep their goodput when a replica is killed",
            claim="Killing one of two replicas costs users their answers in flight and nothing else.",
            started_at=start - 2,
            ended_at=start + 112,
            changed_by_overlay=(
                "spec.replicas: 2",
                "container image: python from a hostPath instead of vllm/vllm-openai:v0.4.2",
                "args: --distributed-executor-backend shakedown.engine.twin.TwinExecutor added",
                "requests: cpu 4 → 500m, memory 16Gi → 2Gi",
            ),
        ),
    )


def request_burst(run: RunBundle, *, preempts: bool = True, seed: int = 7) -> None:
    """96 long answers at one instant on a card that holds half of them."""
    chance = random.Random(seed)
    start = EPOCH + 300
    records = []
    for index in range(96):
        wave = 0.0 if index < 40 else 14.0 + chance.random() * 3 if index < 72 else 26 + chance.random() * 4
        stall = start + 6 + chance.random() * 12 if preempts and index % 3 == 0 else None
        records.append(
            answered(
                f"b{index:03d}",
                start,
                ttft=0.3 + index * 0.012 + wave,
                tokens=380,
                gap=0.03 + chance.random() * 0.004,
                pod=PODS[0],
                stall_at=stall,
            )
        )
    id_ = "memory/test_request_burst.py::test_the_same_burst_at_090_with_a_narrow_queue_keeps_streams_flowing"
    bundle = run.scenario(id_)
    write_requests(bundle, records)
    bundle.mark(start, MarkKind.LOAD_STARTED, "96 requests at once")
    preemptions = 0.0
    for second in range(48):
        at = start + second
        running = sum(r.token_times[0] <= at < r.finished_at for r in records)
        waiting = sum(r.due_at <= at < r.token_times[0] for r in records)
        preemptions += chance.randint(0, 5) if preempts and 5 <= second <= 18 else 0
        values = {
            "vllm:num_requests_running": float(running),
            "vllm:num_requests_waiting": float(waiting),
            "vllm:kv_cache_usage_perc": min(0.995, running / 40 * (0.6 + 0.4 * min(1, second / 6))),
            "vllm:num_preemptions_total": preemptions,
        }
        bundle.sample(MetricSample(at=at, pod=PODS[0], values=values))
    bundle.mark(start + 46, MarkKind.LOAD_ENDED, "96 requests ended")
    finish(
        bundle,
        [
            expectation(increase("vllm:num_preemptions_total"), at_most=0),
            expectation(outcome_share(Outcome.COMPLETED), at_least=1.0),
            expectation(peak("vllm:kv_cache_usage_perc"), at_most=1.0),
            expectation(percentile_ttft(99), at_most=32.0),
        ],
        ScenarioDescription(
            id=id_,
            family="memory",
            title="The same burst at 0.90 with a narrow queue keeps streams flowing",
            claim="The mitigation holds: nothing is preempted, nothing is lost, and no answer that has begun stalls.",
            started_at=start - 1,
            ended_at=start + 48,
        ),
    )


def boot_loop(run: RunBundle) -> None:
    """A pod whose weights take longer than its startup probe allows."""
    start, pod = EPOCH + 500, "vllm-llama3-deployment-5d8b9c-w7r6n"
    bundle = run.scenario("lifecycle/test_slow_weights.py::test_weights_beyond_the_budget_are_named_a_probe_kill")
    bundle.mark(start, MarkKind.KUBERNETES, "created on node-1", pod)
    for round_ in range(3):
        for probe in range(5):
            bundle.mark(
                start + round_ * 74 + 14 + probe * 12,
                MarkKind.KUBERNETES,
                'Warning Unhealthy: Startup probe failed: Get "http://10.200.1.7:8000/health": connection refused',
                pod,
            )
        bundle.mark(
            start + (round_ + 1) * 74,
            MarkKind.KUBERNETES,
            f"restarted after Error, exit code 137 ({round_ + 1} so far)",
            pod,
        )
    bundle.fact("diagnosis", "probe kill")
    finish(
        bundle,
        [
            expectation(fact("diagnosis"), equals="probe kill"),
            expectation(mark_count(MarkKind.KUBERNETES, text="restarted", title="restarts seen"), at_least=1),
        ],
        ScenarioDescription(
            id="lifecycle/test_slow_weights.py::test_weights_beyond_the_budget_are_named_a_probe_kill",
            family="lifecycle",
            title="Weights that load beyond the budget are named a probe kill",
            claim="Weights that take 600 s of a 360 s budget: the boot loop is the kubelet's doing, not a crash.",
            started_at=start,
            ended_at=start + 230,
        ),
    )


def not_exercised(run: RunBundle) -> None:
    bundle = run.scenario("chaos/test_gpu_loss.py::test_a_lost_gpu_is_noticed")
    bundle.describe(
        ScenarioDescription(
            id="chaos/test_gpu_loss.py::test_a_lost_gpu_is_noticed",
            family="chaos",
            title="A lost GPU is noticed",
            claim="A GPU that falls off the bus takes its pod out of the Service within a minute.",
            started_at=EPOCH + 900,
            ended_at=EPOCH + 900,
            not_exercised="needs an NVIDIA GPU; this cluster has none",
        )
    )
    bundle.conclude()


def saturated(run: RunBundle) -> None:
    start = EPOCH + 950
    id_ = "performance/test_sweep.py::test_throughput_reaches_its_target"
    bundle = run.scenario(id_)
    write_requests(
        bundle, [answered(f"s{i}", start + i / 50, ttft=0.1, tokens=20, gap=0.02, pod=PODS[0]) for i in range(500)]
    )
    finish(
        bundle,
        [expectation(request_count(), at_least=100)],
        ScenarioDescription(
            id=id_,
            family="performance",
            title="Throughput reaches its target",
            claim="Fifty requests a second are served & <b>nobody</b> waits.",
            started_at=start,
            ended_at=start + 12,
            unknown_reasons=("our own client was saturated: p99 schedule lag 148 ms against a bound of 25 ms",),
        ),
    )


def metrics(
    bundle: ScenarioBundle,
    records: list[RequestRecord],
    start: float,
    alive: dict[str, tuple[float, float]],
    seed: int,
) -> None:
    """Scrapes once a second of pods that live from one offset to another."""
    chance = random.Random(seed)
    for pod, (born, dead) in alive.items():
        mine = [record for record in records if record.served_by == pod]
        for second in range(int(born), int(dead)):
            at = start + second
            running = sum(r.due_at <= at < r.finished_at and bool(r.token_times) for r in mine)
            waiting = sum(r.due_at <= at < (r.token_times[0] if r.token_times else r.finished_at) for r in mine)
            values = {
                "vllm:num_requests_running": float(running),
                "vllm:num_requests_waiting": float(waiting),
                "vllm:kv_cache_usage_perc": min(1.0, 0.02 + running / 60 + chance.random() * 0.02),
                "vllm:num_preemptions_total": 0.0,
            }
            bundle.sample(MetricSample(at=at, pod=pod, values=values))


def whole_run(root: Path) -> RunBundle:
    """A run with one scenario of each verdict."""
    run = RunBundle.create(root)
    pod_kill(run)
    request_burst(run)
    boot_loop(run)
    not_exercised(run)
    saturated(run)
    run.write_facts(
        RunFacts(
            run_id=root.name,
            started_at=EPOCH,
            ended_at=EPOCH + 1000,
            exit_code=1,
            command=("shakedown", "run", "--profile", "smoke"),
            git_revision="ef9bdc7f0c1d",
            seed=7,
            profile="smoke",
            time_scale=0.2,
            engine="twin",
            engine_version="0.32.0",
            system_under_test="Llama-3-8B on a modelled A100-80, two replicas",
            cluster={"cluster": "embedded", "Kubernetes": "v1.34.4", "nodes": "2"},
            capabilities={"GPU": False, "Chaos Mesh": True, "metrics API": True, "netem": False},
            versions={"shakedown": "0.1.0", "Python": "3.11.2", "vLLM": "0.32.0"},
        )
    )
    return run
