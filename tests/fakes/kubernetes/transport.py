"""A client's connection to the fake API server: no sockets, so that it runs on virtual time too."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpu_scheduler.kubernetes.client.client import Answer, Request, Stream
from gpu_scheduler.kubernetes.client.errors import OutcomeUnknown, Unreachable
from tests.fakes.kubernetes.api import FakeApi, Refusal


class FakeTransport:
    """Hands requests to the fake, with the faults that the test asked for."""

    def __init__(self, api: FakeApi, *, latency_seconds: float = 0.001) -> None:
        self.api = api
        self.latency_seconds = latency_seconds
        self.is_cut = False

    async def send(self, request: Request) -> Answer:
        fault = self.api.take_fault(request)
        delay = self.latency_seconds + (fault.delay_seconds if fault else 0.0)
        if self.is_cut or (fault and fault.refuses_connection):
            raise Unreachable(f"{request}: no connection")
        if delay >= request.timeout_seconds or (fault and fault.loses_request):
            await asyncio.sleep(min(delay, request.timeout_seconds))
            raise OutcomeUnknown(f"{request}: the request was lost")
        await asyncio.sleep(delay)
        if fault and fault.answer is not None:
            return fault.answer
        answer = self.api.handle(request)
        if fault and fault.answer_delay_seconds:
            await asyncio.sleep(fault.answer_delay_seconds)
        if self.is_cut or (fault and fault.loses_answer):
            raise OutcomeUnknown(f"{request}: the answer was lost")
        return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        fault = self.api.take_fault(request)
        await asyncio.sleep(self.latency_seconds + (fault.delay_seconds if fault else 0.0))
        if self.is_cut or (fault and fault.refuses_connection):
            raise Unreachable(f"{request}: no connection")
        if fault and fault.answer is not None:
            yield Stream(status=fault.answer.status, headers={}, chunks=_once(fault.answer.body))
            return
        try:
            lines = self.api.watch(request)
        except Refusal as refusal:
            body = json.dumps(refusal.status).encode()
            yield Stream(status=refusal.code, headers={}, chunks=_once(body))
            return
        try:
            yield Stream(status=200, headers={}, chunks=lines)
        finally:
            await lines.aclose()

    async def close(self) -> None:
        """Nothing to close."""


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
