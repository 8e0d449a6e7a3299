"""The doctor: for each thing it looks at, one that is broken, and what it says then."""

import json
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.cgroups.groups import Mounts
from gpu_scheduler.cli.doctor import command as doctor
from gpu_scheduler.cli.doctor import host
from gpu_scheduler.cli.doctor import server as doctor_place
from gpu_scheduler.cli.doctor.findings import Line, Surroundings
from gpu_scheduler.cli.main import main
from gpu_scheduler.settings import Settings
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.file_paths import paths
from tests.unit.api.lab import ApiLab

Look = Callable[[Surroundings], Iterator[Line]]


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    """A state directory as it should be, and a machine without programs."""
    state = tmp_path / "s"
    state.mkdir(mode=0o700)
    return Surroundings(
        settings=with_settings(Settings(), api={"http_port": 0, "metrics_port": 0}),
        paths=paths(str(state)),
        is_named=True,
        environ={"PATH": str(tmp_path / "bin")},
    )


def with_settings(settings: Settings, **groups: dict[str, Any]) -> Settings:
    changed = {name: replace(getattr(settings, name), **group) for name, group in groups.items()}
    return replace(settings, **changed)


def said(look: Look, around: Surroundings, *, status: str) -> Line:
    """The one line of that status; what is not well comes with what to do."""
    lines = list(look(around))
    found = [line for line in lines if line.status == status]
    assert found, lines
    for line in lines:
        if line.status == "problem":
            assert line.remedy, line
    return found[0]


def a_program(around: Surroundings, name: str, script: str) -> None:
    folder = Path(around.environ["PATH"])
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


# --- settings


def test_settings_that_cannot_be_read_are_a_problem_and_the_rest_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("api:\n  http_prot: 1\n")
    around = Surroundings.of(str(config), str(tmp_path / "state"))
    line = said(doctor_place.settings, around, status="problem")
    assert "did you mean 'api.http_port'" in line.found
    assert "tgpu config check" in line.remedy
    assert {line.check for line in doctor.look(around)} >= {"python", "disk", "clock", "state"}


def test_settings_that_a_group_may_write_are_a_warning(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("{}")
    config.chmod(0o664)
    around = Surroundings.of(str(config), None)
    assert "chmod" in said(doctor_place.settings, around, status="warning").remedy
    config.chmod(0o644)
    assert [line.status for line in doctor_place.settings(around)] == ["ok"]


def test_secrets_must_be_there_and_private(around: Surroundings, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    target = Target(kind="webhook", url="https://x.example", secret_file=str(secret))
    settings = with_settings(around.settings, notifications={"targets": {"slack": target}})
    around = replace(around, settings=settings)
    missing = said(doctor_place.secrets, around, status="problem")
    assert "targets.slack.secret_file" in missing.found
    secret.write_text("x")
    secret.chmod(0o644)
    assert "chmod 600" in said(doctor_place.secrets, around, status="problem").remedy
    secret.chmod(0o600)
    assert [line.status for line in doctor_place.secrets(around)] == ["ok"]


# --- the machine


def test_an_old_python_or_sqlite_is_a_problem(around: Surroundings, monkeypatch: Any) -> None:
    assert [line.status for line in host.python(around)] == ["ok", "ok"]
    monkeypatch.setattr(host, "LEAST_PYTHON", (9, 0))
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 30, 0))
    assert [line.status for line in host.python(around)] == ["problem", "problem"]


def test_who_is_not_root_learns_what_that_means(around: Surroundings) -> None:
    assert said(host.user, replace(around, uid=0), status="ok").found.startswith("root")
    nobody = said(host.user, replace(around, uid=65534), status="warning")
    assert "serves only you" in nobody.found
    assert "no account" in said(host.user, replace(around, uid=4_000_000), status="problem").found


def test_control_groups_are_judged_by_kind_controllers_and_rights(tmp_path: Path) -> None:
    def judged(mounted: Mounts) -> list[Line]:
        return list(host.judged_cgroups(mounted, {"": "/"}, os.geteuid()))

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
    assert "may not make groups" in old[1].found


def test_a_clock_that_cannot_be_right_or_is_not_kept_is_told(
    around: Surroundings, monkeypatch: Any
) -> None:
    monkeypatch.setattr(host, "kernel_says_synchronised", lambda: False)
    assert "chrony" in said(host.clock, around, status="warning").remedy
    monkeypatch.setattr(host, "kernel_says_synchronised", lambda: True)
    assert [line.status for line in host.clock(around)] == ["ok"]
    newer = Path(around.paths.state) / "scheduler.db"
    newer.touch()
    os.utime(newer, (time.time() + 900, time.time() + 900))
    assert "in the future" in said(host.clock, around, status="warning").found
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert "1970" in said(host.clock, around, status="problem").found


def test_the_kernel_can_be_asked_about_its_clock() -> None:
    assert host.kernel_says_synchronised() in (True, False, None)


def test_programs_that_are_missing_are_named_with_what_they_are_for(around: Surroundings) -> None:
    lines = list(host.programs(around))
    assert [line.status for line in lines] == ["warning"] * 3
    assert "--image" in lines[2].remedy
    a_program(around, "docker", "exit 0")
    assert [line.status for line in host.programs(around)][2] == "ok"


def test_podman_without_an_init_is_a_warning(around: Surroundings, monkeypatch: Any) -> None:
    a_program(around, "podman", "exit 0")
    monkeypatch.setattr(host, "podman_init", lambda: ("--init",))
    assert [line.status for line in host.programs(around)][2:] == ["ok"]
    monkeypatch.setattr(host, "podman_init", tuple)
    assert [line.status for line in host.programs(around)][2:] == ["ok", "warning"]
    assert "install catatonit" in list(host.programs(around))[3].found


def test_few_open_files_are_a_warning(around: Surroundings, monkeypatch: Any) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert "ulimit -n 4096" in said(host.limits, around, status="warning").remedy


# --- GPUs


def test_declared_gpus_are_counted_and_nonsense_is_a_problem(around: Surroundings) -> None:
    declared = with_settings(around.settings, gpu={"simulate": "4xA100-80GB"})
    line = said(host.gpus, replace(around, settings=declared), status="ok")
    assert line.found.startswith("4 x A100")
    wrong = with_settings(around.settings, gpu={"simulate": "many"})
    assert said(host.gpus, replace(around, settings=wrong), status="problem")


def test_a_machine_without_gpus_says_so_and_offers_to_declare_some(around: Surroundings) -> None:
    lines = {line.check: line for line in host.gpus(around)}
    if lines["nvml"].status == "ok":
        pytest.skip("this machine has GPUs")
    assert "not on the PATH" in lines["nvidia-smi"].found
    assert "--simulate" in lines["gpus"].remedy


def test_an_nvidia_smi_that_fails_or_hangs_is_a_problem(
    around: Surroundings, monkeypatch: Any
) -> None:
    a_program(around, "nvidia-smi", "echo 'Driver/library version mismatch'; exit 18")
    lines = {line.check: line for line in host.gpus(around)}
    assert "version mismatch" in lines["nvidia-smi"].found
    assert lines["nvidia-smi"].status == "problem"
    a_program(around, "nvidia-smi", "exec /bin/sleep 60")
    monkeypatch.setattr(
        Surroundings,
        "output",
        lambda self, command, timeout_s=0.2, ask=Surroundings.output: ask(self, command, 0.2),
    )
    hanging = {line.check: line for line in host.gpus(around)}
    assert "no answer within" in hanging["nvidia-smi"].found


def test_device_nodes_without_a_driver_or_closed_ones_are_told(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(host, "NODES", str(tmp_path))
    monkeypatch.setattr(host, "DRIVER", str(tmp_path / "version"))
    (tmp_path / "nvidia0").touch(mode=0o600)
    assert [line.status for line in host._driver()] == ["problem"]
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX 999.1\n")
    good, closed = host._driver()
    assert (good.found, closed.status) == ("NVIDIA UNIX 999.1", "warning")


# --- state and disk


def test_a_state_directory_that_others_can_enter_is_a_problem(around: Surroundings) -> None:
    state = Path(around.paths.state)
    assert [line.status for line in doctor_place.state(around)] == ["ok"]
    state.chmod(0o777)
    assert "mode 777" in said(doctor_place.state, around, status="problem").found
    state.chmod(0o711)
    (state / "scheduler.db").touch()
    (state / "scheduler.db").chmod(0o644)
    assert "chmod go=" in said(doctor_place.state, around, status="problem").remedy


def test_a_state_directory_of_somebody_else_or_none_is_told(
    around: Surroundings, tmp_path: Path
) -> None:
    other = replace(around, uid=around.uid + 1)
    assert any("belongs to uid" in line.found for line in doctor_place.state(other))
    fresh = replace(around, paths=paths(str(tmp_path / "new" / "er")))
    assert "made at the first start" in said(doctor_place.state, fresh, status="ok").found
    (tmp_path / "file").touch()
    wrong = replace(around, paths=paths(str(tmp_path / "file")))
    assert "no directory" in said(doctor_place.state, wrong, status="problem").found
    long = replace(around, paths=paths(str(tmp_path / ("x" * 120))))
    assert "too long" in said(doctor_place.state, long, status="problem").found


def test_a_disk_that_is_full_far_or_slow_is_told(around: Surroundings, monkeypatch: Any) -> None:
    def a_disk(_: str, free_mb: int = 10) -> os.statvfs_result:
        return os.statvfs_result((4096, 1 << 20, 9999, free_mb, free_mb, 9, 9, 9, 0, 255))

    monkeypatch.setattr(os, "statvfs", a_disk)
    monkeypatch.setattr(doctor_place, "sync_ms", lambda _: 500.0)
    monkeypatch.setattr(doctor_place, "file_system", lambda *_: "nfs4")
    lines = list(doctor_place.disk(around))
    assert [line.status for line in lines] == ["problem"] * 3
    assert "10 MiB" in lines[0].found
    assert "nfs4" in lines[1].found
    assert "500 ms" in lines[2].found


def test_the_speed_of_the_disk_is_measured_and_nothing_is_left(around: Surroundings) -> None:
    took = doctor_place.sync_ms(around.paths.state)
    assert took is not None
    assert took > 0
    assert list(Path(around.paths.state).iterdir()) == []
    assert doctor_place.sync_ms("/proc") is None


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    table = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 0:1 / {tmp_path} rw shared:1 - nfs4 server:/x rw\n"
        f"3 1 0:1 / {tmp_path}x rw - tmpfs none rw\nnonsense\n"
    )
    assert doctor_place.file_system(str(tmp_path), table) == "nfs4"
    assert doctor_place.file_system("/", table) == "ext4"


# --- the server


def test_no_server_a_dead_one_and_a_live_one_are_told_apart(around: Surroundings) -> None:
    assert said(doctor_place.server, around, status="warning").remedy.startswith("tgpu up; a node")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(around.paths.server_socket)
    assert "does not answer" in said(doctor_place.server, around, status="problem").found
    with ApiLab() as lab:
        live = replace(around, paths=paths(str(lab.directory)))
        line = said(doctor_place.server, live, status="warning")
        assert "version 1.2.3 answers" in line.found
        assert "restart it with this version" in line.remedy
        lab.loop.trouble = "the disk is full"
        lines = [line for line in doctor_place.server(live) if line.check == "health"]
        assert "the disk is full" in lines[0].found


def test_the_server_that_a_variable_names_is_the_one_that_is_asked(around: Surroundings) -> None:
    def naming(server: str) -> Surroundings:
        return replace(around, is_named=False, environ={**around.environ, "TGPU_SERVER": server})

    with ApiLab() as lab:
        line = said(doctor_place.server, naming(str(lab.directory)), status="warning")
        assert f"version 1.2.3 answers at {lab.directory}/server.sock" in line.found
    away = said(doctor_place.server, naming("127.0.0.1:1"), status="problem")
    assert "does not answer" in away.found
    assert list(doctor_place.socket_file(naming("127.0.0.1:1"))) == []
    odd = said(doctor_place.server, naming("box:port"), status="problem")
    assert "is no address" in odd.found
    assert "TGPU_SERVER" in odd.remedy


def test_a_socket_that_cannot_be_trusted_or_reached_is_a_problem(
    around: Surroundings, tmp_path: Path
) -> None:
    place = Path(around.paths.server_socket)
    place.touch()
    assert "no socket" in said(doctor_place.socket_file, around, status="problem").found
    place.unlink()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))
    stranger = replace(around, uid=around.uid + 7)
    if os.geteuid() != 0:
        assert "not trusted" in said(doctor_place.socket_file, stranger, status="problem").found
        return
    place.chmod(0o600)
    assert "mode 600" in said(doctor_place.socket_file, stranger, status="problem").found
    place.chmod(0o666)
    assert "do not get to" in said(doctor_place.socket_file, stranger, status="problem").found
    os.chown(place, 4321, 4321)
    assert "not trusted" in said(doctor_place.socket_file, stranger, status="problem").found


def test_a_port_that_is_taken_is_a_problem(around: Surroundings) -> None:
    assert {line.status for line in doctor_place.ports(around)} == {"ok"}
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = with_settings(around.settings, api={"http_port": port})
        line = said(doctor_place.ports, replace(around, settings=taken), status="problem")
        assert f"{port} on 127.0.0.1" in line.found
        assert "in use" in line.found
        assert "ss -ltnp" in line.remedy
    wrong = with_settings(around.settings, api={"host": "203.0.113.9", "http_port": 80})
    assert said(doctor_place.ports, replace(around, settings=wrong), status="problem")


def test_a_unit_that_is_not_active_or_not_installed_is_told(
    around: Surroundings, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(doctor_place, "SYSTEMD", str(tmp_path / "none"))
    assert "no systemd" in said(doctor_place.service, around, status="ok").found
    monkeypatch.setattr(doctor_place, "SYSTEMD", str(tmp_path))
    monkeypatch.setattr(doctor_place, "UNIT_PLACES", (str(tmp_path),))
    as_root = replace(around, uid=0)
    assert "no unit" in said(doctor_place.service, as_root, status="warning").found
    (tmp_path / doctor_place.UNIT).touch()
    assert "systemctl" in said(doctor_place.service, as_root, status="warning").found
    a_program(around, "systemctl", 'test "$1" = is-active && echo failed || echo enabled')
    assert "is failed and enabled" in said(doctor_place.service, as_root, status="warning").found
    a_program(around, "systemctl", 'test "$1" = is-active && echo active || echo enabled')
    assert said(doctor_place.service, as_root, status="ok")


# --- as a whole


def tgpu(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gpu_scheduler", "doctor", *words],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_a_check_that_fails_itself_does_not_end_the_others(
    around: Surroundings, monkeypatch: Any
) -> None:
    def faints(_: Surroundings) -> Iterator[Line]:
        raise RuntimeError("oh")

    monkeypatch.setattr(doctor, "checks", lambda: [("a", faints), ("b", host.python)])
    first, *rest = doctor.look(around)
    assert (first.check, first.status) == ("a", "problem")
    assert rest


def test_the_command_ends_with_1_if_there_is_a_problem_and_speaks_json(tmp_path: Path) -> None:
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
from dataclasses import replace
from gpu_scheduler.cli.doctor import command as doctor
from gpu_scheduler.cli.doctor.findings import Surroundings
doctor.checks()
os.setgid(65534)
os.setuid(65534)
around = Surroundings.of(None, None)
gpu = replace(around.settings.gpu, detection_method="none")
around = replace(around, settings=replace(around.settings, gpu=gpu))
print(json.dumps([line.document() for line in doctor.look(around)]))
"""


def test_it_works_for_a_user_who_is_not_root() -> None:
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


def test_the_last_line_counts_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Line("a", "ok", ""), Line("b", "problem", "", "c"), *[Line("d", "warning", "")] * 2]
    monkeypatch.setattr(doctor, "look", lambda _: iter(found))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 ok, 2 warnings, 1 problem"
