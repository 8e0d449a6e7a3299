"""The certificates of the webhook: made on the first start, kept in a Secret, renewed in time.

All replicas use the one Secret; the resourceVersion decides which of several that renew at once
succeeds, and the others take its result. The API server trusts the authorities in `ca.crt`, which
every replica writes into the webhook's configuration. A new authority is added in front of the old
one, which stays until it expires: so a replica with an older certificate is trusted as well.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import Conflict, NotFound
from gpu_scheduler.kubernetes.objects import Object, ObjectMeta, Resource

AUTHORITY_DAYS = 3650
SERVER_DAYS = 90
LEEWAY = timedelta(minutes=10)
"""Certificates are valid a little earlier, for API servers whose clock is behind."""
log = structlog.get_logger("webhook")


class Secret(Object, frozen=True, kw_only=True):
    """Files, each in base64."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
    type: str = "Opaque"


class Configuration(Object, frozen=True, kw_only=True):
    """A MutatingWebhookConfiguration, as far as we read it."""

    webhooks: tuple[dict[str, Any], ...] = ()


SECRETS = Resource(type=Secret, kind="Secret", plural="secrets")
CONFIGURATIONS = Resource(
    type=Configuration,
    kind="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
    is_namespaced=False,
    is_partial=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The content of the Secret, as PEM; `authorities` has the newest first."""

    authorities: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes

    @staticmethod
    def of(secret: Secret) -> Bundle | None:
        """None if a part is missing or broken, so that all of it is created again."""
        try:
            parts = {
                name: base64.b64decode(secret.data[name])
                for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")
            }
            x509.load_pem_x509_certificates(parts["ca.crt"])
            x509.load_pem_x509_certificate(parts["tls.crt"])
        except (KeyError, ValueError):
            return None
        return Bundle(
            authorities=parts["ca.crt"],
            authority_key=parts["ca.key"],
            certificate=parts["tls.crt"],
            key=parts["tls.key"],
        )

    def data(self) -> dict[str, str]:
        """As the Secret holds it."""
        parts = {
            "ca.crt": self.authorities,
            "ca.key": self.authority_key,
            "tls.crt": self.certificate,
            "tls.key": self.key,
        }
        return {name: base64.b64encode(part).decode() for name, part in parts.items()}


def renewed(bundle: Bundle | None, hosts: Sequence[str], now: datetime) -> Bundle | None:
    """The bundle to store; None if the present one is good for a third of its time, and for us."""
    authorities = x509.load_pem_x509_certificates(bundle.authorities) if bundle else []
    valid = [one for one in authorities if one.not_valid_after_utc > now]
    if bundle is None or not valid or _is_old(valid[0], now):
        key = ec.generate_private_key(ec.SECP256R1())
        authority = _authority(key, now)
        valid = [authority, *valid]
        authority_key = _pem(key)
    else:
        authority, authority_key = valid[0], bundle.authority_key
        current = x509.load_pem_x509_certificate(bundle.certificate)
        if not _is_old(current, now) and set(hosts) <= set(_hosts(current)):
            return None
    server_key = ec.generate_private_key(ec.SECP256R1())
    signer = serialization.load_pem_private_key(authority_key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)  # noqa: S101 - made by us
    certificate = (
        _builder(hosts[0], authority.subject, server_key, now, SERVER_DAYS)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return Bundle(
        authorities=b"".join(one.public_bytes(pem) for one in valid),
        authority_key=authority_key,
        certificate=certificate.public_bytes(pem),
        key=_pem(server_key),
    )


class CertificateKeeper:
    """Keeps the Secret, the trust of the API server, and our own TLS context current."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        secret: str,
        configuration: str,
        hosts: Sequence[str],
        clock: Callable[[], datetime],
    ) -> None:
        """`configuration` is the MutatingWebhookConfiguration; without one, nothing is updated."""
        self._client = client
        self._namespace = namespace
        self._secret = secret
        self._configuration = configuration
        self._hosts = hosts
        self._clock = clock
        self._loaded: Bundle | None = None
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_2

    async def check(self) -> None:
        """Renew what is due, use it, and let the API server trust it."""
        bundle = await self._current()
        if bundle != self._loaded:
            _load(self.tls, bundle)
            self._loaded = bundle
            log.info("certificate loaded", hosts=list(self._hosts))
        if self._configuration:
            await self._trust(bundle)

    async def _current(self) -> Bundle:
        while True:
            try:
                secret = await self._client.get(SECRETS, self._secret, self._namespace)
            except NotFound:
                secret = None
            found = Bundle.of(secret) if secret else None
            fresh = renewed(found, self._hosts, self._clock())
            if fresh is None and found is not None:
                return found
            assert fresh is not None  # noqa: S101 - without a bundle one is made
            try:
                await self._store(secret, fresh)
            except Conflict:
                log.info("another replica has renewed the certificates")
                continue
            log.info("certificates renewed", secret=self._secret)
            return fresh

    async def _store(self, secret: Secret | None, bundle: Bundle) -> None:
        if secret is None:
            metadata = ObjectMeta(name=self._secret)
            content = Secret(metadata=metadata, data=bundle.data())
            await self._client.create(SECRETS, content, self._namespace)
            return
        changes = {
            "metadata": {"resourceVersion": secret.metadata.resource_version},
            "data": bundle.data(),
        }
        await self._client.patch(SECRETS, self._secret, changes, self._namespace)

    async def _trust(self, bundle: Bundle) -> None:
        """Write the authorities into each webhook of the configuration that lacks them."""
        wanted = base64.b64encode(bundle.authorities).decode()
        try:
            found = await self._client.get(CONFIGURATIONS, self._configuration)
        except NotFound:
            log.warning("the webhook is not configured", configuration=self._configuration)
            return
        if all(one.get("clientConfig", {}).get("caBundle") == wanted for one in found.webhooks):
            return
        changes = {
            "metadata": {"resourceVersion": found.metadata.resource_version},
            "webhooks": [
                {**one, "clientConfig": {**one.get("clientConfig", {}), "caBundle": wanted}}
                for one in found.webhooks
            ],
        }
        try:
            await self._client.patch(CONFIGURATIONS, self._configuration, changes)
        except Conflict:
            return  # another replica, or an administrator; the next check looks again
        log.info("the API server trusts the certificates", configuration=self._configuration)


def _load(tls: ssl.SSLContext, bundle: Bundle) -> None:
    """Use a certificate for new connections; OpenSSL reads it only from files."""
    with tempfile.TemporaryDirectory(prefix="webhook-") as directory:
        path = Path(directory) / "tls.pem"
        path.touch(mode=0o600)
        path.write_bytes(bundle.key + bundle.certificate)
        tls.load_cert_chain(path)


def _is_old(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether less than a third of its time is left."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now > end - (end - start) / 3


def _hosts(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return names.value.get_values_for_type(x509.DNSName)


def _authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-scheduler-webhook-ca")])
    return (
        _builder("gpu-scheduler-webhook-ca", name, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    # A common name has at most 64 characters; programs of today read the alternative names.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LEEWAY)
        .not_valid_after(now + timedelta(days=days))
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
