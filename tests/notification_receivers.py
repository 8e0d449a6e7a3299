"""Receivers of notifications: a small real HTTP server and a small real mail server, in threads.

Both record what they received, and can be told to reject, to be slow, or to be down.
"""

import base64
import json
import socket
import ssl
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

LONGEST_S = 60.0


def until(what: Callable[[], Any], why: str) -> Any:
    """Repeat until there is a value."""
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited in vain: {why}")


class HttpReceiver:
    """Takes JSON by POST.

    `status` is its answer, `delay_s` its delay. With a certificate it uses TLS.
    """

    def __init__(self, port: int = 0, *, certificate: tuple[Path, Path] | None = None) -> None:
        self.got: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.requests = 0
        self.status = 200
        self.delay_s = 0.0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests += 1
                if receiver.delay_s:
                    time.sleep(receiver.delay_s)
                if receiver.status < 300:
                    receiver.headers.append(dict(self.headers))
                    receiver.bodies.append(body)
                    # Set last: a waiting test may then read the others.
                    receiver.got.append(json.loads(body))
                self.send_response(receiver.status)
                if receiver.status in (301, 302):
                    self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        if certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(certificate[0], certificate[1])
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            self.url = f"https://localhost:{self.port}/hook"
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(0.02), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> "HttpReceiver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def ids(self) -> list[str]:
        return [document["id"] for document in self.got]


class _Listener(ABC):
    """Serves each connection to its own port in a thread, until the end of the block."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    @abstractmethod
    def _serve(self, connection: socket.socket) -> None:
        """Handle one connection."""


class HttpProxy(_Listener):
    """A proxy: whole requests by their URL, and tunnels by CONNECT.

    `asked` are the request lines, `login` is the required `Proxy-Authorization` (`Basic ...`).
    """

    def __init__(self, login: str = "") -> None:
        self.asked: list[str] = []
        self._login = login
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1)
        lines = head.decode().split("\r\n")
        self.asked.append(lines[0])
        method, target, _ = lines[0].split()
        if self._login and f"Proxy-Authorization: {self._login}" not in lines:
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            connection.close()
            return
        place = target if method == "CONNECT" else target.split("/")[2]
        host, _, port = place.rpartition(":")
        with connection, socket.create_connection((host, int(port))) as far:
            if method == "CONNECT":
                connection.sendall(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
            else:
                path = "/" + target.split("/", 3)[3]
                kept = [line for line in lines[1:] if not line.startswith("Proxy-")]
                far.sendall("\r\n".join([f"{method} {path} HTTP/1.1", *kept]).encode())
            back = threading.Thread(target=_pass_on, args=(far, connection), daemon=True)
            back.start()
            _pass_on(connection, far)
            back.join()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65_536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        return


class SmtpReceiver(_Listener):
    """Accepts mails.

    With a certificate it offers STARTTLS; with a login it requires authentication.
    """

    def __init__(
        self,
        *,
        certificate: tuple[Path, Path] | None = None,
        login: str = "",
        implicit_tls: bool = False,
    ) -> None:
        self.mails: list[EmailMessage] = []
        self.envelopes: list[tuple[str, list[str]]] = []
        self.was_encrypted: list[bool] = []
        self.refused = ""
        self._login = login
        self._implicit_tls = implicit_tls
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(certificate[0], certificate[1])
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        if self._implicit_tls and self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        conversation = _Conversation(self, connection)
        conversation.encrypted = self._implicit_tls
        try:
            conversation.run()
        except (OSError, ValueError):
            pass
        finally:
            conversation.file.close()
            conversation.connection.close()


class _Conversation:
    def __init__(self, receiver: SmtpReceiver, connection: socket.socket) -> None:
        self.receiver = receiver
        self.connection = connection
        self.file = connection.makefile("rb")
        self.encrypted = False
        self.known = not receiver._login
        self.sender = ""
        self.to: list[str] = []

    def say(self, line: str) -> None:
        self.connection.sendall(line.encode() + b"\r\n")

    def run(self) -> None:
        self.say("220 test ESMTP")
        while line := self.file.readline():
            words = line.decode().strip()
            verb = words.split(" ", 1)[0].upper()
            if verb == "QUIT":
                self.say("221 bye")
                return
            if self.receiver.refused and verb == self.receiver.refused:
                self.say("550 not here")
                continue
            getattr(self, f"on_{verb.lower()}")(words)

    def on_ehlo(self, _: str) -> None:
        offers_tls = self.receiver._tls is not None and not self.encrypted
        self.say("250-test")
        if offers_tls:
            self.say("250-STARTTLS")
        self.say("250 AUTH PLAIN")

    def on_starttls(self, _: str) -> None:
        self.say("220 go ahead")
        assert self.receiver._tls is not None
        self.connection = self.receiver._tls.wrap_socket(self.connection, server_side=True)
        self.file = self.connection.makefile("rb")
        self.encrypted = True

    def on_auth(self, words: str) -> None:
        _, user, password = base64.b64decode(words.split()[2]).decode().split("\0")
        self.known = f"{user}:{password}" == self.receiver._login
        self.say("235 welcome" if self.known else "535 who are you")

    def on_mail(self, words: str) -> None:
        self.sender, self.to = words.partition("<")[2].rstrip(">"), []
        self.say("250 fine" if self.known else "530 log in first")

    def on_rcpt(self, words: str) -> None:
        self.to.append(words.partition("<")[2].rstrip(">"))
        self.say("250 fine")

    def on_data(self, _: str) -> None:
        self.say("354 go on")
        lines = []
        while (line := self.file.readline()) != b".\r\n":
            lines.append(line[1:] if line.startswith(b".") else line)
        receiver = self.receiver
        receiver.envelopes.append((self.sender, self.to))
        receiver.was_encrypted.append(self.encrypted)
        receiver.mails.append(message_from_bytes(b"".join(lines), policy=policy.default))  # type: ignore[arg-type]
        self.say("250 taken")


def a_certificate(directory: Path, name: str = "localhost") -> tuple[Path, Path]:
    """A self-signed certificate and its key, by the openssl program."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def a_free_port() -> int:
    """A port on which no process listens now."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
