"""The command lines that runners build."""

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_scheduler.agent.launcher_protocol import Work, WorkDevice
from gpu_scheduler.agent.runners import attach_command, container, runners
from gpu_scheduler.agent.runners.container import (
    BAD_ANSWER,
    NO_PODMAN,
    STAGE,
    ContainerRunner,
    container_name,
)
from gpu_scheduler.agent.runners.interface import Ending, interpreter
from gpu_scheduler.agent.runners.session import session_name

IMAGE = "registry.example.org/ml/torch:2.4"
WORK = Work(
    allocation_id="job-12_4.1",
    job_id="job-12_4",
    name="my test",
    argv=("python", "train.py"),
    runner="container",
    image=IMAGE,
    engine_user="root",
    allowed_images=("registry.example.org/ml/*",),
    uid=1000,
    gid=100,
    workdir="/data",
    scratch_dir="/run/s",
    mounts=(("/data", "/data", False), ("/sets", "/in", True)),
    cpu_milli=2500,
    memory_mb=2048,
    max_processes=64,
    cpus=(0, 3),
    devices=(
        WorkDevice(index=2, uuid="GPU-a", path="/dev/nvidia2"),
        WorkDevice(index=5, uuid="GPU-b", path="/dev/nvidia5", mig_uuid="MIG-c"),
    ),
)


def an_engine(path: str, monkeypatch: pytest.MonkeyPatch) -> ContainerRunner:
    monkeypatch.setattr(container, "_engine", lambda: (path, ()))
    monkeypatch.setattr(container, "_PODMAN_INITS", ("/",))
    monkeypatch.setattr(container, "_podman", lambda: ("/usr/bin/podman", "--runtime", "runc"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(container, "controllers_for_root", lambda: ALL_CONTROLLERS)
    return ContainerRunner()


ALL_CONTROLLERS = frozenset(("cpu", "memory", "pids", "devices"))


def test_podman_of_root_sets_no_process_limit_where_host_counts_no_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails with every other number, also with its own default."""
    engine = an_engine("/usr/bin/podman", monkeypatch)
    assert ("--pids-limit", "64") in pairs(engine.command(WORK, {}).argv)
    monkeypatch.setattr(container, "controllers_for_root", lambda: ALL_CONTROLLERS - {"pids"})
    assert ("--pids-limit", "0") in pairs(engine.command(WORK, {}).argv)


def test_podman_is_not_used_without_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runtimes, runc and crun, refuse to run there. Docker's engine may be elsewhere."""
    engine = an_engine("/usr/bin/podman", monkeypatch)
    monkeypatch.setattr(container, "controllers_for_root", lambda: None)
    assert "no control groups" in engine.missing(WORK)
    docker = an_engine("/usr/bin/docker", monkeypatch)
    monkeypatch.setattr(container, "controllers_for_root", lambda: None)
    assert docker.missing(replace(WORK, uid=0)) == ""


def pairs(argv: tuple[str, ...]) -> set[tuple[str, str]]:
    return set(pairwise(argv))


@pytest.mark.parametrize(
    ("own", "has_groups", "limit"),
    [(2048, True, "2048m"), (2048, False, "2048m"), (0, True, "512m"), (0, False, "")],
)
def test_container_without_memory_request_gets_the_default_of_the_node(
    own: int, has_groups: bool, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = an_engine("/usr/bin/docker", monkeypatch)
    found = ALL_CONTROLLERS if has_groups else ALL_CONTROLLERS - {"memory"}
    monkeypatch.setattr(container, "controllers_for_root", lambda: found)
    work = replace(WORK, memory_mb=own, default_memory_mb=0 if own else 512)
    told = dict(pairs(engine.command(work, {}).argv))
    assert (told.get("--memory", ""), told.get("--memory-swap", "")) == (limit, limit)


def test_docker_command_has_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = an_engine("/usr/bin/docker", monkeypatch)
    environment = {"A": "b", "KEY": "line\nbreak", "# x": "y", "TGPU_MEMBER": "0"}
    command = runner.command(WORK, environment)
    told = pairs(command.argv)
    assert not command.as_user
    assert {
        ("--name", "tgpu-job-12_4.1-76221da6"),
        ("--user", "1000:100"),
        ("--security-opt", "no-new-privileges"),
        ("--workdir", "/data"),
        ("--volume", f"{STAGE}/tgpu-job-12_4.1-76221da6/0:/data"),
        ("--volume", f"{STAGE}/tgpu-job-12_4.1-76221da6/1:/in:ro"),
        ("--volume", "/run/s:/run/s"),
        ("--cpus", "2.500"),
        ("--cpuset-cpus", "0,3"),
        ("--memory", "2048m"),
        ("--pids-limit", "64"),
        ("--gpus", '"device=GPU-a,MIG-c"'),
        ("--env-file", "/dev/stdin"),
        ("--env", "TGPU_LEFT_OUT=# x,KEY"),
    } <= told
    assert command.argv[-4:] == ("--", IMAGE, "python", "train.py")
    assert command.stdin == "A=b\nTGPU_MEMBER=0\n"
    assert command.files == {}
    assert "A" not in command.environment


def test_root_file_system_argument_follows_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    command = an_engine("/usr/bin/podman", monkeypatch).command(
        replace(WORK, image="rootfs:/images/one"), {}
    )
    assert command.argv[-5:] == ("--rootfs", "--", "/images/one", "python", "train.py")
    assert (command.root, command.reachable) == ("/images/one", ("/data", "/sets"))


def test_podman_takes_devices_by_name_or_node(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = an_engine("/usr/bin/podman", monkeypatch)
    monkeypatch.setattr(container, "_cdi_names", lambda: {"GPU-a", "MIG-c", "all"})
    told = pairs(runner.command(WORK, {}).argv)
    assert {("--device", "nvidia.com/gpu=GPU-a"), ("--device", "nvidia.com/gpu=MIG-c")} <= told
    monkeypatch.setattr(container, "_cdi_names", set)
    told = pairs(runner.command(WORK, {}).argv)
    assert {("--device", "/dev/nvidia2"), ("--device", "/dev/nvidia5")} <= told


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "nvidia.yaml",
            """---
cdiVersion: 0.5.0
containerEdits:
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-ctk
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia2
  name: "2"
- name: GPU-a
- name: MIG-c
- name: all
kind: nvidia.com/gpu
""",
        ),
        (
            "gpus.json",
            """{"kind":"nvidia.com/gpu","devices":[{"name":"2"},{"name": "GPU-a"},{"name":"MIG-c"},
            {"containerEdits":{},"name":"all"}]}""",
        ),
    ],
)
def test_names_of_cdi_specification_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str
) -> None:
    monkeypatch.setattr(container, "_CDI", (str(tmp_path), str(tmp_path / "none")))
    assert container._cdi_names() == set()
    (tmp_path / "other.json").write_text('{"kind":"nvidia.com/gpu-x","devices":[{"name":"x"}]}')
    (tmp_path / name).write_text(text)
    assert container._cdi_names() == {"2", "GPU-a", "MIG-c", "all"}


def test_gpu_that_specification_lacks_comes_as_device_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = an_engine("/usr/bin/podman", monkeypatch)
    monkeypatch.setattr(container, "_cdi_names", lambda: {"GPU-a", "5"})
    told = pairs(runner.command(WORK, {}).argv)
    assert {("--device", "/dev/nvidia2"), ("--device", "/dev/nvidia5")} <= told
    whole = replace(WORK, devices=(WorkDevice(index=5, uuid="GPU-x", path="/dev/nvidia5"),))
    assert ("--device", "nvidia.com/gpu=5") in pairs(runner.command(whole, {}).argv)


def test_container_without_gpus_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("/usr/bin/podman", "/usr/bin/docker"):
        argv = an_engine(engine, monkeypatch).command(replace(WORK, devices=()), {}).argv
        assert "--gpus" not in argv
        assert "--device" not in argv


def test_podman_uses_any_available_init_and_fails_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process of a container would not end by its own signal."""
    runner = an_engine("/usr/bin/podman", monkeypatch)
    assert "--init" in runner.command(WORK, {}).argv
    monkeypatch.setattr(container, "_PODMAN_INITS", (str(tmp_path / "none"),))
    monkeypatch.setattr(container, "find_program", lambda name: {"tini": "/opt/tini"}.get(name, ""))
    assert ("--init-path", "/opt/tini") in pairs(runner.command(WORK, {}).argv)
    assert runner.missing(WORK) == ""
    monkeypatch.setattr(container, "find_program", lambda _: "")
    assert "install catatonit" in runner.missing(WORK)
    assert an_engine("/usr/bin/docker", monkeypatch).missing(WORK) == ""


def test_each_member_has_its_own_container_name() -> None:
    assert container_name(replace(WORK, member=3)) == "tgpu-job-12_4.1-3-76221da6"


def test_each_scheduler_on_machine_has_its_own_container_names() -> None:
    names = {container_name(replace(WORK, scratch_dir=f"/{place}/s")) for place in ("a", "b")}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        ({"ExitCode": 3, "StartedAt": "2026-01-01"}, Ending(exit_code=3)),
        ({"ExitCode": 137, "StartedAt": "2026-01-01"}, Ending(signal=9)),
        (
            {"ExitCode": 137, "StartedAt": "2026-01-01", "OOMKilled": True},
            Ending(signal=9, detail="killed by the kernel: used more than its 2048 MB"),
        ),
        ({"ExitCode": 255, "StartedAt": "2026-01-01"}, Ending(exit_code=255)),
        (
            {"ExitCode": 127, "StartedAt": "0001-01-01T00:00:00Z", "Error": "no such file"},
            Ending(ran=False, detail="no such file"),
        ),
        ("nonsense", Ending(detail=f'{BAD_ANSWER}: "nonsense"')),
        ({"ExitCode": "3"}, Ending(detail=f'{BAD_ANSWER}: {{"ExitCode": "3"}}')),
        ({}, Ending(detail=f"{BAD_ANSWER}: {{}}")),
    ],
)
def test_engine_state_is_parsed(
    state: object, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = an_engine("/usr/bin/podman", monkeypatch)
    assert runner.ending(WORK, json.dumps(state)) == ending


@pytest.mark.parametrize("indent", [None, 2], ids=["on one line", "on several"])
def test_engine_state_is_parsed_among_warnings(
    indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = an_engine("/usr/bin/podman", monkeypatch)
    state = json.dumps({"ExitCode": 3, "Health": {"Log": []}, "StartedAt": "2026"}, indent=indent)
    said = f"WARNING: {{old}}\n{{}}\n{{broken\n{state}\nand one more\n"
    assert runner.ending(WORK, said) == Ending(exit_code=3)


def test_unsupported_container_options_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no container engine" in an_engine("", monkeypatch).missing(WORK)
    docker = an_engine("/usr/bin/docker", monkeypatch)
    assert "needs podman" in docker.missing(replace(WORK, image="rootfs:/x"))
    podman = an_engine("/usr/bin/podman", monkeypatch)
    assert "no root file system" in podman.missing(replace(WORK, image="rootfs:/"))
    assert "no root file system" in podman.missing(replace(WORK, image="rootfs:/data:O"))
    assert "not the name of an image" in podman.missing(replace(WORK, image="--privileged"))
    assert "no colon" in podman.missing(replace(WORK, mounts=(("/a:/", "/b", True),)))
    assert "must be absolute" in podman.missing(replace(WORK, mounts=(("volume", "/b", True),)))
    assert "needs an image" in podman.missing(replace(WORK, image=""))
    assert podman.missing(WORK) == ""
    assert "container runner" in runners()["process"].missing(WORK)
    of_user = replace(WORK, engine_user="job", image="pytorch")
    assert podman.missing(of_user) == ""
    assert "scratch directory" in podman.missing(replace(of_user, scratch_dir=""))
    docker.podman = ()
    assert docker.missing(of_user) == NO_PODMAN


@pytest.mark.parametrize("text", ["/a\nb", "/a\rb", "/a\x1bb", "/a\x7fb", "/a\0b"])
def test_control_characters_are_rejected_in_every_path(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman = an_engine("/usr/bin/podman", monkeypatch)
    for engine_user in ("job", "root"):
        work = replace(WORK, engine_user=engine_user)
        for bad in (
            replace(work, workdir=text),
            replace(work, image=f"rootfs:{text}"),
            replace(work, image=IMAGE + text),
            replace(work, mounts=((text, "/in", True),)),
            replace(work, mounts=(("/in", text, True),)),
        ):
            assert "control character" in podman.missing(bad)


def test_podman_of_user_gets_no_option_that_names_a_limit_or_a_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The container stays in the control group of its job, which has the limits."""
    monkeypatch.setattr(container, "_cdi_names", set)
    runner = an_engine("/usr/bin/podman", monkeypatch)
    work = replace(WORK, engine_user="job", image_stores=("/srv/my images",))
    command = runner.command(work, {"A": "b", "TGPU_MEMBER": "0"})
    script = command.argv[2]
    assert command.as_user
    assert command.workdir == "/"
    assert (command.argv[:2], command.argv[4:]) == (("/bin/sh", "-c"), ("python", "train.py"))
    assert command.stdin == "A=b\nTGPU_MEMBER=0\n"
    assert "A" not in command.environment
    for option in ("--cpus", "--memory", "--pids-limit", "--cgroup-parent", "--privileged"):
        assert option not in script
    for words in (
        "--userns keep-id --user 1000:100 --security-opt no-new-privileges",
        "--volume /data:/data --volume /sets:/in:ro --volume /run/s:/run/s",
        "--device /dev/nvidia2 --device /dev/nvidia5",
        "'additionalimagestore=/srv/my images'",
        f"image={IMAGE}",
    ):
        assert words in script
    monkeypatch.setattr(container, "_cdi_names", lambda: {"GPU-a", "MIG-c"})
    assert "--device nvidia.com/gpu=GPU-a" in runner.command(work, {}).argv[2]
    no_commands = (runner.signal_command(work, "TERM"), runner.inspect_command(work))
    assert (*no_commands, runner.clear_command(work)) == ((), (), ())
    assert runner.attach_command(work)[0] == "env"


def test_root_uses_its_own_engine_for_its_own_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = an_engine("/usr/bin/podman", monkeypatch)
    work = replace(WORK, uid=0, engine_user="job", image="rootfs:/images/one")
    assert runner.missing(work) == ""
    assert not runner.command(work, {}).as_user
    assert ("--volume", "/data:/data") in pairs(runner.command(work, {}).argv)


def test_session_is_named_after_device_name_and_job() -> None:
    assert session_name(WORK) == "gpujob_2_my-test_job-12_4"
    assert session_name(replace(WORK, devices=(), name="")) == "gpujob_cpu_job_job-12_4"


def test_attach_command_is_given() -> None:
    name = session_name(WORK)
    tmux = ("tmux", "-S", "/run/s/tmux.sock", "attach-session", "-t", name)
    assert attach_command(replace(WORK, runner="tmux")) == tmux
    screen = ("env", "SCREENDIR=/run/s", "screen", "-r", name)
    assert attach_command(replace(WORK, runner="screen")) == screen
    assert attach_command(replace(WORK, runner="process")) == ()
    assert attach_command(replace(WORK, runner="rocket")) == ()
    assert "exec" in attach_command(replace(WORK, runner="container"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/usr/bin/env -S python -u\nx", ("/usr/bin/env", "-S python -u")),
        ("#! /bin/bash\n", ("/bin/bash",)),
        ("echo hello", ("/bin/sh",)),
        ("#!\n", ("/bin/sh",)),
    ],
)
def test_script_interpreter_is_read_from_shebang(script: str, words: tuple[str, ...]) -> None:
    assert interpreter(script) == words


@pytest.mark.parametrize(
    "left",
    ["", "[]", "[" * 4000, '{"status": 1e999}', '{"status": ' + "9" * 60 + "}", '{"status": "x"}'],
)
def test_invalid_exit_record_is_unknown(left: str) -> None:
    ending = runners()["tmux"].ending(WORK, left)
    assert (ending.exit_code, ending.signal, ending.ran) == (None, None, True)
