"""Webhooks through an HTTP proxy."""

import asyncio
import base64
import shutil
from pathlib import Path

import pytest
import uvloop

from gpu_scheduler.notify import webhook
from gpu_scheduler.notify.delivery import Senders
from gpu_scheduler.notify.retry_queue import DeliveryFailed
from gpu_scheduler.notify.webhook import Proxies, Proxy
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.groups.operations import NotificationSettings
from tests.notification_receivers import HttpProxy, HttpReceiver, a_certificate, a_free_port

DOCUMENT = {"id": "event-7-t", "text": "job-1 of ann failed", "event": "fail"}
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def tell(url: str, ca_file: str = "") -> None:
    targets = {"t": Target(kind="webhook", url=url)}
    settings = NotificationSettings(targets=targets, timeout_s=5, ca_file=ca_file)
    uvloop.run(Senders(settings).send("t", DOCUMENT, 0))


def test_plain_webhook_is_sent_to_proxy_with_full_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with HttpReceiver() as receiver, HttpProxy() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        tell(f"{receiver.url}?a=b")
    assert proxy.asked == [f"POST {receiver.url}?a=b HTTP/1.1"]
    assert receiver.ids() == ["event-7-t"]


@needs_openssl
def test_tls_webhook_uses_tunnel_and_proxy_sees_only_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = a_certificate(tmp_path)
    login = "Basic " + base64.b64encode(b"lab:p@ss").decode()
    with HttpReceiver(certificate=certificate) as receiver, HttpProxy(login) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"lab:p%40ss@127.0.0.1:{proxy.port}")
        tell(receiver.url, str(certificate[0]))
        assert proxy.asked == [f"CONNECT localhost:{receiver.port} HTTP/1.1"]
        assert receiver.ids() == ["event-7-t"]
        assert not [name for name in receiver.headers[0] if name.startswith("Proxy-")]
        with pytest.raises(DeliveryFailed, match="TLS failed"):
            tell(receiver.url)


def test_rejecting_or_unreachable_proxy_is_named_without_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with HttpProxy(login="Basic other") as proxy:
        monkeypatch.setenv("https_proxy", f"http://lab:s3cret@127.0.0.1:{proxy.port}")
        with pytest.raises(DeliveryFailed, match=r"proxy 127.0.0.1.* status 407") as refused:
            tell("https://hooks.example/")
    assert "s3cret" not in str(refused.value)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{a_free_port()}")
    with pytest.raises(DeliveryFailed, match="cannot be reached through the proxy 127"):
        tell("https://hooks.example/")
    for address in ("socks5://lab:s3cret@127.0.0.1:1", "https://p:1", "http://", "http://p:x"):
        monkeypatch.setenv("https_proxy", address)
        with pytest.raises(DeliveryFailed, match="must be http://HOST:PORT") as bad:
            tell("https://hooks.example/")
        assert "s3cret" not in str(bad.value)


def test_proxy_connects_job_webhook_to_checked_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolved(host: str, port: int) -> str:
        assert (host, port) == ("hooks.example", 443)
        return "2606:2800:220:1::1"

    monkeypatch.setattr(webhook, "_resolve_public", resolved)
    settings = NotificationSettings(allow_job_webhooks=True, timeout_s=5)
    with HttpProxy(login="Basic other") as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(DeliveryFailed, match="status 407"):
            asyncio.run(Senders(settings).send("https://hooks.example/", DOCUMENT, 0))
    assert proxy.asked == ["CONNECT [2606:2800:220:1::1]:443 HTTP/1.1"]


@pytest.mark.parametrize(
    ("variables", "scheme", "expected"),
    [
        ({"https_proxy": "http://a:1", "HTTPS_PROXY": "http://b:2"}, "https", "a:1"),
        ({"https_proxy": "", "HTTPS_PROXY": "http://b:2"}, "https", "b:2"),
        ({"HTTP_PROXY": "http://b:2"}, "http", None),
        ({"https_proxy": "http://a:1"}, "http", None),
        ({"ALL_PROXY": "c"}, "http", "c:1080"),
        ({"all_proxy": "c:3", "https_proxy": "a:1"}, "https", "a:1"),
    ],
    ids=["small-wins", "empty-is-none", "not-large-http", "by-scheme", "all", "own-over-all"],
)
def test_proxy_variables_mean_the_same_as_for_curl(
    variables: dict[str, str], scheme: str, expected: str | None
) -> None:
    found = Proxies(variables).proxy_for(scheme, "hooks.example")
    assert (None if found is None else str(found)) == expected


@pytest.mark.parametrize(
    ("listed", "host", "direct"),
    [
        ("*", "hooks.example", True),
        ("lab.example", "lab.example", True),
        ("lab.example", "Chat.Lab.Example", True),
        (".lab.example", "chat.lab.example", True),
        ("lab.example", "notlab.example", False),
        ("other, lab.example", "chat.lab.example", True),
        ("10.0.0.0/8,localhost", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("[::1]", "::1", True),
        ("", "localhost", False),
        (".", "localhost", False),
    ],
)
def test_hosts_in_no_proxy_are_reached_directly(listed: str, host: str, direct: bool) -> None:
    proxies = Proxies({"all_proxy": "p:1", "NO_PROXY": listed})
    assert (proxies.proxy_for("https", host) is None) is direct


def test_proxy_password_is_not_shown() -> None:
    assert "secret" not in repr(Proxy("p", 1, "Basic secret"))
