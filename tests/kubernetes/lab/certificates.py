"""The certificate authority of a control plane, and what it signs."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=7)


class Authority:
    """Signs the certificates of one control plane; its own is `ca.crt` in the directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab-ca")])
        certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = directory / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key = write_key(directory / "ca.key", self._key)

    def sign_server(self, name: str, hosts: Sequence[str]) -> tuple[Path, Path]:
        """A serving certificate for these addresses and names, and its key."""
        places = x509.SubjectAlternativeName([_place(host) for host in hosts])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._sign(name, subject, ExtendedKeyUsageOID.SERVER_AUTH, places)

    def sign_user(self, name: str, groups: Sequence[str] = ()) -> tuple[Path, Path]:
        """A client certificate: Kubernetes takes the user and groups from its subject."""
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        return self._sign(name.replace(":", "_"), subject, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _sign(
        self,
        file: str,
        subject: x509.Name,
        purpose: x509.ObjectIdentifier,
        places: x509.SubjectAlternativeName | None,
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if places is not None:
            builder = builder.add_extension(places, critical=False)
        certificate = self.directory / f"{file}.crt"
        signed = builder.sign(self._key, hashes.SHA256())
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return certificate, write_key(self.directory / f"{file}.key", key)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            # Kubernetes reads the key of service accounts only in this form.
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + VALID)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _place(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
