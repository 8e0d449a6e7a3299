"""A server reachable over the network: TLS, tokens and JWTs."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gpu_scheduler import AsyncClient
from gpu_scheduler.model.errors import SchedulerError
from tests.acceptance.conftest import PROGRAM, RealServer, a_state_dir
from tests.certificates import make_certificate

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose server has users")
SECRET = b"a secret that the issuer and the server share"
ISSUER, AUDIENCE = "https://login.example", "gpu-scheduler"
LONGEST_S = 60


class Network:
    """A server with TLS on all addresses, and how to reach it remotely."""

    def __init__(self, server: RealServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        facts = json.loads((Path(server.state_dir) / "server.json").read_text())
        self.pid = int(facts["pid"])
        self.port = int(facts["http"].rsplit(":", 1)[1])
        self.metrics_port = int(facts["metrics"].rsplit(":", 1)[1])
        self.address = f"https://localhost:{self.port}"
        self.ca = str(folder / "server.pem")

    def token(self, *words: str) -> str:
        """A new token of user nobody, as the command prints it."""
        made = self.server.tgpu("token", "create", "-q", "--user", "nobody", *words)
        return made.stdout.strip()

    def tgpu(self, *words: object, token: str = "", code: int = 0, **more: str) -> Any:
        """The command line as on another machine."""
        return self.server.tgpu(
            *words,
            code=code,
            TGPU_SERVER=self.address,
            GPU_SCHEDULER_CA_FILE=self.ca,
            GPU_SCHEDULER_TOKEN=token,
            **more,
        )

    def get(self, path: str, token: str = "", port: int = 0) -> tuple[int, Any]:
        """Over a non-loopback address, so that the kernel cannot name the caller."""
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = False
        connection = http.client.HTTPSConnection(
            outside(), port or self.port, context=context, timeout=LONGEST_S
        )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        try:
            return answer.status, json.loads(body)
        except ValueError:
            return answer.status, body.decode()


def outside() -> str:
    """A non-loopback address of this machine."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False)
    words = [word for word in found.stdout.split() if "." in word]
    if not words:
        pytest.skip("this machine has no address but loopback")
    return words[0]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="tgpu-keys-") as keys, a_state_dir() as state_dir:
        folder = Path(keys)
        certificate, key = make_certificate(folder)
        secret = folder / "issuer.secret"
        secret.touch(0o600)
        secret.write_bytes(SECRET)
        config = folder / "config.yaml"
        config.write_text(
            json.dumps(
                {
                    "api": {
                        "host": "0.0.0.0",
                        "tls_certificate": str(certificate),
                        "tls_key": str(key),
                    },
                    "auth": {
                        "jwt_algorithm": "HS256",
                        "jwt_key_file": str(secret),
                        "jwt_issuer": ISSUER,
                        "jwt_audience": AUDIENCE,
                    },
                    "tenants": {"vision": {"max_gpus": 4}, "audio": {}},
                }
            )
        )
        server = RealServer(state_dir)
        server.environment["GPU_SCHEDULER_CONFIG"] = str(config)
        server.start("4xA100-80GB")
        yield Network(server, folder)
        server.stop()


# --- with a token


def test_remote_job_runs_as_user_of_token(network: Network) -> None:
    token = network.token("--tenant", "vision")
    words = ("run", "--chdir", "/", "--", "sh", "-c", "id -un; env")
    ended = network.tgpu(*words, token=token)
    assert ended.stdout.splitlines()[0] == "nobody"
    assert token not in ended.stdout
    listed = network.tgpu("list", "--state", "all", "--json", token=token).stdout
    assert {job["tenant_id"] for job in json.loads(listed)["jobs"]} == {"vision"}


def test_token_is_read_from_file(network: Network, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(network.token("--tenant", "audio"))
    told = network.tgpu("whoami", GPU_SCHEDULER_TOKEN_FILE=str(file)).stdout
    assert "nobody" in told
    assert "audio" in told
    file.chmod(0o644)
    refused = network.tgpu("whoami", GPU_SCHEDULER_TOKEN_FILE=str(file), code=2)
    assert "chmod 600" in refused.stderr


def test_tokens_are_listed_and_revoked(network: Network) -> None:
    token = network.token("--tenant", "vision", "--name", "to be revoked", "--expires", "1h")
    network.tgpu("whoami", token=token)
    listed = network.server.json("token", "list")["tokens"]
    (found,) = [one for one in listed if one["name"] == "to be revoked"]
    assert token not in json.dumps(listed)
    network.server.tgpu("token", "revoke", found["id"])
    refused = network.tgpu("list", token=token, code=5)
    assert "has been revoked" in refused.stderr


def test_async_client_uses_tls_and_token(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setenv("GPU_SCHEDULER_CA_FILE", network.ca)
    monkeypatch.setenv("GPU_SCHEDULER_TOKEN", network.token("--tenant", "vision"))

    async def run() -> int:
        client = AsyncClient(network.address)
        job = await client.submit(["true"], working_directory="/", capture=False)
        return await job.result(LONGEST_S)

    assert asyncio.run(run()) == 0


def test_token_sees_only_events_of_its_tenant(network: Network) -> None:
    context = ssl.create_default_context(cafile=network.ca)
    headers = {"Authorization": f"Bearer {network.token('--tenant', 'vision')}"}
    url = f"wss://localhost:{network.port}/api/v1/events"
    other = network.token("--tenant", "audio")
    network.tgpu("run", "--chdir", "/", "--", "true", token=other)
    with connect(f"{url}?after=0", ssl=context, additional_headers=headers) as stream:
        network.tgpu("run", "--chdir", "/", "--", "true", token=headers["Authorization"].split()[1])
        tenants = set()
        while True:
            event = json.loads(stream.recv(timeout=LONGEST_S))
            if event["job_id"]:
                tenants.add(network.server.json("show", event["job_id"])["tenant_id"])
            if event["kind"] == "completed":
                break
    assert tenants == {"vision"}
    with pytest.raises(InvalidStatus) as refused:
        connect(url, ssl=context, additional_headers={"Authorization": "Bearer tgpu_wrong"})
    assert refused.value.response.status_code == 401


def test_terminal_is_reachable_only_with_token_of_its_user(
    network: Network, tmp_path: Path
) -> None:
    """More than one TLS record, in both directions at once; and none for a viewer token."""
    mine = network.token("--tenant", "vision")
    words = ("--runner", "terminal", "--chdir", "/", "--", "sleep", "600")
    job = network.tgpu("submit", "-q", *words, token=mine).stdout.strip()
    with network.server.client() as client:
        until = time.monotonic() + LONGEST_S
        while client.get(job)["state"] != "running":
            assert time.monotonic() < until
            time.sleep(0.05)
    for other in (network.token("--tenant", "audio"), network.token("--role", "viewer")):
        refused = network.tgpu("shell", "--job", job, "--", "id", "-u", token=other, code=5)
        assert "may attach to it" in refused.stderr or "may not use terminals" in refused.stderr
    assert network.tgpu("shell", "--job", job, "--", "id", "-u", token=mine).stdout == "65534\n"
    (tmp_path / "in").write_bytes(data := os.urandom(1 << 20))
    variables = {
        "TGPU_SERVER": network.address,
        "GPU_SCHEDULER_CA_FILE": network.ca,
        "GPU_SCHEDULER_TOKEN": mine,
    }
    with (tmp_path / "in").open("rb") as source:
        through = subprocess.run(
            [*PROGRAM, "shell", "--job", job, "--", "cat"],
            stdin=source,
            capture_output=True,
            env=network.server.environment | variables,
            check=True,
            timeout=LONGEST_S,
        )
    assert through.stdout == data
    network.tgpu("cancel", job, token=mine)


# --- with a JWT


def signed(**claims: Any) -> str:
    now = int(time.time())
    full = {"iss": ISSUER, "aud": AUDIENCE, "sub": "nobody", "exp": now + 600, "tenant": "vision"}
    return jwt.encode(full | claims, SECRET, "HS256")


def test_jwt_of_trusted_issuer_is_accepted(network: Network) -> None:
    status, me = network.get("/api/v1/me", signed(role="tenant-admin"))
    assert (status, me["user"], me["role"]) == (200, "nobody", "tenant-admin")
    assert (me["tenants"], me["via"]) == (["vision"], "jwt")


@pytest.mark.parametrize(
    ("claims", "status", "code"),
    [
        ({"exp": 1}, 401, "token_expired"),
        ({"aud": "x"}, 401, "token_wrong_audience"),
        ({"sub": "root"}, 401, "token_without_user"),
        ({"tenant": "there-is-none"}, 403, "wrong_tenant"),
    ],
)
def test_jwt_for_another_audience_is_rejected(
    network: Network, claims: dict[str, Any], status: int, code: str
) -> None:
    found, answer = network.get("/api/v1/me", signed(**claims))
    assert (found, answer["code"]) == (status, code)


# --- without


def test_remote_caller_needs_token(network: Network) -> None:
    for path in (
        "/api/v1/jobs",
        "/api/v1/me",
        "/api/v1/gpus",
        "/metrics",
        "/docs",
        "/openapi.json",
    ):
        assert network.get(path)[0] == 401, path
    assert network.get("/metrics", port=network.metrics_port)[0] == 401
    status, health = network.get("/health")
    assert (status, health["version"], health["checks"]) == (200, "", {})
    token = network.token("--tenant", "vision", "--role", "viewer")
    assert "gpu_scheduler_jobs" in network.get("/metrics", token, network.metrics_port)[1]


def test_tls_port_rejects_plain_http(network: Network) -> None:
    connection = http.client.HTTPConnection("localhost", network.port, timeout=LONGEST_S)
    connection.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()
    connection.close()


def test_client_sends_nothing_to_untrusted_server(network: Network) -> None:
    refused = network.server.tgpu("list", TGPU_SERVER=network.address, code=3)
    assert "is not trusted" in refused.stderr


def test_server_reloads_certificate_after_signal(network: Network) -> None:
    def served() -> bytes:
        text = ssl.get_server_certificate(("localhost", network.port))
        return ssl.PEM_cert_to_DER_cert(text)

    before = served()
    make_certificate(network.folder)
    os.kill(network.pid, signal.SIGHUP)
    until = time.monotonic() + LONGEST_S
    while served() == before and time.monotonic() < until:
        time.sleep(0.05)
    assert served() != before
    assert network.tgpu("health").returncode == 0


def test_rejected_requests_are_audited(network: Network) -> None:
    network.get("/api/v1/me", "tgpu_wrong")
    until = time.monotonic() + LONGEST_S
    found: set[tuple[str, str]] = set()
    while (outside(), "token_unknown") not in found and time.monotonic() < until:
        records = network.server.json("audit", "--refused", "--since", "1h")["records"]
        found = {(record["origin"], record["code"]) for record in records}
        time.sleep(0.1)
    assert (outside(), "token_unknown") in found
    refused = network.tgpu("audit", token=network.token("--tenant", "vision"), code=5)
    assert "may not read the audit log" in refused.stderr


# --- rejected starts


def refused_to_start(tmp_path: Path, config: dict[str, Any], *, mode: int = 0o600) -> str:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(config))
    file.chmod(mode)
    ended = subprocess.run(
        [*PROGRAM, "up", "--state-dir", str(tmp_path / "state"), "--config", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "state" / "scheduler.db").exists()
    return ended.stderr


def test_server_refuses_to_start_when_open_to_strangers(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    everywhere = {"host": "0.0.0.0", "http_port": 0, "metrics_port": 0}
    assert "set api.tls_certificate" in refused_to_start(tmp_path, {"api": everywhere})
    told = refused_to_start(tmp_path, {"api": everywhere | tls, "auth": False})
    assert "auth is off" in told
    key.chmod(0o644)
    assert "chmod 600" in refused_to_start(tmp_path, {"api": everywhere | tls})
    assert "all users may write this file" in refused_to_start(tmp_path, {}, mode=0o666)


def test_server_without_auth_allows_local_users_everything_and_says_so() -> None:
    with a_state_dir() as state_dir:
        config = Path(state_dir) / "config.yaml"
        config.write_text("auth: off\n")
        config.chmod(0o600)
        server = RealServer(state_dir)
        server.environment["GPU_SCHEDULER_CONFIG"] = str(config)
        server.start("1xA100-80GB")
        words = ["curl", "-s", "--unix-socket", f"{state_dir}/server.sock", "http://x/api/v1/me"]
        done = subprocess.run(words, capture_output=True, check=True, user=65_534, group=65_534)
        me = json.loads(done.stdout)
        assert (me["user"], me["role"]) == ("nobody", "admin")
        assert "auth is off" in server.json("health")["checks"]["settings"]
        assert "auth is off" in (Path(state_dir) / "server.log").read_text()
        server.stop()


def test_python_client_explains_token_errors(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_scheduler import Client

    monkeypatch.setenv("GPU_SCHEDULER_CA_FILE", network.ca)
    monkeypatch.setenv("GPU_SCHEDULER_TOKEN", "tgpu_wrong")
    with (
        Client(network.address) as client,
        pytest.raises(SchedulerError, match="token is unknown") as refused,
    ):
        list(client.list())
    assert refused.value.code == "token_unknown"
