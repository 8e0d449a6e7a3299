"""The transport over real sockets: credentials, lost connections, no silent repeats."""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gpu_scheduler.kubernetes.client import credentials
from gpu_scheduler.kubernetes.client.client import Answer, Request
from gpu_scheduler.kubernetes.client.configuration import (
    Configuration,
    ExecPlugin,
    ExecVariable,
    Pem,
)
from gpu_scheduler.kubernetes.client.credentials import Credentials
from gpu_scheduler.kubernetes.client.errors import (
    InvalidConfiguration,
    OutcomeUnknown,
    Unreachable,
)
from gpu_scheduler.kubernetes.client.http import HttpTransport
from gpu_scheduler.kubernetes.objects import LEASES
from tests.certificates import make_certificate
from tests.fakes.kubernetes.api import FakeApi, Fault
from tests.fakes.kubernetes.server import serve
from tests.ports import lasting_port

GET = Request(method="GET", path="/x", timeout_seconds=10)


@asynccontextmanager
async def serving(handler: object, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def transport_to(server: str, **configuration: object) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(Configuration(server=server, **configuration))  # type: ignore[arg-type]
    try:
        yield transport
    finally:
        await transport.close()


def test_a_renewed_token_is_used_after_the_old_one_was_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    valid = "old"

    async def handler(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        return web.Response(status=200 if given == f"Bearer {valid}" else 401)

    async def main() -> None:
        nonlocal valid
        async with serving(handler) as url, transport_to(url, token_file=file) as transport:
            assert (await transport.send(GET)).status == 200
            file.write_text("new\n")
            assert (await transport.send(GET)).status == 200  # the old one is still cached
            valid = "new"
            assert (await transport.send(GET)).status == 200
            async with transport.stream(GET) as stream:
                assert stream.status == 200
            valid = "nobody's"
            assert (await transport.send(GET)).status == 401

    asyncio.run(main())


def test_a_token_file_is_read_again_each_minute(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    now = 0.0

    async def main() -> None:
        nonlocal now
        found = Credentials(Configuration(server="x", token_file=file), clock=lambda: now)
        assert await found.token() == "one"
        file.write_text("two")
        now = 59.0
        assert await found.token() == "one"
        now = 61.0
        assert await found.token() == "two"
        file.unlink()
        now = 200.0
        with pytest.raises(InvalidConfiguration, match="cannot read the token"):
            await found.token()

    asyncio.run(main())


def test_who_we_are_by_certificate_and_whom_we_trust(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    ours, our_key = make_certificate(tmp_path, "client")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ours))
    tls.load_cert_chain(certificate, key)
    tls.verify_mode = ssl.CERT_REQUIRED

    async def handler(request: web.Request) -> web.Response:
        peer = request.transport.get_extra_info("peercert")  # type: ignore[union-attr]
        return web.Response(text=dict(part[0] for part in peer["subject"])["commonName"])

    async def main() -> None:
        async with serving(handler, tls) as url:
            by_file = {
                "authority": Pem(file=certificate),
                "certificate": Pem(file=ours),
                "key": Pem(file=our_key),
            }
            async with transport_to(url, **by_file) as transport:
                assert (await transport.send(GET)).body == b"client"
            by_data = {name: Pem(data=pem.file.read_bytes()) for name, pem in by_file.items()}  # type: ignore[union-attr]
            async with transport_to(url, **by_data) as transport:
                assert (await transport.send(GET)).body == b"client"
            careless = by_data | {"authority": Pem(), "verifies_server": False}
            async with transport_to(url, **careless) as transport:
                assert (await transport.send(GET)).body == b"client"
            async with transport_to(url, **(by_file | {"authority": Pem()})) as transport:
                with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                    await transport.send(GET)

    asyncio.run(main())


def test_a_renewed_certificate_is_loaded(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    now = 0.0

    async def main() -> None:
        nonlocal now
        configuration = Configuration(
            server="https://x",
            authority=Pem(file=certificate),
            certificate=Pem(file=certificate),
            key=Pem(file=key),
        )
        found = Credentials(configuration, clock=lambda: now)
        first = await found.tls_context()
        now = 61.0
        assert await found.tls_context() is first
        make_certificate(tmp_path)
        os.utime(certificate, ns=(1, 1))
        now = 122.0
        assert await found.tls_context() is not first

    asyncio.run(main())


def test_an_unusable_certificate_is_told(tmp_path: Path) -> None:
    broken = Pem(data=b"no certificate")

    async def main() -> None:
        configuration = Configuration(server="https://x", certificate=broken, key=broken)
        with pytest.raises(InvalidConfiguration, match="cannot be used"):
            await Credentials(configuration).tls_context()

    asyncio.run(main())


def plugin(tmp_path: Path, text: str) -> ExecPlugin:
    program = tmp_path / "plugin"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return ExecPlugin(
        command=str(program),
        args=("get-token",),
        env=(ExecVariable(name="REGION", value="north"),),
        install_hint="Install the plugin.",
        provide_cluster_info=True,
    )


def test_a_credential_plugin_is_asked_once_until_it_expires(tmp_path: Path) -> None:
    script = """
echo asked >>"$0.calls"
[ "$1" = get-token ] || exit 1
case $KUBERNETES_EXEC_INFO in *'"server":"https://x"'*) ;; *) exit 2 ;; esac
echo "{\\"status\\": {\\"token\\": \\"$REGION\\", \\"expirationTimestamp\\": \\"$EXPIRES\\"}}"
"""

    async def main() -> None:
        given = plugin(tmp_path, script)
        configuration = Configuration(server="https://x", exec_plugin=given)
        found = Credentials(configuration)
        os.environ["EXPIRES"] = "2999-01-01T00:00:00Z"
        try:
            tokens = await asyncio.gather(found.token(), found.token())
            assert tokens == ["north", "north"]
            assert (tmp_path / "plugin.calls").read_text() == "asked\n"
            found.discard()
            os.environ["EXPIRES"] = "2001-01-01T00:00:00Z"
            await found.token()
            await found.token()
            assert (tmp_path / "plugin.calls").read_text() == "asked\n" * 3
        finally:
            del os.environ["EXPIRES"]

    asyncio.run(main())


def test_a_credential_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    status = {
        "clientCertificateData": certificate.read_text(),
        "clientKeyData": key.read_text(),
    }
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"status": status}))
    given = plugin(tmp_path, f"cat {answer}")

    async def main() -> None:
        found = Credentials(
            Configuration(
                server="https://x", exec_plugin=given, authority=Pem(data=certificate.read_bytes())
            )
        )
        first = await found.tls_context()
        assert await found.tls_context() is first
        assert await found.token() == ""

    asyncio.run(main())


def test_a_missing_certificate_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        missing = Configuration(server="https://x", authority=Pem(file=tmp_path / "ca.crt"))
        with pytest.raises(InvalidConfiguration, match="No such file"):
            await Credentials(missing).tls_context()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo no login >&2; exit 3", "exit code 3: no login\nInstall the plugin"),
        ("echo hello", "printed no ExecCredential"),
        ("exec sleep 60", "did not end within"),
    ],
)
def test_a_failing_credential_plugin_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(credentials, "PLUGIN_TIMEOUT_SECONDS", 0.2)

    async def main() -> None:
        configuration = Configuration(server="https://x", exec_plugin=plugin(tmp_path, script))
        with pytest.raises(InvalidConfiguration, match=text):
            await Credentials(configuration).token()

    asyncio.run(main())


def test_a_missing_credential_plugin_is_told(tmp_path: Path) -> None:
    missing = ExecPlugin(command=str(tmp_path / "none"), install_hint="Get it.")

    async def main() -> None:
        with pytest.raises(InvalidConfiguration, match="No such file or directory\nGet it"):
            await Credentials(Configuration(server="https://x", exec_plugin=missing)).token()

    asyncio.run(main())


def test_a_server_that_is_not_there_is_unreachable() -> None:
    async def main() -> None:
        async with transport_to(f"http://127.0.0.1:{lasting_port()}") as transport:
            with pytest.raises(Unreachable):
                await transport.send(GET)
            with pytest.raises(Unreachable):
                async with transport.stream(GET):
                    pass

    asyncio.run(main())


def test_no_answer_in_time_leaves_the_outcome_unknown() -> None:
    async def handler(_: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    async def main() -> None:
        late = Request(method="POST", path="/x", body=b"{}", timeout_seconds=0.2)
        async with serving(handler) as url, transport_to(url) as transport:
            with pytest.raises(OutcomeUnknown, match=r"no answer within 0\.2 s"):
                await transport.send(late)
            with pytest.raises(OutcomeUnknown):
                async with transport.stream(late):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_write_on_a_broken_connection_is_sent_only_once(method: str) -> None:
    async def main() -> None:
        api = FakeApi()
        async with serve(api) as url, transport_to(url) as transport:
            path = LEASES.path("default")
            # First a good request, so that the next one uses a kept connection.
            assert (await transport.send(Request(method="GET", path=path))).status == 200
            fault = Fault(times=99, loses_answer=True)
            api.faults.append(fault)
            with pytest.raises(OutcomeUnknown, match="connection was lost"):
                await transport.send(Request(method=method, path=path, body=b'{"metadata":{}}'))
            assert fault.times == 98

    asyncio.run(main())


def test_a_stream_that_breaks_raises_and_a_finished_one_ends() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * 300_000)
        if request.query.get("breaks"):
            assert request.transport is not None
            request.transport.abort()
        return response

    async def main() -> None:
        async with serving(handler) as url, transport_to(url) as transport:
            async with transport.stream(GET) as stream:
                assert sum([len(chunk) async for chunk in stream.chunks]) == 300_000
            broken = Request(method="GET", path="/x", query=(("breaks", "yes"),))
            async with transport.stream(broken) as stream:
                with pytest.raises(OutcomeUnknown):
                    [chunk async for chunk in stream.chunks]

    asyncio.run(main())


def test_queries_and_names_arrive_as_they_were_meant() -> None:
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.rel_url.raw_path, dict(request.query), request.headers))
        return web.Response()

    async def main() -> None:
        query = (("fieldSelector", "spec.nodeName=,a=b&c"), ("labelSelector", "x in (1, 2)+"))
        identity = {"impersonated_user": "eva", "impersonated_groups": ("a", "b")}
        async with serving(handler) as url, transport_to(url, **identity) as transport:
            path = LEASES.path("a/b", "c d%")
            answer = await transport.send(Request(method="GET", path=path, query=query))
            assert isinstance(answer, Answer)
        path, given, headers = seen[0]
        assert path.endswith("/namespaces/a%2Fb/leases/c%20d%25")
        assert given == dict(query)
        assert headers["Impersonate-User"] == "eva"
        assert headers.getall("Impersonate-Group") == ["a", "b"]
        assert headers["User-Agent"].startswith("gpu-scheduler/")

    asyncio.run(main())
