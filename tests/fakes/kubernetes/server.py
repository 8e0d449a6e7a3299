"""The fake API server over HTTP, for clients that need a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from gpu_scheduler.kubernetes.client.client import Request
from tests.fakes.kubernetes.api import FakeApi, Refusal


@asynccontextmanager
async def serve(api: FakeApi) -> AsyncIterator[str]:
    """Serve it on a free port; yields the URL."""

    async def handle(given: web.Request) -> web.StreamResponse:
        request = Request(
            method=given.method,
            path=given.path,
            query=tuple(given.query.items()),
            body=await given.read(),
            content_type=given.headers.get("Content-Type", ""),
        )
        fault = api.take_fault(request)
        if fault is not None:
            await asyncio.sleep(fault.delay_seconds)
            if fault.answer is not None:
                return web.Response(
                    status=fault.answer.status,
                    headers=dict(fault.answer.headers),
                    body=fault.answer.body,
                )
            if fault.loses_answer:
                api.handle(request)
            if fault.loses_answer or fault.loses_request:
                assert given.transport is not None
                given.transport.abort()
                return web.Response()
        if given.query.get("watch") == "true":
            return await _serve_watch(api, given, request)
        answer = api.handle(request)
        return web.Response(status=answer.status, headers=dict(answer.headers), body=answer.body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def _serve_watch(api: FakeApi, given: web.Request, request: Request) -> web.StreamResponse:
    try:
        lines = api.watch(request)
    except Refusal as refusal:
        return web.Response(status=refusal.code, body=json.dumps(refusal.status).encode())
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    try:
        await response.prepare(given)
        async for line in lines:
            await response.write(line)
        await response.write_eof()
    finally:
        await lines.aclose()
    return response
