"""`tgpu doctor`: each check on a broken system, and its message."""

import json
import os
import re
import resource
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_scheduler.agent.cgroups import Mounts
from gpu_scheduler.cli.admin import doctor
from gpu_scheduler.cli.admin import doctor as checks
from gpu_scheduler.cli.admin.doctor import Context, Finding
from gpu_scheduler.cli.main import main
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.file_paths import paths
from gpu_scheduler.settings.schema import Settings
from tests.unit.api.lab import ApiLab

Look = Callable[[Context], Iterator[Finding]]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A valid state directory, and a machine without programs."""
    state = tmp_path / "s"
    state.mkdir(mode=0o700)
    return Context(
        settings=with_settings(Settings(), api={"http_port": 0, "metrics_port": 0}),
        paths=paths(str(state)),
        is_named=True,
        environ={"PATH": str(tmp_path / "bin")},
    )


def with_settings(settings: Settings, **groups: dict[str, Any]) -> Settings:
    changed = {name: replace(getattr(settings, name), **group) for name, group in groups.items()}
    return replace(settings, **changed)


def said(look: Look, context: Context, *, status: str) -> Finding:
    """The one line of that status; a problem comes with a remedy."""
    lines = list(look(context))
    found = [line for line in lines if line.status == status]
    assert found, lines
    for line in lines:
        if line.status == "problem":
            assert line.remedy, line
    return found[0]


def a_program(context: Context, name: str, script: str) -> None:
    folder = Path(context.environ["PATH"])
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


# --- settings


def test_unreadable_settings_are_problem_and_other_checks_continue(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("api:\n  http_prot: 1\n")
    context = Context.load(str(config), str(tmp_path / "state"))
    line = said(checks.check_settings, context, status="problem")
    assert "did you mean 'api.http_port'" in line.found
    assert "tgpu config check" in line.remedy
    names = {line.check for line in doctor.run_checks(context)}
    assert names >= {
        "python",
        "disk",
        "clock",
        "state",
    }


def test_group_writable_settings_are_warning(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("{}")
    config.chmod(0o664)
    context = Context.load(str(config), None)
    assert "chmod" in said(checks.check_settings, context, status="warning").remedy
    config.chmod(0o644)
    assert [line.status for line in checks.check_settings(context)] == ["ok"]


def test_secrets_must_exist_and_be_private(context: Context, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    target = Target(kind="webhook", url="https://x.example", secret_file=str(secret))
    settings = with_settings(context.settings, notifications={"targets": {"slack": target}})
    context = replace(context, settings=settings)
    missing = said(checks.check_secrets, context, status="problem")
    assert "targets.slack.secret_file" in missing.found
    secret.write_text("x")
    secret.chmod(0o644)
    assert "chmod 600" in said(checks.check_secrets, context, status="problem").remedy
    secret.chmod(0o600)
    assert [line.status for line in checks.check_secrets(context)] == ["ok"]


def test_unencrypted_secrets_in_postgresql_are_warning(context: Context, tmp_path: Path) -> None:
    url = {"url": "postgresql://tgpu@127.0.0.1/tgpu"}
    plain = replace(context, settings=with_settings(context.settings, database=url))
    line = said(checks.check_secrets, plain, status="warning")
    assert "database.key_file is not set" in line.found
    assert "tgpu db rotate-key" in line.remedy

    key = tmp_path / "database.key"
    database = {**url, "key_file": str(key)}
    named = replace(context, settings=with_settings(context.settings, database=database))
    assert "does not exist" in said(checks.check_secrets, named, status="problem").found
    key.write_text("key")
    key.chmod(0o640)
    assert "chmod 600" in said(checks.check_secrets, named, status="problem").remedy
    key.chmod(0o600)
    assert "database encrypts secrets" in said(checks.check_secrets, named, status="ok").found


# --- machine and cluster


def test_old_python_or_sqlite_is_problem(context: Context, monkeypatch: Any) -> None:
    assert [line.status for line in checks.check_python(context)] == ["ok", "ok"]
    monkeypatch.setattr(checks, "MIN_PYTHON", (9, 0))
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 30, 0))
    assert [line.status for line in checks.check_python(context)] == ["problem", "problem"]


def test_non_root_user_is_told_the_consequences(context: Context) -> None:
    assert said(checks.check_user, replace(context, uid=0), status="ok").found.startswith("root")
    nobody = said(checks.check_user, replace(context, uid=65534), status="warning")
    assert "only your jobs" in nobody.found
    assert (
        "no account"
        in said(checks.check_user, replace(context, uid=4_000_000), status="problem").found
    )


def test_cgroups_are_checked_for_version_controllers_and_permissions(tmp_path: Path) -> None:
    def judged(mounted: Mounts) -> list[Finding]:
        return list(checks.cgroup_findings(mounted, {"": "/"}, os.geteuid()))

    (none,) = judged(Mounts())
    assert (none.status, "rlimits" in none.remedy) == ("warning", True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.procs").write_text("")
    whole = judged(Mounts(str(tmp_path)))[0]
    assert (whole.status, whole.found[:3]) == ("ok", "v2;")
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    poor = judged(Mounts(str(tmp_path)))[0]
    assert (poor.status, "missing: memory, pids" in poor.found) == ("warning", True)
    hybrid = judged(Mounts(str(tmp_path), dict.fromkeys(("memory", "pids"), str(tmp_path))))[0]
    assert hybrid.found.startswith("hybrid")
    old = judged(Mounts("", dict.fromkeys(("cpu", "memory", "pids"), "/proc/nowhere")))
    assert old[0].found.startswith("v1;")
    assert "no permission to create groups" in old[1].found


@pytest.mark.parametrize(
    ("mounted", "can_filter", "is_reported"),
    [
        (Mounts("/x"), True, False),
        (Mounts("/x"), False, True),
        (Mounts("", {"devices": "/x"}), False, False),
        (Mounts("", {"memory": "/x"}), True, True),
        (Mounts("/x", {"memory": "/x"}), True, False),
    ],
)
def test_devices_that_cannot_be_closed_are_reported(
    mounted: Mounts, can_filter: bool, is_reported: bool
) -> None:
    found = list(checks.device_findings(mounted, can_filter=can_filter))
    assert [finding.status for finding in found] == ["warning"] * is_reported


def test_wrong_or_unsynchronised_clock_is_reported(context: Context, monkeypatch: Any) -> None:
    monkeypatch.setattr(checks, "is_clock_synchronised", lambda: False)
    assert "chrony" in said(checks.check_clock, context, status="warning").remedy
    monkeypatch.setattr(checks, "is_clock_synchronised", lambda: True)
    assert [line.status for line in checks.check_clock(context)] == ["ok"]
    newer = Path(context.paths.state) / "scheduler.db"
    newer.touch()
    os.utime(newer, (time.time() + 900, time.time() + 900))
    assert "in the future" in said(checks.check_clock, context, status="warning").found
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert "1970" in said(checks.check_clock, context, status="problem").found


def test_privileges_of_server_are_reported(context: Context, monkeypatch: Any) -> None:
    status = Path("/proc/self/status").read_text()
    reduced = status.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1")
    reduced = re.sub(r"^Uid:.*", "Uid:\t0\t0\t0\t0", reduced, flags=re.MULTILINE)
    monkeypatch.setattr(checks, "running", lambda _: None)
    assert list(checks.check_privileges(context)) == []
    monkeypatch.setattr(checks, "running", lambda _: {"pid": 1})
    monkeypatch.setattr(Path, "read_text", lambda *_: reduced)
    monkeypatch.setattr(checks, "landlock_version", lambda: 4)
    assert "only its own files" in said(checks.check_privileges, context, status="ok").found
    monkeypatch.setattr(checks, "landlock_version", lambda: 0)
    assert "no Landlock" in said(checks.check_privileges, context, status="warning").found
    kept = reduced.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0")
    monkeypatch.setattr(Path, "read_text", lambda *_: kept)
    assert "all privileges" in said(checks.check_privileges, context, status="ok").found


def test_kernel_clock_state_can_be_read() -> None:
    assert checks.is_clock_synchronised() in (True, False, None)


def test_missing_programs_are_named_with_purpose(context: Context) -> None:
    lines = list(checks.check_programs(context))
    assert [line.status for line in lines] == ["warning"] * 3
    assert lines[2].remedy == "install podman; jobs with --image wait until a node has it"
    a_program(context, "docker", "exit 0")
    assert [line.status for line in checks.check_programs(context)][2] == "ok"


def test_podman_without_init_is_warning(context: Context, monkeypatch: Any) -> None:
    a_program(context, "podman", "exit 0")
    monkeypatch.setattr(checks, "podman_init", lambda: ("--init",))
    assert [line.status for line in checks.check_programs(context)][2:] == ["ok"]
    monkeypatch.setattr(checks, "podman_init", tuple)
    assert [line.status for line in checks.check_programs(context)][2:] == ["ok", "warning"]
    assert "install catatonit" in list(checks.check_programs(context))[3].found


def test_containers_are_tried_as_user_and_error_of_engine_is_shown(
    context: Context, monkeypatch: Any
) -> None:
    assert list(checks.check_containers(context)) == []
    a_program(context, "podman", "exit 0")
    monkeypatch.setattr(checks, "trial_user", lambda: None)
    assert "/etc/subuid" in said(checks.check_containers, context, status="warning").found
    monkeypatch.setattr(checks, "trial_user", lambda: SimpleNamespace(pw_name="ada"))
    monkeypatch.setattr(checks, "run_trial", lambda _: "Error: newuidmap: not found")
    failed = said(checks.check_containers, context, status="warning")
    assert failed.found == "a trial container as ada failed: Error: newuidmap: not found"
    assert "uidmap" in failed.remedy
    monkeypatch.setattr(checks, "run_trial", lambda _: "")
    fuse = ("podman", "--storage-opt", "overlay.mount_program=/usr/bin/fuse-overlayfs")
    monkeypatch.setattr(checks, "ContainerRunner", lambda: SimpleNamespace(podman=fuse))
    assert "worked" in said(checks.check_containers, context, status="ok").found
    monkeypatch.setattr(checks, "ContainerRunner", lambda: SimpleNamespace(podman=()))
    assert [line.status for line in checks.check_containers(context)] == ["ok", "warning"]
    rooted = with_settings(context.settings, agent={"container_engine_user": "root"})
    line = said(checks.check_containers, replace(context, settings=rooted), status="warning")
    assert line.found == "the engine runs as root; images for users: none"


def test_low_open_file_limit_is_warning(context: Context, monkeypatch: Any) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert "ulimit -n 4096" in said(checks.check_limits, context, status="warning").remedy


# --- GPUs


def test_declared_gpus_are_counted_and_invalid_declaration_is_problem(context: Context) -> None:
    declared = with_settings(context.settings, gpu={"simulate": "4xA100-80GB"})
    line = said(checks.check_gpus, replace(context, settings=declared), status="ok")
    assert line.found.startswith("4 x A100")
    wrong = with_settings(context.settings, gpu={"simulate": "many"})
    assert said(checks.check_gpus, replace(context, settings=wrong), status="problem")


def test_machine_without_gpus_is_reported_with_suggestion(context: Context) -> None:
    lines = {line.check: line for line in checks.check_gpus(context)}
    if lines["nvml"].status == "ok":
        pytest.skip("this machine has GPUs")
    assert "not on the PATH" in lines["nvidia-smi"].found
    assert "--simulate" in lines["gpus"].remedy


def test_failing_or_hanging_nvidia_smi_is_problem(context: Context, monkeypatch: Any) -> None:
    a_program(context, "nvidia-smi", "echo 'Driver/library version mismatch'; exit 18")
    lines = {line.check: line for line in checks.check_gpus(context)}
    assert "version mismatch" in lines["nvidia-smi"].found
    assert lines["nvidia-smi"].status == "problem"
    a_program(context, "nvidia-smi", "exec /bin/sleep 60")
    monkeypatch.setattr(
        Context,
        "output",
        lambda self, command, timeout_s=0.2, ask=Context.output: ask(self, command, 0.2),
    )
    hanging = {line.check: line for line in checks.check_gpus(context)}
    assert "no answer within" in hanging["nvidia-smi"].found


def test_device_nodes_without_driver_or_access_are_reported(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(checks, "DEVICE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(checks, "DRIVER", str(tmp_path / "version"))
    (tmp_path / "nvidia0").touch(mode=0o600)
    assert [line.status for line in checks._driver()] == ["problem"]
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX 999.1\n")
    good, closed = checks._driver()
    assert (good.found, closed.status) == ("NVIDIA UNIX 999.1", "warning")


# --- state and disk


def test_state_directory_open_to_others_is_problem(context: Context) -> None:
    state = Path(context.paths.state)
    assert [line.status for line in checks.check_state_directory(context)] == ["ok"]
    state.chmod(0o777)
    assert "mode 777" in said(checks.check_state_directory, context, status="problem").found
    state.chmod(0o711)
    (state / "scheduler.db").touch()
    (state / "scheduler.db").chmod(0o644)
    assert "chmod go=" in said(checks.check_state_directory, context, status="problem").remedy


def test_state_directory_of_other_user_or_missing_is_reported(
    context: Context, tmp_path: Path
) -> None:
    other = replace(context, uid=context.uid + 1)
    assert any("belongs to uid" in line.found for line in checks.check_state_directory(other))
    fresh = replace(context, paths=paths(str(tmp_path / "new" / "er")))
    assert (
        "created at the first start" in said(checks.check_state_directory, fresh, status="ok").found
    )
    (tmp_path / "file").touch()
    wrong = replace(context, paths=paths(str(tmp_path / "file")))
    assert "not a directory" in said(checks.check_state_directory, wrong, status="problem").found
    long = replace(context, paths=paths(str(tmp_path / ("x" * 120))))
    assert "too long" in said(checks.check_state_directory, long, status="problem").found


def test_full_remote_or_slow_disk_is_reported(context: Context, monkeypatch: Any) -> None:
    def a_disk(_: str, free_mb: int = 10) -> os.statvfs_result:
        return os.statvfs_result((4096, 1 << 20, 9999, free_mb, free_mb, 9, 9, 9, 0, 255))

    monkeypatch.setattr(os, "statvfs", a_disk)
    monkeypatch.setattr(checks, "sync_ms", lambda _: 500.0)
    monkeypatch.setattr(checks, "file_system", lambda *_: "nfs4")
    lines = list(checks.check_disk(context))
    assert [line.status for line in lines] == ["problem"] * 3
    assert "10 MiB" in lines[0].found
    assert "nfs4" in lines[1].found
    assert "500 ms" in lines[2].found


def test_disk_speed_is_measured_without_leftovers(context: Context) -> None:
    took = checks.sync_ms(context.paths.state)
    assert took is not None
    assert took > 0
    assert list(Path(context.paths.state).iterdir()) == []
    assert checks.sync_ms("/proc") is None


def test_file_system_is_that_of_nearest_mount(tmp_path: Path) -> None:
    table = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 0:1 / {tmp_path} rw shared:1 - nfs4 server:/x rw\n"
        f"3 1 0:1 / {tmp_path}x rw - tmpfs none rw\nnonsense\n"
    )
    assert checks.file_system(str(tmp_path), table) == "nfs4"
    assert checks.file_system("/", table) == "ext4"


# --- the server


def test_missing_dead_and_live_server_are_distinguished(context: Context) -> None:
    assert said(checks.check_server, context, status="warning").remedy.startswith(
        "tgpu up; on a node"
    )
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(context.paths.server_socket)
    assert "does not answer" in said(checks.check_server, context, status="problem").found
    with ApiLab() as lab:
        live = replace(context, paths=paths(str(lab.directory)))
        line = said(checks.check_server, live, status="warning")
        assert "version 1.2.3 answers" in line.found
        assert "restart it with this version" in line.remedy
        lab.loop._write_error = "the disk is full"
        lines = [line for line in checks.check_server(live) if line.check == "health"]
        assert "the disk is full" in lines[0].found


def test_server_named_by_variable_is_checked(context: Context) -> None:
    def naming(server: str) -> Context:
        return replace(context, is_named=False, environ={**context.environ, "TGPU_SERVER": server})

    with ApiLab() as lab:
        line = said(checks.check_server, naming(str(lab.directory)), status="warning")
        assert f"version 1.2.3 answers at {lab.directory}/server.sock" in line.found
    away = said(checks.check_server, naming("127.0.0.1:1"), status="problem")
    assert "does not answer" in away.found
    assert list(checks.check_socket(naming("127.0.0.1:1"))) == []
    odd = said(checks.check_server, naming("box:port"), status="problem")
    assert "is not an address" in odd.found
    assert "TGPU_SERVER" in odd.remedy


def test_untrusted_or_unreachable_socket_is_problem(context: Context, tmp_path: Path) -> None:
    place = Path(context.paths.server_socket)
    place.touch()
    assert "not a socket" in said(checks.check_socket, context, status="problem").found
    place.unlink()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))
    stranger = replace(context, uid=context.uid + 7)
    if os.geteuid() != 0:
        assert "not trusted" in said(checks.check_socket, stranger, status="problem").found
        return
    place.chmod(0o600)
    assert "mode 600" in said(checks.check_socket, stranger, status="problem").found
    place.chmod(0o666)
    assert "cannot reach" in said(checks.check_socket, stranger, status="problem").found
    os.chown(place, 4321, 4321)
    assert "not trusted" in said(checks.check_socket, stranger, status="problem").found


def test_occupied_port_is_problem(context: Context) -> None:
    assert {line.status for line in checks.check_ports(context)} == {"ok"}
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = with_settings(context.settings, api={"http_port": port})
        line = said(checks.check_ports, replace(context, settings=taken), status="problem")
        assert f"{port} on 127.0.0.1" in line.found
        assert "in use" in line.found
        assert "ss -ltnp" in line.remedy
    wrong = with_settings(context.settings, api={"host": "203.0.113.9", "http_port": 80})
    assert said(checks.check_ports, replace(context, settings=wrong), status="problem")


def test_inactive_or_missing_unit_is_reported(
    context: Context, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(checks, "SYSTEMD", str(tmp_path / "none"))
    assert "no systemd" in said(checks.check_service, context, status="ok").found
    monkeypatch.setattr(checks, "SYSTEMD", str(tmp_path))
    monkeypatch.setattr(checks, "UNIT_PLACES", (str(tmp_path),))
    as_root = replace(context, uid=0)
    assert "no unit" in said(checks.check_service, as_root, status="warning").found
    (tmp_path / checks.UNIT).touch()
    assert "systemctl" in said(checks.check_service, as_root, status="warning").found
    a_program(context, "systemctl", 'test "$1" = is-active && echo failed || echo enabled')
    assert "is failed and enabled" in said(checks.check_service, as_root, status="warning").found
    a_program(context, "systemctl", 'test "$1" = is-active && echo active || echo enabled')
    assert said(checks.check_service, as_root, status="ok")


def test_checks_of_own_server_are_left_out_for_user_of_server_of_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run a server of root")
    with ApiLab() as lab:
        settings = with_settings(Settings(), gpu={"detection_method": "none"})
        context = Context(settings=settings, paths=paths(str(lab.directory)), is_named=True)
        every = list(doctor.run_checks(replace(context, uid=0)))
        assert {line.check for line in every} > {"user", "gpus", "cgroups", "state", "disk"}
        found = list(doctor.run_checks(replace(context, uid=65534)))
        (user,) = [line for line in found if line.check == "user"]
        assert (user.status, user.found) == ("ok", doctor.SERVED_BY_ROOT)
        assert not {"gpus", "cgroups", "state", "disk", "limits"} & {line.check for line in found}
        assert any("answers at" in line.found for line in found)
    gone = list(doctor.run_checks(replace(context, uid=65534)))
    assert {"gpus", "cgroups", "disk"} <= {line.check for line in gone}


# --- the command


def tgpu(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", "doctor", *words],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_failing_check_does_not_end_others(context: Context, monkeypatch: Any) -> None:
    def faints(_: Context) -> Iterator[Finding]:
        raise RuntimeError("oh")

    monkeypatch.setattr(doctor, "CHECKS", {"a": faints, "b": checks.check_python})
    first, *rest = doctor.run_checks(context)
    assert (first.check, first.status) == ("a", "problem")
    assert rest


def test_doctor_returns_1_on_problem_and_prints_json(tmp_path: Path) -> None:
    variables = {
        "GPU_SCHEDULER_API_HTTP_PORT": "0",
        "GPU_SCHEDULER_API_METRICS_PORT": "0",
        "GPU_SCHEDULER_GPU_SIMULATE": "1xA100",
    }
    state = tmp_path / "s"
    good = tgpu("--state-dir", str(state), "--json", env=os.environ | variables)
    document = json.loads(good.stdout)
    assert (good.returncode, document["problem"]) == (0, 0), document
    assert {"check", "status", "found", "remedy"} == set(document["lines"][0])
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    bad = tgpu("--state-dir", str(state), "--quiet", env=os.environ | variables)
    assert bad.returncode == 1
    assert "problem  state" in bad.stdout
    assert "-> chmod" in bad.stdout
    assert "ok       python" not in bad.stdout


AS_ANOTHER_USER = """
import encodings.idna, json, os
from dataclasses import asdict, replace
from gpu_scheduler.cli.admin import doctor
from gpu_scheduler.cli.admin.doctor import Context
os.setgid(65534)
os.setuid(65534)
context = Context.load(None, None)
gpu = replace(context.settings.gpu, detection_method="none")
context = replace(context, settings=replace(context.settings, gpu=gpu))
print(json.dumps([asdict(line) for line in doctor.run_checks(context)]))
"""


def test_doctor_works_for_non_root_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    ended = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER],
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = json.loads(ended.stdout)
    assert [line for line in lines if "could not be looked at" in line["found"]] == []
    assert any(line["check"] == "user" and line["status"] == "warning" for line in lines)
    assert any(line["check"] == "state" and line["status"] == "problem" for line in lines)


def test_last_line_counts_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        Finding("a", "ok", ""),
        Finding("b", "problem", "", "c"),
        *[Finding("d", "warning", "")] * 2,
    ]
    monkeypatch.setattr(doctor, "run_checks", lambda _: iter(found))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 ok, 2 warnings, 1 problem"
