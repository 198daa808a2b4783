"""The options of a run are refused in one line when they make no sense, and survive being written down."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from shakedown.errors import UsageError
from shakedown.settings import RunSettings, as_plain, cache_root


def test_settings_survive_being_written_and_read(tmp_path: Path) -> None:
    settings = RunSettings(
        run_dir="runs/1",
        profile="nightly",
        cluster="current",
        context="kind",
        kubectl=("ip", "netns", "exec", "kubectl"),
        engine="cpu",
        time_scale=0.4,
        seed=11,
        service_url="http://127.0.0.1:8000",
    )
    settings.save(tmp_path / "settings.json")
    assert RunSettings.load(tmp_path / "settings.json") == settings


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("profile", "weekly", "unknown profile 'weekly'; known: smoke, nightly"),
        ("cluster", "minikube", "unknown cluster 'minikube'; known: embedded, current"),
        ("engine", "tpu", "unknown engine 'tpu'; known: twin, cpu, gpu"),
        ("engine_version", "0.11.0", "vLLM 0.32.0, not 0.11.0; older engines run as --engine cpu"),
        ("time_scale", 0.0, "above 0 and at most 1, not 0"),
        ("time_scale", -0.2, "above 0 and at most 1, not -0.2"),
        ("time_scale", 1.5, "above 0 and at most 1, not 1.5"),
        ("time_scale", float("nan"), "above 0 and at most 1, not nan"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_what_is_known(option: str, value: object, told: str) -> None:
    with pytest.raises(UsageError) as refusal:
        RunSettings(run_dir="run", **{option: value})  # type: ignore[arg-type]
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"profile": "smoke"}', '{"run_dir": 1}', '{"run_dir": "r", "seed": "seven"}'],
    ids=["empty", "torn", "a list", "no folder", "a number for a folder", "a word for a number"],
)
def test_a_file_that_is_no_settings_is_a_usage_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not the settings of a run"):
        RunSettings.load(path)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the settings of a run"):
        RunSettings.load(tmp_path / "nowhere.json")


def test_a_file_with_an_unknown_engine_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"run_dir": "run", "engine": "tpu"}')
    with pytest.raises(UsageError, match="unknown engine 'tpu'"):
        RunSettings.load(path)


@pytest.mark.parametrize(
    ("scale", "seconds", "whole"), [(0.2, 60, 12), (0.2, 15, 3), (0.2, 5, 1), (0.4, 15, 6), (1, 7, 7), (0.2, 0, 0)]
)
def test_seconds_that_stay_whole_are_scaled_exactly(scale: float, seconds: float, whole: int) -> None:
    assert RunSettings(run_dir="run", time_scale=scale).scaled_whole_s(seconds, "x") == whole


@pytest.mark.parametrize(("scale", "seconds"), [(0.13, 60), (0.2, 1), (0.2, 7), (0.01, 10), (1e-12, 60)])
def test_seconds_that_would_be_rounded_are_refused(scale: float, seconds: float) -> None:
    with pytest.raises(UsageError, match=rf"time scale {scale:g} turns x of {seconds:g} s into .* whole seconds"):
        RunSettings(run_dir="run", time_scale=scale).scaled_whole_s(seconds, "x")


def test_settings_cannot_be_changed_during_a_run() -> None:
    with pytest.raises(FrozenInstanceError):
        RunSettings(run_dir="run").seed = 8  # type: ignore[misc]


def test_names_are_those_of_the_options() -> None:
    assert set(as_plain(RunSettings(run_dir="run"))) == set(RunSettings.names())


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"SHAKEDOWN_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, Path("/c")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/shakedown")),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, Path("/h/.cache/shakedown")),
    ],
    ids=["told", "by the desktop's convention", "at home"],
)
def test_the_cache_is_where_the_environment_says(
    variables: dict[str, str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHAKEDOWN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == root
