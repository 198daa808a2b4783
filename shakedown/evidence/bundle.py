"""The folder of a run: everything it saw, in files that outlive it, and the way back from files to records."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec

from shakedown.errors import HarnessError, UsageError
from shakedown.evidence.lines import LineWriter, read_lines
from shakedown.judge.expectations import Expectation
from shakedown.judge.judgement import Judgement, judge
from shakedown.judge.records import Fact, Mark, MarkKind, MetricSample, Recorded, RequestRecord
from shakedown.judge.verdict import ScenarioResult, Verdict

T = TypeVar("T")

RUN_FILE = "run.json"
SCENARIO_FILE = "scenario.json"
EXPECTATIONS_FILE = "expectations.json"
VERDICT_FILE = "verdict.json"
NAME_AT_MOST = 120
TOLD_AT_MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """run.json: what ran, where and how, so that a report can be read without its author."""

    run_id: str
    started_at: float
    ended_at: float | None = None
    """None while it runs, or when it was killed."""
    exit_code: int | None = None
    command: tuple[str, ...] = ()
    git_revision: str | None = None
    seed: int | None = None
    profile: str = ""
    time_scale: float = 1.0
    """Factor on probe times and load times; 1 is the truth."""
    engine: str = ""
    engine_version: str = ""
    system_under_test: str = ""
    """In words: "Llama-3-8B on a modelled A100-80, 2 replicas"."""
    cluster: dict[str, str] = field(default_factory=dict)
    """Name, Kubernetes version, nodes, …, as printed."""
    capabilities: dict[str, bool] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    """Of the harness, Python, images (with digests), charts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioDescription:
    """scenario.json: what was claimed, and what the harness knows about its own success."""

    id: str
    """"<family>/<file stem>::<test name>"."""
    family: str
    title: str
    claim: str
    started_at: float = 0.0
    ended_at: float | None = None
    """None while it runs, or when the run was killed in it."""
    changed_by_overlay: tuple[str, ...] = ()
    unknown_reasons: tuple[str, ...] = ()
    """Why the harness itself failed to find out, one sentence each."""
    not_exercised: str | None = None
    """The missing capability, when the claim was not tested."""
    compared_in: str | None = None
    """What the scenarios of one comparison have in common, in words; they are drawn in one picture."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Records read back, and what was wrong with the files."""

    recorded: Recorded
    torn_lines: int
    unreadable: tuple[str, ...]


class ScenarioBundle:
    """The folder of one scenario. Streams are appended line by line; values are replaced whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._writers: dict[str, LineWriter] = {}

    @property
    def requests_file(self) -> Path:
        """Where the load writes its records; more loads write requests-<name>.jsonl beside it."""
        return self.root / "requests.jsonl"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def describe(self, description: ScenarioDescription) -> None:
        """Write scenario.json: once when the scenario begins, once more when it has ended."""
        self._write(SCENARIO_FILE, description)

    def description(self) -> ScenarioDescription:
        """Raises HarnessError when there is none."""
        return read_json(self.root / SCENARIO_FILE, ScenarioDescription)

    def sample(self, sample: MetricSample) -> None:
        """Append to metrics.jsonl."""
        self._append("metrics.jsonl", sample)

    def mark(self, at: float, kind: MarkKind, text: str, subject: str = "") -> None:
        """Append to marks.jsonl. `at`: wall time."""
        self._append("marks.jsonl", Mark(at=at, kind=kind, text=text, subject=subject))

    def fact(self, name: str, value: str | int | float | bool | list[str] | None) -> None:
        """Append to facts.jsonl; the last value of a name counts."""
        self._append("facts.jsonl", Fact(name=name, value=value))

    def expect(self, expectations: Sequence[Expectation]) -> None:
        """Write expectations.json: all of them, each time one is added."""
        self._write(EXPECTATIONS_FILE, list(expectations))

    def expectations(self) -> tuple[Expectation, ...]:
        path = self.root / EXPECTATIONS_FILE
        return read_json(path, tuple[Expectation, ...]) if path.exists() else ()

    def log(self, name: str, text: str) -> Path:
        """Keep the output of a pod or tool as logs/<name>.log."""
        return self._text(Path("logs") / f"{safe_name(name)}.log", text)

    def manifest(self, name: str, text: str) -> Path:
        """Keep a rendered manifest as manifests/<name>.yaml."""
        return self._text(Path("manifests") / f"{safe_name(name)}.yaml", text)

    def objects(self, when: Literal["before", "after"], name: str, value: Any) -> Path:
        """Keep a Kubernetes object, or any JSON-ready value, as objects-before/ or objects-after/<name>.json."""
        return self._write(f"objects-{when}/{safe_name(name)}.json", value)

    def document(self, name: str, value: Any) -> Path:
        """Keep another JSON file, such as experiment.json or journal.json."""
        return self._write(name, value)

    def read(self) -> Reading:
        """All records of the scenario, of every file that a load left."""
        request_files = sorted(self.root.glob("requests*.jsonl"))
        requests = read_lines(request_files, RequestRecord)
        samples = read_lines([self.root / "metrics.jsonl"], MetricSample)
        marks = read_lines([self.root / "marks.jsonl"], Mark)
        facts = read_lines([self.root / "facts.jsonl"], Fact)
        recorded = Recorded(
            requests=tuple(sorted(requests.values, key=lambda record: record.due_at)),
            samples=tuple(sorted(samples.values, key=lambda sample: sample.at)),
            marks=tuple(sorted(marks.values, key=lambda mark: mark.at)),
            facts={fact.name: fact for fact in facts.values},
            request_files=tuple(path.name for path in request_files),
        )
        torn = requests.torn + samples.torn + marks.torn + facts.torn
        unreadable = requests.unreadable + samples.unreadable + marks.unreadable + facts.unreadable
        return Reading(recorded, torn, unreadable)

    def recorded(self) -> Recorded:
        """The records alone."""
        return self.read().recorded

    def judge(self) -> ScenarioResult:
        """The verdict that the files give, whatever verdict.json says."""
        description = self.description()
        if description.not_exercised is not None:
            return _result(description, Judgement(Verdict.NOT_EXERCISED, (), description.not_exercised))
        reading = self.read()
        reasons = [*description.unknown_reasons, *reading.unreadable[:TOLD_AT_MOST]]
        if description.ended_at is None:
            reasons.append("the run was killed while this scenario was under way")
        try:
            expectations = self.expectations()
        except HarnessError as error:
            return _result(description, Judgement(Verdict.UNKNOWN, (), f"We failed to find out. {error}."))
        return _result(description, judge(expectations, reading.recorded, reasons))

    def conclude(self) -> ScenarioResult:
        """Judge the files and write verdict.json."""
        result = self.judge()
        self._write(VERDICT_FILE, result)
        return result

    def verdict(self) -> ScenarioResult | None:
        """What verdict.json says; None before the scenario was judged."""
        path = self.root / VERDICT_FILE
        return read_json(path, ScenarioResult) if path.exists() else None

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, name: str, value: Any) -> None:
        if name not in self._writers:
            self._writers[name] = LineWriter(self.root / name)
        self._writers[name].append(value)

    def _write(self, name: str, value: Any) -> Path:
        return write_json(self.root / name, value)

    def _text(self, name: Path, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


class RunBundle:
    """The folder of a run."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def create(cls, root: Path) -> Self:
        """Make the folder. Raises UsageError if it cannot be written."""
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the folder {root} cannot be made: {error.strerror}") from error
        return cls(root)

    @classmethod
    def open(cls, root: Path) -> Self:
        """An existing run. Raises UsageError for a folder that holds none."""
        bundle = cls(root)
        if not root.is_dir():
            raise UsageError(f"there is no folder {root}")
        if not (root / RUN_FILE).exists() and not bundle.scenarios():
            raise UsageError(f"{root} is not the folder of a run: it has no {RUN_FILE} and no scenario in it")
        return bundle

    def scenario(self, id_: str) -> ScenarioBundle:
        """The bundle of one scenario, by its "<family>/<file stem>::<test name>"."""
        return ScenarioBundle(self.root / folder_name(id_))

    def scenarios(self) -> tuple[ScenarioBundle, ...]:
        """In the order in which they began."""
        bundles = [ScenarioBundle(path.parent) for path in self.root.glob(f"*/{SCENARIO_FILE}")]
        return tuple(sorted(bundles, key=lambda bundle: (bundle.description().started_at, bundle.root.name)))

    def write_facts(self, facts: RunFacts) -> None:
        write_json(self.root / RUN_FILE, facts)

    def facts(self) -> RunFacts:
        """What run.json says; where there is none, only the run's id."""
        path = self.root / RUN_FILE
        return read_json(path, RunFacts) if path.exists() else RunFacts(run_id=self.root.name, started_at=0.0)

    def results(self) -> tuple[ScenarioResult, ...]:
        """Each scenario's verdict.json; a scenario that was never judged is judged now."""
        return tuple(bundle.verdict() or bundle.judge() for bundle in self.scenarios())


def folder_name(id_: str) -> str:
    """A scenario's id as the name of a folder, unique even where it had to be cut."""
    name = safe_name(id_.replace("::", ".").replace("/", "."))
    if len(name) <= NAME_AT_MOST:
        return name
    return f"{name[:NAME_AT_MOST]}-{hashlib.sha256(id_.encode()).hexdigest()[:8]}"


def safe_name(name: str) -> str:
    """A file name out of any text."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "unnamed"


def write_json(path: Path, value: Any) -> Path:
    """Write a value as indented JSON, replacing the file only when all is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    unfinished.replace(path)
    return path


def read_json(path: Path, type_: type[T]) -> T:
    """Read a value back. Raises HarnessError with one line for a file that is not that."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except (OSError, msgspec.DecodeError) as error:
        raise HarnessError(f"{path} cannot be read: {error}") from error


def _result(description: ScenarioDescription, judgement: Judgement) -> ScenarioResult:
    return ScenarioResult(
        id=description.id,
        family=description.family,
        title=description.title,
        claim=description.claim,
        verdict=judgement.verdict,
        reason=judgement.reason,
        findings=judgement.findings,
        started_at=description.started_at,
        ended_at=description.ended_at or 0.0,
        changed_by_overlay=description.changed_by_overlay,
    )
