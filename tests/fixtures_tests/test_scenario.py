"""How a scenario's body ended becomes a verdict: whose fault an exception is decides what it means."""

from pathlib import Path

import pytest

from fixtures.scenario import OWN_ASSERTION, Scenario, claim_of, scenario_id, title_of
from shakedown.errors import ClientSaturated, FaultDidNotLand, HarnessError, RollbackFailed, SetupError, WaitTimeout
from shakedown.evidence.bundle import RunBundle, ScenarioDescription
from shakedown.judge.expectations import fact
from shakedown.judge.records import MarkKind
from shakedown.judge.verdict import ScenarioResult, Verdict
from shakedown.settings import RunSettings

ID = "routing/classes::test_people_come_first"


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    description = ScenarioDescription(
        id=ID, family="routing", title="People come first", claim="People come first.", started_at=1.0
    )
    settings = RunSettings(run_dir=str(tmp_path), seed=11, time_scale=0.2)
    return Scenario(RunBundle.create(tmp_path).scenario(ID), description, settings)


def promise(scenario: Scenario, *, kept: bool = True) -> None:
    scenario.fact("answers", 3 if kept else 2)
    scenario.expect(fact("answers"), equals=3)


def raised(error: BaseException) -> BaseException:
    """The error as a body would leave it, with a traceback."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001  # pytest.skip is no Exception
        return caught


def skipped(reason: str) -> BaseException:
    with pytest.raises(pytest.skip.Exception) as outcome:
        pytest.skip(reason)
    return outcome.value


def logged(scenario: Scenario) -> str:
    return (scenario.bundle.logs / "traceback.log").read_text()


def test_a_body_whose_expectations_were_met_holds(scenario: Scenario) -> None:
    promise(scenario)
    result = scenario.conclude(None)
    assert (result.verdict, result.reason) == (Verdict.HELD, "The expectation was met.")
    assert not scenario.crashed


def test_a_body_that_ends_by_itself_may_still_have_deviated(scenario: Scenario) -> None:
    promise(scenario, kept=False)
    assert scenario.conclude(None).verdict is Verdict.DEVIATED


def test_a_plain_assertion_is_a_deviation_in_the_words_of_the_assertion(scenario: Scenario) -> None:
    promise(scenario)
    result = scenario.conclude(raised(AssertionError("the pod never came back\n  a diff of many lines")))
    assert result.verdict is Verdict.DEVIATED
    (finding,) = [finding for finding in result.findings if finding.verdict is Verdict.DEVIATED]
    assert (finding.name, finding.measured) == (OWN_ASSERTION, "the pod never came back")
    assert not scenario.crashed


def test_an_assertion_without_words_is_a_deviation_too(scenario: Scenario) -> None:
    result = scenario.conclude(raised(AssertionError()))
    assert result.verdict is Verdict.DEVIATED
    assert result.findings[0].measured == "failed"


@pytest.mark.parametrize(
    "error",
    [
        HarnessError("no answer from our own proxy"),
        SetupError("the image is missing"),
        WaitTimeout("two Ready pods", 90.0, "one"),
        FaultDidNotLand("the pod lives"),
        ClientSaturated("lag of 148 ms"),
        RollbackFailed("the node is still cordoned"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_harness_that_failed_leaves_the_claim_unknown(scenario: Scenario, error: HarnessError) -> None:
    promise(scenario)
    result = scenario.conclude(raised(error))
    assert result.verdict is Verdict.UNKNOWN
    assert str(error)[1:] in result.reason
    assert not scenario.crashed
    assert type(error).__name__ in logged(scenario)


def test_a_bug_of_the_scenario_leaves_the_claim_unknown_and_is_called_a_crash(scenario: Scenario) -> None:
    promise(scenario)
    result = scenario.conclude(raised(KeyError("answers")))
    assert result.verdict is Verdict.UNKNOWN
    assert "KeyError: 'answers'" in result.reason
    assert scenario.crashed
    assert "Traceback (most recent call last)" in logged(scenario)


def test_what_fails_beside_something_else_is_told_by_its_own_name(scenario: Scenario) -> None:
    promise(scenario)
    alone = scenario.conclude(raised(ExceptionGroup("task group", [WaitTimeout("two Ready replicas", 9.0, "one")])))
    assert alone.verdict is Verdict.UNKNOWN
    assert "did not hold within 9 s" in alone.reason
    assert not scenario.crashed


def test_a_run_that_is_interrupted_leaves_the_claim_unknown(scenario: Scenario) -> None:
    promise(scenario)
    assert scenario.conclude(raised(KeyboardInterrupt())).verdict is Verdict.UNKNOWN


def test_a_harness_that_failed_does_not_hide_what_deviated_before(scenario: Scenario) -> None:
    promise(scenario, kept=False)
    result = scenario.conclude(raised(HarnessError("the rollback was slow")))
    assert result.verdict is Verdict.DEVIATED
    assert "The rollback was slow." in result.reason


def test_a_skip_is_a_claim_not_exercised_whatever_was_expected(scenario: Scenario) -> None:
    promise(scenario, kept=False)
    result = scenario.conclude(skipped("needs an NVIDIA GPU"))
    assert (result.verdict, result.reason, result.findings) == (Verdict.NOT_EXERCISED, "needs an NVIDIA GPU", ())


def test_a_body_that_expected_nothing_is_unknown(scenario: Scenario) -> None:
    result = scenario.conclude(None)
    assert result.verdict is Verdict.UNKNOWN
    assert "the scenario ended before it expected anything" in result.reason.lower()


def test_a_known_failure_to_find_out_makes_a_good_end_unknown(scenario: Scenario) -> None:
    promise(scenario)
    scenario.failed_to_find_out("our own client was saturated")
    assert scenario.conclude(None).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("observed", "verdict"), [(True, Verdict.HELD), (False, Verdict.UNKNOWN)])
def test_a_guard_that_was_not_met_is_our_failure_and_not_the_products(
    scenario: Scenario, observed: bool, verdict: Verdict
) -> None:
    promise(scenario)
    scenario.guard("fault_landed", observed)
    assert scenario.conclude(None).verdict is verdict


def test_the_files_say_what_the_scenario_said(scenario: Scenario) -> None:
    promise(scenario)
    scenario.mark(MarkKind.NOTE, "half way")
    scenario.changed_by_overlay(("Deployment spec.replicas: 2 → 1",))
    result = scenario.conclude(None)
    kept: ScenarioResult | None = scenario.bundle.verdict()
    assert kept == result == scenario.result
    assert result.changed_by_overlay == ("Deployment spec.replicas: 2 → 1",)
    assert result.ended_at > result.started_at == 1.0
    assert [mark.text for mark in scenario.bundle.recorded().marks] == ["half way"]


def test_a_scenario_under_way_reads_as_killed_until_it_is_concluded(scenario: Scenario) -> None:
    promise(scenario)
    assert "was killed" in scenario.bundle.judge().reason
    scenario.conclude(None)
    assert scenario.bundle.judge().verdict is Verdict.HELD


def test_the_boot_is_not_part_of_the_scenario(scenario: Scenario) -> None:
    scenario.began()
    assert scenario.bundle.description().started_at > 1.0


def test_seconds_are_told_at_the_scale_of_the_run(scenario: Scenario) -> None:
    assert scenario.scaled(60) == pytest.approx(12)
    assert scenario.seed == 11


def test_an_item_is_named_by_its_family_file_and_test(request: pytest.FixtureRequest) -> None:
    """A claim
    on two lines."""
    item = request.node
    assert scenario_id(item) == ("fixtures_tests/scenario::test_an_item_is_named_by_its_family_file_and_test")
    assert title_of(item) == "An item is named by its family file and test"
    assert claim_of(item) == "A claim on two lines."


@pytest.mark.parametrize("replicas", [2], ids=["two replicas"])
def test_a_case_is_part_of_the_title_and_claim(request: pytest.FixtureRequest, replicas: int) -> None:
    assert replicas == 2
    assert title_of(request.node) == "A case is part of the title and claim: two replicas"
    assert claim_of(request.node) == title_of(request.node)
