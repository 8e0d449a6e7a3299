"""Delivers one notification to a target: webhook, e-mail or program; reads secrets from files."""

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
from gpu_scheduler.notify.retry_queue import DeliveryFailed
from gpu_scheduler.notify.webhook import Proxies
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.groups.operations import NotificationSettings

LARGEST_SECRET = 4096
_OTHERS_ACCESS = 0o007
_PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")


def read_secret(path: str, what: str) -> str:
    """The first line of a file, read each time, so that a changed secret is used at once."""
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & _OTHERS_ACCESS:
                raise DeliveryFailed(
                    f"{what} {path} can be read by all users; use 'chmod 600 {path}'"
                )
            if status.st_uid not in (0, os.geteuid()):
                raise DeliveryFailed(
                    f"{what} {path} belongs to uid {status.st_uid}; it must belong to root or to "
                    "the user who runs the server"
                )
            text = file.read(LARGEST_SECRET).decode("utf-8", "replace")
    except OSError as error:
        raise DeliveryFailed(f"{what} {path} cannot be read: {error.strerror}") from error
    line = text.split("\n", 1)[0].strip()
    if not line:
        raise DeliveryFailed(f"{what} {path} is empty")
    return line


async def run_program(
    command: Sequence[str], body: bytes, document: dict[str, Any], timeout_s: float
) -> None:
    """Run a program that an admin has configured, as the server's user; wait for its end.

    The program reads the document from standard input and gets some of it in variables. Nothing of
    it becomes an argument, and no shell is involved. It is started with posix_spawn, because a
    fork beside the threads of gRPC can crash.
    """
    try:
        pid = _start(command, body, document)
    except OSError as error:
        raise DeliveryFailed(
            f"{command[0]} cannot be run: {error.strerror}", target_down=True
        ) from error
    try:
        async with asyncio.timeout(timeout_s):
            status = await _wait(pid)
    except TimeoutError:
        raise DeliveryFailed(f"{command[0]} took longer than {timeout_s:g} s") from None
    code = os.waitstatus_to_exitcode(status)
    if code:
        result = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise DeliveryFailed(f"{command[0]} ended with {result}")


def variables(document: dict[str, Any]) -> dict[str, str]:
    """Environment of the program: scalar fields as `TGPU_NOTICE_JOB_ID` and so on."""
    found = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    for name, value in document.items():
        if value is not None and not isinstance(value, dict | list):
            found[f"TGPU_NOTICE_{name.upper()}"] = str(value).replace("\0", "")
    return found


def _start(command: Sequence[str], body: bytes, document: dict[str, Any]) -> int:
    stdin = os.memfd_create("tgpu-notice", os.MFD_CLOEXEC)
    try:
        os.write(stdin, body)
        os.lseek(stdin, 0, os.SEEK_SET)
        return os.posix_spawn(
            command[0],
            list(command),
            variables(document),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
        )
    finally:
        os.close(stdin)


async def _wait(pid: int) -> int:
    """Wait for its exit, then kill its child processes. If the wait is cancelled, kill it."""
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(pid)
    exited: asyncio.Future[int] = loop.create_future()

    def reap() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        # Before waitpid, because until then no other process can have the same pid.
        _kill(pid)
        _, status = os.waitpid(pid, 0)
        if not exited.done():
            exited.set_result(status)

    # The reader stays after a cancellation: a process blocked in the kernel dies later.
    loop.add_reader(handle, reap)
    try:
        return await exited
    except asyncio.CancelledError:
        if not exited.done() or exited.cancelled():
            _kill(pid)
        raise


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class Senders:
    """Sends notifications to all kinds of targets."""

    def __init__(self, settings: NotificationSettings) -> None:
        """Raises `InvalidRequest` if the CA file cannot be read."""
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
        self._mailer = mail.Mailer(self._tls)
        # Not the full name: looking it up can take long without a name server.
        self._host = socket.gethostname() or "localhost"

    async def send(self, target: str, document: dict[str, Any], at_ms: int) -> None:
        """Deliver, or raise `DeliveryFailed`."""
        configured = self._settings.targets.get(target)
        if configured is None:
            if target.startswith("https://") and self._settings.allow_job_webhooks:
                await self._post(document, at_ms, url=target, public_only=True)
                return
            raise DeliveryFailed(f"target '{target[:60]}' no longer exists")
        if configured.kind == "webhook":
            await self._post_to(configured, document, at_ms)
        elif configured.kind == "email":
            await self._mail(configured, document, at_ms)
        else:
            body = json.dumps(document, ensure_ascii=False).encode()
            await run_program(configured.command, body, document, self._settings.timeout_s)

    async def _post_to(self, target: Target, document: dict[str, Any], at_ms: int) -> None:
        url = target.url or read_secret(target.url_file, "the file with the URL")
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
        message = mail.compose(
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
        await self._mailer.send(message, server, settings.timeout_s)


def escaped(text: str) -> str:
    """Text escaped for Slack: the name of a job must not notify a whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mail_text(document: dict[str, Any]) -> str:
    """The text of a mail: the sentence, then the fields."""
    shown = {
        name: value
        for name, value in document.items()
        if name not in ("text", "id", "event") and value not in (None, "", [])
    }
    width = max(map(len, shown), default=0)
    lines = [f"{name.replace('_', ' '):<{width}}  {_plain(value)}" for name, value in shown.items()]
    return "\n".join([str(document["text"]), "", *lines, ""])


def _plain(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "".join(char if char.isprintable() else " " for char in text)
