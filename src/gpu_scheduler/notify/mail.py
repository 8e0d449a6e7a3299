"""One mail by SMTP: written here, so that a deadline holds over all of it and nothing blocks."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime

from gpu_scheduler.notify.message import DeliveryFailed

LONGEST_LINE = 8192
MOST_LINES = 100
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9.-]+", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """Where mails are handed in. `login` is `user:password`."""

    host: str
    port: int
    security: str = "starttls"
    login: str = ""
    name: str = "localhost"


def addresses(rule: str, *, user: str, tenant: str) -> list[str]:
    """Who gets a mail, by a rule such as `{user}@lab.example, boss@lab.example`."""
    found = []
    for part in rule.split(","):
        text = part.strip()
        for name, value in (("{user}", user), ("{tenant}", tenant)):
            if name in text and not _USER.fullmatch(value):
                raise DeliveryFailed(f"'{value[:40]}' cannot be part of a mail address")
            text = text.replace(name, value)
        if not _ADDRESS.fullmatch(text):
            raise DeliveryFailed(f"'{text[:80]}' is no mail address")
        found.append(text)
    return found


def written(
    *, sender: str, to: list[str], subject: str, text: str, message_id: str, at: datetime
) -> EmailMessage:
    """A mail. Repeats have the same Message-ID, by which mail programs drop them."""
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = sender
    message["To"] = ", ".join(to)
    message["Subject"] = "".join(char if char.isprintable() else " " for char in subject)[:200]
    message["Date"] = format_datetime(at)
    message["Message-ID"] = message_id
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    return message


async def send(
    message: EmailMessage, server: MailServer, tls: ssl.SSLContext, timeout_s: float
) -> None:
    """Hand a mail in, or raise DeliveryFailed."""
    try:
        async with asyncio.timeout(timeout_s):
            await _Session(server, tls).send(message)
    except TimeoutError:
        why = f"the mail server did not finish within {timeout_s:g} s"
        raise DeliveryFailed(why, everybody=True) from None
    except ssl.SSLError as error:
        why = f"TLS with the mail server failed: {error.reason or error}"
        raise DeliveryFailed(why, everybody=True) from None
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        why = f"the mail server {server.host}:{server.port} cannot be used: {error}"
        raise DeliveryFailed(why, everybody=True) from None


class _Session:
    """One conversation with a mail server."""

    def __init__(self, server: MailServer, tls: ssl.SSLContext) -> None:
        self._server = server
        self._tls = tls
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def send(self, message: EmailMessage) -> None:
        server = self._server
        secure = (
            {"ssl": self._tls, "server_hostname": server.host} if server.security == "tls" else {}
        )
        self._reader, self._writer = await asyncio.open_connection(
            server.host,
            server.port,
            limit=LONGEST_LINE,
            **secure,  # type: ignore[arg-type]
        )
        try:
            await self._greet()
            await self._hand_in(message)
        finally:
            self._writer.close()
            with suppress(OSError, asyncio.CancelledError):
                self._writer.transport.abort()

    async def _greet(self) -> None:
        server = self._server
        await self._answer("220")
        offers = await self._ask(f"EHLO {server.name}", "250")
        if server.security == "starttls":
            if not any(line.upper().startswith("STARTTLS") for line in offers):
                raise DeliveryFailed(
                    f"the mail server {server.host} does not offer STARTTLS; set "
                    "notifications.smtp_security",
                    everybody=True,
                )
            await self._ask("STARTTLS", "220")
            await self._writer.start_tls(self._tls, server_hostname=server.host)
            await self._ask(f"EHLO {server.name}", "250")
        if server.login:
            if server.security == "none" and server.host not in ("localhost", "127.0.0.1", "::1"):
                raise DeliveryFailed(
                    "a password is not sent over an open connection; set "
                    "notifications.smtp_security",
                    everybody=True,
                )
            user, _, password = server.login.partition(":")
            token = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
            await self._ask(f"AUTH PLAIN {token}", "235", shown="AUTH", everybody=True)

    async def _hand_in(self, message: EmailMessage) -> None:
        sender = str(message["From"])
        await self._ask(f"MAIL FROM:<{sender}>", "250", everybody=True)
        for address in str(message["To"]).split(", "):
            await self._ask(f"RCPT TO:<{address}>", "25")
        await self._ask("DATA", "354")
        lines = message.as_bytes().split(b"\r\n")
        stuffed = b"\r\n".join(b"." + line if line.startswith(b".") else line for line in lines)
        self._writer.write(stuffed + b"\r\n.\r\n")
        await self._writer.drain()
        await self._answer("250", shown="the mail")
        # It is theirs now: what they say to a farewell does not matter.
        self._writer.write(b"QUIT\r\n")

    async def _ask(
        self, line: str, expected: str, *, shown: str = "", everybody: bool = False
    ) -> list[str]:
        self._writer.write(line.encode() + b"\r\n")
        await self._writer.drain()
        return await self._answer(expected, shown=shown or line, everybody=everybody)

    async def _answer(
        self, expected: str, *, shown: str = "the connection", everybody: bool = False
    ) -> list[str]:
        """The lines of an answer, without their numbers."""
        lines: list[str] = []
        for _ in range(MOST_LINES):
            line = (await self._reader.readuntil(b"\n")).decode("utf-8", "replace").rstrip()
            lines.append(line[4:])
            if line[3:4] != "-":
                if line.startswith(expected):
                    return lines
                unwell = everybody or line.startswith("421")
                raise DeliveryFailed(
                    f"the mail server refused {shown[:60]}: {line[:120]}", everybody=unwell
                )
        raise DeliveryFailed("the mail server talks without end", everybody=True)
