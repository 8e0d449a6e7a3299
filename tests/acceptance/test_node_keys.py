"""Nodes authenticate over TLS with their own keys; all others are rejected."""

import asyncio
import socket
import subprocess
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_scheduler.agent.enrollment import Identity, KeyRenewer, NotJoined, join
from gpu_scheduler.agent.server_link import Credentials, grpc_stream, open_channel
from gpu_scheduler.api.grpc.certificate_authority import NodeAuthority, new_authority
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import PROTOCOL, SERVER_NAME, JoinText, session_payload
from tests.cluster import Cluster, a_cluster

T = TypeVar("T")
LONGEST_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server with TLS, and one node."""
    with a_cluster("real", grpc_tls="on") as running:
        yield running


def run(work: Coroutine[Any, Any, T]) -> T:
    async def in_time() -> T:
        async with asyncio.timeout(LONGEST_S):
            return await work

    return asyncio.run(in_time())


def a_token(cluster: Cluster, **asked: Any) -> dict[str, Any]:
    with cluster.client() as client:
        made: dict[str, Any] = client.call("POST", "/api/v1/nodes/tokens", asked)
    return made


def joined(cluster: Cluster, name: str, token: str = "") -> Identity:
    return run(join(name, [cluster.nodes_address], token or cluster.token))


class Shown:
    """Presents an identity, or a modified one."""

    def __init__(self, identity: Identity, proof: str | None = None) -> None:
        self.identity = _Fixed(identity, proof)


class Forged(Identity):
    """An identity whose certificate and key do not match, over a channel without it."""

    def channel_credentials(self) -> Credentials:
        return Credentials(authority=self.authority.encode())


class _Fixed:
    def __init__(self, identity: Identity, proof: str | None) -> None:
        self._identity, self._proof = identity, proof

    def channel_credentials(self) -> Credentials:
        return Credentials(authority=self._identity.authority.encode())

    def proof(self, challenge: bytes, node: str, instance: str) -> str:
        if self._proof is None:
            return self._identity.proof(challenge, node, instance)
        return self._proof


def hello(node: str) -> pb.AgentMessage:
    inventory = pb.Inventory(cpu_milli=1000, memory_mb=1000, detection="declared")
    said = pb.Hello(node=node, protocol=PROTOCOL, instance=f"of {node}", inventory=inventory)
    return pb.AgentMessage(hello=said)


async def first_word(address: str, node: str, shown: Shown | None) -> str:
    """The answer of the server to a hello: welcome, goodbye, or the error."""
    try:
        async with grpc_stream(address, shown) as stream:
            await stream.write(hello(node))
            async for message in stream:
                return str(message.WhichOneof("message"))
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "the end"


def tried(cluster: Cluster, node: str, shown: Shown | None) -> str:
    return run(first_word(cluster.nodes_address, node, shown))


# --- joining


def test_node_joins_with_token_alone_and_runs_jobs(cluster: Cluster) -> None:
    cluster.tgpu("wait", cluster.submit("--gpus", "8", "--", "true"))
    key = next(key for key in cluster.json("node", "keys")["keys"] if key["node"] == "real")
    assert key["state"] == "active"
    identity = next((cluster.directory / "real").rglob("identity.json"))
    assert identity.stat().st_mode & 0o077 == 0, "others could read the node's key"


def test_node_key_opens_session_of_that_node(cluster: Cluster) -> None:
    assert tried(cluster, "one", Shown(joined(cluster, "one"))) == "welcome"


def test_join_token_is_limited_to_its_number_of_nodes(cluster: Cluster) -> None:
    token = a_token(cluster, uses=2)
    joined(cluster, "first", token["token"])
    joined(cluster, "second", token["token"])
    with pytest.raises(NotJoined, match="is used up"):
        joined(cluster, "third", token["token"])
    states = {one["id"]: one["state"] for one in cluster.json("node", "token", "list")["tokens"]}
    assert states[token["id"]] == "used up"


def test_repeated_join_with_same_key_counts_once(
    cluster: Cluster,
) -> None:
    token, key = a_token(cluster, uses=1), ec.generate_private_key(ec.SECP256R1())
    target = [cluster.nodes_address]
    first, again = (run(join("twice", target, token["token"], key=key)) for _ in range(2))
    assert first.key == again.key
    assert tried(cluster, "twice", Shown(again)) == "welcome"
    for name in ("twice", "another"):
        with pytest.raises(NotJoined, match="is used up"):
            joined(cluster, name, token["token"])


def test_expired_join_token_is_rejected(cluster: Cluster) -> None:
    token = a_token(cluster, expires_in_seconds=0.05)

    def is_expired() -> bool:
        listed = cluster.json("node", "token", "list")["tokens"]
        return {one["id"]: one["state"] for one in listed}[token["id"]] == "expired"

    cluster.until(is_expired, "the token has expired")
    with pytest.raises(NotJoined, match="has expired"):
        joined(cluster, "late", token["token"])


def test_revoked_join_token_is_rejected(cluster: Cluster) -> None:
    token = a_token(cluster)
    cluster.tgpu("node", "token", "revoke", token["id"])
    with pytest.raises(NotJoined, match="has been revoked"):
        joined(cluster, "refused", token["token"])


def test_forged_join_token_is_rejected(cluster: Cluster) -> None:
    real = JoinText.read(cluster.token)
    with pytest.raises(NotJoined, match="this join token is unknown"):
        joined(cluster, "stranger", str(JoinText("A" * 43, real.pin)))


def test_join_token_for_any_node_cannot_replace_existing_node(cluster: Cluster) -> None:
    with pytest.raises(NotJoined, match="node 'real' already exists"):
        joined(cluster, "real")


def test_join_token_for_one_node_is_rejected_for_others(cluster: Cluster) -> None:
    token = a_token(cluster, nodes=["chosen"])["token"]
    with pytest.raises(NotJoined, match="is for chosen and not for 'other'"):
        joined(cluster, "other", token)
    assert joined(cluster, "chosen", token).node == "chosen"


@pytest.mark.parametrize("name", ["../etc", "a b", "x" * 64, "né"])
def test_node_name_must_be_plain(cluster: Cluster, name: str) -> None:
    with pytest.raises(NotJoined, match="a node's name has letters"):
        joined(cluster, name)


# --- sessions with false identities


def test_session_requires_node_key(cluster: Cluster) -> None:
    mine = joined(cluster, "keyless")
    for proof in ("", "x", "AAAA.BBBB", "." * 5, "tgpn_"):
        assert tried(cluster, "keyless", Shown(mine, proof)).startswith("UNAUTHENTICATED")


def test_key_of_another_node_opens_no_session(cluster: Cluster) -> None:
    thief = joined(cluster, "thief")
    told = tried(cluster, "real", Shown(thief))
    assert told == "UNAUTHENTICATED: this is the key of node 'thief', not of 'real'"


def test_certificate_without_its_key_opens_no_session(cluster: Cluster) -> None:
    """The certificate is public: only the key proves the identity."""
    one, other = joined(cluster, "seen"), joined(cluster, "forger")
    forged = replace(one, key=other.key)
    assert "does not match the key of the certificate" in tried(cluster, "seen", Shown(forged))


def test_replayed_proof_is_rejected(cluster: Cluster) -> None:
    mine = joined(cluster, "replayed")
    old = mine.proof(b"the challenge of another session", "replayed", "of replayed")
    assert "does not match the key of the certificate" in tried(
        cluster, "replayed", Shown(mine, old)
    )
    assert session_payload(b"a", "n", "i") != session_payload(b"b", "n", "i")


def test_certificate_of_another_authority_is_rejected(cluster: Cluster) -> None:
    mine = joined(cluster, "impostor")
    other = NodeAuthority(new_authority(mine.issued_ms))
    forged = replace(mine, certificate=_signed_by(other, mine))
    told = tried(cluster, "impostor", Shown(forged))
    assert "not signed by this cluster's authority" in told


def test_revoking_node_closes_its_session_permanently(cluster: Cluster) -> None:
    mine = joined(cluster, "doomed")

    async def session() -> str:
        async with grpc_stream(cluster.nodes_address, Shown(mine)) as stream:
            await stream.write(hello("doomed"))
            messages = aiter(stream)
            assert (await anext(messages)).WhichOneof("message") == "welcome"
            await asyncio.to_thread(cluster.tgpu, "node", "revoke", "doomed")
            try:
                async for _ in messages:
                    pass
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
        return "the end"

    assert run(session()) == "UNAUTHENTICATED: the key of node 'doomed' was revoked"
    assert "was revoked" in tried(cluster, "doomed", Shown(mine))
    assert "already revoked" in cluster.tgpu("node", "revoke", "doomed", code=2)


def test_rejected_nodes_are_audited(cluster: Cluster) -> None:
    thief = joined(cluster, "noted")
    tried(cluster, "real", Shown(thief))

    def is_noted() -> bool:
        found = cluster.json("audit")["records"]
        return any(
            row["action"] == "open_session" and row["target"] == "real" and row["code"]
            for row in found
        )

    cluster.until(is_noted, "the refusal is in the record")


def test_revoked_node_keeps_running_jobs_and_rejoins_with_token_in_its_file() -> None:
    """Neither another token nor a restart locks out a node with a valid key."""
    with a_cluster(grpc_tls="on") as cluster:
        file = cluster.directory / "join.token"
        agent = cluster.agent("n1", "--token-file", str(file))
        at = agent.command.index("--token")
        del agent.command[at : at + 2]
        cluster.agents["n1"] = agent

        def write(token: str) -> None:
            file.write_text(token)
            file.chmod(0o600)

        write(cluster.token)
        agent.start()
        cluster.wait_for_nodes()
        job = cluster.submit("--gpus", "1", "--", "sleep", "300")
        cluster.until(lambda: cluster.states(job) == {"running"}, "it runs")
        agent.stop()
        before = agent.connections()
        write(a_token(cluster)["token"])  # for any node, as for machines that join later
        agent.start()
        cluster.until(lambda: agent.connections() > before, "its key is good")
        write("tgpn_")
        cluster.tgpu("node", "revoke", "n1")
        cluster.until(lambda: "to let it in again, run" in agent.log(), "what is to be done")
        before = agent.connections()
        write(a_token(cluster, nodes=["n1"])["token"])
        cluster.until(lambda: agent.connections() > before, "it has joined anew")
        assert cluster.states(job) == {"running"}
        cluster.tgpu("cancel", job)
        cluster.until(lambda: cluster.states(job) == {"cancelled"}, "it is heard again")


# --- renewal


def test_previous_key_is_valid_until_next_renewal(cluster: Cluster, tmp_path: Path) -> None:
    first = joined(cluster, "renewing")
    keeper = KeyRenewer(first, tmp_path, [cluster.nodes_address])
    run(keeper.renew())
    second = keeper.identity
    assert second.key != first.key
    assert tried(cluster, "renewing", Shown(second)) == "welcome"
    assert tried(cluster, "renewing", Shown(first)) == "welcome", "the answer may have been lost"
    run(keeper.renew())
    assert "has another key now" in tried(cluster, "renewing", Shown(first))
    assert Identity.read(tmp_path) == keeper.identity


def test_renewal_requires_current_key(cluster: Cluster, tmp_path: Path) -> None:
    mine, other = joined(cluster, "mine"), joined(cluster, "theirs")
    forged = Forged(**asdict(replace(mine, key=other.key)))
    with pytest.raises(NotJoined, match="does not match the key of the certificate"):
        run(KeyRenewer(forged, tmp_path, [cluster.nodes_address]).renew())


@pytest.mark.slow
def test_agent_renews_its_key() -> None:
    """Keys are valid for a few seconds, and are renewed after two thirds of that."""
    with a_cluster("n1", grpc_tls="on", grpc_node_key_days="0.00015") as quick:
        key = quick.json("node", "keys")["keys"][0]["fingerprint"]
        quick.until(
            lambda: quick.json("node", "keys")["keys"][0]["fingerprint"] != key, "a new key"
        )
        quick.wait_for_nodes("n1")


# --- TLS


def test_agent_sends_no_token_to_server_of_another_cluster(cluster: Cluster) -> None:
    """The agent checks the pin before it sends anything."""
    real = JoinText.read(cluster.token)
    with pytest.raises(NotJoined, match="not a server of the cluster that the token is for"):
        joined(cluster, "lost", str(JoinText(real.secret, "B" * 43)))


def test_tls_port_rejects_plaintext(cluster: Cluster) -> None:
    plain = Credentials(plain=True)

    async def ask() -> str:
        async with open_channel(cluster.nodes_address, plain) as channel:
            call = channel.unary_unary("/gpu_scheduler.v1.SchedulerService/GetClusterStatus")
            try:
                await call(b"", timeout=LONGEST_S)
            except grpc.aio.AioRpcError as error:
                return error.code().name
        return "OK"

    assert run(ask()) == "UNAVAILABLE"
    host, _, port = cluster.nodes_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LONGEST_S) as raw:
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9)
        assert b"grpc" not in raw.recv(1000)
    assert "ssl_transport_security" not in cluster.server.log(), "not our form of a log"


def test_agent_sends_plain_token_only_to_its_own_machine(cluster: Cluster) -> None:
    plain = str(JoinText("A" * 43, "B" * 43, plain=True))
    with pytest.raises(NotJoined, match="without TLS"):
        run(join("n", ["192.0.2.1:9090"], plain))


def test_openssl_sees_tls_1_3_and_chain_to_cluster_authority(
    cluster: Cluster, tmp_path: Path
) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_text(cluster.tgpu("node", "authority"))
    seen = subprocess.run(
        [
            *("openssl", "s_client", "-connect", cluster.nodes_address, "-servername", SERVER_NAME),
            *("-verify_hostname", SERVER_NAME, "-CAfile", str(authority), "-alpn", "h2", "-brief"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=LONGEST_S,
    )
    told = (seen.stdout + seen.stderr).decode("utf-8", "replace")
    assert "Verification: OK" in told
    assert "TLSv1.3" in told


def test_old_tls_versions_are_rejected(cluster: Cluster) -> None:
    seen = subprocess.run(
        ["openssl", "s_client", "-connect", cluster.nodes_address, "-tls1_1", "-alpn", "h2"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=LONGEST_S,
    )
    assert seen.returncode != 0


def _signed_by(authority: NodeAuthority, identity: Identity) -> str:
    from datetime import timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    key = serialization.load_pem_private_key(identity.key.encode(), None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.node)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    der = serialization.Encoding.DER
    signed, _ = authority.sign_node(
        request.public_bytes(der), identity.node, identity.issued_ms, timedelta(days=1)
    )
    pem = serialization.Encoding.PEM
    return x509.load_der_x509_certificate(signed).public_bytes(pem).decode()
