"""A small server that streams forty words to everybody, in a process of its own; says its port, and when it was asked first."""

import asyncio
import json
import sys

from aiohttp import web

WORDS = 40
asked = asyncio.Event()


async def models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "m"}]})


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def chat(request: web.Request) -> web.StreamResponse:
    if not asked.is_set():
        asked.set()
        say("asked")
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for index in range(WORDS):
        choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": "length" if index == WORDS - 1 else None}
        await answer.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        await asyncio.sleep(0.005)
    await answer.write(b"data: [DONE]\n\n")
    return answer


async def main() -> None:
    application = web.Application()
    application.router.add_get("/v1/models", models)
    application.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    say(str(runner.addresses[0][1]))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
