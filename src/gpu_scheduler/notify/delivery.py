"""A notification to a target, whatever kind that is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.notify import mail, webhook
from gpu_scheduler.notify.message import DeliveryFailed
from gpu_scheduler.notify.webhook import Proxies
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.groups.operations import NotificationSettings

# --- Files that hold a secret: refused if others could read them.

LARGEST = 4096
_OTHERS = 0o007


def read_secret(path: str, what: str) -> str:
    """The first line of a file. Read each time, so that a new secret holds at once."""
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & _OTHERS:
                raise DeliveryFailed(
                    f"{what} {path} can be read by everybody; use 'chmod 600 {path}'"
                )
            if status.st_uid not in (0, os.geteuid()):
                raise DeliveryFailed(
                    f"{what} {path} belongs to uid {status.st_uid}; it must belong to root or to "
                    "the user who runs the server"
                )
            text = file.read(LARGEST).decode("utf-8", "replace")
    except OSError as error:
        raise DeliveryFailed(f"{what} {path} cannot be read: {error.strerror}") from error
    line = text.split("\n", 1)[0].strip()
    if not line:
        raise DeliveryFailed(f"{what} {path} is empty")
    return line


# --- One run of a program that an admin has named, as the server's own user.
#
# It gets the document on its standard input and some of it in variables; nothing of it comes into
# its arguments, and no shell is involved. By posix_spawn, as forking beside the threads of gRPC is
# hazardous.

_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")


async def run_program(
    command: Sequence[str], body: bytes, document: dict[str, Any], timeout_s: float
) -> None:
    """Run to the end, or raise DeliveryFailed."""
    try:
        pid = _started(command, body, document)
    except OSError as error:
        raise DeliveryFailed(
            f"{command[0]} cannot be run: {error.strerror}", everybody=True
        ) from error
    try:
        async with asyncio.timeout(timeout_s):
            status = await _ended(pid)
    except TimeoutError:
        raise DeliveryFailed(f"{command[0]} took longer than {timeout_s:g} s") from None
    code = os.waitstatus_to_exitcode(status)
    if code:
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise DeliveryFailed(f"{command[0]} ended with {ended}")


def variables(document: dict[str, Any]) -> dict[str, str]:
    """The fields of the document that are plain values, as `TGPU_NOTICE_JOB_ID` and so on."""
    found = {name: os.environ[name] for name in _PASSED if name in os.environ}
    for name, value in document.items():
        if value is not None and not isinstance(value, dict | list):
            found[f"TGPU_NOTICE_{name.upper()}"] = str(value).replace("\0", "")
    return found


def _started(command: Sequence[str], body: bytes, document: dict[str, Any]) -> int:
    told = os.memfd_create("tgpu-notice", os.MFD_CLOEXEC)
    try:
        os.write(told, body)
        os.lseek(told, 0, os.SEEK_SET)
        return os.posix_spawn(
            command[0],
            list(command),
            variables(document),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, told, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
        )
    finally:
        os.close(told)


async def _ended(pid: int) -> int:
    """Wait for the end, and end what it has started. Who is waited for no more is killed."""
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(pid)
    over: asyncio.Future[int] = loop.create_future()

    def bury() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        # Before the burial: until then nobody else can have its number.
        _kill(pid)
        _, status = os.waitpid(pid, 0)
        if not over.done():
            over.set_result(status)

    # It stays when nobody waits: one that hangs in the kernel dies later than it is killed.
    loop.add_reader(handle, bury)
    try:
        return await over
    except asyncio.CancelledError:
        if not over.done() or over.cancelled():
            _kill(pid)
        raise


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# --- A notification to a target, whatever kind that is.


class Senders:
    """Knows all targets, and how each is reached."""

    def __init__(self, settings: NotificationSettings) -> None:
        """Refuses certificates that cannot be read."""
        self._settings = settings
        self._proxies = Proxies(os.environ)
        self._tls = ssl.create_default_context()
        if settings.ca_file:
            try:
                self._tls.load_verify_locations(settings.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise InvalidRequest(
                    f"notifications.ca_file is '{settings.ca_file}' and cannot be read: {error}"
                ) from error
        # Not the full name: to ask for that can take long where there is no name server.
        self._host = socket.gethostname() or "localhost"

    async def send(self, target: str, document: dict[str, Any], at_ms: int) -> None:
        """Deliver, or raise DeliveryFailed."""
        known = self._settings.targets.get(target)
        if known is None:
            if target.startswith("https://") and self._settings.allow_job_webhooks:
                await self._post(document, at_ms, url=target, public_only=True)
                return
            raise DeliveryFailed(f"there is no target '{target[:60]}' any more")
        if known.kind == "webhook":
            await self._post_to(known, document, at_ms)
        elif known.kind == "email":
            await self._mail(known, document, at_ms)
        else:
            body = json.dumps(document, ensure_ascii=False).encode()
            await run_program(known.command, body, document, self._settings.timeout_s)

    async def _post_to(self, target: Target, document: dict[str, Any], at_ms: int) -> None:
        url = target.url or read_secret(target.url_file, "the file with the address")
        secret = read_secret(target.secret_file, "the secret") if target.secret_file else ""
        await self._post(document, at_ms, url=url, secret=secret)

    async def _post(
        self,
        document: dict[str, Any],
        at_ms: int,
        *,
        url: str,
        secret: str = "",
        public_only: bool = False,
    ) -> None:
        post = webhook.Post(
            url=url,
            body=json.dumps(document | {"text": escaped(str(document["text"]))}).encode(),
            notice_id=str(document["id"]),
            notice=str(document["event"]),
            at_ms=at_ms,
            secret=secret,
            public_only=public_only,
        )
        await webhook.send(post, self._tls, self._settings.timeout_s, self._proxies)

    async def _mail(self, target: Target, document: dict[str, Any], at_ms: int) -> None:
        settings = self._settings
        sender = settings.mail_from or f"gpu-scheduler@{self._host}"
        user, tenant = str(document.get("user") or ""), str(document.get("tenant") or "")
        message = mail.written(
            sender=sender,
            to=mail.addresses(target.to, user=user, tenant=tenant),
            subject=f"[gpu-scheduler] {document['text']}",
            text=mail_text(document),
            message_id=f"<{document['id']}@{self._host}>",
            at=datetime.fromtimestamp(at_ms / 1000, UTC),
        )
        login = ""
        if settings.smtp_login_file:
            login = read_secret(settings.smtp_login_file, "the login for the mail server")
        server = mail.MailServer(
            host=settings.smtp_host,
            port=settings.smtp_port,
            security=settings.smtp_security,
            login=login,
            name=self._host,
        )
        await mail.send(message, server, self._tls, settings.timeout_s)


def escaped(text: str) -> str:
    """Text that Slack shows as it is: a job's name must not call a whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mail_text(document: dict[str, Any]) -> str:
    """The sentence, then the facts."""
    shown = {
        name: value
        for name, value in document.items()
        if name not in ("text", "id", "event") and value not in (None, "", [])
    }
    width = max(map(len, shown), default=0)
    facts = [f"{name.replace('_', ' '):<{width}}  {_plain(value)}" for name, value in shown.items()]
    return "\n".join([str(document["text"]), "", *facts, ""])


def _plain(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "".join(char if char.isprintable() else " " for char in text)
