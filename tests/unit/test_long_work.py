"""The progress of long work of the operator's routes can be requested during it, and is forgotten when it ends."""

import asyncio

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.contracts import progress
from postroom.http_api.long_work import LongWork


async def test_how_far_work_is_is_told_while_it_goes_on_and_not_afterwards() -> None:
    work, begun, goes_on = LongWork(), asyncio.Event(), asyncio.Event()

    async def copy(_: Request) -> Response:
        await asyncio.to_thread(progress.tell, "copying: pages", 3, 9)
        begun.set()
        await goes_on.wait()
        return JSONResponse({})

    routes = [Route("/admin/backup", work.watched("/admin/backup", copy), methods=["POST"])]
    transport = httpx2.ASGITransport(app=Starlette(routes=routes))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        nothing = {"doing": "", "done": 0, "total": 0}
        assert await work.progress("/admin/backup") == nothing
        asked = asyncio.create_task(client.post("/admin/backup"))
        await begun.wait()
        assert await work.progress("/admin/backup") == {"doing": "copying: pages", "done": 3, "total": 9}
        assert await work.progress("/admin/prune") == nothing
        goes_on.set()
        await asked
        assert await work.progress("/admin/backup") == nothing
