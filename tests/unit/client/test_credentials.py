"""Client credentials: sources, and to which servers they are sent."""

import ssl
from pathlib import Path

import pytest

from gpu_scheduler.client.address import Address, read_address
from gpu_scheduler.client.credentials import headers_for, tls_context, token_of
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from tests.certificates import make_certificate

FAR = Address(host="gpubox", port=8080, tls=True)


def test_token_is_sent_to_remote_servers_and_not_on_socket() -> None:
    variables = {"GPU_SCHEDULER_TOKEN": "tgpu_x"}
    assert headers_for(FAR, variables) == {"Authorization": "Bearer tgpu_x"}
    assert headers_for(Address(path="/run/server.sock"), variables) == {}
    assert headers_for(FAR, {}) == {}


def test_token_is_never_sent_unencrypted_to_others() -> None:
    variables = {"GPU_SCHEDULER_TOKEN": "tgpu_x"}
    with pytest.raises(InvalidRequest, match="sent unencrypted"):
        headers_for(Address(host="gpubox", port=80), variables)
    for host in ("localhost", "127.0.0.1", "::1"):
        assert headers_for(Address(host=host, port=80), variables)


def test_token_is_read_from_private_file(tmp_path: Path) -> None:
    file = tmp_path / "gpu-scheduler" / "token"
    file.parent.mkdir()
    file.write_text("tgpu_from_file\n")
    file.chmod(0o600)
    for variables in (
        {"GPU_SCHEDULER_TOKEN_FILE": str(file)},
        {"XDG_CONFIG_HOME": str(tmp_path)},
    ):
        assert token_of(variables) == "tgpu_from_file"
    file.chmod(0o640)
    with pytest.raises(InvalidInput, match="other users may read or write this file"):
        token_of({"GPU_SCHEDULER_TOKEN_FILE": str(file)})


def test_named_token_file_must_exist_and_default_one_need_not(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        token_of({"GPU_SCHEDULER_TOKEN_FILE": str(tmp_path / "none")})
    assert token_of({"HOME": str(tmp_path)}) == ""


@pytest.mark.parametrize("token", ["a b", "a\nb", "\xe9"])
def test_token_with_invalid_characters_never_reaches_header(token: str) -> None:
    with pytest.raises(InvalidRequest, match="contains invalid characters"):
        token_of({"GPU_SCHEDULER_TOKEN": token})


def test_tls_addresses_are_parsed() -> None:
    address = read_address("https://gpubox:8443/")
    assert (address.host, address.port, address.tls) == ("gpubox", 8443, True)
    assert (str(address), address.host_header) == ("https://gpubox:8443", "gpubox:8443")
    assert read_address("https://[::1]").is_loopback


def test_ca_file_can_be_configured(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = tls_context({"GPU_SCHEDULER_CA_FILE": str(certificate)})
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    for wrong in (tmp_path / "none", key):
        with pytest.raises(InvalidInput, match="contains no certificates"):
            tls_context({"GPU_SCHEDULER_CA_FILE": str(wrong)})
