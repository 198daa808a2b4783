"""Speaking to the API server from outside its network namespace.

A thread that entered the namespace makes the connections; the rest of the process stays where it is.
"""

import asyncio
import concurrent.futures
import ctypes
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from shakedown.cluster.embedded.layout import API_PORT, CONTROL_PLANE_ADDRESS
from shakedown.errors import SetupError

CLONE_NEWNET = 0x40000000
REQUEST_LIMIT_S = 5.0


def enter_network_namespace(path: Path) -> None:
    """Move the calling thread into a network namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)


class ApiInside:
    """The few calls that bringing a cluster up needs, as its administrator. An async context manager."""

    def __init__(self, netns: Path, certificates: Path) -> None:
        self._certificates = certificates
        self._client: httpx.Client | None = None
        self._threads = concurrent.futures.ThreadPoolExecutor(
            max_workers=1, initializer=enter_network_namespace, initargs=(netns,)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ready(self) -> bool:
        """True when the API server says that it is ready."""
        return (await self._call(lambda client: client.get("/readyz"))).status_code == httpx.codes.OK

    async def read(self, path: str) -> dict[str, Any] | None:
        """The object at `path`, None if there is none. Raises httpx.TransportError, SetupError."""
        response = await self._call(lambda client: client.get(path))
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        return self._body(response)

    async def create(self, path: str, manifest: dict[str, Any]) -> None:
        """Create an object; one that exists already is left as it is."""
        response = await self._call(lambda client: client.post(path, json=manifest))
        if response.status_code != httpx.codes.CONFLICT:
            self._body(response)

    def _body(self, response: httpx.Response) -> dict[str, Any]:
        if response.is_error:
            raise SetupError(f"the API server answered {response.status_code} to {response.url}: {response.text[:500]}")
        body: dict[str, Any] = response.json()
        return body

    async def _call(self, request: Callable[[httpx.Client], httpx.Response]) -> httpx.Response:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: request(self._connected()))

    def _connected(self) -> httpx.Client:
        if self._client is None:
            trust = ssl.create_default_context(cafile=str(self._certificates / "ca.crt"))
            trust.load_cert_chain(self._certificates / "admin.crt", self._certificates / "admin.key")
            self._client = httpx.Client(
                base_url=f"https://{CONTROL_PLANE_ADDRESS}:{API_PORT}",
                verify=trust,
                timeout=REQUEST_LIMIT_S,
                trust_env=False,
            )
        return self._client
