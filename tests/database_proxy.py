"""A TCP proxy in front of PostgreSQL that drops connections at chosen moments."""

import re
import socket
import threading
from contextlib import suppress

COMMIT = b"COMMIT"
PREPARED = re.compile(rb"(_pg3_\d+)\0COMMIT\0")
"""The client names statements that it repeats, and sends only the name later."""
SIZE = 65_536


class Proxy:
    """Passes everything on, until a COMMIT comes and `lose` says what to do with it.

    "answer": the server executes it, and then its answer is lost. "request": it is lost itself, and
    the server is not told that the client has gone. `lost` is set after that. While `refusing`, new
    connections are closed at once.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.lose = ""
        self.refusing = False
        self.lost = threading.Event()
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for connection in self._sockets:
            _end(connection)
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refusing:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._sockets += (client, server)
                answers = threading.Thread(target=self._answers, args=(server, client), daemon=True)
                answers.start()
                requests = (client, server, answers)
                threading.Thread(target=self._requests, args=requests, daemon=True).start()

    def _requests(
        self, client: socket.socket, server: socket.socket, answers: threading.Thread
    ) -> None:
        prepared: set[bytes] = set()
        with suppress(OSError):
            while data := client.recv(SIZE):
                prepared |= {found.group(1) for found in PREPARED.finditer(data)}
                commits = COMMIT in data or any(b"\0%b\0" % name in data for name in prepared)
                if self.lose and commits:
                    how, self.lose = self.lose, ""
                    self.refusing = True
                    if how == "answer":
                        # The server ends the connection after the commit. Until then the client
                        # must not reconnect: it would end this connection before the commit.
                        server.sendall(data)
                        server.shutdown(socket.SHUT_WR)
                        answers.join()
                    _end(client)
                    self.lost.set()
                    return
                server.sendall(data)
        _end(server)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(SIZE):
                if not self.refusing:
                    client.sendall(data)
        _end(client)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
