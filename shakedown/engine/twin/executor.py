"""The executor that vLLM is told to use: it answers for the worker and lets the device model say how long."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.executor.abstract import Executor

from shakedown.engine.devices import GIB, device
from shakedown.engine.hf_config import read_shape
from shakedown.engine.twin import release
from shakedown.engine.twin.answers import Answer, choice_of, likelihoods, next_allowed, next_word, seed_of
from shakedown.engine.twin.device import DeviceModel, DeviceOutOfMemory
from shakedown.engine.twin.knobs import PORT, KnobPanel, Knobs
from shakedown.engine.twin.words import vocabulary

WAKE_EVERY_S = 0.25


class TwinExecutor(Executor):  # type: ignore[misc]
    """A modelled device. The scheduler, the KV-cache manager and everything above are vLLM's own."""

    supports_pp = False

    def _init_executor(self) -> None:
        self._panel = KnobPanel()
        self._panel.serve(int(os.environ.get("SHAKEDOWN_TWIN_KNOBS_PORT", PORT)))
        self._device = self._model_device()
        tenant_bytes = _gib_from("SHAKEDOWN_TWIN_OTHER_TENANT_GIB")
        self._requested_bytes = self._device.requested_bytes(self.cache_config.gpu_memory_utilization, tenant_bytes)
        self._unbudgeted_bytes = self._device.profile.total_bytes - self._requested_bytes - tenant_bytes
        self._overrun_bytes = _gib_from("SHAKEDOWN_TWIN_BEYOND_PROFILE_GIB")
        _as_cuda(lambda: self._device.load_weights(tenant_bytes))
        _sleep_until_loaded(float(os.environ.get("SHAKEDOWN_TWIN_LOAD_S", "0")))
        self._vocabulary = vocabulary(self.model_config.tokenizer, self.model_config.get_vocab_size())
        self._answers: dict[str, Answer] = {}
        self._batch: tuple[SchedulerOutput, float] | None = None

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return False

    def check_health(self) -> None:
        """A modelled device is healthy as long as its process is, like a real one that hangs."""

    def collective_rpc(  # type: ignore[no-untyped-def]
        self, method, timeout=None, args=(), kwargs=None, non_block=False, **_
    ) -> Any:
        """Answer for all workers at once; calls that concern a real device only are accepted and mean nothing."""
        answer = getattr(self, f"_rpc_{method}", None) if isinstance(method, str) else None
        answers = [answer(*args, **(kwargs or {})) if answer else None]
        return _done(answers, non_block)

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """Take the batch; its tokens come from `sample_tokens`, when the step is due."""
        if not scheduler_output.total_num_scheduled_tokens:
            self._forget(scheduler_output)
            return _done(release.step_output([], [], None), non_block)
        self._batch = scheduler_output, time.monotonic()
        return _done(None, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """One token for each request whose scheduled tokens reach the end of what it knows."""
        assert self._batch is not None
        batch, started = self._batch
        self._batch = None
        known = self._known_tokens(batch)
        self._run_step(batch, known, started)
        masks = _masks(grammar_output)
        req_ids = list(batch.num_scheduled_tokens)
        sampled = []
        for req_id in req_ids:
            computed, exist = known[req_id]
            reaches_end = computed + batch.num_scheduled_tokens[req_id] >= exist
            sampled.append([self._next_token(req_id, exist, masks.get(req_id))] if reaches_end else release.NO_TOKENS)
        output = release.step_output(req_ids, sampled, self._logprobs(req_ids, sampled))
        self._forget(batch)
        return _done(output, non_block)

    def _rpc_determine_available_memory(self) -> int:
        graphs = not self.model_config.enforce_eager
        return self._device.kv_pool_bytes(self._requested_bytes, self.scheduler_config.max_num_batched_tokens, graphs)

    def _rpc_get_kv_cache_spec(self) -> dict[str, Any]:
        config = self.model_config
        heads = config.get_num_kv_heads(self.parallel_config)
        spec = release.attention_spec(self.cache_config.block_size, heads, config.get_head_size(), self._kv_dtype())
        layers = config.get_num_layers(self.parallel_config)
        return {f"model.layers.{layer}.self_attn.attn": spec for layer in range(layers)}

    def _rpc_get_supported_kv_cache_layouts(self) -> list[str]:
        return ["LBNHC"]

    def _rpc_set_kv_cache_layout(self, layout_name: str) -> None:
        release.record_layout(self.cache_config, layout_name)

    def _rpc_compile_or_warm_up_model(self) -> Any:
        sequences, vocab = self.scheduler_config.max_num_seqs, self.model_config.get_vocab_size()
        try:
            self._device.warm_up_sampler(self._unbudgeted_bytes, sequences, vocab)
        except DeviceOutOfMemory as error:
            raise RuntimeError(
                f"CUDA out of memory occurred when warming up sampler with {sequences} dummy requests. Please try "
                "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
            ) from torch.OutOfMemoryError(str(error))
        return release.warm_up_result()

    def _rpc_get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def _model_device(self) -> DeviceModel:
        config = self.model_config
        return DeviceModel(
            profile=device(os.environ.get("SHAKEDOWN_TWIN_DEVICE", "A100-80")),
            shape=read_shape(config.hf_config.to_dict()),
            dtype_bytes=config.dtype.itemsize,
            kv_dtype_bytes=self._kv_dtype().itemsize,
            cards=self.parallel_config.tensor_parallel_size,
        )

    def _kv_dtype(self) -> torch.dtype:
        fp8 = str(self.cache_config.cache_dtype).startswith("fp8")
        return torch.float8_e4m3fn if fp8 else self.model_config.dtype

    def _known_tokens(self, batch: SchedulerOutput) -> dict[str, tuple[int, int]]:
        """For each scheduled request: tokens computed before this step, and tokens that exist (prompt and answer)."""
        known: dict[str, tuple[int, int]] = {}
        for new in batch.scheduled_new_reqs:
            self._answers[new.req_id] = _new_answer(new)
            exist = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids or ()
            known[new.req_id] = new.num_computed_tokens, len(exist)
        cached = batch.scheduled_cached_reqs
        for req_id, computed, answered in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            known[req_id] = computed, self._answers[req_id].prompt_tokens + answered
        return known

    def _run_step(self, batch: SchedulerOutput, known: Mapping[str, tuple[int, int]], started: float) -> None:
        """Return when the step is due; fail as the knobs say. A knob turned in mid-step counts at once."""
        tokens = batch.total_num_scheduled_tokens
        step_s = self._device.step_s(tokens, sum(computed for computed, _ in known.values()))
        overrun_bytes = self._overrun_bytes * tokens // self.scheduler_config.max_num_batched_tokens
        while True:
            knobs = self._panel.now
            self._fail_if_told(knobs, overrun_bytes)
            left_s = started + step_s * knobs.step_slowdown - time.monotonic()
            if left_s <= 0 and not knobs.hang:
                return
            if knobs.hang or left_s > WAKE_EVERY_S:
                self._panel.wait_for_turn(WAKE_EVERY_S)
            else:
                time.sleep(left_s)

    def _fail_if_told(self, knobs: Knobs, overrun_bytes: int) -> None:
        """Both errors end the engine, as on a real card."""
        if knobs.device_error:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if knobs.oom:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB.")
        held_bytes = overrun_bytes + int(knobs.memory_pressure_gib * GIB)
        _as_cuda(lambda: self._device.hold(held_bytes, self._unbudgeted_bytes))

    def _next_token(self, req_id: str, position: int, mask: Sequence[int] | None) -> int:
        word = next_word(self._vocabulary, self._answers[req_id].seed, position)
        return word if mask is None else next_allowed(self._vocabulary, mask, word)

    def _logprobs(self, req_ids: Sequence[str], sampled: Sequence[Sequence[int]]) -> Any:
        """None unless a request asks; then a row for every request, since vLLM finds them by position."""
        wanted = [count for req_id in req_ids if (count := self._answers[req_id].logprobs) is not None]
        if not wanted:
            return None
        alternatives = min(max(wanted), len(self._vocabulary.words))
        others = list(self._vocabulary.words[:alternatives])
        return release.logprobs_lists(
            [[tokens[0] if tokens else 0, *others] for tokens in sampled], [likelihoods(alternatives)] * len(sampled)
        )

    def _forget(self, batch: SchedulerOutput) -> None:
        for req_id in batch.finished_req_ids:
            self._answers.pop(req_id, None)


def _new_answer(new: Any) -> Answer:
    prompt, sampling = new.prompt_token_ids or (), new.sampling_params
    seed = seed_of(prompt, getattr(sampling, "seed", None), choice_of(new.req_id))
    return Answer(seed, len(prompt), getattr(sampling, "logprobs", None))


def _masks(grammar_output: Any) -> dict[str, list[int]]:
    """Bitmask row of each request that is bound to a grammar."""
    if grammar_output is None:
        return {}
    rows = grammar_output.grammar_bitmask.tolist()
    return dict(zip(grammar_output.structured_output_request_ids, rows, strict=False))


def _done(value: Any, non_block: bool) -> Any:
    if not non_block:
        return value
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _as_cuda(attempt: Callable[[], None]) -> None:
    try:
        attempt()
    except DeviceOutOfMemory as error:
        raise torch.OutOfMemoryError(str(error)) from None


def _gib_from(variable: str) -> int:
    return int(float(os.environ.get(variable, "0")) * GIB)


def _sleep_until_loaded(load_s: float) -> None:
    """Weights are there `load_s` after the API server started; what the imports took counts into it."""
    remaining_s = load_s - _age_of_process_s(os.getppid())
    if remaining_s > 0:
        time.sleep(remaining_s)


def _age_of_process_s(pid: int) -> float:
    try:
        start_ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - start_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
