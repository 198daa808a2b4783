"""What people write for Locust: a user who reads a stream line by line."""

import time

from locust import HttpUser, constant, events, task

BODY = {"model": "canned", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100, "stream": True}


class Reader(HttpUser):  # type: ignore[misc]
    wait_time = constant(0)

    @task  # type: ignore[untyped-decorator]
    def read(self) -> None:
        began, first = time.perf_counter(), None
        with self.client.post("/v1/chat/completions", json=BODY, stream=True, catch_response=True) as answer:
            for line in answer.iter_lines():
                if first is None and b'"content":"' in line:
                    first = time.perf_counter()
            answer.success()
        events.request.fire(
            request_type="first word",
            name="stream",
            response_time=((first or began) - began) * 1000,
            response_length=0,
            exception=None,
            context={},
        )
