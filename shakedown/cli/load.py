"""`shakedown load`: send load to any OpenAI-compatible endpoint and say what its users got."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec
from click.core import ParameterSource
from rich.console import Console
from rich.live import Live
from rich.table import Table

from shakedown.cli.load_arrivals import KINDS, load_plans
from shakedown.cli.load_report import LoadReport, writable
from shakedown.errors import UsageError
from shakedown.judge.objectives import SLO
from shakedown.judge.verdict import Verdict
from shakedown.load import (
    Arrivals,
    ClosedLoop,
    Limits,
    LoadHealth,
    LoadSummary,
    OpenLoop,
    Progress,
    Spread,
    TrafficClass,
    Workload,
    served_models,
    summarize,
)
from shakedown.load.client import base_url
from shakedown.load.distributed import DistributedLoad, web_ui
from shakedown.load.sharegpt import Conversation, given_talks, read_sharegpt
from shakedown.process import attached

PLAIN_LINE_EVERY_S = 5.0
LIVE_EVERY_S = 0.25
CHECK_TIMEOUT_S = 10.0
SUSTAINED_SHARE = 0.9
STYLE = {Verdict.HELD: "green", Verdict.DEVIATED: "red", Verdict.UNKNOWN: "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What the user asked for."""

    url: str
    arrivals: Arrivals | ClosedLoop
    offered: str
    workload: Workload
    duration_s: float
    slo: SLO
    goodput: float
    records: Path | None
    limits: Limits
    workers: int
    headers: dict[str, str]
    keep_alive: bool
    conversations: tuple[Conversation, ...] = ()
    """Real ones, whose questions are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One load and what it showed."""

    offered: str
    summary: LoadSummary
    health: LoadHealth
    exact_prompts: bool
    made_prompts: bool
    verdict: Verdict
    reason: str


@click.command("load")
@click.argument("url")
@click.option("--rate", type=float, help="Open loop: requests per second, Poisson.  [default: 1]")
@click.option("--burstiness", type=float, help="With --rate: gamma shape; 1 is Poisson, less is burstier.")
@click.option("--users", type=int, help="Closed loop: users who each wait for their answer.")
@click.option("--think-time", type=float, default=0.0, help="Seconds from an answer to the next question.")
@click.option("--constant", type=float, metavar="RATE", help="Open loop: requests per second at equal distances.")
@click.option("--burst", type=int, help="This many requests at the same instant.")
@click.option("--ramp", metavar="FROM,TO", help="Requests per second that climb or fall over the duration.")
@click.option("--steps", metavar="RATE:S,...", help="Requests per second, each for so many seconds.")
@click.option(
    "--wave", metavar="MEAN,AMPLITUDE,S", help="Requests per second that swing, amplitude 0 to 1, each S seconds."
)
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Replay an Azure LLM trace (CSV) or a Mooncake one (JSONL)."
)
@click.option(
    "--sweep", metavar="A,B,C", help="One load for each rate, until one is not sustained; with --users-sweep: users."
)
@click.option("--users-sweep", is_flag=True, help="--sweep counts users instead of requests per second.")
@click.option("--duration", type=float, default=30.0, show_default=True, help="Seconds of sending.")
@click.option("--prompt-tokens", type=int, default=128, show_default=True)
@click.option("--max-tokens", type=int, default=128, show_default=True)
@click.option("--turns", type=int, default=1, show_default=True, help="Questions of a session.")
@click.option(
    "--sharegpt",
    type=click.Path(path_type=Path),
    help="Real conversations: --turns questions of each, with the lengths of their answers.",
)
@click.option(
    "--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="vLLM: answers of exactly --max-tokens."
)
@click.option("--priority", type=int, help="vLLM: the request's priority.")
@click.option("--model", help="[default: the first one that /v1/models lists]")
@click.option("--header", multiple=True, metavar="NAME:VALUE", help="Repeatable. OPENAI_API_KEY becomes Authorization.")
@click.option("--slo-ttft", type=float, help="Seconds to the first token, at most.")
@click.option("--slo-tpot", type=float, help="Seconds per further token, at most.")
@click.option("--slo-e2e", type=float, help="Seconds to the end, at most.")
@click.option(
    "--goodput", type=float, default=0.95, show_default=True, help="Share of requests that must meet the SLO."
)
@click.option(
    "--request-limit", type=float, default=600.0, show_default=True, help="Seconds until a request is given up."
)
@click.option(
    "--silence-limit", type=float, default=120.0, show_default=True, help="Seconds without a byte until it is."
)
@click.option("--workers", type=int, default=1, show_default=True, help="Processes that send, one per core at most.")
@click.option("--keep-alive", is_flag=True, help="Use connections again; by default each request has its own.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--records", type=click.Path(path_type=Path), help="Write one JSON line per request here.")
@click.option("--report", type=click.Path(path_type=Path), help="Write report.html and all records below this folder.")
@click.option("--ui", is_flag=True, help="Locust's web UI: start, watch and change the load in a browser.")
@click.option("--ui-port", type=click.IntRange(1, 65535), default=8089, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.pass_context
def load(
    ctx: click.Context,
    /,
    url: str,
    as_json: bool,
    sweep: str | None,
    users_sweep: bool,
    ui: bool,
    ui_port: int,
    **asked: Any,
) -> None:
    """Send load to any OpenAI-compatible endpoint and say what its users got.

    Exit code: 0 the objectives held (or none was given), 1 they did not, 2 unknown: nothing completed, or this client
    was the bottleneck, 4 bad usage.

    \b
    Examples:
      shakedown load http://localhost:8000 --rate 8 --duration 60 --slo-ttft 0.5
      shakedown load http://localhost:8000 --sweep 1,2,4,8,16 --slo-ttft 0.5 --slo-tpot 0.05
      shakedown load http://localhost:8000 --steps 2:30,8:60,2:60 --duration 150 --report reports
      shakedown load http://localhost:8000 --ui
    """
    if ui:
        ctx.exit(_web_ui(ctx, url, asked, ui_port))
    plans = load_plans(asked, sweep, users_sweep)
    folder = _report_folder(asked)
    sequence = [_options(url, asked, *plan) for plan in plans]
    if sweep and asked["records"] is not None:
        sequence = [_with_own_records(options, step) for step, options in enumerate(sequence, start=1)]
    report = LoadReport(folder, sequence[0].url)
    try:
        results = asyncio.run(_run_all(sequence, report))
    except BaseException:
        report.published(None)
        raise
    verdict = Verdict.worst(result.verdict for result in results[:1]) if sweep else results[0].verdict
    page = report.published(verdict.exit_code)
    if as_json:
        said: Any = [_plain(result) for result in results] if sweep else _plain(results[0])
        click.echo(msgspec.json.encode(said).decode())
    else:
        _show(results)
        if page is not None:
            click.echo(f"report: {page}")
    ctx.exit(verdict.exit_code)


commands: tuple[click.Command, ...] = (load,)


def _options(url: str, asked: dict[str, Any], arrivals: Arrivals | ClosedLoop, offered: str) -> LoadOptions:
    if not 0 <= asked["workers"] <= 4 * (os.cpu_count() or 1):
        raise UsageError(f"--workers {asked['workers']} makes no sense on {os.cpu_count()} cores")
    traffic = TrafficClass(
        prompt_tokens=_positive(asked, "prompt_tokens"),
        max_tokens=_positive(asked, "max_tokens"),
        ignore_eos=asked["ignore_eos"],
        priority=asked["priority"],
        turns=_positive(asked, "turns"),
        think_time_s=asked["think_time"],
    )
    return LoadOptions(
        url=base_url(url),
        arrivals=arrivals,
        offered=offered,
        workload=Workload((traffic,), asked["model"], asked["seed"]),
        duration_s=asked["duration"],
        slo=SLO(ttft_s=asked["slo_ttft"], tpot_s=asked["slo_tpot"], e2e_s=asked["slo_e2e"]),
        goodput=asked["goodput"],
        records=asked["records"],
        limits=Limits(request_s=asked["request_limit"], silence_s=asked["silence_limit"]),
        workers=asked["workers"],
        headers=_headers(asked["header"]),
        keep_alive=asked["keep_alive"],
        conversations=read_sharegpt(asked["sharegpt"], asked["turns"]) if asked["sharegpt"] else (),
    )


NOT_IN_THE_UI = (
    *(kind for kind in KINDS if kind != "users"),
    *("burstiness", "sweep", "model", "header", "turns", "sharegpt", "report", "slo_ttft", "slo_tpot", "slo_e2e"),
)


def _web_ui(ctx: click.Context, url: str, asked: dict[str, Any], port: int) -> int:
    """Run Locust's web UI until it is ended. Raises UsageError for what only a load without it can do."""
    given = [name for name in NOT_IN_THE_UI if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise UsageError(f"--ui knows users and their think time; leave out --{given[0].replace('_', '-')}")
    users = DistributedLoad(
        url=base_url(url),
        users=asked["users"] or 1,
        think_time_s=asked["think_time"],
        prompt_tokens=asked["prompt_tokens"],
        max_tokens=asked["max_tokens"],
        seed=asked["seed"],
    )
    click.echo(f"http://127.0.0.1:{port} in a browser; Ctrl-C ends it")
    return asyncio.run(attached(web_ui(users, port), env={}))


def _report_folder(asked: dict[str, Any]) -> Path | None:
    if asked["report"] is None:
        return None
    if asked["records"] is not None:
        raise UsageError("--report keeps the records in its own folder; leave --records out")
    return writable(asked["report"])


def _with_own_records(options: LoadOptions, step: int) -> LoadOptions:
    path = options.records or Path()
    return replace(options, records=path.with_name(f"{path.stem}-{step}{path.suffix}"))


def _positive(asked: dict[str, Any], name: str) -> int:
    value = int(asked[name])
    if value < 1:
        raise UsageError(f"--{name.replace('_', '-')} must be at least 1; got {value}")
    return value


def _headers(given: Sequence[str]) -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"--header takes NAME:VALUE; got {header!r}")
        headers[name.strip()] = value.strip()
    return headers


async def _run_all(sequence: list[LoadOptions], report: LoadReport) -> list[LoadResult]:
    """Each load in turn; a sweep ends at the first load that was not sustained."""
    model = await _served_model(sequence[0])
    report.begin(model)
    sequence = await _with_talks(sequence, model)
    results: list[LoadResult] = []
    for step, options in enumerate(sequence, start=1):
        records = report.records(step) or options.records
        async with report.watched(step, options.offered, options.slo, options.goodput) as chapter:
            results.append(await _run_one(replace(options, records=records)))
            chapter.ended(results[-1].health)
        if not _sustained(results[-1]):
            break
    return results


async def _with_talks(sequence: list[LoadOptions], model: str) -> list[LoadOptions]:
    """Real questions get answers as long as theirs were."""
    conversations, first = sequence[0].conversations, sequence[0]
    if not conversations:
        return sequence
    async with httpx.AsyncClient(headers=first.headers, timeout=CHECK_TIMEOUT_S, trust_env=False) as control:
        talks, exact = await given_talks(control, first.url, model, conversations)
    if not exact:
        click.echo("lengths of answers are guessed from their bytes: the server has no /tokenize", err=True)
    classes = (replace(first.workload.classes[0], talks=talks),)
    return [replace(options, workload=replace(options.workload, classes=classes)) for options in sequence]


async def _served_model(options: LoadOptions) -> str:
    """The model that will be asked. Raises UsageError for one that the server does not have."""
    async with httpx.AsyncClient(headers=options.headers, timeout=CHECK_TIMEOUT_S, trust_env=False) as control:
        models = await served_models(control, options.url)
    if options.workload.model is not None and options.workload.model not in models:
        raise UsageError(f"{options.url} does not serve {options.workload.model!r}; it serves {', '.join(models)}")
    return options.workload.model or models[0]


async def _run_one(options: LoadOptions) -> LoadResult:
    running = OpenLoop(
        options.url,
        arrivals=options.arrivals,
        workload=options.workload,
        duration_s=options.duration_s,
        records=options.records,
        limits=options.limits,
        headers=options.headers,
        keep_alive=options.keep_alive,
        workers=options.workers,
    )
    async with running:
        await _watch(running, options)
    summary, health = summarize(running.records, options.slo), running.health
    verdict, reason = _judged(summary, health, options)
    return LoadResult(
        offered=options.offered,
        summary=summary,
        health=health,
        exact_prompts=running.prompts.exact,
        made_prompts=not options.conversations,
        verdict=verdict,
        reason=reason,
    )


async def _watch(running: OpenLoop, options: LoadOptions) -> None:
    """Show progress until the load is over: live on a terminal, a line now and then elsewhere."""
    console = Console(stderr=True, highlight=False)
    done = asyncio.ensure_future(running.done())
    began = asyncio.get_running_loop().time()

    def line() -> str:
        return _progress_line(running.progress, asyncio.get_running_loop().time() - began, options)

    if console.is_terminal:
        with Live(line(), console=console, transient=True, auto_refresh=False) as live:
            while not done.done():
                await asyncio.wait([done], timeout=LIVE_EVERY_S)
                live.update(line(), refresh=True)
    else:
        while not done.done():
            await asyncio.wait([done], timeout=PLAIN_LINE_EVERY_S)
            click.echo(line(), err=True)
    await done


def _progress_line(now: Progress, elapsed_s: float, options: LoadOptions) -> str:
    return (
        f"{elapsed_s:6.1f} of {options.duration_s:g} s  {options.offered}: {now.sent} sent, {now.in_flight} under way, "
        f"{now.completed} completed, {now.ended - now.completed} not, {now.tokens} tokens"
    )


def _judged(summary: LoadSummary, health: LoadHealth, options: LoadOptions) -> tuple[Verdict, str]:
    if health.saturated:
        return Verdict.UNKNOWN, f"this client was the bottleneck: {health.saturated}"
    if not summary.outcomes.get("completed"):
        return Verdict.UNKNOWN, f"no request completed: {next(iter(summary.errors), 'none was sent')}"
    if summary.goodput is None or options.slo == SLO():
        return Verdict.HELD, "no objective was given"
    met = f"{summary.goodput:.1%} of requests met {options.slo}; the bargain is {options.goodput:.1%}"
    return (Verdict.HELD if summary.goodput >= options.goodput else Verdict.DEVIATED), met


def _sustained(result: LoadResult) -> bool:
    if result.verdict is not Verdict.HELD:
        return False
    # A server that cannot keep up drains its queue after the sending: the load lasts longer than it was offered.
    completed = result.summary.outcomes.get("completed", 0)
    return completed >= SUSTAINED_SHARE * result.summary.sent


def _plain(result: LoadResult) -> dict[str, Any]:
    return asdict(result)


def _show(results: list[LoadResult]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for result in results:
        console.print(_table(result))
        lines = [f"{count} x {error}" for error, count in result.summary.errors.items()]
        if not result.exact_prompts and result.made_prompts:
            lines.append("prompt lengths are approximate: the server has no /tokenize")
        console.print("\n".join([*lines, f"[{STYLE[result.verdict]}]{result.verdict}[/]: {result.reason}"]))
    if len(results) > 1:
        console.print(_sweep_table(results))


def _table(result: LoadResult) -> Table:
    summary, health = result.summary, result.health
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(summary.outcomes.items()))
    table = Table(title=f"{result.offered}: {summary.sent} sent: {outcomes or 'nothing'}", title_justify="left")
    for column in ("ms", "mean", "p50", "p90", "p99"):
        table.add_column(column, justify="left" if column == "ms" else "right")
    rows = (("TTFT", summary.ttft), ("TPOT", summary.tpot), ("ITL", summary.itl), ("E2E", summary.e2e))
    for name, spread in (*rows, ("send lag", summary.send_lag)):
        table.add_row(name, *_cells(spread))
    table.caption_justify = "left"
    table.caption = (
        f"{summary.request_throughput:.2f} requests/s, {summary.output_token_throughput:.0f} tokens/s over "
        f"{summary.lasted_s:.1f} s; client: {health.cpu_share:.0%} of a core, "
        f"loop lag {health.loop_lag_p99_s * 1000:.1f} ms (p99)"
    )
    return table


def _cells(spread: Spread) -> list[str]:
    values = (spread.mean_s, spread.p50_s, spread.p90_s, spread.p99_s)
    return ["-" if value is None else f"{value * 1000:.1f}" for value in values]


def _sweep_table(results: list[LoadResult]) -> Table:
    table = Table(title="sweep", title_justify="left")
    for column in ("offered", "requests/s", "tokens/s", "TTFT p99 ms", "TPOT p99 ms", "goodput", "verdict"):
        table.add_column(column, justify="right")
    for result in results:
        summary = result.summary
        table.add_row(
            result.offered,
            f"{summary.request_throughput:.2f}",
            f"{summary.output_token_throughput:.0f}",
            _cells(summary.ttft)[-1],
            _cells(summary.tpot)[-1],
            "-" if summary.goodput is None else f"{summary.goodput:.1%}",
            str(result.verdict),
        )
    return table
