"""A fake cluster of two nodes with two replicas, served on loopback."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shakedown.chaos.access import Access
from shakedown.cluster.api import Cluster
from tests.chaos.fake_kubernetes import FakeKubernetes, serving


@pytest.fixture
def fake() -> FakeKubernetes:
    kubernetes = FakeKubernetes()
    kubernetes.add_node("node-1")
    kubernetes.add_node("node-2")
    kubernetes.add_pod("engine-a", "node-1")
    kubernetes.add_pod("engine-b", "node-2")
    return kubernetes


@pytest.fixture
async def access(fake: FakeKubernetes, tmp_path: Path) -> AsyncIterator[Access]:
    async with serving(fake, tmp_path) as kubeconfig:
        yield Access(kubeconfig=kubeconfig)


@pytest.fixture
async def cluster(access: Access) -> AsyncIterator[Cluster]:
    async with await access.connect() as connected:
        yield connected
