"""The modelled device is as fast, and as large, as the real ones were measured to be."""

import json

import pytest

from shakedown.engine.devices import DEVICES, GIB
from shakedown.engine.environment import CONFIGS
from shakedown.engine.hf_config import read_shape
from shakedown.engine.twin.device import DeviceModel, DeviceOutOfMemory

LLAMA_8B = read_shape(json.loads((CONFIGS / "llama-3-8b.json").read_text()))
KV_BYTES = 2 * 32 * 8 * 128 * 2
CALIBRATION_ERROR = 0.06
"""What the step time may be off a published measurement."""


def llama_8b(device: str, cards: int = 1) -> DeviceModel:
    return DeviceModel(DEVICES[device], LLAMA_8B, dtype_bytes=2, kv_dtype_bytes=2, cards=cards)


@pytest.mark.parametrize(
    ("device", "users", "context_tokens", "published_s"),
    [
        # J. Musgrave, "vLLM throughput-latency sweep on NVIDIA A100", vLLM 0.23: 75 tokens/s, 1024 in, 128 out.
        ("A100-40", 1, 1088, 1 / 75),
        # Yobitel InferenceBench "concurrency sweep" of Llama 3.1 8B on an H100, vLLM 0.21: TPOT at 1 and 4 users.
        ("H100-80", 1, 256, 0.00648),
        ("H100-80", 4, 4 * 256, 0.00659),
    ],
)
def test_a_decode_step_takes_as_long_as_was_published(
    device: str, users: int, context_tokens: int, published_s: float
) -> None:
    assert llama_8b(device).step_s(users, context_tokens) == pytest.approx(published_s, rel=CALIBRATION_ERROR)


def test_decode_waits_for_memory_and_prefill_for_arithmetic() -> None:
    model = llama_8b("A100-80")

    assert model.step_s(2, 0) == model.step_s(1, 0)
    assert model.step_s(2048, 0) > 10 * model.step_s(1, 0)


def test_a_longer_context_makes_a_decode_step_longer() -> None:
    model = llama_8b("A100-80")

    assert model.step_s(128, 400_000) > 2 * model.step_s(128, 0)


def test_four_cards_are_faster_than_one_but_not_four_times() -> None:
    one, four = llama_8b("A100-80").step_s(1, 1000), llama_8b("A100-80", cards=4).step_s(1, 1000)

    assert one / 4 < four < one / 2


@pytest.mark.parametrize(("utilization", "tokens"), [(0.90, 454_656), (0.95, 487_120)])
def test_the_kv_pool_is_what_utilisation_leaves(utilization: float, tokens: int) -> None:
    model = llama_8b("A100-80")

    pool_bytes = model.kv_pool_bytes(model.requested_bytes(utilization, 0), batched_tokens=2048, graphs=True)

    assert pool_bytes // (KV_BYTES * 16) * 16 == tokens


def test_utilisation_is_of_the_total_so_another_tenant_stops_the_start() -> None:
    model = llama_8b("A100-80")

    with pytest.raises(ValueError, match=r"Free memory on device cuda:0 \(59\.25/79\.25 GiB\) .* 71\.32 GiB"):
        model.requested_bytes(0.90, 20 * GIB)
    assert model.requested_bytes(0.70, 20 * GIB) == int(0.70 * model.profile.total_bytes)


def test_weights_larger_than_the_card_are_out_of_memory() -> None:
    with pytest.raises(DeviceOutOfMemory, match=r"Tried to allocate 14\.96 GiB"):
        llama_8b("T4").load_weights(other_tenant_bytes=0)
    llama_8b("L4").load_weights(other_tenant_bytes=0)


def test_a_split_model_needs_its_share_on_each_card() -> None:
    llama_8b("T4", cards=2).load_weights(other_tenant_bytes=0)


def test_the_sampler_warms_up_in_what_utilisation_leaves_free() -> None:
    model = llama_8b("A100-80")

    model.warm_up_sampler(int(0.05 * model.profile.total_bytes), max_num_seqs=256, vocab=128_256)
    with pytest.raises(DeviceOutOfMemory):
        model.warm_up_sampler(int(0.05 * model.profile.total_bytes), max_num_seqs=2048, vocab=128_256)


def test_what_a_step_takes_beyond_its_profile_must_fit_outside_the_budget() -> None:
    model = llama_8b("A100-80")

    model.hold(7 * GIB, int(0.10 * model.profile.total_bytes))
    with pytest.raises(DeviceOutOfMemory, match=r"of which 3\.96 GiB is free"):
        model.hold(7 * GIB, int(0.05 * model.profile.total_bytes))
