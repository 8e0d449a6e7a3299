"""A server run by root isolates two users who do not trust each other."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import unix_connect

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.linux_accounts import CAN_MAKE, WHY_NOT, LinuxAccount, some_accounts

pytestmark = pytest.mark.skipif(not CAN_MAKE, reason=WHY_NOT)
TERMINAL = "job_terminal"
SECRET = "a-secret-of-the-server"
LONGEST_S = 60.0


class MultiUserSite:
    """A server with three users: ann is admin of the tenant, ben is its member, eve is not."""

    def __init__(self, server: RealServer, people: list[LinuxAccount]) -> None:
        self.server = server
        self.socket = f"{server.state_dir}/server.sock"
        self.ann, self.ben, self.eve = (person.calling(self.socket) for person in people)

    def ended(self, job: str) -> dict[str, Any]:
        """The job after its end, as root sees it."""
        with self.server.client() as client:
            return dict(client.wait(job, timeout=LONGEST_S))

    def output(self, job: str) -> str:
        self.ended(job)
        return self.server.tgpu("logs", job).stdout

    def running(self, job: str) -> dict[str, Any]:
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until:
            form = dict(self.server.json("show", job))
            if form["state"] == "running":
                return form
            time.sleep(0.05)
        raise AssertionError(f"{job} does not run")

    def said(self, job: str, text: str, words: int = 1) -> list[str]:
        """The words of a job's output, once there are so many and this one is among them."""
        until = time.monotonic() + LONGEST_S
        while text not in (log := self.server.tgpu("logs", job).stdout) or (
            len(log.split()) < words
        ):
            assert time.monotonic() < until, log
            time.sleep(0.05)
        return list(log.split())


@pytest.fixture(scope="module")
def site() -> Iterator[MultiUserSite]:
    lab = {"lab": ["ann", "ben"]}
    with some_accounts("ann", "ben", "eve", groups=lab) as people, a_state_dir() as state_dir:
        server = RealServer(state_dir)
        server.environment["SECRET_OF_THE_SERVER"] = SECRET
        group = people[0].name.replace("ann", "lab")
        config = Path(state_dir) / "config.yaml"
        tenant = {"linux_groups": [group], "admins": [people[0].name], "max_gpus": 4}
        config.write_text(json.dumps({"tenants": {"lab": tenant}}))
        config.chmod(0o600)
        server.environment["GPU_SCHEDULER_CONFIG"] = str(config)
        server.start("8xA100-80GB")
        yield MultiUserSite(server, people)
        server.stop()


# --- processes of a job


def test_job_processes_have_exactly_ids_and_groups_of_user(site: MultiUserSite) -> None:
    job = site.ben.submit("cat /proc/self/status; umask")
    status = dict(line.split(":", 1) for line in site.output(job).splitlines() if ":" in line)
    assert status["Uid"].split() == [str(site.ben.uid)] * 4
    assert status["Gid"].split() == [str(site.ben.gid)] * 4
    groups = set(os.getgrouplist(site.ben.name, site.ben.gid))
    assert set(map(int, status["Groups"].split())) == groups
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        assert int(status[name], 16) == 0, name


def test_job_inherits_no_descriptor_or_secret_of_server(site: MultiUserSite) -> None:
    # Without a pipe, which the shell would have open as well.
    job = site.ben.submit("ls -1 /proc/$$/fd; echo --; env; cat /proc/$$/environ")
    output = site.output(job)
    assert output.split()[:4] == ["0", "1", "2", "--"]
    assert SECRET not in output
    assert "GPU_SCHEDULER_" not in output


def test_job_has_requested_limits(site: MultiUserSite) -> None:
    where = "$(sed -n 's/^[0-9]*:pids:\\|^0:://p' /proc/self/cgroup | head -1)"
    command = f"cat /sys/fs/cgroup/pids{where}/pids.max /sys/fs/cgroup{where}/pids.max 2>&1"
    words = site.output(site.ben.submit(command, max_processes=77)).split()
    if "77" not in words and not any(word.isdecimal() for word in words):
        pytest.skip("this machine does not count processes (no pids control group)")
    assert "77" in words


def test_job_sees_home_and_name_of_user(site: MultiUserSite) -> None:
    job = site.ben.submit("echo $USER $LOGNAME $HOME; id -un")
    name, home = site.ben.name, site.ben.home
    assert site.output(job).split() == [name, name, str(home), name]


# --- access by other users


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def a_terminal_of(
    site: MultiUserSite, person: LinuxAccount, command: str = "exec sleep 300"
) -> str:
    """A running job of this user on a terminal."""
    job = person.submit(command, runner="terminal")
    site.running(job)
    return job


def lets_in(person: LinuxAccount, job: str) -> bool:
    """Whether the server opens a terminal for a user, who disconnects at once."""
    shown = [word for name, value in HANDSHAKE.items() for word in ("-H", f"{name}: {value}")]
    words = ("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *shown)
    path = f"http://localhost/api/v1/jobs/{job}/terminal"
    for seconds in (2, 10, 30):  # an open terminal lasts until curl times out
        where = ("-m", seconds, "--unix-socket", person.socket, path)
        told = person.run(*words, *where, check=False).stdout
        if told != "000":  # which is no answer yet
            break
    return bool(told == "101")


def test_only_user_and_admins_reach_terminal(site: MultiUserSite) -> None:
    """Not even the tenant's admin: typing there means acting as that user. It is audited."""
    job = a_terminal_of(site, site.ben)
    roots = site.server.submit("--runner", "terminal", "--", "sleep", 300)
    site.running(roots)
    try:
        for person in (site.ann, site.eve):
            told = person.call("GET", f"/jobs/{job}/terminal", headers=HANDSHAKE)
            assert told["code"] == "forbidden", (person.name, told)
        assert site.ben.call("GET", f"/jobs/{roots}/terminal", headers=HANDSHAKE)["code"] == (
            "forbidden"
        )
        assert lets_in(site.ben, job)
        with unix_connect(site.socket, f"ws://localhost/api/v1/jobs/{job}/terminal") as root:
            assert int(root.recv(LONGEST_S)) > 0, "how much it takes"
    finally:
        site.server.tgpu("cancel", job)
        site.server.tgpu("cancel", roots)
    until = time.monotonic() + LONGEST_S
    expected = {
        (site.ben.name, "done"),
        ("root", "done"),
        (site.ann.name, "refused"),
        (site.eve.name, "refused"),
        (site.ben.name, "refused"),
    }
    while time.monotonic() < until:
        rows = [row for row in site.server.json("audit")["records"] if row["action"] == TERMINAL]
        found = {(row["user"], row["outcome"]) for row in rows}
        if found == expected:
            break
        time.sleep(0.1)
    assert found == expected


def test_symlink_in_place_of_terminal_reaches_no_other_terminal(site: MultiUserSite) -> None:
    """The agent is root and could open any terminal; it checks the owner."""
    hers = a_terminal_of(site, site.eve)
    victim = f"{site.server.state_dir}/scratch/{hers}.1.0/terminal.sock"
    script = (
        'cd "$(dirname $TGPU_STOP_FILE)"; until [ -e terminal.sock ]; do sleep 0.05; done; '
        f"rm terminal.sock; ln -s {victim} terminal.sock; echo linked; exec sleep 300"
    )
    job = a_terminal_of(site, site.ben, script)
    try:
        site.said(job, "linked")
        told = site.ben.call("GET", f"/jobs/{job}/terminal", headers=HANDSHAKE)
        assert "does not belong to the job's user" in told["error"]
        assert lets_in(site.eve, hers)
    finally:
        site.server.tgpu("cancel", job)
        site.server.tgpu("cancel", hers)


def test_job_of_another_user_cannot_be_read_signalled_cancelled_followed_or_entered(
    site: MultiUserSite,
) -> None:
    job = site.ben.submit("echo for-ben-alone; echo $$; exec sleep 300", name="for-ben-alone")
    site.running(job)
    log = Path(site.server.state_dir) / "logs" / job
    pid = site.said(job, "for-ben-alone\n", words=2)[1]
    try:
        for path in ("/logs", "/logs?follow=true", "/attempts"):
            assert site.eve.call("GET", f"/jobs/{job}{path}")["code"] == "forbidden"
        for method, path, body in (
            ("DELETE", "", None),
            ("POST", "/hold", None),
            ("POST", "/retry", None),
            ("POST", "/priority", {"priority": 1}),
            ("PATCH", "", {"name": "x"}),
        ):
            answer = site.eve.call(method, f"/jobs/{job}{path}", body)
            assert answer["code"] == "forbidden", (method, path)
        seen = site.eve.call("GET", f"/jobs/{job}")
        assert (seen["user"], seen["redacted"], seen["attach"]) == (site.ben.name, True, [])
        for path in (f"/jobs/{job}", "/jobs", f"/jobs/{job}/explain", "/events?after=0", "/gpus"):
            assert "for-ben-alone" not in json.dumps(site.eve.call("GET", path))
        for words in (
            ("kill", "-TERM", pid),
            ("cat", f"/proc/{pid}/environ"),
            ("ls", "-l", f"/proc/{pid}/fd"),
            ("ls", log),
            ("cat", f"{log}/{job}.1.0.log"),
            ("ls", f"{site.server.state_dir}/scratch/{job}.1.0"),
            ("ls", f"{site.server.state_dir}/agent"),
            ("cat", f"{site.server.state_dir}/scheduler.db"),
        ):
            assert site.eve.run(*words, check=False).returncode != 0, words
        assert site.server.json("show", job)["state"] == "running"
        assert "for-ben-alone" in site.ben.call("GET", f"/jobs/{job}/logs")
    finally:
        site.server.tgpu("cancel", job)
        site.ended(job)


@pytest.mark.parametrize("name", ["agent.sock", "agent/launcher.sock"])
def test_internal_sockets_reject_other_users(site: MultiUserSite, name: str) -> None:
    path = f"{site.server.state_dir}/{name}"
    ended = site.eve.run("curl", "-s", "--unix-socket", path, "http://x/", check=False)
    assert ended.returncode == 7


def test_tenant_admin_manages_only_jobs_of_tenant(site: MultiUserSite) -> None:
    of_lab = site.ben.submit("echo lab-words; sleep 300")
    of_eve = site.eve.submit("sleep 300")
    try:
        assert site.running(of_lab)["tenant_id"] == "lab"
        assert site.running(of_eve)["tenant_id"] == "default"
        site.said(of_lab, "lab-words")
        assert site.ann.call("GET", f"/jobs/{of_lab}")["redacted"] is False
        assert site.ann.call("DELETE", f"/jobs/{of_eve}")["code"] == "forbidden"
        assert site.ann.call("DELETE", f"/jobs/{of_lab}")["status"] == "cancelling"
        assert "lab-words" in site.ann.call("GET", f"/jobs/{of_lab}/logs")
    finally:
        site.server.tgpu("cancel", of_eve)
        site.ended(of_eve)
        site.ended(of_lab)


def test_only_tenant_members_submit_to_tenant(site: MultiUserSite) -> None:
    body = {"command": ["true"], "tenant_id": "lab"}
    assert site.eve.call("POST", "/jobs", body)["code"] == "forbidden"
    body = {"command": ["true"], "tenant_id": "default"}
    assert site.ben.call("POST", "/jobs", body)["code"] == "forbidden"
    assert site.ben.call("GET", "/me")["tenants"] == ["lab"]
    assert [tenant["id"] for tenant in site.ben.call("GET", "/tenants")["tenants"]] == ["lab"]


# --- impersonation

WISHES: tuple[dict[str, Any], ...] = (
    {"user": "root"},
    {"uid": 0},
    {"gid": 0},
    {"run_as": "root"},
    {"owner": "root"},
    {"environment": {"USER": "root", "LOGNAME": "root", "SUDO_UID": "0", "UID": "0"}},
    {"environment": {"TGPU_JOB_ID": "job-1", "TGPU_USER": "root"}},
    {"captured_environment": {"USER": "root", "HOME": "/root", "XDG_RUNTIME_DIR": "/root"}},
    {"name": "root"},
    {"umask": 0},
    {"tenant_id": "lab\x00"},
    {"working_directory": "/root"},
    {"runner": "process\u0000root"},
    {"conda": "../../../root"},
    {"node_labels": {"uid": "0"}},
    {"output": "/proc/self/fd/0"},
)
HEADERS: tuple[dict[str, str], ...] = (
    {"X-Forwarded-User": "root"},
    {"X-Remote-User": "root"},
    {"Remote-User": "root"},
    {"X-User": "root", "X-Uid": "0"},
    {"Forwarded": "for=127.0.0.1;by=root"},
    {"Cookie": "user=root"},
    {"X-Test-User": "root"},
    {"SSL-Client-S-DN": "CN=root"},
)


def test_no_field_or_header_changes_identity(site: MultiUserSite) -> None:
    jobs = []
    body = {"command": ["/bin/sh", "-c", "id -ru; id -u; id -rg; id -g"], "working_directory": "/"}
    for wish, headers in [(wish, {}) for wish in WISHES] + [({}, header) for header in HEADERS]:
        answer = site.ben.call("POST", "/jobs", body | wish, headers)
        if "job_id" in answer:
            jobs.append(answer["job_id"])
        else:
            assert answer["code"] in {"invalid_request", "forbidden", "never_fits"}, wish
    assert len(jobs) >= len(HEADERS)
    own = [str(site.ben.uid)] * 2 + [str(site.ben.gid)] * 2
    for job in jobs:
        form = site.ended(job)
        assert form["user"] == site.ben.name
        if form["state"] == "completed" and not form["output"]:
            assert site.server.tgpu("logs", job).stdout.split() == own, form
    for path in ("/me?user=root", "/jobs?user=root", "/tokens?user=root"):
        assert SECRET not in json.dumps(site.ben.call("GET", path, headers=HEADERS[0]))
    assert site.ben.call("GET", "/me", headers=HEADERS[3])["user"] == site.ben.name


@pytest.mark.parametrize("kind", [[], 0, True, None, {"uid": 0}, "0", -1, 1.5, "\u0000"])
def test_no_value_type_changes_identity(site: MultiUserSite, kind: Any) -> None:
    fields = ("name", "tenant_id", "command", "script", "environment", "umask", "output", "runner")
    for field in (*fields, "captured_environment", "members", "working_directory", "user"):
        body = {"command": ["true"], "hold": True, field: kind}
        answer = site.ben.call("POST", "/jobs", body)
        assert "job_id" in answer or answer["code"] in {"invalid_request", "forbidden"}, field
        if "job_id" in answer:
            assert site.ben.call("GET", f"/jobs/{answer['job_id']}")["user"] == site.ben.name
            site.ben.call("DELETE", f"/jobs/{answer['job_id']}")


# --- writing as another user


@pytest.fixture
def treasure(site: MultiUserSite) -> Iterator[Path]:
    """A file of ann's that others may read but not write."""
    site.ann.home.chmod(0o755)
    file = site.ann.home / "treasure"
    site.ann.run("sh", "-c", f"echo gold > {file}")
    yield file
    assert file.read_text() == "gold\n"
    site.ann.home.chmod(0o700)


def failed_to_write(site: MultiUserSite, output: str, **more: Any) -> str:
    form = site.ended(site.ben.submit("echo lead", output=output, **more))
    assert form["state"] == "failed", form
    return str(form["reason"])


def test_output_is_written_only_where_user_may_write(site: MultiUserSite, treasure: Path) -> None:
    for path in (
        treasure,
        "/etc/tgpu-was-here",
        f"{site.server.state_dir}/logs/x",
        f"{site.server.state_dir}/scheduler.db",
        f"{site.ben.home}/../ann/treasure",
        "/proc/1/environ",
    ):
        assert "cannot open the output file" in failed_to_write(site, str(path))
    assert not Path("/etc/tgpu-was-here").exists()


def test_symlinks_are_followed_with_permissions_of_user(
    site: MultiUserSite, treasure: Path
) -> None:
    symbolic, hard = site.ben.home / "symbolic", site.ben.home / "hard"
    site.ben.run("ln", "-s", treasure, symbolic)
    # Made by root, because kernels with protected_hardlinks would not let ben.
    os.link(treasure, hard)
    chained = site.ben.home / "chained"
    site.ben.run("ln", "-s", "/proc/self/root/etc/passwd", chained)
    for path in (symbolic, hard, chained):
        assert "cannot open the output file" in failed_to_write(site, str(path))
    hard.unlink()


def test_symlink_changed_during_start_leads_nowhere_else(
    site: MultiUserSite, treasure: Path
) -> None:
    switch = site.ben.home / "switch"
    own = site.ben.home / "own"
    flip = f"ln -sfn {own} {switch}; ln -sfn {treasure} {switch}"
    flipper = site.ben.submit(f"while :; do {flip}; done", gpu_count=0)
    jobs = [site.ben.submit("echo lead", output=str(switch)) for _ in range(12)]
    for job in jobs:
        assert site.ended(job)["state"] in {"completed", "failed"}
    site.server.tgpu("cancel", flipper)
    site.ended(flipper)


def test_working_directory_without_permission_is_not_entered(site: MultiUserSite) -> None:
    for path in (str(site.ann.home), f"{site.ben.home}/../ann", site.server.state_dir + "/logs"):
        form = site.ended(site.ben.submit("pwd", working_directory=path))
        assert (form["state"], "cannot enter" in form["reason"]) == ("failed", True), form
    refused = site.ben.call("POST", "/jobs", {"command": ["pwd"], "working_directory": "a/../b"})
    assert refused["code"] == "invalid_request"


@pytest.mark.parametrize(
    "name", ["..%2f..%2fscheduler.db", "%2e%2e", "job-1%2f..%2fjob-2", "job-1%00", "-1", "1e3"]
)
def test_path_traversal_in_urls_is_rejected(site: MultiUserSite, name: str) -> None:
    for path in (f"/jobs/{name}/logs", f"/jobs/{name}", f"/tenants/{name}", f"/tokens/{name}"):
        method = "DELETE" if "tokens" in path else "GET"
        answer = site.ben.call(method, path)
        assert answer["code"] in {"invalid_request", "not_found", "forbidden"}, (path, answer)


def test_leftovers_in_scratch_directory_harm_no_other_user(
    site: MultiUserSite, treasure: Path
) -> None:
    """The launcher cleans up as root and must not follow what the job has put there."""
    command = (
        f"cd $(dirname $TGPU_STOP_FILE) && rm -rf * && ln -s {treasure} stop-reason && "
        f"ln -s {treasure} checkpoint && ln -s /etc dir && echo linked && sleep 300"
    )
    job = site.ben.submit(command, grace_seconds=1)
    site.running(job)
    site.said(job, "linked")
    site.server.tgpu("cancel", job)
    assert site.ended(job)["state"] == "cancelled"
    assert Path("/etc/passwd").exists()
