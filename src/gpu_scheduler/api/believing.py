"""The leader takes requests that a standby passes on: whom that one vouches for is believed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog

from gpu_scheduler.api.accounts import Accounts
from gpu_scheduler.api.exchange import Answer, Call, ClientGone, encode
from gpu_scheduler.api.failures import error_form
from gpu_scheduler.api.repeats import HEADER as KEY
from gpu_scheduler.api.sending import SOCKET_REFUSED, send_answer
from gpu_scheduler.api.standing import Application, Standing
from gpu_scheduler.api.vouching import HEADER, Asked, NotVouched, Vouched, check_account
from gpu_scheduler.model.caller import Caller
from gpu_scheduler.model.errors import SchedulerError

NOBODY = Caller(user="")
log = structlog.get_logger("api")

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Believing:
    """Puts the caller that was vouched for in the place of the server that passes it on."""

    def __init__(
        self,
        application: Application,
        vouched: Vouched,
        standing: Standing,
        most_bytes: int,
        accounts: Accounts | None = None,
    ) -> None:
        """Bodies of more than `most_bytes` are refused."""
        self._application = application
        self._vouched = vouched
        self._standing = standing
        self._most_bytes = most_bytes
        self._accounts = accounts or Accounts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        headers = dict(scope["headers"])
        if HEADER not in headers:
            await self._application(scope, receive, send)
            return
        is_socket = scope["type"] == "websocket"
        try:
            scope, body = await self._believed(scope, headers, receive)
        except ClientGone:
            return
        except SchedulerError as error:
            if isinstance(error, NotVouched):
                log.warning("a request that was passed on is refused", why=str(error))
            status, form = error_form(error)
            kind = SOCKET_REFUSED if is_socket else "http.response"
            answer = Answer(encode(form), status=status)
            await send_answer(answer, receive, send, "vouched", kind=kind)
            return
        await self._application(scope, receive if is_socket else _replayed(body, receive), send)

    async def _believed(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> tuple[Scope, bytes]:
        voucher = self._vouched.read(headers.pop(HEADER))
        body = b""
        if scope["type"] == "http":
            call = Call(scope, receive, caller=NOBODY, headers=headers, params={}, request_id="")
            body = await call.body(self._most_bytes)
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        asked = Asked(
            method=scope.get("method", "GET").encode(),
            target=target,
            body=body,
            key=headers.get(KEY, b""),
        )
        peer = self._vouched.peer(voucher, asked, self._standing.database_ms())
        await self._accounts.when_known(partial(check_account, voucher, self._accounts))
        kept = [(name, value) for name, value in scope["headers"] if name != HEADER]
        return {**scope, "headers": kept, "state": {"peer": peer}}, body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, then what really comes."""
    is_given = False

    async def again() -> Any:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
