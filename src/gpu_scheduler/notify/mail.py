"""E-mail by SMTP: the standard library's client in a thread, with a deadline over the delivery.

A message and a server come in; the mail is handed over, or `DeliveryFailed` is raised. Each
delivery has a daemon thread. At the deadline its socket is shut down, so that the thread ends. The
number of threads is limited, so that servers that hang cannot use up more of them.
"""

from __future__ import annotations

import asyncio
import base64
import re
import smtplib
import socket
import ssl
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from threading import Thread
from typing import Any

from gpu_scheduler.notify.retry_queue import DeliveryFailed

MAX_THREADS = 4
SOCKET_MARGIN_S = 1.0
"""A socket times out this much later than the delivery, so that the deadline is what counts."""
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9.-]+", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """The server that accepts mails. `login` is `user:password`; `name` is our own host name."""

    host: str
    port: int
    security: str = "starttls"
    login: str = ""
    name: str = "localhost"


def addresses(rule: str, *, user: str, tenant: str) -> list[str]:
    """The recipients for a rule such as `{user}@lab.example, boss@lab.example`."""
    found = []
    for part in rule.split(","):
        text = part.strip()
        for name, value in (("{user}", user), ("{tenant}", tenant)):
            if name in text and not _USER.fullmatch(value):
                raise DeliveryFailed(f"'{value[:40]}' cannot be part of a mail address")
            text = text.replace(name, value)
        if not _ADDRESS.fullmatch(text):
            raise DeliveryFailed(f"'{text[:80]}' is not a mail address")
        found.append(text)
    return found


def compose(
    *, sender: str, to: list[str], subject: str, text: str, message_id: str, at: datetime
) -> EmailMessage:
    """A mail. Retries have the same Message-ID, so that mail programs can drop duplicates."""
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = sender
    message["To"] = ", ".join(to)
    message["Subject"] = "".join(char if char.isprintable() else " " for char in subject)[:200]
    message["Date"] = format_datetime(at)
    message["Message-ID"] = message_id
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    return message


class Mailer:
    """Delivers mails, at most `MAX_THREADS` at the same time."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._slots = asyncio.Semaphore(MAX_THREADS)

    async def send(self, message: EmailMessage, server: MailServer, timeout_s: float) -> None:
        """Deliver a mail, or raise `DeliveryFailed`.

        The timeout begins when a thread is free: waiting for one is not the mail server's fault.
        """
        delivery = _Delivery(message, server, self._tls, timeout_s + SOCKET_MARGIN_S)
        await self._slots.acquire()
        try:
            async with asyncio.timeout(timeout_s):
                await self._run(delivery)
        except TimeoutError:
            why = f"the mail server did not finish within {timeout_s:g} s"
            raise DeliveryFailed(why, target_down=True) from None
        except ssl.SSLError as error:
            why = f"TLS with the mail server failed: {error.reason or error}"
            raise DeliveryFailed(why, target_down=True) from None
        except (OSError, ValueError) as error:  # the errors of smtplib are OSErrors
            why = f"the mail server {server.host}:{server.port} cannot be used: {error}"
            raise DeliveryFailed(why, target_down=True) from None
        finally:
            delivery.abort()

    async def _run(self, delivery: _Delivery) -> None:
        """Run a delivery in a thread. The slot stays taken until the thread has ended."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish(error: Exception | None) -> None:
            self._slots.release()
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def work() -> None:
            error = None
            try:
                delivery.run()
            except Exception as caught:  # noqa: BLE001 - passed on to the caller
                error = caught
            with suppress(RuntimeError):  # the event loop has been closed
                loop.call_soon_threadsafe(finish, error)

        # A daemon thread: the process does not wait for a server that hangs.
        thread = Thread(target=work, name="smtp", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._slots.release()
            raise OSError(str(error)) from error
        await done


class _Delivery:
    """One conversation with a mail server, which another thread can abort."""

    def __init__(
        self, message: EmailMessage, server: MailServer, tls: ssl.SSLContext, timeout_s: float
    ) -> None:
        self._message = message
        self._server = server
        self._tls = tls
        self._timeout_s = timeout_s
        self._is_aborted = False
        self.connection: smtplib.SMTP | None = None

    def abort(self) -> None:
        """End the conversation, if there still is one."""
        self._is_aborted = True
        found = None if self.connection is None else self.connection.sock
        if found is not None:
            with suppress(OSError):
                socket.socket.shutdown(found, socket.SHUT_RDWR)

    def run(self) -> None:
        """Connect and hand the mail over; blocks."""
        server = self._server
        options: dict[str, Any] = {"local_hostname": server.name, "timeout": self._timeout_s}
        try:
            if server.security == "tls":
                smtp: smtplib.SMTP = _SmtpOverTls(
                    self, server.host, server.port, context=self._tls, **options
                )
            else:
                smtp = _Smtp(self, server.host, server.port, **options)
            with closing(smtp):
                self._greet(smtp)
                self._hand_over(smtp)
        except smtplib.SMTPConnectError as error:
            self._check((error.smtp_code, error.smtp_error), (), "the connection")
        except smtplib.SMTPResponseException as error:
            self._check((error.smtp_code, error.smtp_error), (), "the mail")

    def _greet(self, smtp: smtplib.SMTP) -> None:
        server = self._server
        self._check(smtp.ehlo(), (250,), "EHLO")
        if server.security == "starttls":
            if not smtp.has_extn("starttls"):
                raise DeliveryFailed(
                    f"the mail server {server.host} does not offer STARTTLS; set "
                    "notifications.smtp_security",
                    target_down=True,
                )
            self._check(smtp.starttls(context=self._tls), (220,), "STARTTLS")
            self._check(smtp.ehlo(), (250,), "EHLO")
        if server.login:
            if server.security == "none" and server.host not in ("localhost", "127.0.0.1", "::1"):
                raise DeliveryFailed(
                    "a password is not sent over an unencrypted connection; set "
                    "notifications.smtp_security",
                    target_down=True,
                )
            user, _, password = server.login.partition(":")
            token = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
            self._check(smtp.docmd("AUTH", f"PLAIN {token}"), (235,), "AUTH", target_down=True)

    def _hand_over(self, smtp: smtplib.SMTP) -> None:
        sender = str(self._message["From"])
        self._check(smtp.mail(sender), (250,), f"MAIL FROM:<{sender}>", target_down=True)
        for address in str(self._message["To"]).split(", "):
            self._check(smtp.rcpt(address), (250, 251, 252), f"RCPT TO:<{address}>")
        self._check(smtp.data(self._message.as_bytes()), (250,), "the mail")
        # The mail is delivered: the response to QUIT does not matter.
        with suppress(OSError):
            smtp.putcmd("quit")

    def _check(
        self,
        response: tuple[int, bytes | str],
        expected: tuple[int, ...],
        command: str,
        *,
        target_down: bool = False,
    ) -> None:
        code, text = response
        if self._is_aborted:
            raise OSError("aborted")
        if code not in expected:
            if isinstance(text, bytes):
                text = text.decode("utf-8", "replace")
            last_line = text.rpartition("\n")[2]
            raise DeliveryFailed(
                f"the mail server refused {command[:60]}: {code} {last_line[:120]}",
                target_down=target_down or code == 421,
            )


class _Registered:
    """Registers itself before it connects, so that the delivery can abort it at any time."""

    def __init__(self, delivery: _Delivery, *address: Any, **options: Any) -> None:
        delivery.connection = self  # type: ignore[assignment]
        super().__init__(*address, **options)


class _Smtp(_Registered, smtplib.SMTP): ...


class _SmtpOverTls(_Registered, smtplib.SMTP_SSL): ...
