"""The only place that starts child processes: argument lists, time limits, output kept."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shakedown.errors import CommandFailed, MissingPrerequisite

OUTPUT_TAIL_CHARACTERS = 4000
PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
CANNOT_START = (FileNotFoundError, PermissionError)
"""A folder on PATH that this user may not search turns a missing program into a forbidden one."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A child process that ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


async def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    check: bool = True,
    interrupt_grace_s: float = 0.0,
) -> Completed:
    """Run a command to its end. `env` is added to the present environment.

    At `timeout_s` or when we are cancelled the child gets SIGINT and `interrupt_grace_s` to put things back first.
    Raises CommandFailed on a non-zero status (unless `check` is false) or at `timeout_s`, when the whole process
    group is killed; MissingPrerequisite if there is no such program.
    """
    words = [str(word) for word in argv]
    try:
        child = await asyncio.create_subprocess_exec(
            *words,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_heed_interrupts if interrupt_grace_s > 0 else None,
        )
    except CANNOT_START as error:
        raise _missing(words[0], error) from error
    try:
        out, err = await asyncio.wait_for(child.communicate(stdin.encode() if stdin is not None else None), timeout_s)
    except (TimeoutError, asyncio.CancelledError) as interruption:
        await _end(child, interrupt_grace_s)
        if isinstance(interruption, TimeoutError):
            raise CommandFailed(words, f"did not end within {timeout_s:g} s", "") from interruption
        raise
    completed = Completed(
        tuple(words), child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")
    )
    if check and completed.returncode != 0:
        tail = (completed.stderr.strip() or completed.stdout.strip())[-OUTPUT_TAIL_CHARACTERS:]
        raise CommandFailed(words, f"ended with status {completed.returncode}", tail)
    return completed


def uv_program() -> str:
    """The uv to install with: the launcher's, the one on PATH, or the one that came with this package."""
    return os.environ.get("UV") or shutil.which("uv") or str(Path(sys.executable).with_name("uv"))


def spawn(argv: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None) -> int:
    """Start a daemon in a session of its own, its output appended to `log`; return its pid."""
    words = [str(word) for word in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink, Path(os.devnull).open("rb") as nothing:
        streams = ((nothing, 0), (sink, 1), (sink, 2))
        try:
            return os.posix_spawnp(
                words[0],
                words,
                {**os.environ, **(env or {})},
                file_actions=[(os.POSIX_SPAWN_DUP2, stream.fileno(), number) for stream, number in streams],
                setsid=True,
            )
        except CANNOT_START as error:
            raise _missing(words[0], error) from error


async def attached(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> int:
    """Run a command on our own terminal and return its exit status.

    The child shares our process group, so Ctrl-C reaches it; we wait for it to put things back instead of dying first.
    If we are killed, it is interrupted all the same.
    """
    words = [str(word) for word in argv]
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        child = await asyncio.create_subprocess_exec(
            *words, env={**os.environ, **(env or {})}, preexec_fn=_interrupt_when_parent_dies
        )
        loop.add_signal_handler(signal.SIGTERM, child.send_signal, signal.SIGINT)
        return await child.wait()
    except CANNOT_START as error:
        raise _missing(words[0], error) from error
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


def _missing(program: str, error: OSError) -> MissingPrerequisite:
    forbidden = ", or this user may not execute it" if isinstance(error, PermissionError) else ""
    return MissingPrerequisite(f"the program {program!r} is not installed{forbidden}")


def _heed_interrupts() -> None:
    """A background job of a shell starts with SIGINT ignored, its children inherit that and could not roll back."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupt_when_parent_dies() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


async def _end(child: asyncio.subprocess.Process, grace_s: float) -> None:
    if grace_s > 0 and child.returncode is None:
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), grace_s)
    _kill_group(child.pid)
    await child.wait()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
