"""One HTTP POST with a JSON document, as Slack and its like take it.

The receiver may be anybody, so: http and https only, no redirects, a deadline over all of it, and
an answer of which little is read. With `public_only` (an address that a user gave) the name is
resolved first, every address must be public, and the connection goes to the address that was
checked; also where a proxy makes it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, unquote, urlsplit

from gpu_scheduler.notify.message import DeliveryFailed

# --- Which HTTP proxy a webhook goes through, by the variables that curl reads too.
#
# `https_proxy` and `http_proxy` by the scheme of the address, else `all_proxy`; hosts in `no_proxy`
# are reached directly. Small letters win over large ones, and `HTTP_PROXY` in large ones is not
# read:
# where programs are run for web requests, its value can be a stranger's.

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


# --- One HTTP POST with a JSON document, as Slack and its like take it.

LONGEST_LINE = 4096
TOO_MANY_REQUESTS = 429
_PORTS = {"http": 80, "https": 443}
_PUBLIC_V6 = IPv6Network("2000::/3")
"""What is given out to the public. Outside are local ones, and forms that stand for IPv4 ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What is sent, and where to."""

    url: str
    body: bytes
    notice_id: str
    notice: str
    at_ms: int
    secret: str = ""
    public_only: bool = False


async def send(post: Post, tls: ssl.SSLContext, timeout_s: float, proxies: Proxies) -> None:
    """Deliver, or raise DeliveryFailed."""
    address = checked_url(post.url, public_only=post.public_only)
    proxy = proxies.towards(address.scheme, address.hostname or "")
    way = f" by the proxy {proxy}" if proxy else ""
    try:
        async with asyncio.timeout(timeout_s):
            status = await _exchange(post, address, tls, proxy)
    except TimeoutError:
        raise DeliveryFailed(f"no answer{way} within {timeout_s:g} s", everybody=True) from None
    except UnicodeError:
        raise DeliveryFailed("the host of the webhook is no name") from None
    except ssl.SSLError as error:
        raise DeliveryFailed(f"TLS failed: {error.reason or error}", everybody=True) from None
    except OSError as error:
        raise DeliveryFailed(f"cannot be reached{way}: {error}", everybody=True) from None
    if not 200 <= status < 300:
        unwell = status >= 500 or status == TOO_MANY_REQUESTS
        raise DeliveryFailed(f"answered with status {status}", everybody=unwell)


def checked_url(url: str, *, public_only: bool = False) -> SplitResult:
    """The parts of an address; refused if it is none for us."""
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise DeliveryFailed("the address of the webhook cannot be read") from None
    allowed = ("https",) if public_only else ("http", "https")
    if parts.scheme not in allowed or not parts.hostname or not port_is_fine:
        raise DeliveryFailed(f"the address of the webhook must begin with {allowed[-1]}://")
    if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        raise DeliveryFailed("the address of the webhook holds what it must not")
    if public_only and _is_private_name(parts.hostname):
        raise DeliveryFailed("the address of the webhook is not public")
    return parts


def is_public(text: str) -> bool:
    """Tell whether an address belongs to the public network, also by way of a translation."""
    address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(str(inner))
        if address.teredo is not None or address not in _PUBLIC_V6:
            return False
    return address.is_global and not address.is_multicast


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What a receiver works out, too: HMAC-SHA256 over the time, a dot and the body."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def _is_private_name(host: str) -> bool:
    """An address written as such is judged at once; names are when they are resolved."""
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        return not is_public(host)
    except ValueError:
        return False


async def _exchange(
    post: Post, address: SplitResult, tls: ssl.SSLContext, proxy: Proxy | None
) -> int:
    host = address.hostname or ""
    port = address.port or _PORTS[address.scheme]
    target = await _resolved(host, port) if post.public_only else host
    reader, writer = await _connected((host, target, port), address.scheme, tls, proxy)
    try:
        if proxy is not None and address.scheme == "https":
            await proxy.open_tunnel(reader, writer, _authority(target, port))
            await writer.start_tls(tls, server_hostname=host)
        writer.write(_request(post, address, proxy))
        await writer.drain()
        return _status(await reader.readline())
    except ssl.SSLError:
        raise  # one about certificates is a ValueError as well
    except ValueError:
        raise DeliveryFailed("does not speak HTTP", everybody=True) from None
    finally:
        writer.close()
        with suppress(OSError, asyncio.CancelledError):
            writer.transport.abort()


async def _connected(
    place: tuple[str, str, int], scheme: str, tls: ssl.SSLContext, proxy: Proxy | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """To the proxy if there is one, else to the target itself."""
    host, target, port = place
    if proxy is not None:
        return await asyncio.open_connection(proxy.host, proxy.port, limit=LONGEST_LINE)
    if scheme == "http":
        return await asyncio.open_connection(target, port, limit=LONGEST_LINE)
    return await asyncio.open_connection(
        target, port, limit=LONGEST_LINE, ssl=tls, server_hostname=host
    )


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _resolved(host: str, port: int) -> str:
    """An address of the name; all it has must be public, so that no second look finds another."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port)
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(map(is_public, addresses)):
        raise DeliveryFailed("the address of the webhook is not public")
    return addresses[0]


def _request(post: Post, address: SplitResult, proxy: Proxy | None) -> bytes:
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    told: list[str] = []
    if proxy is not None and address.scheme == "http":
        path, told = f"http://{address.netloc}{path}", proxy.headers
    timestamp = str(post.at_ms // 1000)
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {address.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(post.body)}",
        "User-Agent: gpu-scheduler",
        f"X-Tgpu-Id: {post.notice_id}",
        f"X-Tgpu-Event: {post.notice}",
        f"X-Tgpu-Timestamp: {timestamp}",
        "Connection: close",
        *told,
    ]
    if post.secret:
        lines.append(f"X-Tgpu-Signature: {signature(post.secret, timestamp, post.body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + post.body


def _status(line: bytes) -> int:
    words = line.split(None, 2)
    is_http = len(words) >= 2 and words[0].startswith(b"HTTP/1.") and words[1].isdigit()
    if not is_http:
        raise DeliveryFailed("does not speak HTTP", everybody=True)
    return int(words[1])
