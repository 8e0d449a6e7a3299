"""One HTTP POST with a JSON document, as Slack and its like take it.

The receiver may be anybody, so: http and https only, no redirects, a deadline over all of it, and
an answer of which little is read. With `public_only` (an address that a user gave) the name is
resolved first, every address must be public, and the connection goes to the address that was
checked; also where a proxy makes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from gpu_scheduler.notify.failures import DeliveryFailed
from gpu_scheduler.notify.proxy import Proxies, Proxy

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
