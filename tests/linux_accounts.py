"""Real Linux accounts for tests, created by root with their own homes and removed afterwards."""

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CAN_MAKE = os.geteuid() == 0 and all(map(shutil.which, ("useradd", "groupadd", "curl")))
WHY_NOT = "needs root, useradd and curl, to make users and to be them"


@dataclass(frozen=True)
class LinuxAccount:
    """An account that can run programs and call a server over its socket."""

    name: str
    uid: int
    gid: int
    home: Path
    socket: str = ""

    def run(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program as this user, with all its groups."""
        return subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            check=check,
            user=self.uid,
            group=self.gid,
            extra_groups=os.getgrouplist(self.name, self.gid),
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], "USER": self.name},
            timeout=60,
        )

    def calling(self, socket: str) -> "LinuxAccount":
        """The same account as a client of this server."""
        return LinuxAccount(self.name, self.uid, self.gid, self.home, socket)

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        """The answer of the server: JSON, or text."""
        words = ["curl", "-s", "-m", "30", "--unix-socket", self.socket, "-X", method]
        if body is not None:
            text = body if isinstance(body, str) else json.dumps(body)
            words += ["-H", "Content-Type: application/json", "--data-binary", text]
        for name, value in (headers or {}).items():
            words += ["-H", f"{name}: {value}"]
        answer = self.run(*words, f"http://localhost/api/v1{path}").stdout
        try:
            return json.loads(answer)
        except ValueError:
            return answer

    def submit(self, command: str, **job: Any) -> str:
        """Submit a shell line; returns the id of the job."""
        body = {"command": ["/bin/sh", "-c", command], "working_directory": "/", **job}
        answer = self.call("POST", "/jobs", body)
        assert "job_id" in answer, answer
        return str(answer["job_id"])


@contextmanager
def some_accounts(
    *names: str, groups: dict[str, list[str]] | None = None
) -> Iterator[list[LinuxAccount]]:
    """Accounts with these names (made unique) in these groups; removed with their processes."""
    mark = f"{os.getpid() % 100_000}"
    homes = Path(tempfile.mkdtemp(prefix="tgpu-homes-"))
    homes.chmod(0o755)
    made: list[LinuxAccount] = []
    made_groups: list[str] = []
    try:
        for group in groups or {}:
            subprocess.run(["groupadd", f"{group}{mark}"], check=True)
            made_groups.append(f"{group}{mark}")
        for name in names:
            full = f"{name}{mark}"
            home = homes / name
            words = ["useradd", "-M", "-d", str(home), "-U", "-s", "/bin/sh"]
            member = [f"{group}{mark}" for group, who in (groups or {}).items() if name in who]
            if member:
                words += ["-G", ",".join(member)]
            subprocess.run([*words, full], check=True, capture_output=True)
            entry = pwd.getpwnam(full)
            home.mkdir(mode=0o700)
            os.chown(home, entry.pw_uid, entry.pw_gid)
            made.append(LinuxAccount(full, entry.pw_uid, entry.pw_gid, home))
        yield made
    finally:
        for person in made:
            end_processes_of(person.uid)
            subprocess.run(["userdel", "-f", person.name], capture_output=True, check=False)
        for group in made_groups:
            subprocess.run(["groupdel", group], capture_output=True, check=False)
        shutil.rmtree(homes, ignore_errors=True)


def processes_of(uid: int) -> list[int]:
    """The processes of an account."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    found.append(int(entry.name))
    return found


def end_processes_of(uid: int) -> None:
    """The account belongs to the test, and so do all its processes."""
    for pid in processes_of(uid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
