"""A real embedded cluster for the tests of this folder, under a name of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio

from shakedown.cluster import embedded
from shakedown.cluster.embedded import EmbeddedCluster
from shakedown.process import run

NAME = "selftest"
Kubectl = Callable[..., Awaitable[str]]


@pytest_asyncio.fixture(scope="session")
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    lines: list[str] = []
    up = await embedded.up(NAME, report=lines.append)
    try:
        yield up
    finally:
        await asyncio.shield(embedded.down(NAME))


@pytest_asyncio.fixture(scope="session")
async def kubectl(cluster: EmbeddedCluster) -> Kubectl:
    async def call(*words: str, stdin: str | None = None) -> str:
        return (await run(cluster.kubectl(words), timeout_s=90, stdin=stdin)).stdout

    return call
