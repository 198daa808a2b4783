"""Children end with their output, at their limit with all their children, or not at all because they are missing."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from shakedown.errors import CommandFailed, MissingPrerequisite
from shakedown.process import OUTPUT_TAIL_CHARACTERS, attached, run, spawn
from shakedown.waiting import wait_until

NOT_A_PROGRAM = "no-such-program-of-shakedown"


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def alive(pid: int) -> bool:
    """False for a zombie too, which a machine without a reaper keeps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_output_streams_are_kept_apart() -> None:
    completed = await run(["sh", "-c", "echo out; echo err >&2"], timeout_s=10)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "out\n", "err\n")


async def test_a_status_other_than_zero_raises_with_the_tail_of_the_output() -> None:
    with pytest.raises(CommandFailed) as failure:
        await run(["sh", "-c", "echo chatter; echo the reason >&2; exit 3"], timeout_s=10)
    assert failure.value.outcome == "ended with status 3"
    assert failure.value.output_tail == "the reason"
    assert str(failure.value).endswith("ended with status 3\nthe reason")


async def test_what_was_printed_is_the_reason_where_nothing_was_complained_about() -> None:
    with pytest.raises(CommandFailed, match="only this"):
        await run(["sh", "-c", "echo only this; exit 1"], timeout_s=10)


async def test_only_the_last_words_of_a_long_output_are_kept() -> None:
    with pytest.raises(CommandFailed) as failure:
        await run(python("import sys; sys.exit('x' * 9000 + 'END')"), timeout_s=10)
    assert len(failure.value.output_tail) == OUTPUT_TAIL_CHARACTERS
    assert failure.value.output_tail.endswith("END")


async def test_an_unchecked_status_is_returned() -> None:
    assert (await run(["sh", "-c", "exit 5"], timeout_s=10, check=False)).returncode == 5


async def test_input_environment_and_folder_reach_the_child(tmp_path: Path) -> None:
    completed = await run(
        ["sh", "-c", 'cat; echo "$SHAKEDOWN_WORD"; pwd'],
        timeout_s=10,
        stdin="given\n",
        env={"SHAKEDOWN_WORD": "told"},
        cwd=tmp_path,
    )
    assert completed.stdout.splitlines() == ["given", "told", str(tmp_path.resolve())]


async def test_output_that_is_no_text_does_not_end_the_run() -> None:
    assert (await run(["printf", r"\377ok"], timeout_s=10)).stdout == "\N{REPLACEMENT CHARACTER}ok"


async def test_a_child_that_outlives_its_limit_is_killed_with_its_own_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(CommandFailed, match=r"did not end within 0\.5 s"):
        await run(["sh", "-c", f"sleep 60 & echo $! >{note}; wait"], timeout_s=0.5)
    assert time.monotonic() - began < 30
    await gone(int(note.read_text()))


async def test_a_child_of_a_cancelled_task_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    task = asyncio.create_task(run(["sh", "-c", f"echo $$ >{note}; exec sleep 60"], timeout_s=60))
    await wait_until("the pid of the child", text_of(note), bool, within_s=10, every_s=0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(int(note.read_text()))


PUTS_BACK = """
import pathlib, signal, sys
def put_back(*_):
    pathlib.Path(sys.argv[1]).write_text("done\\n")
    sys.exit(0)
signal.signal(signal.SIGINT, put_back) if signal.getsignal(signal.SIGINT) != signal.SIG_IGN else None
pathlib.Path(sys.argv[2]).write_text("1")
while True:
    signal.pause()
"""


async def test_a_child_with_a_grace_may_put_things_back_first(tmp_path: Path) -> None:
    note, ready = tmp_path / "put-back", tmp_path / "ready"
    # Not a shell: dash loses an interrupt that arrives while it forks, about one in twenty of a loop of sleeps.
    words = [sys.executable, "-c", PUTS_BACK, str(note), str(ready)]
    task = asyncio.create_task(run(words, timeout_s=60, interrupt_grace_s=20))
    await wait_until("the trap", text_of(ready), bool, within_s=10, every_s=0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert note.read_text() == "done\n"


async def test_a_child_may_put_things_back_even_where_interrupts_are_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        await test_a_child_with_a_grace_may_put_things_back_first(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_program_that_may_not_be_executed_is_a_missing_prerequisite(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o644)
    for start in (run([program], timeout_s=10), attached([program])):
        with pytest.raises(MissingPrerequisite, match="or this user may not execute it"):
            await start
    with pytest.raises(MissingPrerequisite, match="or this user may not execute it"):
        spawn([program], log=tmp_path / "log")


async def test_a_missing_program_is_a_missing_prerequisite(tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisite, match=f"the program '{NOT_A_PROGRAM}' is not installed"):
        await run([NOT_A_PROGRAM], timeout_s=10)
    with pytest.raises(MissingPrerequisite, match=f"the program '{NOT_A_PROGRAM}' is not installed"):
        spawn([NOT_A_PROGRAM], log=tmp_path / "log")


def test_a_daemon_appends_what_it_says_to_its_log_in_a_session_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "daemon.log"
    for word in ("first", "second"):
        pid = spawn(["sh", "-c", 'echo "$WORD out"; echo "$WORD err" >&2'], log=log, env={"WORD": word})
        assert pid != os.getpid()
        _, status = os.waitpid(pid, 0)
        assert status == 0
    assert log.read_text().splitlines() == ["first out", "first err", "second out", "second err"]


def test_a_daemon_leads_its_own_session(tmp_path: Path) -> None:
    pid = spawn(python("import os; print(os.getsid(0) == os.getpid())"), log=tmp_path / "log")
    os.waitpid(pid, 0)
    assert (tmp_path / "log").read_text() == "True\n"


def text_of(path: Path) -> Callable[[], Awaitable[str]]:
    async def read() -> str:
        return path.read_text() if path.exists() else ""

    return read


async def gone(pid: int) -> None:
    async def lives() -> bool:
        return alive(pid)

    await wait_until(f"the end of process {pid}", lives, lambda yes: not yes, within_s=10, every_s=0.01)
