"""Podman as the job's user: the shell script that finds the image and runs the container.

Work and the options of `podman run` come in, a command line goes out. It runs as the job's user
inside the job's control group. Podman cannot leave that group without root, so the limits, the
device filter and the kill of the group also hold for the container. Nothing here runs as root:
whatever a path, a link or an image means, it means that to the job's user alone.

Every job has its own podman state in its scratch directory (containers, locks, the process that
holds the user namespace); it ends and is removed with the job, and the container cannot see it.
Images are pulled into a store in the user's home directory, which all jobs of that user read,
beside the site's read-only stores.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from contextlib import suppress

from gpu_scheduler.agent.launcher_protocol import Work

STATE = "podman"
"""The directory of podman's state, in the scratch directory."""
EXIT_FILE = "exit"
"""In that directory: the exit code of podman, for a launcher that did not see it end."""
PID_FILE = "pid"
"""In that directory: exists if the container has started."""
PULLING_FILE = "pulling"
"""In that directory: exists while podman pulls the image."""
USER_STORE = ".local/share/tgpu/images"
"""In the home directory: what jobs have pulled."""
PODMAN_STORE = ".local/share/containers/storage"
"""In the home directory: what the user has pulled or built with podman."""
_RUN_DIRECTORY = "run"
_SAFE_DIRECTORY = 0o040000
ENGINE_FAILED = 125
"""Podman's exit code for an error of its own."""
_CONFIG = """[containers]
pids_limit = 0
log_driver = "none"
[engine]
lock_type = "file"
events_logger = "none"
cgroup_manager = "cgroupfs"
"""
"""Locks in files: those in shared memory belong to all podman processes of a user together."""
_BEGIN = """umask 077
mkdir -p "$STATE/{run}" && printf %s "$CONFIG" >"$CONTAINERS_CONF" || exit 125
unset CONFIG
"""
_FIND_IMAGE = """store=$HOME/{user_store}
mkdir -p "$store" 2>/dev/null && test -w "$store" || store=$STATE/images
own=$HOME/{podman_store}
test -r "$own/overlay-images" || own=
mkdir -p "$store" || exit 125
podman() {{
    command {engine} --storage-opt "additionalimagestore=$store" {site_stores} \
${{own:+--storage-opt}} ${{own:+"additionalimagestore=$own"}} "$@"
}}
image={image}
if ! podman image exists "$image" </dev/null 2>/dev/null; then
    echo "tgpu: pulling the image $image" >&2
    : >"$STATE/{pulling_file}"
    rm -rf "$store/libpod"
    pulled=$(command {store_engine} --root "$store" --runroot {run}/s --tmpdir {run}/t \
pull --quiet "$image" </dev/null) || exit 125
    rm -f "$STATE/{pulling_file}"
    image=${{pulled##*[!0-9a-f]}}
fi
set -- --pull=never -- "$image" "$@"
"""
"""The database in the store is of containers, which it never holds, and names another job's paths.
"""
_FIND_ROOT = """podman() {{ command {engine} "$@"; }}
set -- --rootfs -- {root} "$@"
"""
_RUN = """podman run --pidfile "$STATE/{pid_file}" {options} "$@"
code=$?
echo $code >"$STATE/{exit_file}"
exit $code
"""


def environment(work: Work) -> dict[str, str]:
    """The environment of podman, which is not that of the job."""
    state = f"{work.scratch_dir}/{STATE}"
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": work.environment.get("HOME") or "/",
        "XDG_RUNTIME_DIR": run_directory(work),
        "CONTAINERS_CONF": f"{state}/containers.conf",
        "STATE": state,
        "CONFIG": _CONFIG,
    }


def engine(work: Work, podman: tuple[str, ...]) -> tuple[str, ...]:
    """Podman with the state of this job."""
    run = run_directory(work)
    root = f"{work.scratch_dir}/{STATE}/root"
    return (*podman, "--root", root, "--runroot", f"{run}/c", "--tmpdir", f"{run}/t")


def run_directory(work: Work) -> str:
    """A short link to the runtime directory in the state: podman takes at most 50 characters."""
    name = hashlib.sha256(work.scratch_dir.encode()).hexdigest()[:12]
    return f"{_links_directory()}/{name}"


def make_run_link(work: Work) -> None:
    """Make that link, in a directory in which no other user can write."""
    links = _links_directory()
    with suppress(FileExistsError):
        os.mkdir(links, 0o755)
    status = os.lstat(links)
    if status.st_uid != os.geteuid() or status.st_mode & 0o170022 != _SAFE_DIRECTORY:
        raise PermissionError(f"{links} must be a directory that only its owner can write")
    remove_run_link(work)
    os.symlink(f"{work.scratch_dir}/{STATE}/{_RUN_DIRECTORY}", run_directory(work))


def remove_run_link(work: Work) -> None:
    """Remove the link again."""
    with suppress(OSError):
        os.unlink(run_directory(work))


def _links_directory() -> str:
    if os.geteuid() == 0:
        return "/run/tgpu"
    return f"{os.environ.get('XDG_RUNTIME_DIR') or '/tmp'}/tgpu-{os.geteuid()}"  # noqa: S108


def run_command(
    work: Work,
    podman: tuple[str, ...],
    options: tuple[str, ...],
    argv: tuple[str, ...],
    *,
    root: str = "",
) -> tuple[str, ...]:
    """The command that runs `argv` in the work's image, or in the root file system `root`.

    The arguments of the job are not part of the script: a single argument has a limited length.
    """
    words = shlex.join(engine(work, podman))
    if root:
        find = _FIND_ROOT.format(engine=words, root=shlex.quote(root))
    else:
        stores = [
            part
            for store in work.image_stores
            for part in ("--storage-opt", f"additionalimagestore={store}")
        ]
        find = _FIND_IMAGE.format(
            user_store=USER_STORE,
            pulling_file=PULLING_FILE,
            podman_store=PODMAN_STORE,
            engine=words,
            store_engine=shlex.join(podman),
            run=run_directory(work),
            site_stores=shlex.join(stores),
            image=shlex.quote(work.image),
        )
    # The container shares the scratch directory, but must not see podman's state in it.
    hidden = f"type=tmpfs,destination={work.scratch_dir}/{STATE},notmpcopyup,ro=true"
    run = _RUN.format(
        pid_file=PID_FILE,
        exit_file=EXIT_FILE,
        options=shlex.join((*options, "--mount", hidden)),
    )
    return ("/bin/sh", "-c", _BEGIN.format(run=_RUN_DIRECTORY) + find + run, "sh", *argv)
