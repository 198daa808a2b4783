"""All that differs between vLLM releases, in one place: names that move, and arguments that come and go."""

from typing import Any

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

NO_TOKENS: list[int] = []


def attention_spec(block_size: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> FullAttentionSpec:
    """Keys and values of one layer."""
    return FullAttentionSpec(block_size=block_size, num_kv_heads=kv_heads, head_size=head_size, dtype=dtype)


def step_output(req_ids: list[str], sampled: list[list[int]], logprobs: LogprobsLists | None) -> ModelRunnerOutput:
    """What a worker returns for a step."""
    return ModelRunnerOutput(
        req_ids=req_ids,
        req_id_to_index={req_id: position for position, req_id in enumerate(req_ids)},
        sampled_token_ids=sampled,
        logprobs=logprobs,
    )


def logprobs_lists(token_ids: list[list[int]], values: list[list[float]]) -> LogprobsLists:
    """One row per request, the sampled token first."""
    ranks = torch.ones(len(token_ids), dtype=torch.int32)
    return LogprobsLists(torch.tensor(token_ids).numpy(), torch.tensor(values).numpy(), ranks.numpy())


def warm_up_result() -> Any:
    """Compilation times since 0.19, nothing before."""
    try:
        from vllm.v1.worker.worker_base import CompilationTimes
    except ImportError:
        return None
    return CompilationTimes(0.0, 0.0)


def record_layout(cache_config: Any, layout_name: str) -> None:
    """Releases that resolve the layout of the cache before the workers do want it written down."""
    from vllm.v1.attention.backends.utils import record_kv_cache_layout

    record_kv_cache_layout(cache_config, layout_name)
