"""A run is its files: read back whole, judged again to the same verdict, and published for people and for CI."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from shakedown.errors import HarnessError, UsageError
from shakedown.evidence.bundle import (
    NAME_AT_MOST,
    RunBundle,
    ScenarioBundle,
    ScenarioDescription,
    folder_name,
    safe_name,
)
from shakedown.evidence.junit import junit
from shakedown.evidence.lines import LineWriter
from shakedown.evidence.publish import publish
from shakedown.evidence.report import report
from shakedown.judge import (
    Expectation,
    Fact,
    Mark,
    MarkKind,
    MetricSample,
    Outcome,
    RequestRecord,
    ScenarioResult,
    Verdict,
    expectation,
    fact,
    outcome_count,
    request_count,
)
from tests.evidence.synthetic import EPOCH, answered, pod_kill, request_burst, whole_run, write_requests

ID = "routing/classes::test_people_come_first"


def describe(bundle: ScenarioBundle, *, ended_at: float | None = EPOCH + 9, claim: str = "People come first.") -> None:
    bundle.describe(
        ScenarioDescription(
            id=ID, family="routing", title="People come first", claim=claim, started_at=EPOCH, ended_at=ended_at
        )
    )


def answers(number: int) -> list[RequestRecord]:
    return [answered(f"r{i}", EPOCH + i, ttft=0.1, tokens=3, gap=0.02, pod="vllm-0") for i in range(number)]


ALL_COMPLETED = [
    expectation(request_count(), equals=3),
    expectation(outcome_count(Outcome.COMPLETED), equals=3),
]


def scenario(
    run_dir: Path,
    *,
    clauses: list[Expectation] = ALL_COMPLETED,
    ended_at: float | None = EPOCH + 9,
    claim: str = "People come first.",
) -> ScenarioBundle:
    bundle = RunBundle.create(run_dir).scenario(ID)
    write_requests(bundle, answers(3))
    bundle.expect(clauses)
    describe(bundle, ended_at=ended_at, claim=claim)
    return bundle


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    sample = MetricSample(at=EPOCH + 1, pod="vllm-0", values={"vllm:num_requests_running": 2.0})
    mark = Mark(at=EPOCH + 2, kind=MarkKind.NOTE, text="“quoted”\nand two lines", subject="vllm-0")
    with scenario(tmp_path) as bundle:
        bundle.sample(sample)
        bundle.mark(mark.at, mark.kind, mark.text, mark.subject)
        bundle.fact("differences", ["spec.replicas"])
        bundle.fact("landed", False)
        bundle.fact("landed", True)
    reading = ScenarioBundle(bundle.root).read()
    assert reading.recorded.requests == tuple(answers(3))
    assert reading.recorded.samples == (sample,)
    assert reading.recorded.marks == (mark,)
    assert reading.recorded.facts == {
        "differences": Fact(name="differences", value=["spec.replicas"]),
        "landed": Fact(name="landed", value=True),
    }
    assert (reading.torn_lines, reading.unreadable) == (0, ())
    assert bundle.expectations() == tuple(ALL_COMPLETED)


def test_the_records_of_several_loads_are_read_together_in_the_order_of_their_due_times(tmp_path: Path) -> None:
    bundle = scenario(tmp_path)
    early = answered("early", EPOCH - 1, ttft=0.1, tokens=3, gap=0.02, pod="vllm-0")
    with LineWriter(bundle.root / "requests-batch.jsonl") as file:
        file.append(early)
    assert [record.id for record in bundle.recorded().requests] == ["early", "r0", "r1", "r2"]


def test_a_line_that_a_killed_writer_left_unfinished_is_left_out_and_counted(tmp_path: Path) -> None:
    bundle = scenario(tmp_path)
    whole = bundle.requests_file.read_bytes()
    bundle.requests_file.write_bytes(whole[:-20])
    reading = bundle.read()
    assert [record.id for record in reading.recorded.requests] == ["r0", "r1"]
    assert (reading.torn_lines, reading.unreadable) == (1, ())


def test_a_writer_that_comes_after_a_killed_one_loses_only_the_torn_line(tmp_path: Path) -> None:
    bundle = scenario(tmp_path)
    bundle.requests_file.write_bytes(bundle.requests_file.read_bytes()[:-20])
    with LineWriter(bundle.requests_file) as file:
        file.append(answers(4)[3])
    assert [record.id for record in bundle.recorded().requests] == ["r0", "r1", "r3"]


def test_a_whole_line_that_is_no_record_makes_the_verdict_unknown(tmp_path: Path) -> None:
    bundle = scenario(tmp_path)
    bundle.requests_file.write_bytes(bundle.requests_file.read_bytes() + b'{"id": 3}\n')
    assert bundle.read().unreadable[0].startswith("line 4 of requests.jsonl cannot be read")
    result = bundle.judge()
    assert result.verdict is Verdict.UNKNOWN
    assert "Line 4 of requests.jsonl cannot be read" in result.reason


def test_a_scenario_that_never_ended_is_unknown_because_the_run_was_killed(tmp_path: Path) -> None:
    result = scenario(tmp_path, ended_at=None).judge()
    assert result.verdict is Verdict.UNKNOWN
    assert "the run was killed while this scenario was under way" in result.reason.lower()
    (published,) = publish(tmp_path)
    assert published.verdict is Verdict.UNKNOWN


def test_judging_again_gives_the_same_result(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run")
    for bundle in run.scenarios():
        assert ScenarioBundle(bundle.root).judge() == bundle.verdict()
        assert ScenarioBundle(bundle.root).conclude() == bundle.verdict()


def test_an_edited_record_changes_the_verdict_and_the_old_file_does_not_hide_it(tmp_path: Path) -> None:
    bundle = scenario(tmp_path)
    assert bundle.conclude().verdict is Verdict.HELD
    text = bundle.requests_file.read_text()
    bundle.requests_file.write_text(text.replace('"completed"', '"hung"', 1))
    assert bundle.judge().verdict is Verdict.DEVIATED
    bundle.requests_file.write_text(text)
    assert bundle.judge().verdict is Verdict.HELD


def test_expectations_that_cannot_be_read_make_the_verdict_unknown(tmp_path: Path) -> None:
    bundle = scenario(tmp_path)
    (bundle.root / "expectations.json").write_text("[{")
    assert bundle.judge().verdict is Verdict.UNKNOWN


def test_a_pod_kill_that_users_recover_from_holds_and_one_that_they_do_not_deviates(tmp_path: Path) -> None:
    verdicts = {}
    for recovers in (True, False):
        run = RunBundle.create(tmp_path / str(recovers))
        pod_kill(run, recovers=recovers)
        (result,) = run.results()
        verdicts[recovers] = result.verdict
    assert verdicts[False] is Verdict.DEVIATED
    assert verdicts[True] is Verdict.HELD


def test_a_made_up_run_has_each_verdict(tmp_path: Path) -> None:
    verdicts = {result.family: result.verdict for result in whole_run(tmp_path / "run").results()}
    assert set(verdicts.values()) == set(Verdict)
    assert verdicts["lifecycle"] is Verdict.HELD
    assert verdicts["memory"] is Verdict.DEVIATED
    assert verdicts["performance"] is Verdict.UNKNOWN


def test_what_could_not_be_exercised_says_what_is_missing_and_needs_no_records(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run")
    (result,) = [result for result in run.results() if result.verdict is Verdict.NOT_EXERCISED]
    assert result.reason == "needs an NVIDIA GPU; this cluster has none"
    assert result.findings == ()


def test_published_are_a_report_a_junit_file_and_a_summary(tmp_path: Path) -> None:
    root = tmp_path / "run"
    results = publish(whole_run(root).root)
    assert {"report.html", "junit.xml", "summary.md"} <= {path.name for path in root.iterdir()}
    summary, report = (root / "summary.md").read_text(), (root / "report.html").read_text()
    for result in results:
        assert result.title.split("0.90")[0].strip() in report
        assert result.verdict.value in summary
    assert "# ❌ Shakedown: deviated" in summary


class Resources(HTMLParser):
    """What a browser would fetch, and the scripts that it would run."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        loads = ("src", "href", "xlink:href", "data", "action", "srcset", "poster")
        self.fetched += [value or "" for name, value in attrs if name in loads]


def parsed(document: str) -> Resources:
    resources = Resources()
    resources.feed(document)
    return resources


def test_a_report_asks_nothing_of_the_network(tmp_path: Path) -> None:
    root = tmp_path / "run"
    publish(whole_run(root).root)
    document = (root / "report.html").read_text()
    outside = [target for target in parsed(document).fetched if re.match(r"\s*([a-z][a-z+.-]*:|//)", target, re.I)]
    assert [target for target in outside if not target.startswith("data:")] == []
    assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", document)
    assert "default-src 'none'" in document


ATTACK = "</script><script>alert(1)</script><img src=https://example.org/x onerror=alert(2)>"


def test_text_from_outside_is_shown_and_never_run(tmp_path: Path) -> None:
    clean, hostile = tmp_path / "clean", tmp_path / "hostile"
    documents = []
    for root, claim in ((clean, "People come first."), (hostile, ATTACK)):
        with scenario(root, claim=claim) as bundle:
            bundle.mark(EPOCH + 1, MarkKind.KUBERNETES, claim, claim)
            bundle.fact("words", claim)
            bundle.expect([expectation(fact("words", title=claim), equals="other")])
            bundle.conclude()
        publish(root)
        documents.append((root / "report.html").read_text())
    harmless, attacked = (parsed(document) for document in documents)
    assert attacked.scripts == harmless.scripts
    assert not [target for target in attacked.fetched if "example.org" in target]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in documents[1]
    assert "<script>alert(1)" not in documents[1]
    assert "<script>" not in (hostile / "summary.md").read_text()


@pytest.mark.parametrize(
    ("verdict", "element"),
    [
        (Verdict.HELD, None),
        (Verdict.DEVIATED, "failure"),
        (Verdict.UNKNOWN, "error"),
        (Verdict.NOT_EXERCISED, "skipped"),
    ],
)
def test_each_verdict_is_what_ci_calls_it(verdict: Verdict, element: str | None) -> None:
    result = ScenarioResult(
        id=ID, family="routing", title="T", claim="C", verdict=verdict, reason="why \x1b[31m", started_at=1, ended_at=3
    )
    root = ElementTree.fromstring(junit([result], "run-1"))
    (case,) = root.iter("testcase")
    assert [child.tag for child in case] == ([element] if element else [])
    assert (case.get("classname"), case.get("name"), case.get("time")) == (
        "routing/classes",
        "test_people_come_first",
        "2.000",
    )
    counted = {kind: root.get(kind) for kind in ("failures", "errors", "skipped")}
    plural = {"failure": "failures", "error": "errors", "skipped": "skipped"}
    assert counted == {name: "1" if element and plural[element] == name else "0" for name in counted}
    if element:
        assert case[0].get("message") == "why \N{REPLACEMENT CHARACTER}[31m"


def test_a_junit_file_counts_its_suites(tmp_path: Path) -> None:
    root = tmp_path / "run"
    results = publish(whole_run(root).root)
    document = ElementTree.parse(root / "junit.xml").getroot()
    assert document.get("tests") == str(len(results))
    assert sum(int(suite.get("tests", "0")) for suite in document.iter("testsuite")) == len(results)
    assert {suite.get("name") for suite in document.iter("testsuite")} == {result.family for result in results}


def test_long_names_stay_apart_when_they_are_cut() -> None:
    one, other = (folder_name(f"chaos/x::test_{'a' * 200}_{end}") for end in ("one", "other"))
    assert one != other
    assert len(one) <= NAME_AT_MOST + 9


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "a b\nc", "..", ""])
def test_a_file_name_never_leads_out_of_its_folder(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", safe_name(name))


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        RunBundle.open(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is not the folder of a run"):
        RunBundle.open(tmp_path)


def test_a_torn_description_is_told_in_one_line(tmp_path: Path) -> None:
    bundle = scenario(tmp_path)
    (bundle.root / "scenario.json").write_text('{"id": "')
    with pytest.raises(HarnessError, match=r"scenario\.json cannot be read") as error:
        bundle.judge()
    assert "\n" not in str(error.value)


def test_scenarios_of_one_comparison_are_drawn_in_one_picture(tmp_path: Path) -> None:
    run = RunBundle.create(tmp_path / "run")
    request_burst(run)
    pod_kill(run)
    for each in run.scenarios():
        each.describe(replace(each.description(), compared_in="With and without"))
    document = report(run, run.results())
    assert document.count('aria-label="2 scenarios under the same load') == 1
    assert "With and without" in document


def test_traffic_classes_are_drawn_and_counted_apart(tmp_path: Path) -> None:
    run = RunBundle.create(tmp_path / "run")
    request_burst(run)
    pod_kill(run)
    for each in run.scenarios():
        each.describe(replace(each.description(), compared_in="With and without"))
        records = [msgspec.json.decode(line) for line in each.requests_file.read_bytes().splitlines()]
        told_apart = [{**record, "traffic_class": f"class {serial % 2}"} for serial, record in enumerate(records)]
        each.requests_file.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in told_apart))
    document = report(run, run.results())
    # Two classes in two scenarios, each in the comparison and in its own picture.
    assert document.count("Requests: class 0") == document.count("Requests: class 1") == 4
    assert document.count("</a>: class 0</td>") == document.count("</a>: class 1</td>") == 2


def test_a_scenario_alone_is_no_comparison(tmp_path: Path) -> None:
    run = RunBundle.create(tmp_path / "run")
    request_burst(run)
    (only,) = run.scenarios()
    only.describe(replace(only.description(), compared_in="With and without"))
    assert "under the same load" not in report(run, run.results())
