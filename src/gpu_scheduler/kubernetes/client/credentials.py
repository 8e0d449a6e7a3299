"""The current token and TLS context of a configuration: files are read again when they change.

The token of a service account is renewed about every hour, certificates every few months; the old
ones stay valid for a while, so a look once a minute is enough. After a 401 the caller discards what
is cached and asks again.
"""

import asyncio
import os
import ssl
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gpu_scheduler.kubernetes.client.configuration import Configuration, ExecPlugin, Pem
from gpu_scheduler.kubernetes.client.errors import InvalidConfiguration

READ_AGAIN_SECONDS = 60.0
EXPIRY_MARGIN_SECONDS = 30.0
PLUGIN_TIMEOUT_SECONDS = 60.0


class PluginStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The credentials that an exec plugin printed."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _PluginAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: PluginStatus


class Credentials:
    """What a request has to carry to be believed."""

    def __init__(
        self, configuration: Configuration, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is read until it is needed."""
        self._configuration = configuration
        self._clock = clock
        self._token = ""
        self._token_until = float("-inf")
        self._plugin_status: PluginStatus | None = None
        self._plugin_lock = asyncio.Lock()
        self._context: ssl.SSLContext | None = None
        self._context_key: tuple[object, ...] = ()
        self._context_until = float("-inf")

    def discard(self) -> None:
        """Read everything again at the next request: the API server refused what we sent."""
        self._token_until = self._context_until = float("-inf")
        self._plugin_status = None

    async def token(self) -> str:
        """The bearer token; empty if the identity is a client certificate."""
        configuration = self._configuration
        if configuration.exec_plugin is not None:
            return (await self._ask_plugin(configuration.exec_plugin)).token
        if configuration.token_file is None:
            return configuration.token
        now = self._clock()
        if now >= self._token_until:
            try:
                self._token = configuration.token_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise InvalidConfiguration(
                    f"cannot read the token {configuration.token_file}: {error.strerror}"
                ) from error
            self._token_until = now + READ_AGAIN_SECONDS
        return self._token

    async def tls_context(self) -> ssl.SSLContext:
        """The TLS context; a new one after the authority or the certificate was renewed."""
        now = self._clock()
        if self._context is not None and now < self._context_until:
            return self._context
        certificate, key = self._configuration.certificate, self._configuration.key
        if self._configuration.exec_plugin is not None:
            status = await self._ask_plugin(self._configuration.exec_plugin)
            if status.client_certificate_data:
                certificate = Pem(data=status.client_certificate_data.encode())
                key = Pem(data=status.client_key_data.encode())
        context_key = (
            _version(self._configuration.authority),
            _version(certificate),
            _version(key),
        )
        if self._context is None or context_key != self._context_key:
            self._context = _make_context(self._configuration, certificate, key)
            self._context_key = context_key
        self._context_until = now + READ_AGAIN_SECONDS
        return self._context

    async def _ask_plugin(self, plugin: ExecPlugin) -> PluginStatus:
        async with self._plugin_lock:
            known = self._plugin_status
            if known is None or _has_expired(known):
                known = await _run_plugin(plugin, self._configuration)
                self._plugin_status = known
                self._context_until = float("-inf")
            return known


def _has_expired(status: PluginStatus) -> bool:
    if status.expiration_timestamp is None:
        return False
    left = status.expiration_timestamp - datetime.now(UTC)
    return left.total_seconds() < EXPIRY_MARGIN_SECONDS


async def _run_plugin(plugin: ExecPlugin, configuration: Configuration) -> PluginStatus:
    """Run a credential plugin and read the ExecCredential that it prints."""
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = {"server": configuration.server}
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environment = os.environ | {entry.name: entry.value for entry in plugin.env or ()}
    environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
    hint = f"\n{plugin.install_hint}" if plugin.install_hint else ""
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *(plugin.args or ()),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise InvalidConfiguration(
            f"cannot run the credential plugin {plugin.command!r}: {error.strerror}{hint}"
        ) from error
    try:
        async with asyncio.timeout(PLUGIN_TIMEOUT_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise InvalidConfiguration(
            f"the credential plugin {plugin.command!r} did not end within"
            f" {PLUGIN_TIMEOUT_SECONDS:.0f} s"
        ) from None
    if process.returncode:
        said = errors.decode(errors="replace").strip()[-500:]
        raise InvalidConfiguration(
            f"the credential plugin {plugin.command!r} failed with exit code"
            f" {process.returncode}: {said}{hint}"
        )
    try:
        return msgspec.json.decode(output, type=_PluginAnswer).status
    except msgspec.DecodeError as error:
        raise InvalidConfiguration(
            f"the credential plugin {plugin.command!r} printed no ExecCredential: {error}"
        ) from error


def _version(pem: Pem) -> object:
    """A value that changes when the certificate or key does."""
    if pem.file is None:
        return pem.data
    try:
        facts = pem.file.stat()
    except OSError as error:
        raise InvalidConfiguration(f"cannot read {pem.file}: {error.strerror}") from error
    return str(pem.file), facts.st_mtime_ns, facts.st_ino, facts.st_size


def _make_context(configuration: Configuration, certificate: Pem, key: Pem) -> ssl.SSLContext:
    authority = configuration.authority
    try:
        context = ssl.create_default_context(
            cafile=str(authority.file) if authority.file is not None else None,
            cadata=authority.data.decode("ascii") if authority.data else None,
        )
        if not configuration.verifies_server:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            # The ssl module reads certificates and keys only from files.
            with ExitStack() as files:
                context.load_cert_chain(_file(certificate, files), _file(key, files))
    except (OSError, ValueError) as error:
        raise InvalidConfiguration(f"a certificate or key cannot be used: {error}") from error
    return context


def _file(pem: Pem, files: ExitStack) -> Path:
    if pem.file is not None:
        return pem.file
    file = files.enter_context(tempfile.NamedTemporaryFile(prefix="tgpu-"))  # noqa: SIM115
    file.write(pem.data)
    file.flush()
    return Path(file.name)
