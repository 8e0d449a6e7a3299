"""The parsers that see untrusted bytes: one function for each, from bytes to nothing.

A target passes bytes to a parser as the program does, and lets only the errors through that the
parser must not raise: whatever a user, a node or a peer sends is answered with a `SchedulerError`
(or the error that the parser documents), never with another exception, a hang or a large amount of
memory. `TARGETS` lists them all; `tests/fuzz/corpus/NAME` holds the inputs to begin with.
"""

import asyncio
import contextlib
import io
import json
import logging
import os
import socket
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jwt
import structlog
from google.protobuf.message import DecodeError

from gpu_scheduler.agent.launcher.lifecycle.session import _decode_answer
from gpu_scheduler.agent.launcher.rpc import RpcServer
from gpu_scheduler.agent.launcher_protocol import (
    Key,
    Message,
    Report,
    Work,
    decode_line,
    decode_report,
    decode_work,
)
from gpu_scheduler.agent.runners import terminal_host
from gpu_scheduler.api.auth.accounts import Account
from gpu_scheduler.api.auth.jwt import Issuer, JwtVerifier, Keys
from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.grpc.scheduler_service import (
    AnyMessage,
    job_form,
    list_query,
    quota_form,
)
from gpu_scheduler.api.ha.forwarded_identity import IdentityVerifier, NotVouched, _signature
from gpu_scheduler.api.http.app import DOCUMENTED_OPERATIONS, build
from gpu_scheduler.api.http.request import encode
from gpu_scheduler.api.interfaces import ApiSettings
from gpu_scheduler.api.nodes.protocol import Agents, reported_node
from gpu_scheduler.cli.cluster.services import FIELDS as SERVICE_FIELDS
from gpu_scheduler.cli.parser import EXIT_USAGE, Parser
from gpu_scheduler.cli.submit.files import FIELDS, SHORT, read_directives, read_job_file
from gpu_scheduler.cli.submit.options import add_options
from gpu_scheduler.cli.text.dates import past_moment
from gpu_scheduler.cli.text.values import duration, limit, moment, size_mb
from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.client.http1 import Answer
from gpu_scheduler.client.jobs_file import models_in, read_jobs_file
from gpu_scheduler.client.llm_sizing import read_model, wanted_model
from gpu_scheduler.client.websocket import Frames
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import NodeReported, RunCycle, Submit
from gpu_scheduler.model.errors import InternalError, SchedulerError
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.node import Device
from gpu_scheduler.settings.sources import load
from gpu_scheduler.simulator.traces.detect import read_cluster, read_trace
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire import scheduler_pb2
from gpu_scheduler.wire.handshake import PROTOCOL, JoinText, read_proof
from tests.builders import a_core, a_job

CORPUS = Path(__file__).parent / "corpus"
WIRE = Path(__file__).parents[1] / "fixtures" / "wire"
HANG_S = 120.0
"""A request that takes longer than this hangs; a busy machine needs far less."""
RENEWED_AFTER = 300
"""Inputs to one server or node: their jobs and tenants only grow."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser. `modules` are those whose branches the fuzzer watches.

    `words` are strings that inputs consist of, for the fuzzer's dictionary.
    """

    run: Callable[[bytes], None]
    modules: tuple[str, ...]
    words: tuple[str, ...] = ()
    seeds: Callable[[], Iterable[bytes]] = tuple

    def corpus(self) -> list[bytes]:
        """The kept inputs, among them those that once found a bug, and the generated ones."""
        kept = sorted((CORPUS / self.run.__name__).glob("*"))
        return [*(path.read_bytes() for path in kept), *self.seeds()]


TARGETS: dict[str, Target] = {}


def target(
    modules: str, words: tuple[str, ...] = (), seeds: Callable[[], Iterable[bytes]] = tuple
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Add a function to `TARGETS` under its own name; `modules` are names in gpu_scheduler."""
    watched = tuple(f"gpu_scheduler.{module}" for module in modules.split())

    def add(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[run.__name__] = Target(run, watched, words, seeds)
        return run

    return add


history: deque[bytes] = deque(maxlen=RENEWED_AFTER)
"""The inputs before this one that the server or node of a target has seen."""


def run_recorded(name: str, data: bytes, found: Path) -> None:
    """Run a target. If it fails, write this input and those before it to a file in `found`."""
    try:
        TARGETS[name].run(data)
    except BaseException:
        lines = "".join(f"{one.hex()}\n" for one in (*history, data))
        (found / f"{name}-sequence").write_text(lines)
        raise
    history.append(data)


def quiet() -> None:
    """Log nothing: rejected input is the rule here."""
    logging.disable(logging.CRITICAL)
    structlog.configure(processors=[_drop])


def _drop(logger: object, method: str, event: Any) -> Any:
    raise structlog.DropEvent


@cache
def scratch() -> Path:
    """A directory in memory for parsers that read files."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = tempfile.TemporaryDirectory(prefix="tgpu-fuzz-", dir=place)
    _kept.append(directory)
    return Path(directory.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []
"""Removed when the process ends."""


def file_with(data: bytes, name: str = "input") -> str:
    path = scratch() / name
    path.write_bytes(data)
    return str(path)


# --- files of users and admins

JOB_WORDS = (*sorted({*FIELDS, *SHORT}), ": ", "- ", "!!", "&a", "*a", "<<: *a", "2h", "[", "{")


@target("cli.submit cli.text model.errors", JOB_WORDS)
def job_file(data: bytes) -> None:
    """`tgpu submit FILE` and `tgpu service create FILE`: YAML or JSON."""
    file = file_with(data, "job.yaml")
    for fields in (FIELDS, SERVICE_FIELDS):
        with contextlib.suppress(SchedulerError):
            for body in read_job_file(file, fields):
                json.dumps(body)


@target(
    "cli.submit cli.text cli.parser",
    ("#TGPU ", "--gpus", "--time", "--env", "--array", "--", "'", '"', "\\"),
)
def job_script(data: bytes) -> None:
    """A script with `#TGPU` lines."""
    parser = Parser(prog="tgpu submit")
    add_options(parser)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            read_directives(parser, "job.sh", data.decode())
    except SystemExit as error:
        assert error.code == EXIT_USAGE  # noqa: PT017 - the error of the command line
    except (SchedulerError, UnicodeDecodeError):
        return


@target(
    "client.jobs_file client.llm_sizing sizing",
    ("0,", "1,a.py,,--llm ", "{", '"models": ', '"default_requirement": ', "1e999", "7b"),
)
def jobs_txt(data: bytes) -> None:
    """`jobs.txt`, and before its first NUL an `llm_config.json`."""
    config, _, lines = data.rpartition(b"\0")
    models = {}
    with contextlib.suppress(SchedulerError, UnicodeDecodeError):
        models = models_in(config.decode(), "llm_config.json")
    with contextlib.suppress(SchedulerError):
        json.dumps(read_jobs_file(file_with(lines), models, {"A100": (81_920, 8)}))


@target(
    "client.llm_sizing sizing",
    ("weight_map", "quantization_config", "hidden_size", "dtype", "shape", "data_offsets"),
)
def model_files(data: bytes) -> None:
    """The files of a model: config.json, an index and a tensor file, separated by NUL NUL NUL."""
    names = ("config.json", "model.safetensors.index.json", "model.safetensors")
    directory = scratch() / "model"
    directory.mkdir(exist_ok=True)
    parts = data.split(b"\0\0\0", 2)
    for name, part in zip(names, (*parts, b"", b"")[:3], strict=True):
        if part:
            (directory / name).write_bytes(part)
        else:
            (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(SchedulerError):
        read_model(directory)


TRACE_WORDS = (
    "submit_s",
    "run_s",
    "gpus",
    '"jobs"',
    '"nodes"',
    "job_id",
    "num_gpu",
    "gpu_num",
    ";",
    "JobID|Submit|Start|Elapsed|AllocTRES\n",
    "2026-10-01T00:00:00",
    "gres/gpu:a100=2",
    "NodeName=n[01-04] Gres=gpu:2\n",
    '{"kind": "Pod", "metadata": {"name": "p"}}',
    '"nvidia.com/gpu": "1"',
)


@target("simulator.traces simulator.workload model", TRACE_WORDS)
def trace(data: bytes) -> None:
    """A trace in any format, and a file of nodes."""
    path = Path(file_with(data))
    with contextlib.suppress(SchedulerError):
        read_cluster(path)
    with contextlib.suppress(SchedulerError):
        read_trace(path, cluster=_cluster())


@cache
def _cluster() -> Any:
    nodes = scratch() / "nodes.csv"
    nodes.write_text("id,count,gpus,gpu_model\nn,2,8,A100\n")
    return read_cluster(nodes)


@target(
    "settings wire.tenants wire.validation",
    ("api:", "http_port: ", "auth: ", "tenants:", "security:", "!!", "<<: *a", "&a", "*a"),
)
def settings_file(data: bytes) -> None:
    """A settings file, and the settings that it gives."""
    with contextlib.suppress(SchedulerError):
        load(file_with(data), environ={})


@target(
    "cli.text client.llm_sizing",
    ("in 2 hours", "tomorrow", "monday", "2026-01-01T", "1-12:00:00", "90m", "GB", "Z", "+"),
)
def texts_of_users(data: bytes) -> None:
    """Durations, sizes and times, as options and job files give them."""
    text = data.decode("utf-8", "replace")
    for read in (duration("x"), limit("x"), size_mb("x"), moment("x", now=1.7e9)):
        with contextlib.suppress(SchedulerError):
            read(text)
    with contextlib.suppress(SchedulerError):
        past_moment(text, "x")
    with contextlib.suppress(SchedulerError):
        wanted_model(text)


# --- tokens

SECRET = b"0123456789abcdef0123456789abcdef"
USER = Account(name="ann", uid=5001, gid=5001, groups=("ann",))


class _Directory:
    """One account, as if the machine had no other."""

    @property
    def accounts(self) -> "_Directory":
        return self

    def named(self, name: str) -> Account | None:
        return USER if name == USER.name else None

    def caller(self, uid: int) -> Caller:
        return Caller(user=USER.name, uid=uid, gid=USER.gid)


@target(
    "api.auth",
    ("eyJhbGciOiJIUzI1NiJ9.", '"sub":', '"exp":', '"aud":', '"iss":', '"tenant":', '"role":'),
)
def json_web_token(data: bytes) -> None:
    """A token as it comes; and one that its issuer has signed, with any content."""
    _read_token(data.decode("latin-1"))
    payload = data
    with contextlib.suppress(ValueError, RecursionError):
        claims = json.loads(data)
        if isinstance(claims, dict):
            payload = json.dumps({"iss": "i", "aud": "a", "exp": 4e9, **claims}).encode()
    _read_token(jwt.api_jws.encode(payload, SECRET, algorithm="HS256"))


def _read_token(text: str) -> None:
    with contextlib.suppress(SchedulerError):
        _verifier().caller(text, "127.0.0.1")


@cache
def _verifier() -> JwtVerifier:
    issuer = Issuer(algorithm="HS256", issuer="i", audience="a", roles={"boss": Role.ADMIN})
    keys = Keys("secret", lambda _: SECRET, "HS256", is_set=False)
    directory: Any = _Directory()
    return JwtVerifier(issuer, keys, directory, lambda name: name)


@target(
    "api.auth.jwt",
    ('{"keys":[{"kty":"', '"RSA"', '"EC"', '"oct"', '"n":"', '"e":"', '"crv":"P-256"', '"kid"'),
)
def key_set(data: bytes) -> None:
    """The file of an issuer's keys: a JWKS or one key."""
    for algorithm in ("HS256", "RS256", "ES256"):
        for is_set in (True, False):
            with contextlib.suppress(SchedulerError):
                Keys("keys", lambda _: data, algorithm, is_set=is_set)


@target("api.ha.forwarded_identity wire.handshake", ('{"uid":', '"gid":null', '"nonce":"'))
def forwarded_identity(data: bytes) -> None:
    """The identity that a standby signs, with any content; join tokens and proofs of nodes."""
    verifier = IdentityVerifier(SECRET, 1)
    for header in (data, data + b"." + _signature(SECRET, data)):
        with contextlib.suppress(NotVouched):
            verifier.read(header)
    text = data.decode("latin-1")
    read_proof(text)
    with contextlib.suppress(SchedulerError):
        JoinText.read(text)


# --- bytes of a server, as the client reads them


@target(
    "client.http1",
    ("HTTP/1.1 200 OK\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: ", "\r\n\r\n"),
)
def http_answer(data: bytes) -> None:
    """A response in pieces of any length."""
    answer = Answer()
    received = 0
    with contextlib.suppress(Unreadable):
        for piece in _pieces(data):
            received += len(piece)
            given = answer.feed(piece)
            assert sum(map(len, given)) <= received
        answer.feed(b"")
    assert not answer.done or answer.status


@target("client.websocket", ("\x81\x7e", "\x82\x7f", "\x88\x02", "\x89\x00", "\x01", "\x80"))
def websocket_frames(data: bytes) -> None:
    """Frames of a server in pieces of any length."""
    frames = Frames()
    with contextlib.suppress(Unreadable):
        for piece in _pieces(data):
            for message in frames.feed(piece):
                assert len(message) <= len(data)


def _pieces(data: bytes) -> list[bytes]:
    """The bytes after the first, in pieces of so many bytes as the first says."""
    size = max(1, data[0]) if data else 1
    return [data[place : place + size] for place in range(1, len(data), size)]


# --- the launcher's sockets

ORDER_WORDS = (
    *Work.__slots__,
    '"do":"start"',
    '"do":"commit"',
    '"work":{',
    '"n":1',
    "allocation_id",
)


class _Orders:
    """Takes orders as the supervisor does, and carries none out."""

    leases: Any = None

    def start(self, work: Work, done: Callable[..., None]) -> None:
        assert work.allocation_id
        done()

    def reject(self, key: Key, reason: str) -> None:
        assert isinstance(key[0], str)
        assert isinstance(key[1], int)

    def stop(self, key: Key, reason: str, grace_ms: int | None) -> None: ...

    def commit(self, key: Key, environment: dict[str, str], files: dict[str, str]) -> str:
        assert all(isinstance(text, str) for text in (*environment.values(), *files.values()))
        return ""

    def forget(self, key: Key) -> str:
        return ""

    def held(self) -> list[Message]:
        return []

    def capabilities(self) -> Message:
        return {}

    def current_reports(self) -> list[Report]:
        return []

    def renew(self, asked_ms: int) -> None: ...

    def warn(self, key: Key, text: str) -> None: ...

    def run_helper(self, order: Message, done: Callable[[bool, str], None]) -> None:
        done(True, "")

    def order_failed(self, error: Exception, key: Key | None) -> None:
        raise error


class _Peer:
    """A connection that keeps what it would send."""

    def __init__(self) -> None:
        self.unsent = bytearray()
        self.watching = False


@target("agent.launcher_protocol agent.launcher.rpc", ORDER_WORDS)
def launcher_order(data: bytes) -> None:
    """Lines of an agent at the launcher's socket: every line is answered."""
    orders = _Orders()
    orders.leases = orders
    server: Any = object.__new__(RpcServer)
    server._supervisor = orders
    for line in data.split(b"\n"):
        peer: Any = _Peer()
        server._handle(peer, line)
        assert peer.unsent.endswith(b"\n"), line


@target(
    "agent.launcher_protocol agent.launcher.lifecycle.session",
    (*ORDER_WORDS, '"report":"over"', '"exit_code":', '"began":', '"error":'),
)
def launcher_report(data: bytes) -> None:
    """Lines of a launcher, of its journal, and of a user's session."""
    _decode_answer(data)
    try:
        message = decode_line(data)
    except ValueError:
        return
    with contextlib.suppress(ValueError):
        decode_report(message)
    with contextlib.suppress(ValueError):
        decode_work(message, lenient=True)


class _Use:
    def note(self) -> None: ...


@target(
    "agent.runners.terminal_host",
    ('{"mode":"job"', '"rows":', '"columns":', "1e999", "o\0\0\0", "w\0\0\0\x04", "d\0\0\0"),
)
def terminal_client(data: bytes) -> None:
    """Messages of a client at the terminal of a job."""
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        host: Any = object.__new__(terminal_host.Host)
        host._use, host._starting, host._order = _Use(), {}, {}
        host._job = _terminal()
        host._job.clients.clear()
        host._job.unwritten.clear()
        client = terminal_host.Client(here)
        there.sendall(data)
        for kind, content in client.messages():
            if kind == b"o" and b"start" in content:
                continue  # It would run a program.
            if client.gone:
                break
            host._handle_message(client, kind, content)


@cache
def _terminal() -> terminal_host.Program:
    terminal, _ = os.openpty()
    return terminal_host.Program(0, terminal, {terminal: b"d"}, terminal)


# --- the server

HTTP_WORDS = tuple(
    sorted(
        {
            word
            for operation in DOCUMENTED_OPERATIONS
            for word in (operation.example if isinstance(operation.example, dict) else ())
        }
    )
)


class _Who:
    """Authenticates by a header: an admin or a user."""

    def caller(self, peer: Peer, headers: Mapping[bytes, bytes]) -> Caller:
        if headers.get(b"who") == b"admin":
            return Caller(user="root", uid=0, gid=0, role=Role.ADMIN)
        return Caller(user="ann", uid=5001, gid=5001, tenant="default", tenants=("default",))


class _Logs:
    async def read_log(self, *_: object) -> AsyncIterator[bytes]:
        yield b"one line\n"


class _Server:
    """The REST app over a real control loop with one node, without sockets."""

    def __init__(self) -> None:
        self.events = asyncio.new_event_loop()
        self.left = RENEWED_AFTER
        self.events.run_until_complete(self._start())

    async def _start(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.loop = Loop(MemoryStore(), a_core, self._clock)
        self.loop.start()
        logs: Any = _Logs()
        settings = ApiSettings(server_uid=0, version="1.2.3")
        self.app = build(self.loop, settings, logs=logs, authenticators=(_Who(),)).main
        devices = tuple(
            Device(index=i, uuid=f"GPU-{i}", model="A100", memory_mb=80_000) for i in range(4)
        )
        node = NodeReported(node_id="n0", cpu_milli=64_000, memory_mb=500_000, devices=devices)
        await self.loop.apply(node)
        for _ in range(2):
            await self.loop.apply(
                Submit(replace(a_job(gpus=1), id=""), Launch(argv=("x",), user="ann"))
            )

    def _clock(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def call(self, method: str, path: str, query: bytes, who: bytes, body: bytes) -> None:
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"who", who),
            ],
            "state": {"peer": Peer(uid=0, unix=True)},
        }
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            return next(given, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            assert message.get("status", 0) != 500, (method, path, query, body)

        self.events.run_until_complete(self._within(self.app(scope, receive, send)))

    async def _within(self, request: Awaitable[None]) -> None:
        async with asyncio.timeout(HANG_S):
            await request

    def close(self) -> None:
        self.events.run_until_complete(self.loop.close())
        self.events.close()


_servers: list[_Server] = []


def _server() -> _Server:
    """The server, replaced from time to time."""
    if _servers and _servers[0].left <= 0:
        _servers.pop().close()
    if not _servers:
        history.clear()
        _servers.append(_Server())
    _servers[0].left -= 1
    return _servers[0]


def _documented_requests() -> Iterable[bytes]:
    """Each operation with the body of its documentation, as a user and as an admin."""
    for number, operation in enumerate(DOCUMENTED_OPERATIONS):
        body = b"" if operation.example is None else json.dumps(operation.example).encode()
        yield bytes([number, 0]) + b"\n\n" + body
        yield bytes([number, 1]) + b"\n\n" + body


@target(
    "api.http api.routes wire control.jobs",
    (*HTTP_WORDS, "state=", "limit=", "cursor=", "since=", "order=", "job-1", "n0"),
    _documented_requests,
)
def http_request(data: bytes) -> None:
    """A request: the operation, the caller, a line for each of parameter and query, and a body."""
    if len(data) < 2:
        return
    operation = DOCUMENTED_OPERATIONS[data[0] % len(DOCUMENTED_OPERATIONS)]
    parameter, _, rest = data[2:].partition(b"\n")
    query, _, body = rest.partition(b"\n")
    path = operation.path
    name = parameter.decode("latin-1").replace("/", "").strip() or "job-1"
    for known, value in (("{job_id}", "job-1"), ("{tenant_id}", "default"), ("{node}", "n0")):
        path = path.replace(known, value if name == "job-1" else name)
    head, brace, tail = path.partition("{")
    if brace:
        path = head + name + tail.partition("}")[2].replace("{", "").replace("}", "")
    who = b"admin" if data[1] & 1 else b"user"
    _server().call(operation.method, path, query, who, body)


def _recorded_calls() -> Iterable[bytes]:
    """Calls of clients of all versions, each with the number of its kind."""
    for number, kind in enumerate(CALLS):
        for path in sorted(WIRE.rglob(f"{kind.DESCRIPTOR.name}*.bin")):
            yield bytes([number]) + path.read_bytes()


CALLS = (
    *(scheduler_pb2.SubmitJobRequest, scheduler_pb2.ListJobsRequest),
    scheduler_pb2.UpdateTenantQuotaRequest,
)


@target(
    "api.grpc.scheduler_service wire api.routes.submit api.routes.jobs",
    ("job-1", "default", "pending"),
    _recorded_calls,
)
def grpc_call(data: bytes) -> None:
    """A call of SchedulerService, which becomes a request."""
    message = parsed(CALLS[data[0] % len(CALLS)] if data else CALLS[0], data[1:])
    match message:
        case scheduler_pb2.SubmitJobRequest():
            body = encode(job_form(message.job))
            _server().call("POST", "/api/v1/jobs", b"", b"user", body)
        case scheduler_pb2.ListJobsRequest():
            query = urlencode(list_query(message)).encode()
            _server().call("GET", "/api/v1/jobs", query, b"user", b"")
        case scheduler_pb2.UpdateTenantQuotaRequest():
            with contextlib.suppress(ValueError):
                body = encode(quota_form(message))
                _server().call("PATCH", "/api/v1/tenants/default", b"", b"admin", body)


def parsed(kind: type[AnyMessage], data: bytes) -> AnyMessage | None:
    """The message in these bytes; None if there is none, which gRPC itself rejects."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


class _Nodes:
    """A control loop with one connected agent, which runs two jobs."""

    def __init__(self) -> None:
        self.events = asyncio.new_event_loop()
        self.left = RENEWED_AFTER
        self.events.run_until_complete(self._start())

    async def _start(self) -> None:
        self.loop = Loop(MemoryStore(), a_core, lambda: 1_700_000_000_000)
        self.loop.start()
        self.agents = Agents(self.loop)
        self.hello = pb.Hello(
            node="n0",
            protocol=PROTOCOL,
            instance="i",
            runners=["process"],
            inventory=pb.Inventory(cpu_milli=8_000, memory_mb=10_000),
        )
        self.session = self.agents._open(self.hello)
        await self.agents._accept(self.session, self.hello)
        for _ in range(2):
            job = replace(a_job(gpus=0), id="")
            await self.loop.apply(Submit(job, Launch(argv=("x",), user=job.user)))
        await self.loop.apply(RunCycle())

    async def receive(self, message: pb.AgentMessage) -> None:
        with contextlib.suppress(SchedulerError):
            self.agents._handle(self.session, message)
        await self._settle()

    async def join(self, hello: pb.Hello) -> None:
        try:
            await self.loop.apply(reported_node(hello, hello.inventory))
        except InternalError:
            raise
        except SchedulerError:
            return
        await self._settle()

    async def _settle(self) -> None:
        """Wait until all reports are applied; a bug of the control loop is an `InternalError`."""
        async with asyncio.timeout(HANG_S):
            waiting = list(self.agents._reports._pending)
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                if isinstance(error, InternalError) or (
                    isinstance(error, Exception) and not isinstance(error, SchedulerError)
                ):
                    raise error
            await self.loop.apply(RunCycle())

    def close(self) -> None:
        async def end() -> None:
            self.agents.close()
            await self.loop.close()

        self.events.run_until_complete(end())
        self.events.close()


_nodes: list[_Nodes] = []


def _recorded_messages() -> Iterable[bytes]:
    """Messages of agents of all versions."""
    for path in sorted(WIRE.rglob("AgentMessage.*.bin")):
        yield b"\1" + path.read_bytes()
        yield b"\0" + path.read_bytes()
    for fact in (
        pb.Fact(began=pb.Began(), at_ms=5),
        pb.Fact(over=pb.Over(exit_code=1, ran=True, run_ms=5, stopped_by="timeout", detail="x")),
        pb.Fact(over=pb.Over(signal=9, ran=True, ago_ms=7), member=1),
        pb.Fact(ready=pb.Ready(is_ready=True, port=80)),
        pb.Fact(saved=pb.Saved(ago_ms=3)),
        pb.Fact(prepared=pb.Prepared(port=80)),
    ):
        fact.allocation_id = "job-1.1"
        message = pb.AgentMessage(facts=pb.Facts(facts=[fact]))
        yield b"\1" + message.SerializeToString()


@target(
    "api.nodes wire.orders control.nodes control.jobs.attempt_events",
    ("job-1.1", "job-2.1", "n0", "GPU-0", "process"),
    _recorded_messages,
)
def agent_message(data: bytes) -> None:
    """A message of an agent whose node runs jobs; or, after a NUL, the hello of another node."""
    if _nodes and _nodes[0].left <= 0:
        _nodes.pop().close()
    if not _nodes:
        history.clear()
        _nodes.append(_Nodes())
    nodes = _nodes[0]
    nodes.left -= 1
    message = parsed(pb.AgentMessage, data[1:])
    if message is None:
        return
    is_hello = data[:1] == b"\0"
    work = nodes.join(message.hello) if is_hello else nodes.receive(message)
    nodes.events.run_until_complete(work)
