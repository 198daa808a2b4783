"""`shakedown run`: build what is missing, run the scenarios, write the report, say the verdict."""

import asyncio
import os
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from shakedown.cli.guardian import watch_over
from shakedown.cli.progress import Progress
from shakedown.cluster import embedded
from shakedown.cluster.api import Cluster
from shakedown.cluster.embedded import EmbeddedCluster
from shakedown.cluster.embedded.build import binary
from shakedown.engine.environment import EngineEnvironment, ensure_environment
from shakedown.errors import HarnessError, UsageError
from shakedown.evidence.bundle import RunBundle, RunFacts
from shakedown.evidence.publish import publish
from shakedown.judge.verdict import ScenarioResult, Verdict
from shakedown.process import attached
from shakedown.process import run as run_process
from shakedown.serving.configuration import scale_probes
from shakedown.serving.rendering import base_container
from shakedown.settings import CLUSTERS, DEFAULT_TIME_SCALE, ENGINES, PROFILES, RunSettings

ROOT = Path(__file__).resolve().parents[2]
SUITES = ROOT / "suites"
AUTOSCALING_FAMILY = "autoscaling"
PLAIN_WIDTH = 150
PYTEST_SOME_FAILED, PYTEST_USAGE_ERROR = 1, 4
STYLE = {Verdict.HELD: "green", Verdict.DEVIATED: "red", Verdict.UNKNOWN: "yellow", Verdict.NOT_EXERCISED: "dim"}


@click.command()
@click.argument("selection", nargs=-1, metavar="[FAMILY|SCENARIO]...")
@click.option("--profile", type=click.Choice(PROFILES), default="smoke", show_default=True)
@click.option("--cluster", type=click.Choice(CLUSTERS), default="embedded", show_default=True)
@click.option("--name", default="shakedown", show_default=True, help="Which embedded cluster.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="For --cluster current.")
@click.option("--context", help="Kubeconfig context; implies --cluster current.")
@click.option("--engine", type=click.Choice(ENGINES), default="twin", show_default=True)
@click.option("--engine-version", default="0.32.0", show_default=True)
@click.option("--time-scale", type=float, help="Factor on probe and load times; 1 is the truth.  [default: by profile]")
@click.option("--suites", type=click.Path(path_type=Path), help="A folder with scenarios of your own.")
@click.option("--reports", type=click.Path(path_type=Path), default=Path("reports"), show_default=True)
@click.option("--service-url", help="Where the engine is reached, if not at its Service's cluster address.")
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("--keep", is_flag=True, help="Leave the embedded cluster up afterwards.")
@click.option("--dry-run", is_flag=True, help="Print what would be deployed and done, and do nothing.")
def run(
    selection: tuple[str, ...],
    suites: Path | None,
    reports: Path,
    name: str,
    keep: bool,
    dry_run: bool,
    **options: str | float | Path | None,
) -> int:
    """Run scenarios and give a verdict.

    \b
    Examples:
      shakedown run
      shakedown run chaos --keep
      shakedown run --context my-gpu-cluster --engine gpu --profile nightly
    """
    paths = scenario_paths(selection, suites)
    settings = build_settings(reports, name, options)
    return asyncio.run(_run(settings, paths, keep=keep, dry_run=dry_run))


commands: tuple[click.Command, ...] = (run,)


def build_settings(reports: Path, name: str, options: dict[str, str | float | Path | None]) -> RunSettings:
    """The run's settings from the command line. Raises UsageError."""
    given = {key: value for key, value in options.items() if value is not None}
    if "context" in given or "kubeconfig" in given:
        given["cluster"] = "current"
    if "kubeconfig" in given:
        given["kubeconfig"] = str(given["kubeconfig"])
        if not os.access(str(given["kubeconfig"]), os.R_OK):
            raise UsageError(f"the kubeconfig {given['kubeconfig']} cannot be read")
    given.setdefault("time_scale", DEFAULT_TIME_SCALE[str(given["profile"])] if given["engine"] != "gpu" else 1.0)
    run_dir = reports / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    settings = RunSettings(run_dir=str(run_dir.absolute()), cluster_name=name, **given)  # type: ignore[arg-type]
    scale_probes(base_container(), settings)  # refuses a scale that would leave a probe with half a second
    return settings


def scenario_paths(selection: tuple[str, ...], suites: Path | None) -> list[str]:
    """Files, folders or node ids for pytest. Raises UsageError for a name that no scenario has."""
    root = suites.absolute() if suites else SUITES
    if suites and not suites.is_dir():
        raise UsageError(f"the suites folder {suites} does not exist")
    if not selection:
        return [str(root)]
    return [_scenario_path(word, root) for word in selection]


def _scenario_path(word: str, root: Path) -> str:
    file_part, _, test = word.partition("::")
    candidates = [root / file_part, root / f"{file_part}.py", *root.glob(f"*/test_{file_part}.py")]
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        families = ", ".join(sorted(path.name for path in root.iterdir() if path.is_dir() and path.name[0] not in "_."))
        raise UsageError(f"there is no family or scenario {word!r}; families: {families}")
    return f"{found}::{test}" if test else str(found)


async def _run(settings: RunSettings, paths: list[str], *, keep: bool, dry_run: bool) -> int:
    progress = Progress()
    if dry_run:
        return await _dry_run(settings, paths, progress)
    if settings.cluster != "embedded":
        await require_answer(settings)
        return await _scenarios(settings, paths, [], RunBundle.create(Path(settings.run_dir)))
    bundle = RunBundle.create(Path(settings.run_dir))
    found = await embedded.find(settings.cluster_name)
    if found is None and not keep:
        watch_over(settings.cluster_name, bundle.root / "guardian.log")
    try:
        cluster = await prepare_embedded(settings, progress)
        if wants_autoscaling(settings, paths):
            await bring_in_autoscaling(cluster, progress)
        settings = replace(settings, kubeconfig=str(cluster.kubeconfig), kubectl=(str(cluster.multicall), "kubectl"))
        return await _scenarios(settings, paths, cluster.enter([]), bundle)
    finally:
        if found is None and not keep:
            await embedded.down(settings.cluster_name, progress.line)


async def require_answer(settings: RunSettings) -> None:
    """Raises UsageError or ClusterUnreachable before anything is written for a cluster that cannot be used."""
    async with await Cluster.connect(settings.kubeconfig_path, settings.context) as cluster:
        await cluster.version()


async def prepare_embedded(settings: RunSettings, progress: Progress) -> EmbeddedCluster:
    """Cluster and engine side by side; then the engine's files are offered to the nodes."""
    starting = asyncio.create_task(embedded.up(settings.cluster_name, report=progress.line))
    try:
        environment = await ensure_environment(settings.engine_version, report=progress.line)
        cluster = await starting
    finally:
        # Without an engine there is no use for a cluster, and one half up must have cleaned up before it is taken down.
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    await offer_engine(cluster, environment)
    return cluster


async def bring_in_autoscaling(cluster: EmbeddedCluster, progress: Progress) -> None:
    """Without Prometheus or KEDA the other families can be exercised all the same; that family says what it lacks."""
    try:
        await cluster.install_autoscaling(progress.line)
    except HarnessError as missing:
        progress.line(f"autoscaling cannot be exercised: {missing}")


def wants_autoscaling(settings: RunSettings, paths: list[str]) -> bool:
    """True if what is selected may hold an autoscaling scenario: the smoke profile has none."""
    chosen = [Path(path.partition("::")[0]) for path in paths]
    inside = any(AUTOSCALING_FAMILY in path.parts for path in chosen)
    above = any(path.is_dir() and (path / AUTOSCALING_FAMILY).is_dir() for path in chosen)
    return settings.profile != "smoke" and (inside or above)


async def offer_engine(cluster: EmbeddedCluster, environment: EngineEnvironment) -> None:
    """Bind the engine's parts into every node, at the paths that the overlays mount."""
    await cluster.offer("python", environment.python_home)
    await cluster.offer("engine", environment.venv)
    await cluster.offer("twin", environment.twin_root)
    await cluster.offer("models", environment.models_root)
    await offer_ourselves(cluster)


async def offer_ourselves(cluster: EmbeddedCluster) -> None:
    """Shakedown and what it imports, for loads that are sent from the nodes."""
    await cluster.offer("shakedown", ROOT)
    await cluster.offer("packages", Path(sysconfig.get_path("purelib")))


async def _scenarios(settings: RunSettings, paths: list[str], prefix: list[str], bundle: RunBundle) -> int:
    settings_file = bundle.root / "settings.json"
    settings.save(settings_file)
    bundle.write_facts(
        RunFacts(
            run_id=bundle.root.name,
            started_at=time.time(),
            command=tuple(sys.argv),
            git_revision=await git_revision(),
            seed=settings.seed,
            profile=settings.profile,
            time_scale=settings.time_scale,
            engine=settings.engine,
            engine_version=settings.engine_version,
        )
    )
    status = await attached([*prefix, *pytest_command(settings, paths, settings_file)], env={"PYTHONPATH": str(ROOT)})
    results = bundle.results()
    exit_code = exit_code_of(status, results)
    bundle.write_facts(replace(bundle.facts(), ended_at=time.time(), exit_code=exit_code))
    publish(bundle.root)
    _print_verdicts(results, bundle.root)
    return exit_code


def exit_code_of(pytest_status: int, results: tuple[ScenarioResult, ...]) -> int:
    """By the verdicts; a harness that broke beside them makes what held unknown, and a wrong option stays one."""
    if pytest_status == PYTEST_USAGE_ERROR and not results:
        return UsageError.EXIT_CODE
    worst = Verdict.worst(result.verdict for result in results)
    broke = pytest_status not in (0, PYTEST_SOME_FAILED)
    return Verdict.UNKNOWN.exit_code if broke and worst is Verdict.HELD else worst.exit_code


async def git_revision() -> str | None:
    """Of the checkout that runs; None for an installed package."""
    if not (ROOT / ".git").exists():
        return None
    completed = await run_process(["git", "-C", ROOT, "rev-parse", "HEAD"], timeout_s=10, check=False)
    return completed.stdout.strip() or None


def pytest_command(settings: RunSettings, paths: list[str], settings_file: Path) -> list[str]:
    """The child that runs the scenarios."""
    chosen = {"smoke": "smoke", "nightly": "not certify"}
    profile = ["-m", chosen[settings.profile]] if settings.profile in chosen else []
    return [
        *(sys.executable, "-m", "pytest", "-c", str(SUITES / "pytest.ini"), "--rootdir", str(ROOT)),
        *("-p", "fixtures.plugin", "--shakedown-settings", str(settings_file)),
        *profile,
        *paths,
    ]


async def _dry_run(settings: RunSettings, paths: list[str], progress: Progress) -> int:
    multicall = await binary("kubernetes", progress.line)
    settings = replace(settings, kubectl=(str(multicall), "kubectl"))
    settings_file = Path(settings.run_dir).parent / ".dry-run.json"
    settings_file.parent.mkdir(parents=True, exist_ok=True)
    settings.save(settings_file)
    try:
        argv = [*pytest_command(settings, paths, settings_file), "--collect-only", "--shakedown-dry-run"]
        return await attached(argv, env={"PYTHONPATH": str(ROOT)})
    finally:
        settings_file.unlink(missing_ok=True)


def _print_verdicts(results: tuple[ScenarioResult, ...], root: Path) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    table = Table("scenario", "verdict", "why", title="Verdicts", title_justify="left", expand=False)
    for result in results:
        verdict = f"[{STYLE[result.verdict]}]{result.verdict.value}[/]"
        table.add_row(f"{result.family}: {result.title}", verdict, result.reason)
    console.print(table)
    worst = Verdict.worst(result.verdict for result in results)
    console.print(f"Verdict: [bold {STYLE[worst]}]{worst.value}[/]   report: {root / 'report.html'}", soft_wrap=True)
