"""One user's containers against another user, with real accounts, podman and a launcher of root.

The attacks were possible while one engine of root opened what users named. Where an attack has to
win a race, the engine is a script that lets the attacker win it and then runs podman.
"""

# ruff: noqa: ASYNC240
# These tests poll files; their event loop has nothing else to do.

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.launcher.lifecycle.containers import SEE_DOCTOR
from gpu_scheduler.agent.launcher_protocol import Container, Over, Work, WorkDevice
from gpu_scheduler.agent.runners.container import STAGE, ContainerRunner
from gpu_scheduler.agent.runners.rootless import USER_STORE
from gpu_scheduler.cli.admin.container_trial import run_trial
from tests.containers import (
    a_registry,
    a_root_file_system,
    an_image_archive,
    why_not_rootless,
)
from tests.contract.test_runners import command
from tests.launcher_rig import Rig, is_alive, start_until, with_launcher
from tests.linux_accounts import LinuxAccount, processes_of, some_accounts

pytestmark = pytest.mark.skipif(bool(why_not_rootless()), reason=why_not_rootless())
NAME = f"attack-{os.getpid()}"
SECRET = "the victim's secret"
RENAME_EXCHANGE = 2
SWAPS = 5
TAG = "docker.io/library/trusted:1"


@pytest.fixture(scope="module")
def accounts() -> Iterator[tuple[LinuxAccount, LinuxAccount]]:
    with some_accounts("mallory", "victim") as (mallory, victim):
        inside = victim.home / "inside"
        inside.mkdir(mode=0o755)
        (inside / "secret").write_text(SECRET, encoding="utf-8")
        (inside / "secret").chmod(0o644)  # only the home directory itself is closed
        inside.chmod(0o755)
        give(inside, victim)
        yield mallory, victim


@pytest.fixture
def mallory(accounts: tuple[LinuxAccount, LinuxAccount]) -> LinuxAccount:
    return accounts[0]


@pytest.fixture
def victim(accounts: tuple[LinuxAccount, LinuxAccount]) -> LinuxAccount:
    return accounts[1]


def give(path: Path, user: LinuxAccount) -> None:
    """Make a user the owner of a tree."""
    for one in (path, *path.rglob("*")):
        os.chown(one, user.uid, user.gid, follow_symlinks=False)


def make_reachable(directory: Path) -> None:
    """Let other users reach a directory of the test."""
    for path in (directory, *directory.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)


def work_of(rig: Rig, user: LinuxAccount, name: str, script: str, **more: Any) -> Work:
    """A container job of a user, in a root file system of the user's own."""
    root = user.home / "root"
    if not root.exists():
        give(a_root_file_system(root), user)
    fields: dict[str, Any] = {
        "runner": "container",
        "engine_user": "job",
        "image": f"rootfs:{root}",
        "workdir": "/",
        "environment": {"PATH": "/bin", "HOME": str(user.home)},
        **more,
    }
    work = rig.work(f"{NAME}-{name}.1", "sh", "-c", script, **fields)
    return replace(work, uid=user.uid, gid=user.gid, user=user.name)


def an_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before_run: str
) -> Callable[[Callable[[Rig], Awaitable[None]]], None]:
    """A podman before whose `run` the attacker does something."""
    real = shutil.which("podman")
    make_reachable(tmp_path)
    script = f'#!/bin/sh\ncase " $* " in *" run "*) {before_run};; esac\nexec {real} "$@"\n'
    (tmp_path / "podman").write_text(script, encoding="utf-8")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return with_launcher


def replace_image(engine: Path, image: str, root: Path, *, before_run: str = "true") -> None:
    """Let the script run a root file system in place of this image: no registry is here."""
    real = engine.read_text(encoding="utf-8").splitlines()[-1].split()[1]
    script = f"""#!/bin/sh
case " $* " in *" run "*) {before_run};; esac
for word; do
    shift
    case $word in
    --) ;;
    {image}) set -- "$@" --rootfs -- {root};;
    *) set -- "$@" "$word";;
    esac
done
exec {real} "$@"
"""
    engine.write_text(script, encoding="utf-8")


def test_mount_swapped_for_link_shows_nothing_of_others(
    accounts: tuple[LinuxAccount, LinuxAccount], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mallory, victim = accounts
    place = mallory.home / "mount"
    place.mkdir()
    give(place, mallory)

    async def scenario(rig: Rig) -> None:
        mounts = ((str(place), "/in", True),)
        work = work_of(rig, mallory, "mount", "cat /in/secret", mounts=mounts)
        over = await rig.run(work)
        assert place.is_symlink()
        assert (over.exit_code, over.signal) != (0, None)
        assert SECRET not in rig.log(work)

    swap = f"rmdir {place}; ln -s {victim.home}/inside {place}"
    an_engine(monkeypatch, tmp_path, swap)(scenario)


def test_root_file_system_swapped_for_link_writes_nothing_elsewhere(
    mallory: LinuxAccount, tmp_path: Path
) -> None:
    """Podman writes `passwd`, `group`, `hosts` and mount points into a root file system.

    It resolves links inside the root, so the attacker exchanges directory and link all the time.
    """
    root = a_root_file_system(mallory.home / "swapped")
    make_reachable(tmp_path)
    protected = tmp_path / "protected"
    protected.mkdir(mode=0o755)
    for name in ("passwd", "group"):
        (root / "etc" / name).touch()
        (protected / name).touch()
    (root / "link").symlink_to(protected)
    give(root, mallory)
    done = threading.Event()

    def exchange() -> None:
        rename = ctypes.CDLL(None).renameat2
        while not done.is_set():
            rename(-100, bytes(root / "etc"), -100, bytes(root / "link"), RENAME_EXCHANGE)

    async def scenario(rig: Rig) -> None:
        for number in range(SWAPS):
            work = work_of(rig, mallory, f"swap{number}", "true", image=f"rootfs:{root}")
            await rig.run(work)
        found = {one.name: one.stat().st_size for one in protected.iterdir()}
        assert found == {"passwd": 0, "group": 0}

    attacker = threading.Thread(target=exchange)
    attacker.start()
    try:
        with_launcher(scenario)
    finally:
        done.set()
        attacker.join()


def test_line_break_in_working_directory_is_rejected(mallory: LinuxAccount) -> None:
    """It once put a line of the attacker into a `passwd` that root wrote."""
    workdir = "/\nroot2::0:0::/:/bin/sh"
    root = a_root_file_system(mallory.home / "lines")
    give(root, mallory)

    async def scenario(rig: Rig) -> None:
        image = f"rootfs:{root}"
        over = await rig.run(work_of(rig, mallory, "line", "true", image=image, workdir=workdir))
        assert not over.ran
        assert "control character" in over.detail
        assert list((root / "etc").iterdir()) == []

    with_launcher(scenario)


def test_image_archive_of_another_user_is_not_opened(
    accounts: tuple[LinuxAccount, LinuxAccount],
) -> None:
    mallory, victim = accounts
    archive = an_image_archive(victim.home / "image.tar", "localhost/private:1", SECRET)
    give(archive, victim)
    archive.chmod(0o600)

    async def scenario(rig: Rig) -> None:
        work = work_of(rig, mallory, "archive", "cat /message", image=f"docker-archive:{archive}")
        over = await rig.run(work)
        assert (over.ran, over.exit_code) == (False, None)
        assert "permission denied" in over.detail
        assert SECRET not in rig.log(work)

    with_launcher(scenario)


def test_image_of_one_user_is_not_run_by_another(
    accounts: tuple[LinuxAccount, LinuxAccount],
) -> None:
    """The attacker's archive has a public name; the victim then asks for that name."""
    mallory, victim = accounts
    archive = an_image_archive(mallory.home / "evil.tar", TAG, "evil")
    give(archive, mallory)

    async def scenario(rig: Rig) -> None:
        mine = work_of(rig, mallory, "evil", "cat /message", image=f"docker-archive:{archive}")
        assert (await rig.run(mine)).exit_code == 0, rig.log(mine)
        assert rig.log(mine).endswith("evil")
        assert (mallory.home / USER_STORE / "overlay-images").is_dir()
        again = work_of(rig, mallory, "again", "cat /message", image=TAG)
        assert (await rig.run(again)).exit_code == 0
        assert rig.log(again) == "evil"
        theirs = work_of(rig, victim, "fooled", "cat /message", image=TAG)
        assert (await rig.run(theirs)).exit_code != 0
        assert "evil" not in rig.log(theirs)

    with_launcher(scenario)


def test_container_stays_within_limits_of_its_job(mallory: LinuxAccount) -> None:
    """Another GPU's device node, more processes than allowed, a detached process."""

    async def scenario(rig: Rig) -> None:
        limited = work_of(
            rig,
            mallory,
            "limits",
            "id -u; test -c /dev/zero && echo there; (: </dev/zero) && echo opened; "
            "(: </dev/null) && echo null; setsid sleep 1000 & "
            "i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done; echo forked; sleep 1000",
            closed_devices=("/dev/zero",),
            max_processes=40,
            grace_ms=200,
        )
        await start_until(rig, limited, "fork")
        await rig.launcher.stop(limited.allocation_id, 0, "cancelled")
        over = await rig.over(limited.allocation_id)
        log = rig.log(limited)
        assert over.stopped_by == "cancelled"
        assert log.startswith(f"{mallory.uid}\n")
        assert "there\n" in log
        assert "null\n" in log
        assert "opened" not in log
        if rig.launcher.capabilities["processes"] != "none":
            assert "can't fork" in log
            assert "forked" not in log
        assert [pid for pid in processes_of(mallory.uid) if is_alive(pid)] == []

    with_launcher(scenario)


def test_container_runs_within_process_limit_of_its_user(mallory: LinuxAccount) -> None:
    """Podman asked for more processes than its user may have, and every container failed."""

    async def scenario(rig: Rig) -> None:
        work = work_of(rig, mallory, "user", "cat /proc/self/limits", max_user_processes=900)
        assert (await rig.run(work)).exit_code == 0, rig.log(work)
        limits = [line.split() for line in rig.log(work).splitlines()]
        assert ["Max", "processes", "900", "900", "processes"] in limits

    with_launcher(scenario)


@pytest.mark.parametrize("engine_user", ["job", "root"])
def test_container_gets_gpu_by_specification_of_vendor_and_no_other(
    mallory: LinuxAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine_user: str
) -> None:
    """The test makes the specification, and two device nodes like /dev/full as GPUs."""
    names = [f"GPU-{NAME}-{engine_user}-{number}" for number in range(2)]
    nodes = [Path(f"/dev/{name}") for name in names]
    edits = [
        {"deviceNodes": [{"path": str(node)}], "env": [f"CDI{number}=1"]}
        for number, node in enumerate(nodes)
    ]
    devices = [
        {"name": name, "containerEdits": edit} for name, edit in zip(names, edits, strict=True)
    ]
    text = json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})
    image = "registry.example.org/ml/torch:1"
    root = a_root_file_system(tmp_path / "root")
    an_engine(monkeypatch, tmp_path, "true")
    if engine_user == "root":
        replace_image(tmp_path / "podman", image, root)

    async def scenario(rig: Rig) -> None:
        script = f"test -c {nodes[0]} && (: <{nodes[0]}) && echo mine $CDI0; ls {nodes[1]}; env"
        more: dict[str, Any] = {"engine_user": engine_user}
        if engine_user == "root":
            more |= {"image": image, "allowed_images": (image,)}
        device = WorkDevice(index=0, uuid=names[0], path=str(nodes[0]))
        work = work_of(rig, mallory, f"cdi-{engine_user}", script, devices=(device,), **more)
        await rig.run(work)
        assert "mine 1\n" in rig.log(work), rig.log(work)
        assert "No such file" in rig.log(work)
        assert "CDI1" not in rig.log(work)

    place = Path("/etc/cdi")
    was_there = place.exists()
    place.mkdir(exist_ok=True)
    file = place / f"{NAME}-{engine_user}.json"
    file.write_text(text, encoding="utf-8")
    for node in nodes:
        os.mknod(node, stat.S_IFCHR, Path("/dev/full").stat().st_rdev)
        node.chmod(0o666)
    try:
        with_launcher(scenario)
    finally:
        for path in (file, *nodes):
            path.unlink()
        if not was_there:
            with contextlib.suppress(OSError):
                place.rmdir()


def test_container_cannot_see_state_of_its_engine(mallory: LinuxAccount) -> None:
    """Else an image could leave its container by a changed configuration of podman."""

    async def scenario(rig: Rig) -> None:
        script = (
            "d=${TGPU_STOP_FILE%/*}/podman; cat $d/containers.conf; touch $d/x && echo wrote; "
            "rm -rf $d && echo removed; ls -d $d"
        )
        work = work_of(rig, mallory, "state", script)
        await rig.run(work)
        assert "lock_type" not in rig.log(work)
        assert not {"wrote", "removed"} & set(rig.log(work).split())
        assert "/podman\n" in rig.log(work)

    with_launcher(scenario)


def test_engine_that_cannot_work_fails_job_at_once_with_its_own_words(
    mallory: LinuxAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig) -> None:
        over = await rig.run(work_of(rig, mallory, "broken", "true"))
        assert (over.ran, over.exit_code) == (False, None)
        assert over.detail == f"{words}; {SEE_DOCTOR}"

    words = "Error: command required for rootless mode: newuidmap not found"
    an_engine(monkeypatch, tmp_path, f'echo "{words}" >&2; exit 125')(scenario)


def test_workdir_that_image_does_not_have_is_no_error_of_engine(mallory: LinuxAccount) -> None:
    async def scenario(rig: Rig) -> None:
        over = await rig.run(work_of(rig, mallory, "absent", "true", workdir="/absent"))
        assert (over.ran, over.exit_code) == (False, None)
        assert "/absent" in over.detail
        assert SEE_DOCTOR not in over.detail

    with_launcher(scenario)


@pytest.mark.slow
def test_engine_that_hangs_before_it_begins_container_ends_job_by_timeout(
    mallory: LinuxAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig) -> None:
        work = work_of(rig, mallory, "hangs", "true", engine_timeout_ms=1_500, grace_ms=200)
        over = await rig.run(work)
        assert (over.ran, over.stopped_by) == (False, "not_begun")
        assert over.detail == "podman hung before it began the container: it did nothing for 1.5 s"
        assert [pid for pid in processes_of(mallory.uid) if is_alive(pid)] == []

    an_engine(monkeypatch, tmp_path, "exec sleep 1000")(scenario)


@pytest.mark.slow
def test_engine_that_takes_long_before_it_begins_container_is_left_alone(
    mallory: LinuxAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It reads for more than two timeouts, as a pull or a copy does."""
    busy = (
        "import sys, time\n"
        "until = time.monotonic() + 8\n"
        "with open('/dev/zero', 'rb', buffering=0) as zero:\n"
        "    while time.monotonic() < until:\n"
        "        zero.read(65536)\n"
        "        time.sleep(0.05)\n"
    )
    (tmp_path / "busy.py").write_text(busy, encoding="utf-8")

    async def scenario(rig: Rig) -> None:
        work = work_of(rig, mallory, "busy", "echo begun", engine_timeout_ms=3_000)
        over = await rig.run(work)
        assert (over.ran, over.exit_code, rig.log(work)) == (True, 0, "begun\n")

    an_engine(monkeypatch, tmp_path, f"/usr/bin/env python3 {tmp_path}/busy.py")(scenario)


def phases_of(rig: Rig, work: Work) -> list[str]:
    """How far the engine was, by the launcher's reports."""
    found = [one for one in rig.said if isinstance(one, Container)]
    return [one.phase for one in found if one.allocation_id == work.allocation_id]


def test_pull_and_creation_of_container_are_reported(
    mallory: LinuxAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = an_image_archive(mallory.home / "slow.tar", "docker.io/library/slow:1", "slow")
    give(archive, mallory)

    async def scenario(rig: Rig) -> None:
        work = work_of(rig, mallory, "slow", "cat /message", image=f"docker-archive:{archive}")
        await rig.launcher.start(work)
        for phase, gate in (("pulling", "pull"), ("creating", "run")):
            await rig.until(lambda phase=phase: phases_of(rig, work)[-1:] == [phase])
            (tmp_path / gate).touch()
        over = await rig.over(work.allocation_id)
        assert (over.exit_code, rig.log(work).endswith("slow")) == (0, True), rig.log(work)
        assert phases_of(rig, work)[:2] == ["pulling", "creating"]

    wait = f"until test -e {tmp_path}/$gate; do sleep 0.1; done"
    gates = f'case " $* " in *" pull "*) gate=pull; {wait};; *" run "*) gate=run; {wait};; esac'
    with_it = an_engine(monkeypatch, tmp_path, "true")
    engine = tmp_path / "podman"
    first, rest = engine.read_text(encoding="utf-8").split("\n", 1)
    engine.write_text(f"{first}\n{gates}\n{rest}", encoding="utf-8")
    with_it(scenario)


# --- an engine of root, which a site has to choose


def test_pull_by_engine_of_root_is_reported_until_container_begins(
    mallory: LinuxAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = "registry.example.org/ml/absent:1"
    an_engine(monkeypatch, tmp_path, "true")
    wait = f"until test -e {tmp_path}/run; do sleep 0.1; done"
    replace_image(tmp_path / "podman", image, a_root_file_system(tmp_path / "r"), before_run=wait)

    async def scenario(rig: Rig) -> None:
        work = rootful(rig, mallory, "pull", "sleep 1000", image=image, allowed_images=(image,))
        await rig.launcher.start(work)
        await rig.until(lambda: phases_of(rig, work) == ["pulling"])
        (tmp_path / "run").touch()
        await rig.until(lambda: phases_of(rig, work) == ["pulling", "begun"])

    with_launcher(scenario)


def rootful(rig: Rig, user: LinuxAccount, name: str, script: str, **more: Any) -> Work:
    return work_of(rig, user, name, script, engine_user="root", **more)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("rootfs:/srv/root", "rootless podman"),
        ("docker-archive:/srv/image.tar", "full name"),
        ("oci:/srv/image", "full name"),
        ("dir:/srv/image", "full name"),
        ("containers-storage:registry.example.org/ml/torch", "full name"),
        ("docker://registry.example.org/ml/torch", "full name"),
        ("registry.example.org:/ml/torch", "full name"),
        ("alpine", "full name"),
        ("localhost/torch", "full name"),
        ("registry.example.com/ml/torch", "container_allowed_images"),
    ],
)
def test_engine_of_root_takes_only_listed_registry_names(
    mallory: LinuxAccount, image: str, reason: str
) -> None:
    async def scenario(rig: Rig) -> None:
        allowed = ("registry.example.org/*",)
        work = rootful(rig, mallory, "listed", "true", image=image, allowed_images=allowed)
        over: Over = await rig.run(work)
        assert not over.ran
        assert reason in over.detail

    with_launcher(scenario)


def test_engine_of_root_gets_mounts_as_user_opened_them(
    accounts: tuple[LinuxAccount, LinuxAccount], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The image is replaced by a root file system below this check: no registry is here."""
    mallory, victim = accounts
    place = mallory.home / "staged"
    place.mkdir()
    (place / "secret").write_text("mallory's own", encoding="utf-8")
    give(place, mallory)
    root = a_root_file_system(tmp_path / "root")
    image = "registry.example.org/ml/torch:1"

    async def scenario(rig: Rig) -> None:
        mounts = ((str(place), "/in", True),)
        allowed = {"image": image, "allowed_images": (image,)}
        work = rootful(rig, mallory, "staged", "cat /in/secret", mounts=mounts, **allowed)
        over = await rig.run(work)
        assert place.is_symlink()
        assert (over.exit_code, rig.log(work)) == (0, "mallory's own")
        assert not list(Path(STAGE).glob(f"*{NAME}-staged*"))
        mounts = ((str(victim.home / "inside"), "/in", True),)
        forbidden = rootful(rig, mallory, "forbidden", "cat /in/secret", mounts=mounts, **allowed)
        assert "permission denied" in (await rig.run(forbidden)).detail
        assert not list(Path(STAGE).glob(f"*{NAME}-forbidden*"))

    an_engine(monkeypatch, tmp_path, "true")
    swap = f"mv {place} {place}.old; ln -s {victim.home}/inside {place}"
    replace_image(tmp_path / "podman", image, root, before_run=swap)
    with_launcher(scenario)


def test_tag_that_moves_between_attempts_does_not_change_image(
    mallory: LinuxAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root's store has pulled the new meaning of the tag before the second attempt."""
    real = shutil.which("podman")
    make_reachable(tmp_path)
    store = Path(tempfile.mkdtemp(prefix="pin-"))  # short: podman takes at most 50 characters
    insecure = tmp_path / "registries.conf"
    places = f"--storage-driver vfs --root {store}/root --runroot {store}/run"
    script = f'#!/bin/sh\nexport CONTAINERS_REGISTRIES_CONF={insecure}\nexec {real} {places} "$@"\n'
    (tmp_path / "podman").write_text(script, encoding="utf-8")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if not ContainerRunner().is_podman:
        pytest.skip("root's engine is docker on this machine")

    async def attempt(rig: Rig, name: str, **more: Any) -> tuple[str, Over]:
        image = f"{registry.name}:1"
        work = rootful(
            rig, mallory, name, "cat /message", image=image, allowed_images=(image,), **more
        )
        over = await rig.run(work)
        return rig.log(work).splitlines()[-1], over

    async def scenario(rig: Rig) -> None:
        first = registry.push("1", "first")
        said, over = await attempt(rig, "pin1")
        assert (said, over.exit_code, over.image_digest) == ("first", 0, first)
        registry.push("1", "second")
        await command("podman", "pull", f"{registry.name}:1")
        said, _ = await attempt(rig, "pin2")
        assert said == "second"
        said, over = await attempt(rig, "pin3", image_digest=first)
        assert (said, over.exit_code, over.image_digest) == ("first", 0, first)

    try:
        with a_registry("ml/torch") as registry:
            address = registry.name.partition("/")[0]
            text = f'[[registry]]\nlocation = "{address}"\ninsecure = true\n'
            insecure.write_text(text, encoding="utf-8")
            with_launcher(scenario)
    finally:
        shutil.rmtree(store, ignore_errors=True)


def test_staged_mounts_are_gone_from_mount_table() -> None:
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert f"{STAGE}/tgpu-{NAME}" not in table


# --- tgpu doctor


def test_trial_container_of_doctor_works_and_leaves_nothing(mallory: LinuxAccount) -> None:
    user = pwd.getpwnam(mallory.name)
    assert run_trial(user) == ""
    assert [pid for pid in processes_of(mallory.uid) if is_alive(pid)] == []


TRIAL_AS_USER = """
import encodings.ascii, os, sys
from gpu_scheduler.cli.admin.container_trial import run_trial, trial_user
name, uid, gid, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.environ.clear()
os.environ.update(HOME=place, TMPDIR=place, XDG_RUNTIME_DIR=place, PATH="/usr/sbin:/usr/bin:/bin")
os.initgroups(name, gid)
os.setgid(gid)
os.setuid(uid)
print(repr(run_trial(trial_user())))
"""


def test_trial_container_that_user_runs_leaves_nothing(mallory: LinuxAccount) -> None:
    with tempfile.TemporaryDirectory(prefix="u-", dir="/tmp") as place:  # short, for podman
        os.chown(place, mallory.uid, mallory.gid)
        words = (mallory.name, str(mallory.uid), str(mallory.gid), place)
        tried = subprocess.run(
            [sys.executable, "-c", TRIAL_AS_USER, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert tried.stdout == "''\n", tried.stderr
        assert list(Path(place).iterdir()) == []
    assert [pid for pid in processes_of(mallory.uid) if is_alive(pid)] == []


def test_trial_container_of_doctor_shows_error_of_engine(
    mallory: LinuxAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    an_engine(monkeypatch, tmp_path, "echo 'Error: no newuidmap' >&2; exit 125")
    assert run_trial(pwd.getpwnam(mallory.name)) == "Error: no newuidmap"
