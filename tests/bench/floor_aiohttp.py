"""What aiohttp on both sides costs when nothing is done in between: JSON in, JSON out, bytes through.

python floor_aiohttp.py PORT UPSTREAM_URL
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import orjson
import uvloop
from aiohttp import web

UPSTREAM = web.AppKey("upstream", str)
SESSION = web.AppKey("session", aiohttp.ClientSession)


async def chat(request: web.Request) -> web.StreamResponse:
    asked = orjson.loads(await request.read())
    headers = {"Content-Type": "application/json", "Authorization": "Bearer mock"}
    session, url = request.app[SESSION], request.app[UPSTREAM]
    async with session.post(url, data=orjson.dumps(asked), headers=headers) as answer:
        if answer.content_type != "text/event-stream":
            return web.Response(
                body=await answer.read(), status=answer.status, content_type="application/json"
            )
        out = web.StreamResponse(status=answer.status, headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        while piece := await answer.content.readany():
            await out.write(piece)
        await out.write_eof()
        return out


async def serve(port: int, url: str) -> None:
    app = web.Application(client_max_size=1 << 26)
    app[UPSTREAM] = url
    app.router.add_post("/v1/chat/completions", chat)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        app[SESSION] = session
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()  # as ours
        await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(serve(int(sys.argv[1]), sys.argv[2]))
