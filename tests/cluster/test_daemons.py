"""Who is alive: a daemon that is just being started is not one that has died."""

from pathlib import Path

import pytest

from shakedown.cluster.embedded import daemons as module
from shakedown.cluster.embedded.cgroups import hierarchies
from shakedown.cluster.embedded.daemons import Daemons
from shakedown.cluster.embedded.layout import Layout, layout_of


@pytest.fixture
def daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemons:
    monkeypatch.setattr(Layout, "pids", property(lambda self: tmp_path))
    return Daemons(layout_of("unit"), hierarchies())


def test_a_daemon_without_a_pid_file_is_being_started_and_not_ended(daemons: Daemons, tmp_path: Path) -> None:
    (tmp_path / "node-1-holder.json").write_text("[]")

    assert daemons.names() == ("node-1-holder",)
    assert daemons.ended() == ()


def test_a_daemon_whose_process_is_gone_has_ended(daemons: Daemons, tmp_path: Path) -> None:
    (tmp_path / "etcd.json").write_text("[]")
    (tmp_path / "etcd.pid").write_text("4194305")  # above the largest pid of the kernel

    assert daemons.ended() == ("etcd",)
    assert module.Daemons.pid(daemons, "etcd") is None
