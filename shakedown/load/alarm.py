"""Waiting on the event loop to the microsecond, for requests that are to be sent when they are due.

uvloop's own timers count whole milliseconds, so that a sleep ends up to one late: a fifth of what a local server's
first token may take. A Linux timerfd is a file that becomes readable at an absolute monotonic time; elsewhere the
loop's own timers have to do.
"""

import asyncio
import ctypes
import os
import time
from types import TracebackType

CLOCK_MONOTONIC = 1
TFD_TIMER_ABSTIME = 1
TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
EXPIRATIONS_BYTES = 8

_libc = ctypes.CDLL(None, use_errno=True)
HAS_TIMERFD = hasattr(_libc, "timerfd_create")


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """`with Alarm() as alarm: await alarm.at(time.monotonic() + 0.0004)`, for one waiter at a time."""

    def __enter__(self) -> "Alarm":
        self._loop = asyncio.get_running_loop()
        self._rung = self._loop.create_future()
        self._file: int | None = None
        if HAS_TIMERFD:
            self._file = _checked(_libc.timerfd_create(CLOCK_MONOTONIC, TFD_FLAGS))
            self._loop.add_reader(self._file, self._ring, self._file)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._file is not None:
            self._loop.remove_reader(self._file)
            os.close(self._file)

    async def at(self, monotonic_s: float) -> None:
        """Return at that time or just after; at once if it has passed."""
        if self._file is None:
            await asyncio.sleep(max(0.0, monotonic_s - time.monotonic()))
            return
        self._rung = self._loop.create_future()
        # All zeros would disarm the timer; a time of the past rings at once.
        nanoseconds = max(1, int(monotonic_s * 1e9))
        wanted = _Itimerspec(value=_Timespec(nanoseconds // 10**9, nanoseconds % 10**9))
        _checked(_libc.timerfd_settime(self._file, TFD_TIMER_ABSTIME, ctypes.byref(wanted), None))
        await self._rung

    def _ring(self, file: int) -> None:
        try:
            os.read(file, EXPIRATIONS_BYTES)
        except BlockingIOError:  # set anew between becoming readable and now
            return
        if not self._rung.done():
            self._rung.set_result(None)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"timerfd: {os.strerror(code)}")
    return result
