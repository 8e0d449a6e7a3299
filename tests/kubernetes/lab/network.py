"""Ways between the network of this machine and the network namespace of a real node."""

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000
MOST_HEAD = 65536


class Forwarder:
    """Connections to an address in a network namespace go to a port of the loopback outside."""

    def __init__(self, namespace: Path, address: tuple[str, int], port: int) -> None:
        """The address belongs to the namespace, the port to this machine."""
        self._port = port
        made: list[socket.socket] = []
        # A thread changes its namespace for itself only, and ends with it.
        thread = threading.Thread(target=self._listen, args=(namespace, address, made))
        thread.start()
        thread.join()
        (self._listener,) = made
        threading.Thread(target=self._serve, daemon=True).start()

    def _listen(self, namespace: Path, address: tuple[str, int], made: list[socket.socket]) -> None:
        _enter(namespace)
        made.append(socket.create_server(address))

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                inner, _ = self._listener.accept()
                try:
                    outer = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    inner.close()
                    continue
                threading.Thread(target=_join, args=(inner, outer), daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Egress:
    """The way of the API server to kubelets and to Services: HTTP CONNECT on a Unix socket.

    Kubernetes calls this egress selection. The address of a Service becomes the one of a ready pod
    behind it, which kube-proxy does elsewhere.
    """

    def __init__(self, path: Path, get: Callable[[str], Any]) -> None:
        """`get` reads from the API server; a node sets `namespace`, the one of its network."""
        self.path = path
        self.namespace = Path("/no/node")
        self._get = get
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(128)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(caller,), daemon=True).start()

    def _connect(self, caller: socket.socket) -> None:
        try:
            head = b""
            while b"\r\n\r\n" not in head and len(head) < MOST_HEAD:
                head += caller.recv(4096) or b"\r\n\r\n"
            host, _, port = head.split()[1].decode().rpartition(":")
            address = self._behind(host, int(port))
            _enter(self.namespace)
            called = socket.create_connection(address, timeout=30)
            called.settimeout(None)
            caller.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        except (OSError, LookupError, ValueError) as error:
            with suppress(OSError):
                caller.sendall(f"HTTP/1.1 502 {error}\r\n\r\n".encode())
            caller.close()
            return
        _join(caller, called)

    def _behind(self, host: str, port: int) -> tuple[str, int]:
        """The address of a ready pod, if this one is of a Service; else itself."""
        for service in self._get("/api/v1/services")["items"]:
            if service["spec"].get("clusterIP") != host:
                continue
            names = [one.get("name", "") for one in service["spec"]["ports"] if one["port"] == port]
            space, name = service["metadata"]["namespace"], service["metadata"]["name"]
            found = self._get(
                f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices"
                f"?labelSelector=kubernetes.io/service-name%3D{name}"
            )
            for one in found["items"]:
                ports = [p["port"] for p in one["ports"] or () if p.get("name", "") in names]
                for endpoint in one["endpoints"] or ():
                    if ports and endpoint.get("conditions", {}).get("ready"):
                        return endpoint["addresses"][0], ports[0]
            raise LookupError(f"Service {space}/{name} has no ready pod")
        return host, port

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _enter(namespace: Path) -> None:
    """Let the calling thread use the network of a namespace from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def _join(inner: socket.socket, outer: socket.socket) -> None:
    """Copy in both directions until one side ends."""
    with inner, outer:
        back = threading.Thread(target=_copy, args=(outer, inner), daemon=True)
        back.start()
        _copy(inner, outer)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
