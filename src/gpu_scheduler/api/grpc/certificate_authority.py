"""The private certificate authority: signs the keys of nodes and the certificates of servers.

Certificate requests in, certificates out. The authority, not the request, decides what a node's
certificate says.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.identity import Authority
from gpu_scheduler.wire.handshake import SERVER_NAME, certificate_pin, key_fingerprint

AUTHORITY_DAYS = 3650
SERVER_DAYS = 30
MARGIN = timedelta(hours=1)
"""Clocks differ: certificates are valid from a little earlier."""
DER = serialization.Encoding.DER
PEM = serialization.Encoding.PEM
Pair = tuple[bytes, bytes]
"""A private key and a certificate chain, as PEM."""


def new_authority(now_ms: int) -> Authority:
    """Create a new key and its self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-scheduler nodes")])
    builder = (
        _builder(name, name, key.public_key(), now_ms, timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Authority(
        certificate=builder.sign(key, hashes.SHA256()).public_bytes(PEM).decode(),
        key=_private(key).decode(),
        created_ms=now_ms,
    )


class NodeAuthority:
    """Signs certificates with the key of the cluster."""

    def __init__(self, kept: Authority) -> None:
        """Load the stored key and certificate."""
        self._certificate = x509.load_pem_x509_certificate(kept.certificate.encode())
        key = serialization.load_pem_private_key(kept.key.encode(), None)
        self._key = cast(ec.EllipticCurvePrivateKey, key)

    @property
    def certificate(self) -> bytes:
        """Its own certificate, DER."""
        return self._certificate.public_bytes(DER)

    @property
    def certificate_pem(self) -> bytes:
        """Its own certificate, PEM."""
        return self._certificate.public_bytes(PEM)

    @property
    def pin(self) -> str:
        """The pin by which agents recognise it."""
        return certificate_pin(self.certificate)

    def server_pair(self, now_ms: int) -> Pair:
        """Create a key and a certificate chain for a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME), x509.DNSName("localhost")])
        certificate = self._sign(
            key.public_key(),
            SERVER_NAME,
            (names, ExtendedKeyUsageOID.SERVER_AUTH),
            now_ms,
            timedelta(days=SERVER_DAYS),
        )
        return _private(key), certificate.public_bytes(PEM) + self.certificate_pem

    def sign_node(
        self, request: bytes, node: str, now_ms: int, life: timedelta
    ) -> tuple[bytes, str]:
        """Sign the key in a node's request; return the certificate and the key's fingerprint."""
        key = requested_key(request)
        names = x509.SubjectAlternativeName([x509.DNSName(node)])
        use = ExtendedKeyUsageOID.CLIENT_AUTH
        certificate = self._sign(key, node, (names, use), now_ms, life)
        return certificate.public_bytes(DER), key_fingerprint(key)

    def node_of(self, certificate: bytes, now_ms: int) -> tuple[str, ec.EllipticCurvePublicKey]:
        """Return the node and key of a certificate that this authority signed; else ValueError."""
        try:
            signed = x509.load_der_x509_certificate(certificate)
            signed.verify_directly_issued_by(self._certificate)
            uses = signed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            raise ValueError("it was not signed by this cluster's authority") from None
        if ExtendedKeyUsageOID.CLIENT_AUTH not in uses:
            raise ValueError("it is not a node certificate")
        now = _moment(now_ms)
        if not signed.not_valid_before_utc <= now <= signed.not_valid_after_utc:
            raise ValueError(f"it was valid until {signed.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
        name = signed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        key = signed.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("its key has the wrong type")  # noqa: TRY004 - bad input, not a bug
        return str(name), key

    def _sign(
        self,
        key: ec.EllipticCurvePublicKey,
        name: str,
        extensions: tuple[x509.SubjectAlternativeName, x509.ObjectIdentifier],
        now_ms: int,
        life: timedelta,
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return (
            _builder(subject, self._certificate.subject, key, now_ms, life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(extensions[0], critical=False)
            .add_extension(x509.ExtendedKeyUsage([extensions[1]]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def requested_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key of a certificate request, whose signature proves possession of the key."""
    try:
        parsed = x509.load_der_x509_csr(request)
        is_signed = parsed.is_signature_valid
    except (ValueError, TypeError, InvalidSignature):
        raise InvalidRequest("the certificate request cannot be read") from None
    key = parsed.public_key()
    if not is_signed:
        raise InvalidRequest("the certificate request is not signed by its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidRequest("the key of the certificate request is not P-256")
    return key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now_ms: int,
    life: timedelta,
) -> x509.CertificateBuilder:
    now = _moment(now_ms)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - MARGIN)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    none = serialization.NoEncryption()
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, none)


def _moment(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC)
