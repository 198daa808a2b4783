"""A client that lacks the CPU must not accuse the server: the same load, alone and beside hogs on its only core."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shakedown.process import run

CORES = sorted(os.sched_getaffinity(0))
CORE, ANOTHER = CORES[0], CORES[-1]
COMMAND = Path(sys.executable).with_name("shakedown")
HOGS = 48
"""They leave the client a fiftieth of the core, and it needs a twentieth of one for 100 streams a second."""
LASTS_S = 6
LOAD = f"--rate 100 --duration {LASTS_S} --prompt-tokens 16 --max-tokens 40 --slo-ttft 0.25 --goodput 0.95"
HOG = ("sh", "-c", "while :; do :; done")
SERVER = Path(__file__).with_name("streaming_server.py")


@contextlib.asynccontextmanager
async def child(*argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    # Sessions share a core evenly, however many processes each has; so each child has its own.
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def a_server() -> AsyncIterator[asyncio.StreamReader]:
    """What it says: its port, then a line when the first request has come."""
    async with child("taskset", "-c", str(ANOTHER), sys.executable, str(SERVER)) as process:
        assert process.stdout is not None
        yield process.stdout


async def verdict(port: int) -> tuple[int, str]:
    argv = ["taskset", "-c", str(CORE), str(COMMAND), "load", f"http://127.0.0.1:{port}", *LOAD.split()]
    completed = await run(argv, timeout_s=120, check=False)
    return completed.returncode, completed.stdout + completed.stderr


@pytest.mark.skipif(len(CORES) < 2, reason="needs a core for the server beside the client's")
async def test_a_starved_client_says_unknown_and_not_that_the_server_was_slow() -> None:
    async with a_server() as said_by_server:
        load = asyncio.create_task(verdict(int(await said_by_server.readline())))
        assert await said_by_server.readline() == b"asked\n"
        async with contextlib.AsyncExitStack() as hogs:
            for _ in range(HOGS):
                await hogs.enter_async_context(child("taskset", "-c", str(CORE), *HOG))
            # As long as the load; what it could not send by then need not wait for the core as well.
            await asyncio.wait({load}, timeout=LASTS_S)
        code, said = await load
    assert code == 2, said
    assert "this client was the bottleneck" in said, said
