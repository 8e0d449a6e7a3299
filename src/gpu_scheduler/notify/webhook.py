"""Webhooks: one HTTP POST with a JSON document, as Slack and similar services accept it.

The receiver is not trusted: only http and https, no redirects, a deadline over the whole exchange,
and only the status line of the response is read. With `public_only` (a URL from a user) the name is
resolved first, every address must be public, and the connection goes to the checked address, also
through a proxy.
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
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from gpu_scheduler.notify.retry_queue import DeliveryFailed

PROXY_PORT = 1080
"""Port of a proxy whose URL has none, as with curl."""
MAX_HEADERS = 100
LONGEST_LINE = 4096
TOO_MANY_REQUESTS = 429
_PORTS = {"http": 80, "https": 443}
_PUBLIC_V6 = IPv6Network("2000::/3")
"""Global unicast addresses. Local ones, and forms that embed IPv4 addresses, are outside."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Address of an HTTP proxy, and the credentials for it."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    async def open_tunnel(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str
    ) -> None:
        """Open a tunnel to the target, given as `host:port`, with CONNECT."""
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *self.headers]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        await writer.drain()
        status = _status(await reader.readline())
        if status is None:
            raise DeliveryFailed(f"the proxy {self} does not speak HTTP", target_down=True)
        if not 200 <= status < 300:
            raise DeliveryFailed(f"the proxy {self} returned status {status}", target_down=True)
        for _ in range(MAX_HEADERS):
            if not (await reader.readline()).strip():
                return
        raise DeliveryFailed(f"the proxy {self} does not speak HTTP", target_down=True)

    @property
    def headers(self) -> list[str]:
        """Headers for the proxy only."""
        return [f"Proxy-Authorization: {self.authorization}"] if self.authorization else []

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Proxies:
    """The proxies of the environment, by the variables that curl reads too.

    `https_proxy` and `http_proxy` by the scheme of the URL, else `all_proxy`; hosts in `no_proxy`
    are reached directly. Lower case takes precedence. `HTTP_PROXY` in upper case is ignored,
    because in CGI programs a client can set it.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        every = _first(variables, "all_proxy", "ALL_PROXY")
        self._by_scheme = {
            "http": _first(variables, "http_proxy") or every,
            "https": _first(variables, "https_proxy", "HTTPS_PROXY") or every,
        }
        listed = _first(variables, "no_proxy", "NO_PROXY")
        self._direct = [entry for entry in listed.replace(",", " ").split() if entry]

    def proxy_for(self, scheme: str, host: str) -> Proxy | None:
        """The proxy for a host; None for a direct connection."""
        address = self._by_scheme[scheme]
        if not address or any(_covers(entry, host) for entry in self._direct):
            return None
        return _parse_proxy(address, scheme)


def _first(variables: Mapping[str, str], *names: str) -> str:
    return next((variables[name] for name in names if variables.get(name)), "")


def _parse_proxy(address: str, scheme: str) -> Proxy:
    """Parse the URL of a proxy; an error does not repeat its password."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname or "", parts.port or PROXY_PORT
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    if parts.scheme != "http" or not host:
        raise DeliveryFailed(
            f"{scheme}_proxy (or all_proxy) of the server is not a usable proxy; it must be "
            "http://HOST:PORT",
            target_down=True,
        )
    login = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(host, port, login)


def _covers(entry: str, host: str) -> bool:
    """Whether an entry of no_proxy matches a host: a domain with its subdomains, or a network."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One request."""

    url: str
    body: bytes
    notice_id: str
    notice: str
    at_ms: int
    secret: str = ""
    public_only: bool = False


async def send(post: Post, tls: ssl.SSLContext, timeout_s: float, proxies: Proxies) -> None:
    """Deliver, or raise `DeliveryFailed`."""
    address = checked_url(post.url, public_only=post.public_only)
    proxy = proxies.proxy_for(address.scheme, address.hostname or "")
    via = f" through the proxy {proxy}" if proxy else ""
    try:
        async with asyncio.timeout(timeout_s):
            status = await _exchange(post, address, tls, proxy)
    except TimeoutError:
        raise DeliveryFailed(f"no response{via} within {timeout_s:g} s", target_down=True) from None
    except UnicodeError:
        raise DeliveryFailed("the webhook URL has an invalid host name") from None
    except ssl.SSLError as error:
        raise DeliveryFailed(f"TLS failed: {error.reason or error}", target_down=True) from None
    except OSError as error:
        raise DeliveryFailed(f"cannot be reached{via}: {error}", target_down=True) from None
    if not 200 <= status < 300:
        is_down = status >= 500 or status == TOO_MANY_REQUESTS
        raise DeliveryFailed(f"returned status {status}", target_down=is_down)


def checked_url(url: str, *, public_only: bool = False) -> SplitResult:
    """The parts of a webhook URL; raises `DeliveryFailed` if it is not allowed."""
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise DeliveryFailed("the webhook URL is invalid") from None
    allowed = ("https",) if public_only else ("http", "https")
    if parts.scheme not in allowed or not parts.hostname or not port_is_fine:
        raise DeliveryFailed(f"the webhook URL must begin with {allowed[-1]}://")
    if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
        raise DeliveryFailed(
            "the webhook URL contains credentials or characters that are not allowed"
        )
    if public_only and _is_private_name(parts.hostname):
        raise DeliveryFailed("the webhook URL is not public")
    return parts


def is_public(text: str) -> bool:
    """Whether an address is public, also one that embeds an IPv4 address."""
    address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(str(inner))
        if address.teredo is not None or address not in _PUBLIC_V6:
            return False
    return address.is_global and not address.is_multicast


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 over the timestamp, a dot and the body; the receiver computes the same."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def _is_private_name(host: str) -> bool:
    """Whether a host is a local name or a private address; other names are resolved later."""
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
    target = await _resolve_public(host, port) if post.public_only else host
    is_https = address.scheme == "https"
    tls_options: dict[str, Any] = {}
    if is_https and proxy is None:
        tls_options = {"ssl": tls, "server_hostname": host}
    reader, writer = await asyncio.open_connection(
        proxy.host if proxy else target,
        proxy.port if proxy else port,
        limit=LONGEST_LINE,
        **tls_options,
    )
    try:
        if proxy is not None and is_https:
            authority = f"[{target}]:{port}" if ":" in target else f"{target}:{port}"
            await proxy.open_tunnel(reader, writer, authority)
            await writer.start_tls(tls, server_hostname=host)
        writer.write(_request(post, address, proxy))
        await writer.drain()
        status = _status(await reader.readline())
        if status is None:
            raise DeliveryFailed("does not speak HTTP", target_down=True)
        return status
    except ssl.SSLError:
        raise  # certificate errors are ValueErrors too
    except ValueError:
        raise DeliveryFailed("does not speak HTTP", target_down=True) from None
    finally:
        writer.close()
        with suppress(OSError):
            writer.transport.abort()


async def _resolve_public(host: str, port: int) -> str:
    """One address of a name; all of them must be public, so that a retry cannot find another."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port)
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(map(is_public, addresses)):
        raise DeliveryFailed("the webhook URL is not public")
    return addresses[0]


def _request(post: Post, address: SplitResult, proxy: Proxy | None) -> bytes:
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    proxy_headers: list[str] = []
    if proxy is not None and address.scheme == "http":
        path, proxy_headers = f"http://{address.netloc}{path}", proxy.headers
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
        *proxy_headers,
    ]
    if post.secret:
        lines.append(f"X-Tgpu-Signature: {signature(post.secret, timestamp, post.body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + post.body


def _status(line: bytes) -> int | None:
    """The status in the first line of a response; None if it is not HTTP."""
    words = line.split(None, 2)
    is_http = len(words) >= 2 and words[0].startswith(b"HTTP/1.") and words[1].isdigit()
    return int(words[1]) if is_http else None
