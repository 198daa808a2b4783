"""A configuration changes what it says and nothing else, and says so."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from shakedown.cluster.objects import Manifest
from shakedown.errors import SetupError, UsageError
from shakedown.serving.configuration import (
    Serving,
    configured,
    differences,
    engine_container,
    flag_value,
    namespace_for,
    only,
    scale_probes,
    set_flag,
    startup_budget_s,
)
from shakedown.serving.rendering import MANIFESTS, base_container, vllm_base
from shakedown.settings import RunSettings

BASE = "llm-serving"


def settings(time_scale: float = 0.2, engine: str = "twin") -> RunSettings:
    return RunSettings(run_dir="run", time_scale=time_scale, engine=engine)


def manifests() -> list[Manifest]:
    deployment: Manifest = yaml.safe_load((vllm_base() / "deployment.yaml").read_text())
    deployment["metadata"]["namespace"] = BASE
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BASE}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vllm-service", "namespace": BASE}},
        deployment,
    ]


def container_of(result: list[Manifest]) -> dict[str, Any]:
    return engine_container(only(result, "Deployment"))


def environment_of(result: list[Manifest]) -> dict[str, str | None]:
    return {entry["name"]: entry.get("value") for entry in container_of(result)["env"]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--a", "1", "--b", "2"], ["--a", "9", "--b", "2"]),
        (["--a=1", "--b", "2"], ["--a=9", "--b", "2"]),
        (["--b", "2"], ["--b", "2", "--a", "9"]),
        (["--ab=1"], ["--ab=1", "--a", "9"]),
    ],
    ids=["two words", "with an equals sign", "absent", "a longer flag is another flag"],
)
def test_a_flag_is_set_in_the_spelling_that_it_has(before: list[str], after: list[str]) -> None:
    set_flag(before, "--a", "9")
    assert before == after
    assert flag_value(before, "--a") == "9"


def test_a_flag_that_is_not_there_has_no_value() -> None:
    assert flag_value(["--model-name", "m"], "--model") is None
    assert flag_value(["--model"], "--model") is None


def test_a_time_scale_shrinks_every_probe_time_and_no_count() -> None:
    container = base_container()
    before = copy.deepcopy(container)
    scale_probes(container, settings(0.2))
    times = {name: (p["initialDelaySeconds"], p["periodSeconds"]) for name, p in probes(container).items()}
    assert times == {"startupProbe": (12, 2), "livenessProbe": (3, 2), "readinessProbe": (3, 1)}
    counts = {name: probe["failureThreshold"] for name, probe in probes(container).items()}
    assert counts == {name: probe["failureThreshold"] for name, probe in probes(before).items()}
    assert startup_budget_s(container) == pytest.approx(0.2 * startup_budget_s(before))


def test_a_time_scale_of_one_is_the_truth() -> None:
    container = base_container()
    scale_probes(container, settings(1))
    assert container == base_container()


def test_a_time_scale_that_leaves_a_fraction_of_a_second_is_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.13 turns startupProbe\.initialDelaySeconds of 60 s into 7\.8 s"):
        scale_probes(base_container(), settings(0.13))


def probes(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")}


def test_the_base_gives_the_weights_six_minutes() -> None:
    assert startup_budget_s(base_container()) == 360


def test_a_probe_that_leaves_times_out_gets_the_defaults_of_kubernetes() -> None:
    assert startup_budget_s({"startupProbe": {}}) == 30


def test_the_plain_configuration_keeps_the_namespace_and_every_other_gets_its_own() -> None:
    assert namespace_for(Serving(), BASE) == BASE
    variants = [Serving(replicas=1), Serving(replicas=2), Serving(pool="batch"), Serving(device="h100")]
    namespaces = [namespace_for(serving, BASE) for serving in variants]
    assert all(namespace.startswith(f"{BASE}-") for namespace in namespaces)
    assert len(set(namespaces)) == len(variants)


def test_equal_configurations_share_a_key_and_pools_tell_equal_ones_apart() -> None:
    args = (("--max-num-seqs", "64"),)
    assert Serving(replicas=1, engine_args=args).key == Serving(replicas=1, engine_args=args).key
    assert Serving(pool="interactive").key != Serving(pool="batch").key
    assert Serving(pool="batch").key != Serving().key


def test_every_object_moves_to_the_namespace_of_its_configuration() -> None:
    serving = Serving(replicas=3)
    namespace, service, deployment = configured(manifests(), serving, settings())
    assert namespace["metadata"]["name"] == f"{BASE}-{serving.key}"
    assert service["metadata"]["namespace"] == deployment["metadata"]["namespace"] == f"{BASE}-{serving.key}"
    assert deployment["spec"]["replicas"] == 3


def test_a_configuration_is_applied_to_the_engine_and_told_to_the_twin() -> None:
    serving = Serving(
        engine_args=(("--gpu-memory-utilization", "0.95"), ("--async-scheduling", "true")),
        device="h100",
        weights_load_s=100.0,
        other_tenant_gib=1.5,
        memory_limit="512Mi",
    )
    result = configured(manifests(), serving, settings(0.2))
    args = container_of(result)["args"]
    assert flag_value(args, "--gpu-memory-utilization") == "0.95"
    assert args.count("--gpu-memory-utilization") == 1
    assert flag_value(args, "--async-scheduling") == "true"
    environment = environment_of(result)
    assert environment["SHAKEDOWN_TWIN_DEVICE"] == "h100"
    assert environment["SHAKEDOWN_TWIN_LOAD_S"] == "20"
    assert environment["SHAKEDOWN_TWIN_OTHER_TENANT_GIB"] == "1.5"
    resources = container_of(result)["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == "512Mi"


def test_a_real_engine_is_told_nothing_that_only_the_twin_understands() -> None:
    result = configured(manifests(), Serving(device="h100", weights_load_s=9), settings(engine="gpu"))
    assert not [name for name in environment_of(result) if name.startswith("SHAKEDOWN_TWIN")]


def test_the_rendered_manifests_are_not_changed() -> None:
    rendered = manifests()
    serving = Serving(replicas=5, engine_args=(("--port", "1"),), memory_limit="1Gi", device="h100")
    configured(rendered, serving, settings())
    assert rendered == manifests()


def test_differences_name_what_changed_by_its_path_and_both_values() -> None:
    base, overlay = manifests(), manifests()
    deployment = only(overlay, "Deployment")
    deployment["spec"]["replicas"] = 1
    del engine_container(deployment)["resources"]["limits"]["nvidia.com/gpu"]
    engine_container(deployment)["env"].append({"name": "MODE", "value": "twin"})
    container = "Deployment spec.template.spec.containers[vllm-engine]"
    assert differences(base, overlay) == (
        "Deployment spec.replicas: 2 → 1",
        f"{container}.env[MODE].name: absent → MODE",
        f"{container}.env[MODE].value: absent → twin",
        f"{container}.resources.limits.nvidia.com/gpu: 1 → absent",
    )


def test_equal_manifests_have_no_differences() -> None:
    assert differences(manifests(), manifests()) == ()


def test_none_or_several_objects_of_a_kind_are_an_error_of_the_setup() -> None:
    with pytest.raises(SetupError, match="0 objects of kind Job"):
        only(manifests(), "Job")
    with pytest.raises(SetupError, match="2 objects of kind Service"):
        only([*manifests(), manifests()[1]], "Service")


def test_the_base_is_found_beside_the_package() -> None:
    assert (Path(vllm_base()) / "kustomization.yaml").is_file()


def test_a_replica_that_may_drain_waits_for_an_idle_engine_within_its_grace() -> None:
    rendered = configured(manifests(), Serving(drain_s=30), settings())
    pod = only(rendered, "Deployment")["spec"]["template"]["spec"]
    container = engine_container(only(rendered, "Deployment"))
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["python3", "-c"]
    compile(command[2], "preStop", "exec")
    assert "http://127.0.0.1:8000/metrics" in command[2]
    assert flag_value(container["args"], "--shutdown-timeout") == "30"
    assert pod["terminationGracePeriodSeconds"] > 30


def test_switches_are_flags_without_a_value() -> None:
    rendered = configured(manifests(), Serving(switches=("--no-enable-prefix-caching",)), settings())
    assert engine_container(only(rendered, "Deployment"))["args"][-1] == "--no-enable-prefix-caching"


def test_replicas_are_put_into_the_priority_class_that_is_named() -> None:
    plain = only(configured(manifests(), Serving(replicas=1), settings()), "Deployment")
    urgent = only(
        configured(manifests(), Serving(replicas=1, priority_class="llm-interactive"), settings()), "Deployment"
    )
    assert "priorityClassName" not in plain["spec"]["template"]["spec"]
    assert urgent["spec"]["template"]["spec"]["priorityClassName"] == "llm-interactive"


def test_batch_gives_way_before_pods_without_a_class_and_preempts_nobody() -> None:
    text = (MANIFESTS / "priority" / "priorityclasses.yaml").read_text()
    classes = {each["metadata"]["name"]: each for each in yaml.safe_load_all(text)}
    assert classes["llm-batch"]["value"] < 0 < classes["llm-interactive"]["value"]
    assert classes["llm-batch"]["preemptionPolicy"] == "Never"
    assert "preemptionPolicy" not in classes["llm-interactive"]
