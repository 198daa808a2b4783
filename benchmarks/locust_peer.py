"""What people write for Locust: users on its fast client who read a stream line by line.

Locust has no open loop; users who each ask every `PACE_S` at instants of their own make one. RATE (requests a second),
LASTS_S and FIGURES (a file) come from the environment.
"""

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import gevent
from locust import FastHttpUser, events, task
from locust.exception import StopUser

RATE, LASTS_S = float(os.environ["RATE"]), float(os.environ["LASTS_S"])
PACE_S = 3.0
BEGINS_AFTER_S = 2.0
BODY = {"model": "canned", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100, "stream": True}

serials = itertools.count()
begins = time.perf_counter() + BEGINS_AFTER_S
ttfts: list[float] = []
gaps: list[float] = []
lags: list[float] = []


class Reader(FastHttpUser):  # type: ignore[misc]
    def on_start(self) -> None:
        self.due = begins + next(serials) / RATE

    @task  # type: ignore[untyped-decorator]
    def read(self) -> None:
        gevent.sleep(max(0.0, self.due - time.perf_counter()))
        if self.due >= begins + LASTS_S:
            raise StopUser
        began, times = time.perf_counter(), []
        with self.client.post("/v1/chat/completions", json=BODY, stream=True, catch_response=True) as answer:
            while line := answer.stream.readline(b"\n"):
                if b'"content":"' in line and b'"content":""' not in line:
                    times.append(time.perf_counter())
            answer.success()
        lags.append(began - self.due)
        ttfts.append(times[0] - began)
        gaps.extend(later - earlier for earlier, later in itertools.pairwise(times))
        self.due += PACE_S


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def tell(**_: Any) -> None:
    spreads = {"ttft": ttfts, "itl": gaps, "schedule_lag": lags}
    Path(os.environ["FIGURES"]).write_text(
        json.dumps({name: {"p50_ms": at(values, 0.5), "p99_ms": at(values, 0.99)} for name, values in spreads.items()})
    )


def at(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))] * 1000 if ordered else None
