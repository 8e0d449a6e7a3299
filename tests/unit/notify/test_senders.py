"""Delivery of one notification to each kind of target."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import ssl
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gpu_scheduler.notify import delivery, mail, webhook
from gpu_scheduler.notify.delivery import Senders
from gpu_scheduler.notify.retry_queue import DeliveryFailed
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.groups.operations import NotificationSettings
from tests.notification_receivers import (
    HttpReceiver,
    SmtpReceiver,
    a_certificate,
    a_free_port,
    until,
)

DOCUMENT = {
    "id": "event-7-t",
    "text": "job-1 (<!channel> & co) of ann failed",
    "event": "fail",
    "user": "ann",
    "tenant": "vision",
    "exit_code": 3,
    "gpus": [0, 1],
}
AT_MS = 1_700_000_000_000


def tell(target: Target, document: dict[str, Any] = DOCUMENT, **settings: Any) -> None:
    settings = {"timeout_s": 5.0, "smtp_security": "none", "smtp_host": "127.0.0.1"} | settings
    senders = Senders(NotificationSettings(targets={"t": target}, **settings))
    uvloop.run(senders.send("t", document, AT_MS))


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


# --- webhooks


def test_webhook_gets_text_and_fields_and_cannot_mention_channel() -> None:
    with HttpReceiver() as receiver:
        tell(Target(kind="webhook", url=receiver.url))
    (got,), (headers,) = receiver.got, receiver.headers
    assert got["text"] == "job-1 (&lt;!channel&gt; &amp; co) of ann failed"
    assert (got["exit_code"], got["gpus"], got["user"]) == (3, [0, 1], "ann")
    assert (headers["X-Tgpu-Id"], headers["X-Tgpu-Event"]) == ("event-7-t", "fail")
    assert "X-Tgpu-Signature" not in headers


def test_secret_signs_body(tmp_path: Path) -> None:
    secret = private(tmp_path / "secret", "s3cret\n")
    with HttpReceiver() as receiver:
        address = private(tmp_path / "url", receiver.url)
        tell(Target(kind="webhook", url_file=address, secret_file=secret))
    headers = receiver.headers[0]
    expected = webhook.signature("s3cret", headers["X-Tgpu-Timestamp"], receiver.bodies[0])
    assert headers["X-Tgpu-Signature"] == expected
    assert webhook.signature("other", headers["X-Tgpu-Timestamp"], receiver.bodies[0]) != expected


@pytest.mark.parametrize(
    ("status", "everybody"), [(500, True), (503, True), (429, True), (404, False), (302, False)]
)
def test_non_success_response_is_failure_and_redirect_is_not_followed(
    status: int, everybody: bool
) -> None:
    with HttpReceiver() as receiver:
        receiver.status = status
        with pytest.raises(DeliveryFailed, match=f"status {status}") as failed:
            tell(Target(kind="webhook", url=receiver.url))
    assert failed.value.target_down is everybody
    assert receiver.requests == 1


def test_unreachable_slow_or_invalid_receiver_fails_in_time() -> None:
    port = a_free_port()
    with pytest.raises(DeliveryFailed, match="cannot be reached"):
        tell(Target(kind="webhook", url=f"http://127.0.0.1:{port}/"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(DeliveryFailed, match=r"within 0.2 s"):
            tell(Target(kind="webhook", url=url), timeout_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as strange:

        def chatter() -> None:
            connection, _ = strange.accept()
            connection.sendall(b"x" * 10_000)
            connection.close()

        threading.Thread(target=chatter, daemon=True).start()
        url = f"http://127.0.0.1:{strange.getsockname()[1]}/"
        with pytest.raises(DeliveryFailed, match=r"speak HTTP|cannot be reached"):
            tell(Target(kind="webhook", url=url))


def test_job_webhook_address_is_resolved_once_and_must_be_public() -> None:
    senders = Senders(NotificationSettings(allow_job_webhooks=True, timeout_s=5))
    with pytest.raises(DeliveryFailed, match="not public"):
        asyncio.run(senders.send("https://localhost:1/", DOCUMENT, AT_MS))
    with pytest.raises(DeliveryFailed, match="invalid host name"):
        asyncio.run(senders.send("https://two..dots/", DOCUMENT, AT_MS))

    async def resolve() -> None:
        await webhook._resolve_public(socket.gethostname(), 443)

    with pytest.raises(DeliveryFailed, match="not public"):
        asyncio.run(resolve())


def test_public_addresses_differ_from_private_ones() -> None:
    assert webhook.is_public("93.184.216.34")
    assert webhook.is_public("2606:2800:220:1::1")
    for inside in (
        *("10.0.0.1", "192.168.1.1", "172.16.0.1", "127.0.0.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "::1", "fe80::1%eth0", "fc00::1", "::ffff:192.168.0.1"),
        *("64:ff9b::c0a8:1", "2002:c0a8:1::1", "64:ff9b:1::c0a8:1", "::c0a8:1", "fec0::1"),
        "::ffff:0:192.168.0.1",
    ):
        assert not webhook.is_public(inside), inside


def test_secret_readable_by_others_is_not_used(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    with HttpReceiver() as receiver, pytest.raises(DeliveryFailed, match="chmod 600"):
        tell(Target(kind="webhook", url=receiver.url, secret_file=str(secret)))
    assert receiver.requests == 0
    with pytest.raises(DeliveryFailed, match="cannot be read"):
        tell(Target(kind="webhook", url_file=str(tmp_path / "none")))


# --- mail


def test_mail_goes_to_address_made_by_rule() -> None:
    with SmtpReceiver() as receiver:
        tell(
            Target(kind="email", to="{user}@lab.example, boss@lab.example"),
            smtp_port=receiver.port,
            mail_from="gpu@lab.example",
        )
        until(lambda: receiver.mails, "the mail")
    mail = receiver.mails[0]
    assert receiver.envelopes == [("gpu@lab.example", ["ann@lab.example", "boss@lab.example"])]
    assert mail["Subject"] == "[gpu-scheduler] job-1 (<!channel> & co) of ann failed"
    assert mail["Message-ID"].startswith("<event-7-t@")
    assert "exit code" in mail.get_content()


def test_user_text_cannot_inject_header_or_recipient() -> None:
    evil = DOCUMENT | {"text": "a\r\nBcc: all@lab.example\r\n\r\n.\r\nMAIL", "reason": ".\nx"}
    with SmtpReceiver() as receiver:
        tell(Target(kind="email", to="ann@lab.example"), evil, smtp_port=receiver.port)
        until(lambda: receiver.mails, "the mail")
        assert receiver.envelopes[0][1] == ["ann@lab.example"]
        assert receiver.mails[0]["Bcc"] is None
        for user in ("a@b>,<c", "x y", ""):
            with pytest.raises(DeliveryFailed, match="mail address"):
                tell(
                    Target(kind="email", to="{user}@lab.example"),
                    DOCUMENT | {"user": user},
                    smtp_port=receiver.port,
                )
    assert len(receiver.mails) == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_mail_is_encrypted_and_login_comes_from_file(tmp_path: Path) -> None:
    certificate = a_certificate(tmp_path)
    login = private(tmp_path / "login", "robot:pa:ss\n")
    with SmtpReceiver(certificate=certificate, login="robot:pa:ss") as receiver:
        options = {
            "smtp_port": receiver.port,
            "smtp_security": "starttls",
            "smtp_host": "localhost",
            "ca_file": str(certificate[0]),
        }
        target = Target(kind="email", to="ann@lab.example")
        tell(target, smtp_login_file=login, **options)
        until(lambda: receiver.mails, "the mail")
        assert receiver.was_encrypted == [True]
        private(tmp_path / "login", "robot:wrong")
        with pytest.raises(DeliveryFailed, match="535"):
            tell(target, smtp_login_file=login, **options)
        with pytest.raises(DeliveryFailed, match="TLS"):
            tell(target, smtp_login_file=login, **(options | {"ca_file": ""}))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_mail_uses_implicit_tls(tmp_path: Path) -> None:
    certificate = a_certificate(tmp_path)
    with SmtpReceiver(certificate=certificate, login="a:b", implicit_tls=True) as receiver:
        tell(
            Target(kind="email", to="ann@lab.example"),
            smtp_login_file=private(tmp_path / "login", "a:b"),
            smtp_port=receiver.port,
            smtp_security="tls",
            smtp_host="localhost",
            ca_file=str(certificate[0]),
        )
        until(lambda: receiver.mails, "the mail")
    assert receiver.was_encrypted == [True]


def test_mail_server_without_encryption_is_rejected_unless_allowed() -> None:
    with SmtpReceiver() as receiver, pytest.raises(DeliveryFailed, match="does not offer STARTTLS"):
        tell(
            Target(kind="email", to="ann@lab.example"),
            smtp_port=receiver.port,
            smtp_security="starttls",
        )
    assert receiver.mails == []


def test_rejecting_or_silent_mail_server_is_failure() -> None:
    with SmtpReceiver() as receiver:
        receiver.refused = "RCPT"
        with pytest.raises(DeliveryFailed, match="550") as failed:
            tell(Target(kind="email", to="ann@lab.example"), smtp_port=receiver.port)
        assert not failed.value.target_down
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DeliveryFailed, match=r"within 0.2 s"),
    ):
        tell(
            Target(kind="email", to="a@lab.example"),
            smtp_port=silent.getsockname()[1],
            timeout_s=0.2,
        )


def answer_endlessly(server: socket.socket, stop: threading.Event) -> None:
    """A mail server that sends one line after another, but never the last line of a response."""
    server.settimeout(0.05)
    connections: list[socket.socket] = []
    while not stop.is_set():
        with contextlib.suppress(OSError):
            connections.append(server.accept()[0])
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(b"220-please wait\r\n")
    for connection in connections:
        connection.close()


def mail_threads() -> int:
    return sum(thread.name == "smtp" for thread in threading.enumerate())


@pytest.mark.parametrize("is_endless", [False, True], ids=["silent", "endless"])
def test_hanging_mail_servers_neither_block_loop_nor_accumulate_threads(
    is_endless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    lock = threading.Lock()
    running: list[int] = []
    most: list[int] = [0]
    run = mail._Delivery.run

    def counted(delivery: mail._Delivery) -> None:
        with lock:
            running.append(1)
            most[0] = max(most[0], len(running))
        try:
            run(delivery)
        finally:
            with lock:
                running.pop()

    monkeypatch.setattr(mail._Delivery, "run", counted)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answering = threading.Thread(target=answer_endlessly, args=(server, stop))
        if is_endless:
            answering.start()
        message = mail.compose(
            sender="gpu@lab.example",
            to=["ann@lab.example"],
            subject="s",
            text="t",
            message_id="<1@lab>",
            at=datetime.now(UTC),
        )
        turns = 0

        async def deliver_many() -> list[BaseException | None]:
            nonlocal turns
            mailer = mail.Mailer(ssl.create_default_context())
            hung = mail.MailServer(host="127.0.0.1", port=port, security="none")
            sending = [asyncio.ensure_future(mailer.send(message, hung, 0.4)) for _ in range(20)]
            while not all(one.done() for one in sending):
                await asyncio.sleep(0.01)
                turns += 1
            return [one.exception() for one in sending]

        errors = asyncio.run(deliver_many())
        stop.set()
        if is_endless:
            answering.join()
    assert all(isinstance(error, DeliveryFailed) for error in errors)
    assert all("within 0.4 s" in str(error) for error in errors)
    assert most[0] == mail.MAX_THREADS
    assert turns > 10, "the event loop was blocked"
    until(lambda: mail_threads() == 0, "the end of all threads")


def test_wait_for_free_thread_is_not_part_of_mail_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "MAX_THREADS", 1)
    message = mail.compose(
        sender="gpu@lab.example",
        to=["ann@lab.example"],
        subject="s",
        text="t",
        message_id="<1@lab>",
        at=datetime.now(UTC),
    )

    async def deliver_behind_hanging_server(hanging_port: int, port: int) -> None:
        mailer = mail.Mailer(ssl.create_default_context())
        hanging = mail.MailServer(host="127.0.0.1", port=hanging_port, security="none")
        working = mail.MailServer(host="127.0.0.1", port=port, security="none")
        first = asyncio.ensure_future(mailer.send(message, hanging, 2.5))
        await asyncio.sleep(0)
        await mailer.send(message, working, 2.0)
        assert isinstance(first.exception(), DeliveryFailed)

    with socket.create_server(("127.0.0.1", 0)) as silent, SmtpReceiver() as receiver:
        hanging_port = silent.getsockname()[1]
        asyncio.run(deliver_behind_hanging_server(hanging_port, receiver.port))
        assert len(receiver.mails) == 1


# --- programs


def a_program(tmp_path: Path, text: str) -> Target:
    script = tmp_path / "told.py"
    script.write_text(text)
    return Target(kind="command", command=(sys.executable, str(script), str(tmp_path / "out")))


def test_program_gets_document_and_variables_and_no_arguments(
    tmp_path: Path,
) -> None:
    target = a_program(
        tmp_path,
        "import json, os, sys\n"
        "told = json.load(sys.stdin)\n"
        "open(sys.argv[1], 'w').write(json.dumps([told['id'], sys.argv[2:],"
        " os.environ['TGPU_NOTICE_EXIT_CODE'], sorted(os.environ)]))\n",
    )
    tell(target)
    text = (tmp_path / "out").read_text()
    assert text.startswith('["event-7-t", [], "3"')
    assert "GPU_SCHEDULER" not in text


def test_failing_hanging_or_missing_program_is_failure(tmp_path: Path) -> None:
    with pytest.raises(DeliveryFailed, match="exit code 4"):
        tell(a_program(tmp_path, "raise SystemExit(4)"))
    with pytest.raises(DeliveryFailed, match=r"longer than 0.5 s"):
        tell(a_program(tmp_path, "import time\ntime.sleep(60)"), timeout_s=0.5)
    with pytest.raises(DeliveryFailed, match="cannot be run"):
        tell(Target(kind="command", command=(str(tmp_path / "none"),)))


def test_program_that_dies_late_is_reaped_later_without_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = a_program(tmp_path, "import time\ntime.sleep(600)")
    settings = NotificationSettings(targets={"t": target}, timeout_s=0.3)
    killed: list[int] = []

    async def scenario() -> None:
        # As with a process that hangs in the kernel: it was killed, and still exists.
        monkeypatch.setattr(delivery.os, "killpg", lambda pid, _: killed.append(pid))
        with pytest.raises(DeliveryFailed, match="took longer"):
            await Senders(settings).send("t", DOCUMENT, AT_MS)
        (pid,) = killed
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.01)

    uvloop.run(scenario())
