"""`shakedown plan`: what a configuration takes of a GPU, whether it fits, what to change, and what a log says."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from shakedown.cli.autoscale import FLAG, WithAutoscale
from shakedown.engine.devices import GIB, device
from shakedown.engine.environment import CONFIGS
from shakedown.engine.memory.calculator import FITS, Answer, answer
from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.failures import FailureDiagnosis, classify
from shakedown.engine.memory.logs import LogReading, read_log
from shakedown.engine.shape import ConfigError, ModelShape
from shakedown.errors import UsageError
from shakedown.settings import as_plain

LARGEST_CONFIG_BYTES = 4 * 1024**2
LARGEST_LOG_BYTES = 256 * 1024**2
VERDICT_WORDS = {"fits": "It fits.", "does-not-fit": "It does not fit.", "invalid": "The configuration is invalid."}
GIVEN = {
    "--total-gib": "What the driver reports.",
    "--free-gib": "Free at start, when another tenant is on the card.",
    "--weights-gib": "Of the fullest card.",
    "--activation-gib": "Peak of the profiling step.",
    "--non-torch-gib": "CUDA context and NCCL.",
    "--graphs-gib": "CUDA graphs.",
    "--kv-gib": "The KV pool itself.",
}


def _term_options(command: Any) -> Any:
    for flag, text in reversed(GIVEN.items()):
        command = click.option(flag, type=float, help=f"{text} Given, it is not estimated.")(command)
    for flag in ("--head-dim", "--kv-heads", "--layers"):
        command = click.option(flag, type=int, help="Instead of the config's.")(command)
    return command


@click.command(cls=WithAutoscale)
@click.option(FLAG, is_flag=True, expose_value=False, help=f"Plan the autoscaler instead: plan {FLAG} --help.")
@click.option("--config", type=click.Path(path_type=Path), help="A Hugging Face config.json, or the folder with it.")
@click.option("--model", help="A model whose config is bundled, such as llama-3-8b.")
@click.option("--device", "device_name", help="A GPU, such as A100-80 or L4; its memory is what the driver reports.")
@click.option("--log", type=click.Path(path_type=Path), help="Check an engine's log instead.")
@click.option("--tensor-parallel-size", "-tp", "tensor_parallel", type=int, default=1, show_default=True)
@click.option("--pipeline-parallel-size", "-pp", "pipeline_parallel", type=int, default=1, show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--kv-cache-dtype", default="auto", show_default=True)
@click.option("--block-size", type=int, default=16, show_default=True)
@click.option("--gpu-memory-utilization", "utilization", type=float, help="[default: the version's own]")
@click.option("--max-model-len", type=int, help="[default: the model's own]")
@click.option("--max-num-seqs", type=int, default=256, show_default=True)
@click.option("--max-num-batched-tokens", type=int, help="[default: the version's own]")
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
    """Say whether a configuration fits, and what to change if it does not. Exit 0 if it fits, 1 if not.

    \b
    Examples:
      shakedown plan --model llama-3-8b --device A100-80 --max-model-len 4096
      shakedown plan --config config.json --device L4 --gpu-memory-utilization 0.95 --json
      shakedown plan --log engine.log --model llama-3-8b
      shakedown plan --autoscale --help
    """
    shape = load_shape(config, model)
    if device_name is not None and terms["total_gib"] is None:
        terms["total_gib"] = device_total_gib(device_name)
    if terms["max_model_len"] is None and shape is not None and shape.max_positions:
        terms["max_model_len"] = shape.max_positions
    demand = Demand(shape=shape, version=parse_version(vllm_version), **terms)
    if log is not None:
        return _say_log(log, demand if has_price(demand) else None, as_json)
    return _say_answer(answer(demand), as_json)


commands: tuple[click.Command, ...] = (plan,)


def load_shape(config: Path | None, model: str | None) -> ModelShape | None:
    """Read a config. Raises UsageError with one line for anything that is not one."""
    if config is not None and model is not None:
        raise UsageError("give --config or --model, not both")
    if model is not None:
        found = {path.stem: path for path in CONFIGS.rglob("*.json")}
        if model not in found:
            raise UsageError(f"no config is bundled for {model!r}; known: {', '.join(sorted(found))}; or give --config")
        config = found[model]
    if config is None:
        return None
    path = config / "config.json" if config.is_dir() else config
    try:
        return ModelShape.from_config(_read_object(path))
    except ConfigError as error:
        raise UsageError(f"{path}: {error}") from error
    except (TypeError, ZeroDivisionError, AttributeError, ValueError) as error:
        raise UsageError(f"{path} has a value that makes no sense: {error}") from error


def device_total_gib(name: str) -> float:
    """Driver-visible GiB of a device. Raises UsageError naming the known ones."""
    try:
        return device(name).total_bytes / GIB
    except KeyError as error:
        raise UsageError(str(error.args[0])) from error


def parse_version(text: str) -> tuple[int, int]:
    """ "0.32.0" as (0, 32). Raises UsageError."""
    parts = text.removeprefix("v").split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        raise UsageError(f"--vllm-version must look like 0.32, not {text!r}")
    return int(parts[0]), int(parts[1])


def has_price(demand: Demand) -> bool:
    """Whether a token's bytes are known, so that a log can be held against them."""
    return demand.shape is not None or None not in (demand.layers, demand.kv_heads, demand.head_dim)


def _read_object(path: Path) -> dict[str, Any]:
    text = _read_text(path, LARGEST_CONFIG_BYTES, "a config.json")
    try:
        value = json.loads(text)
    except ValueError as error:
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
        return path.read_text(errors="strict" if largest_bytes == LARGEST_CONFIG_BYTES else "replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text") from error


def _say_answer(found: Answer, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(as_plain(found)))
    else:
        _print_answer(found)
    return 0 if found.verdict == FITS else 1


def _print_answer(found: Answer) -> None:
    console = Console(highlight=False)
    table = Table("term", "GiB", "between", "from", box=None, pad_edge=False)
    for name, term in found.terms.items():
        table.add_row(name, f"{term.gib:.2f}", f"{term.low:.2f} … {term.high:.2f}", term.source)
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
        verdict = diagnosis.kind if failed else ("consistent" if reading.consistent else "inconsistent")
        click.echo(json.dumps({"verdict": verdict, "log": as_plain(reading), "failure": as_plain(diagnosis)}))
    else:
        _print_log(reading, diagnosis if failed else None)
    return 0 if reading.consistent and not failed else 1


def _print_log(reading: LogReading, failure: FailureDiagnosis | None) -> None:
    for name, value in reading.found.items():
        click.echo(f"{name:<18} {value:,g}")
    if failure is not None:
        click.echo(f"Failed ({failure.kind}): {failure.sentence}.\n  change: {failure.fix}.")
    if not reading.found and failure is None:
        click.echo("The log has no memory line that is known.")
    elif reading.consistent:
        click.echo("The printed terms agree with each other within rounding.")
    for disagreement in reading.disagreements:
        click.echo(f"Differs: {disagreement}.")
