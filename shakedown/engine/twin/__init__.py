"""The twin: a real vLLM whose device is a model of time and memory.

The API server, tokenizer, scheduler, KV-cache manager, preemption, priorities and metrics are vLLM's own. This
package runs inside the engine's environment and imports nothing of the harness but `engine.devices`
and what reads a config: `engine.shape`, `hf_config`, `config_text`, `layers` and `quantization`.
"""
