"""A Service answers a moment after its pods are Ready: the endpoints travel to every node's packet filter first."""

import httpx

from shakedown.waiting import wait_until

ANSWER_WITHIN_S = 30.0


async def await_answer(url: str, within_s: float = ANSWER_WITHIN_S) -> None:
    """Wait until a GET of `url` is answered with 200. Raises WaitTimeout."""
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:

        async def status() -> int:
            return (await client.get(url)).status_code

        await wait_until(
            f"{url} to answer", status, lambda code: code == 200, within_s=within_s, tolerate=(httpx.TransportError,)
        )
