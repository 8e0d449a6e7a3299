"""What a client shows, to whom, and from where it has it."""

import ssl
from pathlib import Path

import pytest

from gpu_scheduler.client.address import Address, read_address
from gpu_scheduler.client.credentials import headers_for, tls_context, token_of
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from tests.certificates import make_certificate

FAR = Address(host="gpubox", port=8080, tls=True)


def test_a_token_is_shown_to_servers_elsewhere_and_not_on_the_socket() -> None:
    variables = {"GPU_SCHEDULER_TOKEN": "tgpu_x"}
    assert headers_for(FAR, variables) == {"Authorization": "Bearer tgpu_x"}
    assert headers_for(Address(path="/run/server.sock"), variables) == {}
    assert headers_for(FAR, {}) == {}


def test_a_token_is_never_sent_where_others_can_read_it() -> None:
    variables = {"GPU_SCHEDULER_TOKEN": "tgpu_x"}
    with pytest.raises(InvalidRequest, match="sent unencrypted"):
        headers_for(Address(host="gpubox", port=80), variables)
    for host in ("localhost", "127.0.0.1", "::1"):
        assert headers_for(Address(host=host, port=80), variables)


def test_a_token_comes_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
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


def test_a_named_file_must_be_there_and_the_usual_one_need_not(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        token_of({"GPU_SCHEDULER_TOKEN_FILE": str(tmp_path / "none")})
    assert token_of({"HOME": str(tmp_path)}) == ""


@pytest.mark.parametrize("token", ["a b", "a\nb", "\xe9"])
def test_a_token_with_odd_characters_never_gets_into_a_header(token: str) -> None:
    with pytest.raises(InvalidRequest, match="contains invalid characters"):
        token_of({"GPU_SCHEDULER_TOKEN": token})


def test_addresses_with_tls_are_read() -> None:
    address = read_address("https://gpubox:8443/")
    assert (address.host, address.port, address.tls) == ("gpubox", 8443, True)
    assert (str(address), address.host_header) == ("https://gpubox:8443", "gpubox:8443")
    assert read_address("https://[::1]").is_loopback


def test_whom_to_trust_can_be_named(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = tls_context({"GPU_SCHEDULER_CA_FILE": str(certificate)})
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    for wrong in (tmp_path / "none", key):
        with pytest.raises(InvalidInput, match="contains no certificates"):
            tls_context({"GPU_SCHEDULER_CA_FILE": str(wrong)})
