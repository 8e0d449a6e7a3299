"""Which HTTP proxy a webhook goes through, by the variables that curl reads too.

`https_proxy` and `http_proxy` by the scheme of the address, else `all_proxy`; hosts in `no_proxy`
are reached directly. Small letters win over large ones, and `HTTP_PROXY` in large ones is not read:
where programs are run for web requests, its value can be a stranger's.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from gpu_scheduler.notify.failures import DeliveryFailed

USUAL_PORT = 1080
"""As with curl, for a proxy whose address names no port."""
MOST_HEADERS = 100


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where the proxy is, and what it has to be told about us."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    async def open_tunnel(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str
    ) -> None:
        """Ask for a connection to `host:port` of the target, over which then nobody else speaks."""
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *self.headers]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        await writer.drain()
        words = (await reader.readline()).split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise DeliveryFailed(f"the proxy {self} does not speak HTTP", everybody=True)
        if not 200 <= int(words[1]) < 300:
            status = words[1].decode()
            raise DeliveryFailed(f"the proxy {self} answered with status {status}", everybody=True)
        for _ in range(MOST_HEADERS):
            if not (await reader.readline()).strip():
                return
        raise DeliveryFailed(f"the proxy {self} does not speak HTTP", everybody=True)

    @property
    def headers(self) -> list[str]:
        """What goes to the proxy alone."""
        return [f"Proxy-Authorization: {self.authorization}"] if self.authorization else []

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Proxies:
    """What the variables say, read once."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Take the variables of the process, or others."""
        every = _first(variables, "all_proxy", "ALL_PROXY")
        self._by_scheme = {
            "http": _first(variables, "http_proxy") or every,
            "https": _first(variables, "https_proxy", "HTTPS_PROXY") or every,
        }
        listed = _first(variables, "no_proxy", "NO_PROXY")
        self._direct = [entry for entry in listed.replace(",", " ").split() if entry]

    def towards(self, scheme: str, host: str) -> Proxy | None:
        """The proxy for this host, or None if it is reached directly."""
        address = self._by_scheme[scheme]
        if not address or any(_covers(entry, host) for entry in self._direct):
            return None
        return _understood(address, scheme)


def _first(variables: Mapping[str, str], *names: str) -> str:
    return next((variables[name] for name in names if variables.get(name)), "")


def _understood(address: str, scheme: str) -> Proxy:
    """The parts of a proxy's address; its password is not repeated in an error."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname or "", parts.port or USUAL_PORT
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    if parts.scheme != "http" or not host:
        raise DeliveryFailed(
            f"{scheme}_proxy (or all_proxy) of the server names no proxy that can be used; it must "
            "be http://HOST:PORT",
            everybody=True,
        )
    login = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(host, port, login)


def _covers(entry: str, host: str) -> bool:
    """Tell whether an entry of no_proxy means this host: a name with all below it, or a network."""
    if entry == "*":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        name = entry.lower().strip(".")
        host = host.lower().rstrip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
    try:
        return address in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
