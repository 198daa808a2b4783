"""Faults of the modelled device that can be turned while it runs, and the small HTTP server that turns them."""

import json
import threading
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


class KnobPanel:
    """The knobs now, safe to turn from another thread."""

    def __init__(self) -> None:
        self.now = Knobs()
        self.turned = threading.Condition()

    def turn(self, changes: dict[str, Any]) -> Knobs:
        """Set some knobs. Raises ValueError for one that does not exist or has a value of the wrong kind."""
        kinds = {field.name: type(getattr(self.now, field.name)) for field in fields(Knobs)}
        for name, value in changes.items():
            if name not in kinds:
                raise ValueError(f"unknown knob {name!r}; known: {', '.join(kinds)}")
            if kinds[name] is bool and not isinstance(value, bool):
                raise ValueError(f"knob {name} takes true or false, not {value!r}")
            if kinds[name] is float and not (isinstance(value, (int, float)) and value > 0):
                raise ValueError(f"knob {name} takes a positive number, not {value!r}")
        with self.turned:
            self.now = replace(self.now, **changes)
            self.turned.notify_all()
        return self.now

    def serve(self, port: int) -> None:
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

        server = ThreadingHTTPServer(("", port), Handler)
        threading.Thread(target=server.serve_forever, name="knobs", daemon=True).start()
