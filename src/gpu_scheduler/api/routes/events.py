"""Events: pages of the history, and a WebSocket that resumes after any sequence number.

Old events come from the store and new ones from the control loop, without gaps or duplicates.
Callers who are not admins get the events of nodes, devices and the jobs that they may see in full.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import (
    V1,
    Parameter,
    Router,
    boolean_parameter,
    integer_parameter,
)
from gpu_scheduler.api.http.rate_limit import ConcurrencyLimit
from gpu_scheduler.api.http.request import (
    Query,
    Receive,
    Request,
    Response,
    Send,
    encode,
    form_of,
    json_response,
    until_first_ends,
)
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import EventRow
from gpu_scheduler.wire.times import write_time


class EventForm(Struct):
    """One event. `sequence` increases; resume after the last one seen."""

    sequence: int
    at: str
    kind: str
    job_id: str | None
    task: int | None
    data: dict[str, str | int]
    user: str = ""


class EventPage(Struct):
    """One page of events; the next page is `after` = `last`."""

    events: list[EventForm]
    last: int


PATH = f"{V1}/events"
TOO_SLOW = 1013
"""The WebSocket close code "try again later"; the reason has the number to resume after."""
NOT_UNDERSTOOD = 1003
CLOSE_S = 5.0
DEFAULT_PAGE = 100
MOST_SCANNED = 20_000
SCANNED_AT_ONCE = 1_000
REMEMBERED_JOBS = 10_000


class EventFilter:
    """Which events one caller may see."""

    def __init__(self, context: Context, caller: Caller) -> None:
        """Jobs are looked up, and cached, only if the event alone does not decide."""
        self._store = context.service.store
        self._caller = caller
        self._seen: OrderedDict[str, bool] = OrderedDict()

    def __call__(self, event: EventRow) -> bool:
        """Whether the caller may see the event."""
        known = self._known(event)
        return self._may_see_job(event.job_id) if known is None else known

    async def asked(self, event: EventRow) -> bool:
        """The same on an event loop: a job that is not cached is looked up in a thread."""
        known = self._known(event)
        if known is None:
            known = self._seen.get(event.job_id)
        return await asyncio.to_thread(self, event) if known is None else known

    def _known(self, event: EventRow) -> bool | None:
        """Decide by the event alone; None if that depends on its job."""
        caller = self._caller
        if caller.is_admin:
            return True
        if not event.job_id:
            return event.user in {"", caller.user}
        if event.user and not caller.administers:
            if event.user != caller.user:
                return False
            if not caller.confined:
                return True
        return None

    def _may_see_job(self, job_id: str) -> bool:
        seen = self._seen.get(job_id)
        if seen is None:
            row = self._store.job(job_id)
            seen = row is not None and self._caller.may_see(row.job.user, row.job.tenant)
            self._seen[job_id] = seen
            if len(self._seen) > REMEMBERED_JOBS:
                self._seen.popitem(last=False)
        return seen


def form(sequence: int, event: EventRow) -> EventForm:
    """Return an event as a message."""
    return form_of(
        EventForm,
        event,
        sequence=sequence,
        at=write_time(event.at_ms) or "",
        job_id=event.job_id or None,
        data=dict(event.data),
    )


router = Router("events")


@router.operation(
    "GET",
    "/events",
    response=EventPage,
    query=(
        integer_parameter("after", "After this sequence number."),
        integer_parameter("limit", "How many events at most.", least=1, most=1000),
        boolean_parameter("newest", "The newest of the last 20,000 events instead, newest first."),
        Parameter(name="kind", description="Only of these kinds, with commas between."),
        Parameter(name="node", description="Only about this node or its GPUs."),
        integer_parameter("gpu", "Only about GPUs with this index."),
    ),
)
async def list_events(context: Context, request: Request) -> Response:
    """A page of events. As a WebSocket: all events after `after`, then new ones."""
    query = context.parse_query(request, "after", "limit", "newest", "kind", "node", "gpu")
    limit = query.number("limit", DEFAULT_PAGE, least=1, most=context.settings.bounds.page)
    last = query.number("after", 0)
    may_see, asks_for = EventFilter(context, request.caller), _wanted(query)

    def sees(event: EventRow) -> bool:
        return asks_for(event) and may_see(event)

    if query.flag("newest"):
        newest = await asyncio.to_thread(_newest, context.service.store, sees, limit)
        return json_response(newest)
    events: list[EventForm] = []
    scanned = 0
    while len(events) < limit and scanned < MOST_SCANNED:
        page = await asyncio.to_thread(context.service.store.events, last, SCANNED_AT_ONCE)
        # In a thread: whose job it was may have to be read.
        seen = await asyncio.to_thread(list, map(sees, [event for _, event in page]))
        for (sequence, event), is_seen in zip(page, seen, strict=True):
            last = sequence
            if is_seen:
                events.append(form(sequence, event))
                if len(events) == limit:
                    break
        scanned += len(page)
        if len(page) < SCANNED_AT_ONCE:
            break
    return json_response(EventPage(events, last))


def _wanted(query: Query) -> Callable[[EventRow], bool]:
    """Return whether an event is of the kinds, node and GPU that the caller asks for."""
    kinds = {kind for kind in query.text("kind").split(",") if kind}
    wanted: dict[str, str | int] = {}
    if node := query.text("node"):
        wanted["node"] = node
    if (gpu := query.optional("gpu")) is not None:
        wanted["gpu"] = gpu

    def asks_for(event: EventRow) -> bool:
        return (not kinds or event.kind in kinds) and wanted.items() <= dict(event.data).items()

    return asks_for


def _newest(store: Store, sees: Callable[[EventRow], bool], limit: int) -> EventPage:
    """Read back from the newest event, over at most `MOST_SCANNED`."""
    newest = store.last_event()
    events: list[EventForm] = []
    for first in range(newest, max(0, newest - MOST_SCANNED), -SCANNED_AT_ONCE):
        after = max(0, first - SCANNED_AT_ONCE)
        page = store.events(after, first - after)
        events += [form(sequence, event) for sequence, event in reversed(page) if sees(event)]
        if len(events) >= limit:
            break
    return EventPage(events[:limit], newest)


class EventSockets:
    """The open event streams, a limited number per user. `cut_off` counts slow ones closed."""

    def __init__(self, context: Context) -> None:
        """Start without streams."""
        self._context = context
        self._limit = ConcurrencyLimit(context.settings.bounds.sockets_per_user, "event streams")
        self.cut_off = 0

    async def serve(self, request: Request, receive: Receive, send: Send) -> None:
        """Accept a connection and send events until one side ends it."""
        after = self._context.parse_query(request, "after").optional("after")
        with self._limit.hold(request.caller.user):
            await receive()
            await send({"type": "websocket.accept"})
            await self._feed(request.caller, after, receive, send)

    async def _feed(self, caller: Caller, after: int | None, receive: Receive, send: Send) -> None:
        sending_events = self._send_all(caller, after, send)
        async with until_first_ends(until_gone(receive), sending_events) as (gone, sending):
            if sending.done():
                last = sending.result()
                self.cut_off += 1
                await close_socket(send, TOO_SLOW, f"resume with after={last}")
            elif gone.result():
                await close_socket(send, NOT_UNDERSTOOD, "this stream takes no messages")

    async def _send_all(self, caller: Caller, after: int | None, send: Send) -> int:
        """Send until the subscriber is too slow; return the last sequence number sent."""
        service = self._context.service
        sees = EventFilter(self._context, caller)
        last = await asyncio.to_thread(service.store.last_event) if after is None else after
        timeout_s = self._context.settings.bounds.send_seconds
        events: AsyncIterator[tuple[int, EventRow]] = service.subscribe(last)
        async with aclosing(events) as stream:  # type: ignore[type-var]
            async for sequence, event in stream:
                if await sees.asked(event):
                    text = encode(form(sequence, event)).decode()
                    try:
                        async with asyncio.timeout(timeout_s):
                            await send({"type": "websocket.send", "text": text})
                    except TimeoutError:
                        return last
                last = sequence
        return last


async def until_gone(receive: Receive) -> bool:
    """Wait for the end of the connection; return True if the client sent a message."""
    message = await receive()
    return bool(message["type"] == "websocket.receive")


async def close_socket(send: Send, code: int, reason: str) -> None:
    """Close a WebSocket; a client that does not answer cannot delay this."""
    async with asyncio.timeout(CLOSE_S):
        await send({"type": "websocket.close", "code": code, "reason": reason})
