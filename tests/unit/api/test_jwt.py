"""JWTs of another issuer: signature, audience and validity are checked."""

import asyncio
import base64
import json
import os
import pwd
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from gpu_scheduler.api.auth.accounts import Directory
from gpu_scheduler.api.auth.jwt import Issuer, JwtVerifier, Keys
from gpu_scheduler.api.http.errors import BadToken, WrongTenant
from gpu_scheduler.model.errors import InvalidInput, UnknownThing
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.model.tenant import TenantDirectory

ISSUER, AUDIENCE = "https://login.example", "gpu-scheduler"
SECRET = b"s" * 32
RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
NOBODY = pwd.getpwnam("nobody")


def public_pem(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    full = {"iss": ISSUER, "aud": AUDIENCE, "sub": "nobody", "exp": now + 600, "tenant": "vision"}
    return {name: value for name, value in (full | changes).items() if value is not None}


def tenant_of(named: str) -> str:
    if named != "vision":
        raise UnknownThing(f"tenant '{named}' is not known")
    return named


def a_verifier(
    tmp_path: Path, algorithm: str, data: bytes, *, is_set: bool = False, **issuer: Any
) -> JwtVerifier:
    file = tmp_path / "key"
    file.write_bytes(data)
    keys = Keys(str(file), lambda name: Path(name).read_bytes(), algorithm, is_set=is_set)
    people = Directory(0, (), lambda: TenantDirectory.of([]))
    names: dict[str, Role] = {role.value: role for role in Role}
    settings = {"algorithm": algorithm, "issuer": ISSUER, "audience": AUDIENCE, "roles": names}
    return JwtVerifier(Issuer(**(settings | issuer)), keys, people, tenant_of)


def caller_of(verifier: JwtVerifier, text: str, origin: str = "") -> Caller:
    """The caller, after the account lookup."""
    return asyncio.run(verifier._directory.accounts.wait_for(lambda: verifier.caller(text, origin)))


@pytest.fixture
def verify(tmp_path: Path) -> Callable[..., Caller]:
    verifier = a_verifier(tmp_path, "HS256", SECRET)

    def caller(key: Any = SECRET, algorithm: str = "HS256", **changes: Any) -> Caller:
        return caller_of(verifier, jwt.encode(claims(**changes), key, algorithm), "192.0.2.7")

    return caller


# --- accepted tokens


def test_jwt_authenticates_account_in_tenant(verify: Callable[..., Caller]) -> None:
    caller = verify(role="tenant-admin")
    assert (caller.user, caller.uid, caller.gid) == ("nobody", NOBODY.pw_uid, NOBODY.pw_gid)
    assert (caller.tenant, caller.tenants) == ("vision", {"vision"})
    assert (caller.role, caller.administers) == (Role.TENANT_ADMIN, {"vision"})
    assert (caller.origin, caller.via, caller.confined) == ("192.0.2.7", "jwt", True)


def test_jwt_without_tenant_uses_tenants_of_account(verify: Callable[..., Caller]) -> None:
    caller = verify(tenant=None)
    assert (caller.tenants, caller.confined, caller.role) == ({"default"}, False, Role.USER)


@pytest.mark.parametrize(("algorithm", "key"), [("RS256", RSA_KEY), ("ES256", EC_KEY)])
def test_public_keys_verify_signatures(tmp_path: Path, algorithm: str, key: Any) -> None:
    verifier = a_verifier(tmp_path, algorithm, public_pem(key))
    text = jwt.encode(claims(), key, algorithm)
    assert caller_of(verifier, text).user == "nobody"


def test_key_is_chosen_from_key_set_by_id(tmp_path: Path) -> None:
    other = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    keys = [
        json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())) | {"kid": name}
        for name, key in (("one", RSA_KEY), ("two", other))
    ]
    verifier = a_verifier(tmp_path, "RS256", json.dumps({"keys": keys}).encode(), is_set=True)
    for name, key in (("one", RSA_KEY), ("two", other)):
        text = jwt.encode(claims(), key, "RS256", headers={"kid": name})
        assert caller_of(verifier, text).user == "nobody"
    crossed = jwt.encode(claims(), other, "RS256", headers={"kid": "one"})
    with pytest.raises(BadToken):
        caller_of(verifier, crossed)
    unknown = jwt.encode(claims(), other, "RS256", headers={"kid": "three"})
    with pytest.raises(BadToken, match="an unknown key"):
        caller_of(verifier, unknown)


def test_issuer_groups_map_to_roles(tmp_path: Path) -> None:
    meanings = {"gpu-admins": Role.ADMIN, "staff": Role.USER}
    verifier = a_verifier(
        tmp_path,
        "HS256",
        SECRET,
        roles=meanings,
        role_claim="groups",
        default_role=Role.VIEWER,
        user_claim="account",
    )
    for groups, role in (
        (["staff", "gpu-admins"], Role.ADMIN),
        (["staff"], Role.USER),
        (["strangers", 7, None], Role.VIEWER),
        ("admin", Role.VIEWER),
        (None, Role.VIEWER),
    ):
        text = jwt.encode(claims(sub="x", account="nobody", groups=groups), SECRET, "HS256")
        assert caller_of(verifier, text).role is role


# --- what is not


@pytest.mark.parametrize(
    ("claim", "seconds_from_now", "code"),
    [
        ("exp", -120, "token_expired"),
        ("nbf", 600, "token_not_yet_valid"),
        ("iat", 600, "token_not_yet_valid"),
    ],
)
def test_expired_or_future_jwt_is_rejected(
    verify: Callable[..., Caller], claim: str, seconds_from_now: int, code: str
) -> None:
    with pytest.raises(BadToken) as refused:
        verify(**{claim: int(time.time()) + seconds_from_now})
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"iss": "https://evil.example"}, "token_wrong_issuer"),
        ({"aud": "another-service"}, "token_wrong_audience"),
        ({"exp": None}, "token_invalid"),
        ({"iss": None}, "token_invalid"),
        ({"aud": None}, "token_invalid"),
        ({"exp": "soon"}, "token_invalid"),
        ({"sub": "nobody-has-this-name"}, "token_without_user"),
        ({"sub": None}, "token_without_user"),
        ({"sub": "root"}, "token_without_user"),
        ({"sub": "nobody\0"}, "token_without_user"),
    ],
)
def test_jwt_for_another_audience_or_issuer_is_rejected(
    verify: Callable[..., Caller], changes: dict[str, Any], code: str
) -> None:
    with pytest.raises(BadToken) as refused:
        verify(**changes)
    assert refused.value.code == code


def test_small_clock_skew_is_tolerated(verify: Callable[..., Caller]) -> None:
    assert verify(exp=int(time.time()) - 10).user == "nobody"
    assert verify(nbf=int(time.time()) + 10).user == "nobody"


def test_unknown_tenant_is_rejected(verify: Callable[..., Caller]) -> None:
    with pytest.raises(WrongTenant):
        verify(tenant="audio")


def test_jwt_signed_with_another_key_is_rejected(verify: Callable[..., Caller]) -> None:
    with pytest.raises(BadToken):
        verify(key=b"x" * 32)


def test_jwt_cannot_choose_its_algorithm(tmp_path: Path) -> None:
    verifier = a_verifier(tmp_path, "RS256", public_pem(RSA_KEY))
    head = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    body = base64.urlsafe_b64encode(json.dumps(claims()).encode()).rstrip(b"=").decode()
    # Signed with the public key as an HMAC secret: the classic algorithm confusion attack.
    import hashlib
    import hmac

    confused = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=").decode()
    mac = hmac.new(public_pem(RSA_KEY), f"{confused}.{body}".encode(), hashlib.sha256).digest()
    signature = base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
    for text in (f"{head}.{body}.", f"{confused}.{body}.{signature}"):
        with pytest.raises(BadToken):
            caller_of(verifier, text)


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "....", "é.é.é", "e30.e30.e30", "{}"])
def test_malformed_jwt_is_rejected(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadToken):
        caller_of(a_verifier(tmp_path, "HS256", SECRET), text)


# --- keys


@pytest.mark.parametrize(
    ("algorithm", "data", "said"),
    [
        ("HS256", b"short", "at least 32 bytes"),
        ("RS256", b"nonsense", "holds no key for RS256"),
        ("RS256", public_pem(EC_KEY), "holds no key for RS256"),
        ("ES256", public_pem(RSA_KEY), "holds no key for ES256"),
    ],
)
def test_unsuitable_key_is_rejected_at_start(
    tmp_path: Path, algorithm: str, data: bytes, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        a_verifier(tmp_path, algorithm, data)


def test_private_key_is_rejected(tmp_path: Path) -> None:
    pem = RSA_KEY.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with pytest.raises(InvalidInput, match="the public key, not the private one"):
        a_verifier(tmp_path, "RS256", pem)


def test_new_keys_are_reloaded_and_broken_ones_ignored(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    read = Path.read_bytes
    keys = Keys(
        str(file), lambda name: read(Path(name)), "HS256", is_set=False, clock=lambda: now[0]
    )
    assert keys.key_for(None) == SECRET
    for data, expected in ((b"n" * 40, b"n" * 40), (b"broken", b"n" * 40)):
        file.write_bytes(data)
        os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns + 1))
        now[0] += 10
        assert keys.key_for(None) == expected


def test_short_secret_in_key_set_is_rejected(tmp_path: Path) -> None:
    def key_set(*secrets: bytes) -> bytes:
        keys = [
            {"kty": "oct", "kid": str(number), "k": base64.urlsafe_b64encode(secret).decode()}
            for number, secret in enumerate(secrets)
        ]
        return json.dumps({"keys": keys}).encode()

    a_verifier(tmp_path, "HS256", key_set(SECRET), is_set=True)
    for secrets in ((b"s" * 31,), (SECRET, b"short")):
        with pytest.raises(InvalidInput, match="at least 32 bytes"):
            a_verifier(tmp_path, "HS256", key_set(*secrets), is_set=True)


def test_deeply_nested_key_set_is_rejected(tmp_path: Path) -> None:
    data = b'{"keys":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    with pytest.raises(InvalidInput, match="holds no key"):
        a_verifier(tmp_path, "HS256", data, is_set=True)
