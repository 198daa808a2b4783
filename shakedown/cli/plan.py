"""`shakedown plan`: what a configuration takes of a GPU, whether it fits, what to change, and what a log says."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from shakedown.cli.autoscale import FLAG, WithAutoscale
from shakedown.engine.config_text import ConfigError
from shakedown.engine.devices import GIB, device
from shakedown.engine.hf_config import read_shape
from shakedown.engine.memory.calculator import DOES_NOT_FIT, FITS, INVALID, UNKNOWN, Answer, answer
from shakedown.engine.memory.demand import AUTO_LENGTH, Demand
from shakedown.engine.memory.failures import FailureDiagnosis, classify
from shakedown.engine.memory.known_models import find_model, known_models, nearest_names
from shakedown.engine.memory.logs import LogReading, read_log
from shakedown.engine.memory.validity import default_length
from shakedown.engine.shape import ModelShape
from shakedown.errors import UsageError
from shakedown.settings import as_plain

LARGEST_CONFIG_BYTES = 4 * 1024**2
LARGEST_LOG_BYTES = 256 * 1024**2
VERDICT_WORDS = {
    FITS: "It fits.",
    DOES_NOT_FIT: "It does not fit.",
    INVALID: "The configuration is invalid.",
    UNKNOWN: "Whether it fits cannot be told.",
}
EXIT_CODES = {FITS: 0, UNKNOWN: 2}
MULTIPLES = {
    **{letter: 1000**power for power, letter in enumerate("kmgt", 1)},
    **{letter: 1024**power for power, letter in enumerate("KMGT", 1)},
}
"""As vLLM reads `32k` and `32K`."""
GIVEN = {
    "--total-gib": "What the driver reports.",
    "--free-gib": "Free at start, when another tenant is on the card.",
    "--weights-gib": "Of the fullest card.",
    "--activation-gib": "Peak of the profiling step.",
    "--non-torch-gib": "CUDA context and NCCL.",
    "--graphs-gib": "CUDA graphs.",
    "--kv-gib": "The KV pool itself.",
    "--need-gib": "What one sequence of the full length needs, as the engine says it.",
    "--swap-space": "Host memory for swapped-out blocks, of releases that had it.",
}
WHOLE = {
    "--layers": "Instead of the config's.",
    "--kv-heads": "Instead of the config's.",
    "--head-dim": "Instead of the config's.",
    "--latent-dim": "Width of the one vector that latent attention caches: kv_lora_rank + qk_rope_head_dim.",
}


class Length(click.ParamType[int]):
    """A number of tokens as vLLM takes it: 32768, 32k (decimal), 32K (binary), and -1 or auto for what fits."""

    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        if text == "-1" or text.lower() == "auto":
            return AUTO_LENGTH
        found = re.fullmatch(r"(\d+)(\.\d+)?([kKmMgGtT]?)", text)
        if found is None or (found[2] and found[3] not in ("k", "m", "g", "t")):
            self.fail(f"{text[:40]!r} is not a number of tokens such as 32768, 32k or auto")
        return (
            int(float(found[1] + found[2]) * MULTIPLES[found[3]])
            if found[2]
            else int(found[1]) * MULTIPLES.get(found[3], 1)
        )


LENGTH = Length()


def _term_options(command: Any) -> Any:
    names = {"--swap-space": ("--swap-space", "swap_gib")}
    for flag, text in reversed(GIVEN.items()):
        command = click.option(*names.get(flag, (flag,)), type=float, help=f"{text} Given, it is not estimated.")(
            command
        )
    for flag, text in reversed(WHOLE.items()):
        command = click.option(flag, type=int, help=text)(command)
    return command


class OneLine(WithAutoscale):
    """A wrong option is one line, as a wrong value is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            said = " ".join(error.format_message().split())
            raise UsageError(f"{said} (shakedown plan --help)") from error


@click.command(cls=OneLine)
@click.option(FLAG, is_flag=True, expose_value=False, help=f"Plan the autoscaler instead: plan {FLAG} --help.")
@click.option("--config", type=click.Path(path_type=Path), help="A Hugging Face config.json, or the folder with it.")
@click.option("--model", help="A model whose config is bundled, such as Qwen/Qwen3-8B or llama-3-8b.")
@click.option("--device", "device_name", help="A GPU, such as A100-80 or L4; its memory is what the driver reports.")
@click.option("--log", type=click.Path(path_type=Path), help="Check an engine's log instead.")
@click.option("--tensor-parallel-size", "-tp", "tensor_parallel", type=int, default=1, show_default=True)
@click.option("--pipeline-parallel-size", "-pp", "pipeline_parallel", type=int, default=1, show_default=True)
@click.option("--data-parallel-size", "-dp", "data_parallel", type=int, default=1, show_default=True)
@click.option("--enable-expert-parallel", "expert_parallel", is_flag=True, help="Whole experts on each card.")
@click.option("--dtype", default="auto", show_default=True)
@click.option("--kv-cache-dtype", default="auto", show_default=True)
@click.option("--block-size", type=int, default=16, show_default=True)
@click.option("--gpu-memory-utilization", "utilization", type=float, help="[default: the version's own]")
@click.option("--max-model-len", type=LENGTH, help="Such as 8192, 32k or auto. [default: the model's own]")
@click.option("--max-num-seqs", type=int, help="[default: the version's and the card's own]")
@click.option("--num-gpu-blocks-override", "blocks", type=int, help="Blocks of the cache, instead of what is left.")
@click.option("--max-num-batched-tokens", type=LENGTH, help="[default: the version's own]")
@click.option("--enforce-eager", is_flag=True, help="Without CUDA graphs.")
@click.option("--vllm-version", default="0.32", show_default=True)
@_term_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    config: Path | None,
    model: str | None,
    device_name: str | None,
    log: Path | None,
    vllm_version: str,
    as_json: bool,
    **terms: Any,
) -> int:
    """Say whether a configuration fits, and what to change if it does not. Exit 0 if it fits, 1 if not, 2 if that
    cannot be told.

    \b
    Examples:
      shakedown plan --model llama-3-8b --device A100-80 --max-model-len 4096
      shakedown plan --model meta-llama/Llama-3.3-70B-Instruct --device H100 -tp 4 --max-model-len 32k
      shakedown plan --config config.json --device L4 --gpu-memory-utilization 0.95 --json
      shakedown plan --log engine.log --model llama-3-8b
      shakedown plan --autoscale --help
    """
    shape = load_shape(config, model)
    if device_name is not None and terms["total_gib"] is None:
        terms["total_gib"] = device_total_gib(device_name)
    demand = Demand(shape=shape, card=device_name or "", version=parse_version(vllm_version), **terms)
    if log is not None:
        return _say_log(log, demand if demand.is_priced else None, as_json)
    if demand.max_model_len is None:
        demand = replace(demand, max_model_len=default_length(demand))
    return _say_answer(answer(demand), as_json)


commands: tuple[click.Command, ...] = (plan,)


def load_shape(config: Path | None, model: str | None) -> ModelShape | None:
    """Read a config. Raises UsageError with one line for anything that is not one."""
    if config is not None and model is not None:
        raise UsageError("give --config or --model, not both")
    if model is not None:
        return _known_shape(model)
    if config is None:
        return None
    path = config / "config.json" if config.is_dir() else config
    try:
        return read_shape(_read_object(path))
    except ConfigError as error:
        raise UsageError(f"{path}: {error}") from error
    except (TypeError, ArithmeticError, AttributeError, ValueError, LookupError) as error:
        raise UsageError(f"{path} has a value that makes no sense: {error}") from error


def _known_shape(name: str) -> ModelShape:
    if (Path(name) / "config.json").is_file():
        return load_shape(Path(name), None) or _known_shape("")
    found = find_model(name)
    if found is None:
        raise UsageError(
            f"no config is bundled for {name[:80]!r}; {len(known_models())} are, such as "
            f"{', '.join(nearest_names(name))}; or give --config FILE"
        )
    return read_shape(found.config)


def device_total_gib(name: str) -> float:
    """Driver-visible GiB of a device. Raises UsageError naming the known ones."""
    try:
        return device(name).total_bytes / GIB
    except KeyError as error:
        raise UsageError(str(error.args[0])) from error


def parse_version(text: str) -> tuple[int, int]:
    """ "0.32.0" as (0, 32). Raises UsageError."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?!\d)", text, re.ASCII)
    if found is None:
        raise UsageError(f"--vllm-version must look like 0.32, not {text[:40]!r}")
    return int(found[1]), int(found[2])


def _read_object(path: Path) -> dict[str, Any]:
    text = _read_text(path, LARGEST_CONFIG_BYTES, "a config.json")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds a JSON {type(value).__name__}, and a config is an object")
    return value


def _read_text(path: Path, largest_bytes: int, kind: str) -> str:
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UsageError(f"{path} is not a file")
        if size > largest_bytes:
            raise UsageError(f"{path} has {size:,} bytes; {kind} has at most {largest_bytes:,}")
        return path.read_text("utf-8-sig", errors="strict" if largest_bytes == LARGEST_CONFIG_BYTES else "replace")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{str(path)!r} is no path: {error}") from error


def _say_answer(found: Answer, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(as_plain(found)))
    else:
        _print_answer(found)
    return EXIT_CODES.get(found.verdict, 1)


def _print_answer(found: Answer) -> None:
    console = Console(highlight=False)
    table = Table("term", "GiB", "between", "from", box=None, pad_edge=False)
    for name, term in found.terms.items():
        table.add_row(name, f"{term.gib:.2f}", f"{term.low:.2f} … {term.high:.2f}", term.source)
    if found.terms:
        console.print(table)
    if found.kv_tokens is not None:
        low, high = found.intervals.get("kv_tokens", (found.kv_tokens, found.kv_tokens))
        console.print(
            f"\n{found.kv_tokens:,} tokens in {found.kv_blocks:,} blocks ({low:,.0f} … {high:,.0f}), "
            f"{found.bytes_per_token:,} bytes a token"
            + (f", {found.max_concurrency:.2f}x at the full length" if found.max_concurrency else "")
        )
    console.print(f"[bold]{VERDICT_WORDS[found.verdict]}[/] {'; '.join(found.reasons)}".rstrip())
    for warning in found.warnings:
        console.print(f"Warning: {warning}")
    for suggestion in found.suggestions:
        console.print(f"  change: {suggestion}")


def _say_log(path: Path, demand: Demand | None, as_json: bool) -> int:
    text = _read_text(path, LARGEST_LOG_BYTES, "a log that is read whole")
    reading, diagnosis = read_log(text, demand), classify(text)
    failed = diagnosis.kind != "unknown"
    if as_json:
        click.echo(json.dumps(_log_answer(reading, diagnosis if failed else None, demand)))
    else:
        _print_log(reading, diagnosis if failed else None)
    return 0 if reading.consistent and not failed else 1


def _log_answer(reading: LogReading, failure: FailureDiagnosis | None, demand: Demand | None) -> dict[str, Any]:
    """The keys of every other answer, as the engine printed them, and what was read."""
    found = reading.found
    tokens, blocks = found.get("kv_tokens"), found.get("gpu_blocks")
    if tokens is None and blocks is not None:
        tokens = blocks * (demand.block_size if demand else 16)
    said = (failure.sentence,) if failure else ()
    return {
        "verdict": failure.kind if failure else "consistent" if reading.consistent else "inconsistent",
        "bytes_per_token": round(demand.bytes_per_token) if demand is not None and demand.is_linear else None,
        "kv_pool_gib": found.get("kv_gib", found.get("available_gib")),
        "kv_blocks": blocks,
        "kv_tokens": tokens,
        "max_concurrency": found.get("concurrency"),
        "reasons": (*said, *reading.disagreements, *reading.notes),
        "suggestions": (failure.fix,) if failure else (),
        "intervals": {},
        "log": as_plain(reading),
        "failure": as_plain(failure) if failure else None,
    }


def _print_log(reading: LogReading, failure: FailureDiagnosis | None) -> None:
    for name, value in reading.found.items():
        click.echo(f"{name:<18} {value:,g}")
    if failure is not None:
        click.echo(f"Failed ({failure.kind}): {failure.sentence}.\n  change: {failure.fix}.")
    if not reading.found and failure is None:
        click.echo("The log has no memory line that is known.")
    elif reading.consistent:
        click.echo("The printed terms agree with each other within rounding.")
    for note in reading.notes:
        click.echo(f"Note: {note}.")
    for disagreement in reading.disagreements:
        click.echo(f"Differs: {disagreement}.")
