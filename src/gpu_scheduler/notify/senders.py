"""A notification to a target, whatever kind that is."""

from __future__ import annotations

import json
import os
import socket
import ssl
from datetime import UTC, datetime
from typing import Any

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.notify import mail, program, webhook
from gpu_scheduler.notify.failures import DeliveryFailed
from gpu_scheduler.notify.proxy import Proxies
from gpu_scheduler.notify.secrets import read_secret
from gpu_scheduler.settings.forms import Target
from gpu_scheduler.settings.notifications import NotificationSettings


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
            await program.run(known.command, body, document, self._settings.timeout_s)

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
