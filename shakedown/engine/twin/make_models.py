"""Makes the model folders that engines start from: published configs, a small tokenizer, and a tiny real model.

Runs inside the engine's environment: `python -m shakedown.engine.twin.make_models CONFIGS OUT`. The twin needs no
weights; the tiny Llama gets seeded random ones, so that its greedy answers are real and repeatable.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shakedown.engine.twin.words import WORDS_FILE

TINY = "tiny-llama"
VOCABULARY = 512
SPECIAL = ["<|begin|>", "<|end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
# What ends a JSON text soonest, best first.
CLOSING = '}]",:0'
# Enough ordinary words for an answer to read like text; each is one token with its leading space.
WORDS = """
the of and to in is that it for was on are as with they be at one have this from or had by word but
what some we can out other were all there when up use your how said an each she which do their time
if will way about many then them write would like so these her long make thing see him two has look
more day could go come did number sound no most people my over know water than call first who may
down side been now find any new work part take get place made live where after back little only
round man year came show every good me give our under name very through just form sentence great
think say help low line differ turn cause much mean before move right boy old too same tell does set
three want air well also play small end put home read hand port large spell add even land here must
big high
"""


def main(configs: Path, out: Path) -> None:
    """Write one folder per model under `out`."""
    tokenizer = _trained_tokenizer()
    for config_file in sorted(configs.glob("*.json")):
        folder = out / config_file.stem
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(config_file.read_text())
        _write_tokenizer(tokenizer, folder)
    _write_tiny_llama(tokenizer, out / TINY)
    _inspect(configs)


def _inspect(configs: Path) -> None:
    """Let vLLM look at each architecture once and cache what it saw; at an engine's start that costs ten seconds."""
    from vllm.model_executor.models.registry import ModelRegistry

    for config_file in configs.glob("*.json"):
        for architecture in json.loads(config_file.read_text())["architectures"]:
            ModelRegistry.models[architecture].inspect_model_cls()


def _trained_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" " + " ".join(WORDS.split())] * 8, trainer)
    return tokenizer


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    whole_words = [ids[0] for word in WORDS.split() if len(ids := tokenizer.encode(" " + word).ids) == 1]
    closing = [tokenizer.token_to_id(token) for token in (SPECIAL[1], *CLOSING)]
    (folder / WORDS_FILE).write_text(json.dumps({"words": whole_words, "closing": closing}))


def _write_tiny_llama(tokenizer: Tokenizer, folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    # head_dim 64: the CPU attention kernel accepts 16 at start and dies at the first request.
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(str(folder))
    _write_tokenizer(tokenizer, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
