"""Addresses and certificates of the gRPC port."""

from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.server.grpc import GrpcCertificates, check_grpc, grpc_host, speaks_tls
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.sources import load
from tests.certificates import make_certificate


def settings_of(**values: Any) -> Settings:
    flags = {name.replace("__", "."): value for name, value in values.items()}
    return load(None, flags=flags, environ={}).settings


def test_grpc_is_plain_on_loopback_and_encrypted_elsewhere_by_default() -> None:
    assert not speaks_tls(settings_of())
    assert speaks_tls(settings_of(grpc__host="0.0.0.0"))
    assert speaks_tls(settings_of(api__tls_certificate="/site.pem", api__tls_key="/site.key"))
    assert speaks_tls(settings_of(grpc__tls="on"))


def test_grpc_can_listen_on_another_address_than_http() -> None:
    assert grpc_host(settings_of()) == "127.0.0.1"
    assert grpc_host(settings_of(grpc__host="10.0.0.1")) == "10.0.0.1"


def test_secrets_are_sent_unencrypted_only_on_request() -> None:
    with pytest.raises(SchedulerError, match="without TLS, so that others"):
        check_grpc(settings_of(grpc__tls="off", grpc__host="0.0.0.0"))
    check_grpc(settings_of(grpc__tls="off", grpc__host="0.0.0.0", api__allow_plain_http=True))
    check_grpc(settings_of(grpc__tls="off"))


def test_client_certificates_need_tls() -> None:
    with pytest.raises(SchedulerError, match="needs TLS, but"):
        check_grpc(settings_of(grpc__client_ca="/ca.pem"))


def test_files_without_certificates_are_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(SchedulerError, match="holds no certificates"):
        GrpcCertificates(settings_of(grpc__client_ca=str(file), grpc__tls="on"))
    with pytest.raises(SchedulerError, match="cannot be read"):
        GrpcCertificates(settings_of(grpc__client_ca="/nowhere", grpc__tls="on"))


def test_key_that_does_not_match_certificate_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    certificate, _ = make_certificate(tmp_path, "one")
    _, key = make_certificate(tmp_path, "other")
    with pytest.raises(SchedulerError, match="not a certificate and its key"):
        GrpcCertificates(settings_of(api__tls_certificate=str(certificate), api__tls_key=str(key)))
