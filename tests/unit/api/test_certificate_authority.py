"""The private CA: what it signs and what it accepts."""

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from gpu_scheduler.api.grpc.certificate_authority import NodeAuthority, new_authority
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.wire.handshake import JoinText, certificate_pin, key_fingerprint, read_proof

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
DER = serialization.Encoding.DER


def an_authority() -> NodeAuthority:
    return NodeAuthority(new_authority(NOW_MS))


def a_request(name: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(DER)


def a_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def test_node_name_comes_from_server_not_from_request() -> None:
    authority, key = an_authority(), a_key()
    signed, fingerprint = authority.sign_node(
        a_request("head", key), "n1", NOW_MS, timedelta(days=1)
    )
    name, found = authority.node_of(signed, NOW_MS)
    assert name == "n1"
    assert fingerprint == key_fingerprint(key.public_key()) == key_fingerprint(found)


def test_certificate_is_valid_only_in_its_period() -> None:
    authority = an_authority()
    signed, _ = authority.sign_node(a_request("n1", a_key()), "n1", NOW_MS, timedelta(days=1))
    for moment_ms in (NOW_MS, NOW_MS + DAY_MS - 1000):
        assert authority.node_of(signed, moment_ms)[0] == "n1"
    for moment_ms in (NOW_MS + DAY_MS + 1000, NOW_MS - DAY_MS):
        with pytest.raises(ValueError, match="was valid until"):
            authority.node_of(signed, moment_ms)


def test_only_node_certificates_of_this_authority_are_accepted() -> None:
    authority, other = an_authority(), an_authority()
    foreign, _ = other.sign_node(a_request("n1", a_key()), "n1", NOW_MS, timedelta(days=1))
    with pytest.raises(ValueError, match="not signed by this cluster's authority"):
        authority.node_of(foreign, NOW_MS)
    with pytest.raises(ValueError, match="not signed by this cluster's authority"):
        authority.node_of(b"nothing", NOW_MS)
    server = x509.load_pem_x509_certificate(authority.server_pair(NOW_MS)[1])
    with pytest.raises(ValueError, match="not a node certificate"):
        authority.node_of(server.public_bytes(DER), NOW_MS)
    with pytest.raises(ValueError, match=r"not signed|not a node certificate"):
        authority.node_of(authority.certificate, NOW_MS)


def test_only_valid_requests_with_supported_key_are_signed() -> None:
    authority = an_authority()
    whole = a_request("n1", a_key())
    spoilt = whole[:-4] + bytes(4)
    weak = a_request("n1", rsa.generate_private_key(65537, 2048))
    other_curve = a_request("n1", ec.generate_private_key(ec.SECP384R1()))
    for request in (b"", b"nothing", spoilt, weak, other_curve):
        with pytest.raises(InvalidRequest, match="certificate request"):
            authority.sign_node(request, "n1", NOW_MS, timedelta(days=1))


def test_join_token_round_trips_and_rejects_other_text() -> None:
    for text in (JoinText("a" * 43, "B" * 43), JoinText("-" * 43, "_" * 43, plain=True)):
        assert JoinText.read(f" {text}\n") == text
    for odd in ("", "tgpn_", "tgpu_" + "a" * 43, f"tgpn_{'a' * 43}", f"tgpn_{'a' * 43}.{'b' * 42}"):
        with pytest.raises(InvalidRequest, match="join token cannot be read"):
            JoinText.read(odd)


def test_pin_identifies_one_certificate() -> None:
    assert an_authority().pin != an_authority().pin
    authority = an_authority()
    assert authority.pin == certificate_pin(authority.certificate)


def test_invalid_proof_is_rejected() -> None:
    for odd in ("", "abc", "!.!", "a.b", "AAAA.é"):
        assert read_proof(odd) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("wrong", "has 5 characters and does not start with 'tgpn_'", id="another"),
        pytest.param("tgpn_wrong", "has 10 characters but a complete one has 92", id="short"),
        pytest.param(
            f"tgpn_{'a' * 43}:{'b' * 43}", "does not have the format of a token", id="odd"
        ),
    ],
)
def test_token_error_names_problem_without_token(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        JoinText.read(text)
    assert why in str(raised.value)
    assert text not in str(raised.value)
