"""Login through `ssh -L`: the kernel sees sshd's process, which runs as the user who logged in."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.conftest import RealServer
from tests.linux_accounts import CAN_MAKE, WHY_NOT, LinuxAccount, some_accounts
from tests.ports import lasting_port

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN_MAKE, reason=WHY_NOT),
    pytest.mark.skipif(SSHD is None or not shutil.which("ssh"), reason="openssh is not installed"),
]
LONGEST_S = 60


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a port accepts connections."""
    give_up = time.monotonic() + LONGEST_S
    while time.monotonic() < give_up:
        assert process.poll() is None, f"it ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on port {port}")


@contextmanager
def a_tunnel(person: LinuxAccount, target: int) -> Iterator[int]:
    """A real sshd of its own, and `ssh -L` into it as this person; yields the local port."""
    assert SSHD is not None
    folder = person.home / "ssh"
    folder.mkdir(mode=0o755)
    # sshd rejects an account whose password is locked.
    subprocess.run(["usermod", "-p", "*", person.name], check=True)
    for name in ("host", "mine"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    keys = folder / "authorized"
    keys.write_text((folder / "mine.pub").read_text())
    os.chown(keys, person.uid, person.gid)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server_port, local_port = lasting_port(), lasting_port()
    config = folder / "config"
    config.write_text(
        f"ListenAddress 127.0.0.1\nPort {server_port}\nHostKey {folder / 'host'}\n"
        f"AuthorizedKeysFile {keys}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nAllowUsers {person.name}\n"
    )
    sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)])
    try:
        wait_for(server_port, sshd)
        words = ["ssh", "-F", "none", "-N", "-p", str(server_port), "-i", str(folder / "mine")]
        for option in (
            "StrictHostKeyChecking=no",
            f"UserKnownHostsFile={folder / 'known'}",
            "IdentitiesOnly=yes",
            "ExitOnForwardFailure=yes",
            "BatchMode=yes",
        ):
            words += ["-o", option]
        forward = f"{local_port}:127.0.0.1:{target}"
        ssh = subprocess.Popen([*words, "-L", forward, f"{person.name}@127.0.0.1"])
        try:
            wait_for(local_port, ssh)
            yield local_port
        finally:
            ssh.terminate()
            ssh.wait(LONGEST_S)
    finally:
        sshd.terminate()
        sshd.wait(LONGEST_S)


def test_person_behind_ssh_is_logged_in_as_that_user(
    page: Page, server: RealServer, address: str
) -> None:
    with some_accounts("ada") as (ada,), a_tunnel(ada, int(address.rpartition(":")[2])) as port:
        ada.home.chmod(0o755)
        theirs = server.submit("--gpus", 1, "--name", "of-root", "--", "sleep", 600)
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("header .self")).to_contain_text(f"{ada.name} user")
        expect(page.get_by_role("link", name="What if")).to_have_count(0)
        page.goto(f"http://127.0.0.1:{port}/#/jobs/{theirs}")
        expect(page.locator("main")).to_contain_text("This is a job of root")
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        page.goto(f"http://127.0.0.1:{port}/#/submit")
        status = page.evaluate(
            "fetch('/api/v1/jobs', {method: 'POST', headers: {'content-type':"
            " 'application/json'}, body: JSON.stringify({command: ['id', '-un'],"
            " working_directory: '/'})}).then(response => response.json())"
        )
        assert server.output(status["job_id"]) == f"{ada.name}\n"
        server.tgpu("cancel", theirs)
