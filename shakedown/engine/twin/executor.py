"""The executor that vLLM is told to use: it answers for the worker and lets the device model say how long."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

from shakedown.engine.devices import GIB, device
from shakedown.engine.shape import ModelShape
from shakedown.engine.twin.device import DeviceModel, DeviceOutOfMemory
from shakedown.engine.twin.knobs import PORT, KnobPanel
from shakedown.engine.twin.words import word_ids

WAKE_EVERY_S = 0.25


class TwinExecutor(Executor):  # type: ignore[misc]
    """One modelled device. The scheduler, the KV-cache manager and everything above are vLLM's own."""

    supports_pp = False

    def _init_executor(self) -> None:
        self._panel = KnobPanel()
        self._panel.serve(int(os.environ.get("SHAKEDOWN_TWIN_KNOBS_PORT", PORT)))
        self._device = self._model_device()
        tenant_bytes = int(float(os.environ.get("SHAKEDOWN_TWIN_OTHER_TENANT_GIB", "0")) * GIB)
        self._requested_bytes = self._device.requested_bytes(self.cache_config.gpu_memory_utilization, tenant_bytes)
        _as_cuda(lambda: self._device.load_weights(self._requested_bytes))
        _sleep_until_loaded(float(os.environ.get("SHAKEDOWN_TWIN_LOAD_S", "0")))
        self._words = word_ids(self.model_config.tokenizer, self.model_config.get_vocab_size())
        self._prompt_length: dict[str, int] = {}
        self._answer_seed: dict[str, int] = {}
        self._batch: tuple[SchedulerOutput, float] | None = None

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return False

    def _model_device(self) -> DeviceModel:
        shape = ModelShape.from_config(self.model_config.hf_text_config.to_dict())
        dtype_bytes = self.model_config.dtype.itemsize
        kv_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * self._kv_dtype().itemsize
        profile = device(os.environ.get("SHAKEDOWN_TWIN_DEVICE", "A100-80"))
        return DeviceModel(profile, shape.parameters, dtype_bytes, kv_bytes)

    def _kv_dtype(self) -> torch.dtype:
        fp8 = str(self.cache_config.cache_dtype).startswith("fp8")
        return torch.float8_e4m3fn if fp8 else self.model_config.dtype

    def collective_rpc(  # type: ignore[no-untyped-def]
        self, method, timeout=None, args=(), kwargs=None, non_block=False, **_
    ) -> list[Any]:
        """Answer for the one worker; calls that concern a real device only are accepted and mean nothing."""
        answer = getattr(self, f"_rpc_{method}", None) if isinstance(method, str) else None
        return [answer(*args, **(kwargs or {})) if answer else None]

    def _rpc_determine_available_memory(self) -> int:
        graphs = not self.model_config.enforce_eager
        return self._device.kv_pool_bytes(self._requested_bytes, self.scheduler_config.max_num_batched_tokens, graphs)

    def _rpc_get_kv_cache_spec(self) -> dict[str, FullAttentionSpec]:
        config = self.model_config
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=config.get_num_kv_heads(self.parallel_config),
            head_size=config.get_head_size(),
            dtype=self._kv_dtype(),
        )
        layers = config.get_num_layers(self.parallel_config)
        return {f"model.layers.{layer}.self_attn.attn": spec for layer in range(layers)}

    def _rpc_get_supported_kv_cache_layouts(self) -> list[str]:
        return ["LBNHC"]

    def _rpc_set_kv_cache_layout(self, layout_name: str) -> None:
        from vllm.v1.attention.backends.utils import record_kv_cache_layout

        record_kv_cache_layout(self.cache_config, layout_name)

    def _rpc_compile_or_warm_up_model(self) -> CompilationTimes:
        sequences = self.scheduler_config.max_num_seqs
        try:
            self._device.warm_up_sampler(self._requested_bytes, sequences, self.model_config.get_vocab_size())
        except DeviceOutOfMemory as error:
            raise RuntimeError(
                f"CUDA out of memory occurred when warming up sampler with {sequences} dummy requests. Please try "
                "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
            ) from error
        return CompilationTimes(0.0, 0.0)

    def _rpc_get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """Take the batch; its tokens come from `sample_tokens`, when the step is due."""
        if not scheduler_output.total_num_scheduled_tokens:
            self._forget(scheduler_output)
            return _done(ModelRunnerOutput(req_ids=[], req_id_to_index={}), non_block)
        self._batch = scheduler_output, time.monotonic()
        return _done(None, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """One token for each request whose scheduled tokens reach the end of what it knows."""
        assert self._batch is not None
        batch, started = self._batch
        self._batch = None
        known = self._known_tokens(batch)
        self._run_step(batch, known, started)
        req_ids = list(batch.num_scheduled_tokens)
        sampled = [self._sample(req_id, batch.num_scheduled_tokens[req_id], *known[req_id]) for req_id in req_ids]
        self._forget(batch)
        index = {req_id: position for position, req_id in enumerate(req_ids)}
        output = ModelRunnerOutput(req_ids=req_ids, req_id_to_index=index, sampled_token_ids=sampled)
        return _done(output, non_block)

    def _known_tokens(self, batch: SchedulerOutput) -> dict[str, tuple[int, int]]:
        """For each scheduled request: tokens computed before this step, and tokens that exist (prompt and answer)."""
        known: dict[str, tuple[int, int]] = {}
        for new in batch.scheduled_new_reqs:
            tokens = new.prefill_token_ids or new.prompt_token_ids or []
            self._prompt_length[new.req_id] = len(new.prompt_token_ids or tokens)
            self._answer_seed[new.req_id] = sum(tokens[-64:]) if tokens else 0
            known[new.req_id] = new.num_computed_tokens, len(tokens)
        cached = batch.scheduled_cached_reqs
        for req_id, computed, answered in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            known[req_id] = computed, self._prompt_length[req_id] + answered
        return known

    def _run_step(self, batch: SchedulerOutput, known: dict[str, tuple[int, int]], started: float) -> None:
        context = sum(computed for computed, _ in known.values())
        step_s = self._device.step_s(batch.total_num_scheduled_tokens, context)
        while True:
            knobs = self._panel.now
            if knobs.device_error:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            if knobs.oom:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB.")
            left_s = started + step_s * knobs.step_slowdown - time.monotonic()
            if left_s <= 0 and not knobs.hang:
                return
            if knobs.hang or left_s > WAKE_EVERY_S:
                with self._panel.turned:
                    self._panel.turned.wait(WAKE_EVERY_S)
            else:
                time.sleep(left_s)

    def _sample(self, req_id: str, scheduled: int, computed: int, known: int) -> list[int]:
        if computed + scheduled < known:
            return []
        return [self._words[(self._answer_seed[req_id] * 31 + known * 7919) % len(self._words)]]

    def _forget(self, batch: SchedulerOutput) -> None:
        for req_id in batch.finished_req_ids:
            self._prompt_length.pop(req_id, None)
            self._answer_seed.pop(req_id, None)

    def check_health(self) -> None:
        """A modelled device is healthy as long as its process is, like a real one that hangs."""


def _done(value: Any, non_block: bool) -> Any:
    if not non_block:
        return value
    from concurrent.futures import Future

    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _as_cuda(attempt: Callable[[], None]) -> None:
    try:
        attempt()
    except DeviceOutOfMemory as error:
        raise torch.OutOfMemoryError(str(error)) from error


def _sleep_until_loaded(load_s: float) -> None:
    """Weights are there `load_s` after the API server started; what the imports took counts into it."""
    remaining_s = load_s - _age_of_process_s(os.getppid())
    if remaining_s > 0:
        time.sleep(remaining_s)


def _age_of_process_s(pid: int) -> float:
    try:
        start_ticks = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
        return uptime_s - start_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
