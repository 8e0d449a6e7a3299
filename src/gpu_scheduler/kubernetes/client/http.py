"""The transport by aiohttp: pooled connections, credentials that are renewed, no silent repeats."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from gpu_scheduler import __version__
from gpu_scheduler.kubernetes.client.client import Answer, ApiClient, Request, Stream
from gpu_scheduler.kubernetes.client.configuration import Configuration
from gpu_scheduler.kubernetes.client.credentials import Credentials
from gpu_scheduler.kubernetes.client.errors import OutcomeUnknown, Unreachable

CONNECT_SECONDS = 5.0
MAX_CONNECTIONS = 64


class HttpTransport:
    """Connections to the API server that a configuration names."""

    def __init__(
        self, configuration: Configuration, *, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        """Call it where an event loop runs; nothing is sent yet."""
        self._configuration = configuration
        self._credentials = Credentials(configuration)
        self._is_tls = configuration.server.startswith("https:")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=60.0),
            # Compression costs more CPU on both sides than it saves inside a data centre.
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": f"gpu-scheduler/{__version__}",
            },
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        # aiohttp would send PUT and DELETE again on a broken keep-alive connection, although the
        # first one may have been carried out; the answer to the second would then mislead.
        self._session._retry_connection = False

    async def send(self, request: Request) -> Answer:
        """Send a request; after a 401, which changed nothing, again with fresh credentials."""
        answer = await self._send_once(request)
        if answer.status == 401:
            self._credentials.discard()
            answer = await self._send_once(request)
        return answer

    async def _send_once(self, request: Request) -> Answer:
        limits = aiohttp.ClientTimeout(total=request.timeout_seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with await self._open(request, limits) as response:
                return Answer(
                    status=response.status,
                    headers={name.lower(): value for name, value in response.headers.items()},
                    body=await response.read(),
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _translated(error, request) from error

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """Send a request whose answer goes on; a lost connection raises `OutcomeUnknown`."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        try:
            async with asyncio.timeout(request.timeout_seconds):
                response = await self._open(request, limits)
                if response.status == 401:
                    response.close()
                    self._credentials.discard()
                    response = await self._open(request, limits)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _translated(error, request) from error
        try:
            yield Stream(
                status=response.status,
                headers={name.lower(): value for name, value in response.headers.items()},
                chunks=_chunks(response, request),
            )
        finally:
            # No TLS farewell, which an abandoned watch would leave unfinished.
            connection = response.connection
            if connection is not None and connection.transport is not None:
                connection.transport.abort()
            response.close()

    async def _open(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        configuration = self._configuration
        headers = {}
        if request.body:
            headers["Content-Type"] = request.content_type
        token = await self._credentials.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if configuration.impersonated_user:
            headers["Impersonate-User"] = configuration.impersonated_user
        fields = [*headers.items()]
        fields += [("Impersonate-Group", group) for group in configuration.impersonated_groups]
        context: ssl.SSLContext | bool = True
        if self._is_tls:
            context = await self._credentials.tls_context()
        # The path comes quoted; aiohttp must not quote it again.
        url = URL(configuration.server + request.path, encoded=True)
        return await self._session.request(
            request.method,
            url.with_query(request.query) if request.query else url,
            data=request.body or None,
            headers=fields,
            timeout=limits,
            ssl=context,
            server_hostname=configuration.tls_server_name or None,
            proxy=configuration.proxy_url or None,
            allow_redirects=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _chunks(response: aiohttp.ClientResponse, request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _translated(error, request) from error


def _translated(error: Exception, request: Request) -> Unreachable | OutcomeUnknown:
    """What the caller knows after this: nothing was sent, or it may have been carried out."""
    text = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return Unreachable(f"{request}: no connection to the API server: {text}")
    if isinstance(error, TimeoutError):
        return OutcomeUnknown(f"{request}: no answer within {request.timeout_seconds:g} s")
    return OutcomeUnknown(f"{request}: the connection was lost: {text}")


def connect(configuration: Configuration) -> ApiClient:
    """A client of the API server that a configuration names; close it at the end."""
    return ApiClient(HttpTransport(configuration))
