"""What a profile selects, and when the parts of an autoscaling loop are brought in."""

from pathlib import Path

import pytest

from shakedown.cli.run import SUITES, pytest_command, wants_autoscaling
from shakedown.settings import RunSettings


def settings(profile: str) -> RunSettings:
    return RunSettings(run_dir="run", profile=profile)


@pytest.mark.parametrize(
    ("profile", "marks"), [("smoke", ["-m", "smoke"]), ("nightly", ["-m", "not certify"]), ("certify", [])]
)
def test_a_profile_is_a_selection_of_marks(profile: str, marks: list[str]) -> None:
    command = pytest_command(settings(profile), ["suites"], Path("settings.json"))
    given = command[command.index("settings.json") + 1 : -1]
    assert given == marks
    assert command[-1] == "suites"


@pytest.mark.parametrize(
    ("profile", "paths", "wanted"),
    [
        ("nightly", [str(SUITES)], True),
        ("nightly", [str(SUITES / "autoscaling")], True),
        ("nightly", [f"{SUITES / 'autoscaling' / 'test_scale_out.py'}::test_x"], True),
        ("nightly", [str(SUITES / "memory")], False),
        ("certify", [str(SUITES / "memory"), str(SUITES / "autoscaling")], True),
        ("smoke", [str(SUITES)], False),
    ],
)
def test_prometheus_and_keda_are_brought_in_only_for_who_may_need_them(
    profile: str, paths: list[str], wanted: bool
) -> None:
    assert wants_autoscaling(settings(profile), paths) is wanted
