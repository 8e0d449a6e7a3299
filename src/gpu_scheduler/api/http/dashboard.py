"""The files of the dashboard: one page, its script and its style, built by `make web`.

They hold no data, so every caller gets them; the page then calls the REST API as its user. The
Content-Security-Policy allows only these files: no inline script or style, no other site, and no
text that becomes HTML (Trusted Types without any policy).
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import Handler, Operation, Router
from gpu_scheduler.api.http.request import HTML, Request, Response

PAGE = "index.html"
MEDIA = {
    ".html": HTML,
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    # The names never change, so browsers ask each time, and get the file only if it has changed.
    (b"cache-control", b"no-cache"),
    (b"vary", b"accept-encoding"),
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent, plain and compressed. `tag` identifies its content."""

    body: bytes
    compressed: bytes
    media: bytes
    tag: bytes


@cache
def static_file(name: str) -> StaticFile:
    """Read and compress a file of the dashboard, once."""
    body = (files("gpu_scheduler") / "dashboard" / "static" / name).read_bytes()
    return StaticFile(
        body=body,
        compressed=gzip.compress(body, mtime=0),
        media=MEDIA[name[name.rindex(".") :]],
        tag=b'"%s"' % sha256(body).hexdigest()[:32].encode(),
    )


def dashboard_operations() -> list[Operation]:
    """Return the operations that serve the files: the page at /, the others under /dashboard."""
    router = Router("dashboard")
    folder = files("gpu_scheduler") / "dashboard" / "static"
    for name in sorted(entry.name for entry in folder.iterdir()):
        path = "/" if name == PAGE else f"/dashboard/{name}"
        router.operation(
            "GET", path, prefix="", name="dashboard", public=True, public_everywhere=True
        )(_sender(name))
    return router.operations


def _sender(name: str) -> Handler:
    async def send(context: Context, request: Request) -> Response:
        """A file of the dashboard."""
        context.parse_query(request)
        file = static_file(name)
        headers: tuple[tuple[bytes, bytes], ...] = (*HEADERS, (b"etag", file.tag))
        if request.headers.get(b"if-none-match") == file.tag:
            return Response(status=304, media=file.media, headers=headers)
        if b"gzip" in request.headers.get(b"accept-encoding", b""):
            headers = (*headers, (b"content-encoding", b"gzip"))
            return Response(file.compressed, media=file.media, headers=headers)
        return Response(file.body, media=file.media, headers=headers)

    return send
