"""Faults of the modelled device that can be turned while it runs, and the small HTTP server that turns them."""

import json
import math
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8001


@dataclass(frozen=True)
class Knobs:
    """State of the faults. The harness has the same value in `engine.knobs`; a test compares them."""

    step_slowdown: float = 1.0
    """Every step takes this many times as long."""
    hang: bool = False
    """Steps never end; the process lives and /health stays 200, as when a kernel never returns."""
    device_error: bool = False
    """The next step fails as an illegal memory access does, which is fatal to the engine."""
    oom: bool = False
    """The next step runs out of device memory."""
    memory_pressure_gib: float = 0.0
    """Memory that fragmentation or a neighbour took since the start; a step that finds too little left dies of it."""

    def turned(self, changes: Mapping[str, Any]) -> "Knobs":
        """These knobs with some of them changed. Raises ValueError for one that does not exist or cannot be so."""
        known = {field.name: type(getattr(self, field.name)) for field in fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"unknown knob {name!r}; known: {', '.join(known)}")
            if known[name] is bool and not isinstance(value, bool):
                raise ValueError(f"knob {name} takes true or false, not {value!r}")
            if known[name] is float and not _is_amount(value):
                raise ValueError(f"knob {name} takes a number of 0 or more, not {value!r}")
        result = replace(self, **changes)
        if result.step_slowdown == 0:
            raise ValueError("knob step_slowdown takes a number above 0")
        return result


class KnobPanel:
    """The knobs now, safe to turn from another thread."""

    def __init__(self) -> None:
        self.now = Knobs()
        self._turn = threading.Condition()

    def turn(self, changes: Mapping[str, Any]) -> Knobs:
        """Set some knobs; the rest stay. Raises ValueError as `Knobs.turned` does."""
        with self._turn:
            self.now = self.now.turned(changes)
            self._turn.notify_all()
        return self.now

    def wait_for_turn(self, limit_s: float) -> None:
        """Return when a knob is turned, at the latest after `limit_s`."""
        with self._turn:
            self._turn.wait(limit_s)

    def serve(self, port: int, host: str = "") -> ThreadingHTTPServer:
        """Answer GET and PUT /knobs from a daemon thread."""
        panel = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, asdict(panel.now))

            def do_PUT(self) -> None:
                try:
                    changes = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                    self._answer(200, asdict(panel.turn(changes)))
                except (ValueError, AttributeError, TypeError) as error:
                    self._answer(400, {"error": str(error)})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                payload = json.dumps(body).encode()
                self.send_response(status if self.path == "/knobs" else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: object) -> None:
                """Stay out of the engine's log."""

        server = ThreadingHTTPServer((host, port), Handler)
        threading.Thread(target=server.serve_forever, name="knobs", daemon=True).start()
        return server


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
