"""A real server notifies a web server and a mail server of job events, also after a kill."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.notification_receivers import HttpReceiver, SmtpReceiver, until


class NotifyingServer(RealServer):
    """A server with notification targets."""

    def __init__(self, state_dir: str, hook: HttpReceiver, mail: SmtpReceiver) -> None:
        super().__init__(state_dir)
        self.hook, self.mail = hook, mail
        config = Path(state_dir, "config.yaml")
        notifications = {
            "retry_first_s": 0.2,
            "retry_most_s": 1,
            "smtp_host": "127.0.0.1",
            "smtp_port": mail.port,
            "smtp_security": "none",
            "default_target": "mail",
            "targets": {
                "hook": {"kind": "webhook", "url": hook.url, "events": ["fail"], "for_jobs": True},
                "mail": {"kind": "email", "to": "{user}@lab.example", "for_jobs": True},
                "staff": {"kind": "command", "command": ["/bin/false"]},
            },
        }
        config.write_text(json.dumps({"notifications": notifications}))
        config.chmod(0o600)
        self.environment["GPU_SCHEDULER_CONFIG"] = str(config)

    def kill(self) -> None:
        pid = json.loads(Path(self.state_dir, "server.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: not _lives(pid), "the end of the server")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def told() -> Iterator[NotifyingServer]:
    with HttpReceiver() as hook, SmtpReceiver() as mail, a_state_dir() as state_dir:
        server = NotifyingServer(state_dir, hook, mail)
        server.start("2xA100-80GB")
        yield server
        server.stop()


def test_notification_test_reports_success_or_failure(told: NotifyingServer) -> None:
    said = told.tgpu("notify", "test", "hook").stdout
    assert said == "hook: test notification delivered\n"
    assert told.hook.got.pop()["event"] == "test"
    failed = told.tgpu("notify", "test", "staff", code=1)
    assert "/bin/false ended with exit code 1" in failed.stdout
    unknown = told.tgpu("notify", "test", "nobody", code=4)
    assert "known: hook, mail, staff" in unknown.stderr
    told.tgpu("notify", "test", "mail")
    assert told.mail.envelopes.pop()[1][0].endswith("@lab.example")
    told.mail.mails.clear()


def test_job_file_and_option_select_notification_targets(
    told: NotifyingServer, tmp_path: Path
) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text("name: quiet\ncommand: exit 0\nnotify: end\n")
    by_file = told.submit(str(job_file))
    until(lambda: told.mail.mails, "a mail")
    assert f"{by_file} (quiet)" in told.mail.mails[0]["Subject"]
    by_option = told.submit("--notify", "start,end:hook", "--", "true")
    until(lambda: len(told.hook.got) == 2, "start and end")
    assert [one["event"] for one in told.hook.got] == ["start", "end"]
    assert told.json("show", by_option)["notify"] == ["start,end:hook"]
    told.hook.got.clear()


def test_invalid_notification_rule_is_rejected_at_submission(told: NotifyingServer) -> None:
    refused = told.tgpu("submit", "--notify", "end:staff", "--", "true", code=2)
    assert "no target 'staff'" in refused.stderr
    assert "hook, mail" in refused.stderr
    refused = told.tgpu("submit", "--notify", "done", "--", "true", code=2)
    assert "start, end, fail" in refused.stderr
    refused = told.tgpu("submit", "--notify", "end:https://127.0.0.1/x", "--", "true", code=2)
    assert "allow_job_webhooks" in refused.stderr


def test_events_during_receiver_and_server_outage_are_delivered_once(
    told: NotifyingServer, tmp_path: Path
) -> None:
    told.hook.status = 503
    tried = told.hook.requests
    before = told.submit("--", "false")
    until(lambda: told.hook.requests > tried, "a try")
    script = "while [ ! -e go ]; do sleep 0.02; done; exit 7"
    during = told.submit("--", "sh", "-c", script, cwd=tmp_path)
    until(lambda: told.json("show", during)["state"] == "running", "its start")
    told.kill()
    (tmp_path / "go").touch()
    time.sleep(0.2)
    told.hook.status = 200
    told.start("2xA100-80GB")
    until(lambda: len(told.hook.got) >= 2, "both failures")
    assert sorted((one["job_id"], one["exit_code"]) for one in told.hook.got) == [
        (before, 1),
        (during, 7),
    ]

    def hook() -> tuple[int, int, str]:
        (row,) = [row for row in told.json("notify")["targets"] if row["name"] == "hook"]
        return row["waiting"], row["given_up"], row["last_error"]

    # The receiver has the notification a moment before the server records that.
    until(lambda: hook() == (0, 0, ""), "nothing is left to be told")
