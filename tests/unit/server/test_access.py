"""Access to the server: addresses, TLS and tokens; unsafe settings are rejected."""

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.server.network_access import Certificate, check_access, host_names, verifier_of
from gpu_scheduler.settings.groups.network import ApiSettings, AuthSettings
from gpu_scheduler.settings.schema import Settings
from tests.certificates import make_certificate


def settings(*, auth: bool = True, **api: Any) -> Settings:
    return Settings(api=ApiSettings(**api), auth=AuthSettings(enabled=auth))


def test_loopback_needs_no_tls() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        assert check_access(settings(host=host)) == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gpubox.example"])
def test_other_addresses_need_tls(host: str) -> None:
    with pytest.raises(InvalidRequest, match=r"api\.tls_certificate and api\.tls_key"):
        check_access(settings(host=host))
    assert check_access(settings(host=host, tls_certificate="c", tls_key="k")) == ()


def test_tls_may_be_disabled_explicitly_with_warning() -> None:
    (warning,) = check_access(settings(host="10.1.2.3", allow_plain_http=True))
    assert "without TLS" in warning


def test_auth_may_be_off_only_on_loopback_with_warning() -> None:
    (warning,) = check_access(settings(auth=False))
    assert warning.startswith("auth is off")
    with pytest.raises(InvalidRequest, match="could do everything"):
        check_access(settings(auth=False, host="10.1.2.3", tls_certificate="c", tls_key="k"))


def test_certificate_needs_key() -> None:
    for half in ({"tls_certificate": "c"}, {"tls_key": "k"}):
        with pytest.raises(InvalidRequest, match="TLS needs both"):
            check_access(settings(**half))


def test_host_name_is_accepted_when_server_is_reachable_by_it() -> None:
    assert host_names(ApiSettings()) == ()
    names = host_names(ApiSettings(host="10.1.2.3", host_names=("gpu.lab",)))
    assert set(names) == {"gpu.lab", "10.1.2.3", "[10.1.2.3]", socket.gethostname()}


# --- certificates


def a_certificate(tmp_path: Path, name: str = "server") -> tuple[Certificate, Path, Path]:
    certificate, key = make_certificate(tmp_path, name)
    api = ApiSettings(tls_certificate=str(certificate), tls_key=str(key))
    return Certificate(api), certificate, key


def test_world_readable_key_is_rejected(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    key.chmod(0o644)
    api = ApiSettings(tls_certificate=str(certificate), tls_key=str(key))
    with pytest.raises(InvalidInput, match="holds a secret"):
        Certificate(api)
    key.chmod(0o640)
    assert Certificate(api).context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_key_of_another_certificate_is_rejected(tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path, "one")
    _, key = make_certificate(tmp_path, "two")
    with pytest.raises(InvalidInput, match="are not a certificate and its key"):
        Certificate(ApiSettings(tls_certificate=str(certificate), tls_key=str(key)))


def served_name(context: ssl.SSLContext) -> str:
    """The name in the certificate that a client is shown."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server)
    far = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (near, far):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = near.getpeercert(binary_form=True)
    assert shown is not None
    return "two" if b"two" in shown else "one"


def test_new_certificate_is_reloaded_and_broken_one_ignored(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    used, certificate, key = a_certificate(tmp_path, "one")
    assert served_name(used.context) == "one"
    fresh_certificate, fresh_key = make_certificate(tmp_path / "new", "two")
    fresh_certificate.rename(certificate)
    used.refresh()
    assert served_name(used.context) == "one"
    fresh_key.rename(key)
    used.refresh()
    assert served_name(used.context) == "two"


# --- issuers


def test_issuer_needs_name_and_audience(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(b"s" * 32)
    full = {"jwt_algorithm": "HS256", "jwt_issuer": "i", "jwt_audience": "a"}
    assert verifier_of(AuthSettings()) is None
    assert verifier_of(AuthSettings(jwt_key_file=str(file), **full)) is not None
    for name in ("jwt_issuer", "jwt_audience"):
        with pytest.raises(InvalidRequest, match=f"auth.{name} is missing"):
            verifier_of(AuthSettings(jwt_key_file=str(file), **(full | {name: ""})))
    with pytest.raises(InvalidRequest, match="leave out one"):
        verifier_of(AuthSettings(jwt_key_file="k", jwt_jwks_file="j", **full))
    with pytest.raises(InvalidRequest, match="jwt_roles has 'boss'"):
        verifier_of(AuthSettings(jwt_key_file=str(file), jwt_roles=("boss",), **full))
    file.chmod(0o644)
    with pytest.raises(InvalidInput, match="holds a secret"):
        verifier_of(AuthSettings(jwt_key_file=str(file), **full))
