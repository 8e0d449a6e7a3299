"""Real containers for tests: what they need, and small root file systems and images of busybox."""

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from gpu_scheduler.agent.cgroups import controllers_for_root
from gpu_scheduler.agent.runners.container import NO_CGROUPS, NO_INIT, ContainerRunner, podman_init
from tests import linux_accounts

TOOLS = "sh echo sleep env id cat kill setsid pwd touch test ls ln rm mkdir wc"
DIRECTORIES = ("bin", "etc", "proc", "sys", "dev", "tmp", "run")


@cache
def why_no_containers() -> str:
    """Why root cannot run containers here; empty if it can."""
    if not shutil.which("busybox"):
        return "a static busybox is needed as root file system"
    if os.geteuid() != 0:
        return "containers are tried as root only"
    engine = ContainerRunner()
    if not engine.engine or not engine.is_podman:
        return "podman is not installed"
    if controllers_for_root() is None:
        return NO_CGROUPS
    return "" if podman_init() else NO_INIT


@cache
def why_not_rootless() -> str:
    """Why users cannot run containers here; empty if they can."""
    if not linux_accounts.CAN_MAKE:
        return linux_accounts.WHY_NOT
    if not shutil.which("newuidmap"):
        return "rootless podman needs newuidmap (package uidmap)"
    return why_no_containers()


def a_root_file_system(root: Path) -> Path:
    """Make a root file system with some tools at this path."""
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    for tool in TOOLS.split():
        (root / "bin" / tool).symlink_to("busybox")
    return root


def an_image_archive(path: Path, name: str, message: str) -> Path:
    """Make a `docker-archive` of an image of this name that holds `/message`."""
    _save_image(path, name, message, "docker-archive")
    return path


def _save_image(path: Path, name: str, message: str, form: str) -> None:
    build = Path(tempfile.mkdtemp(prefix="img-"))  # short: podman takes at most 50 characters
    root = a_root_file_system(build / "root")
    (root / "message").write_text(message, encoding="utf-8")
    with tarfile.open(build / "layer.tar", "w") as layer:
        layer.add(root, arcname=".", filter=_of_root)
    places = ("--root", str(build / "store"), "--runroot", str(build / "run"))
    podman = ("podman", "--storage-driver", "vfs", *places)
    _run(*podman, "import", "--quiet", str(build / "layer.tar"), name)
    _run(*podman, "save", "--quiet", "--format", form, "--output", str(path), name)
    shutil.rmtree(build, ignore_errors=True)


class Registry:
    """A registry on a port of this machine, with one repository whose tags can be moved."""

    def __init__(self, repository: str) -> None:
        self.files: dict[str, bytes] = {}
        registry, prefix = self, f"/v2/{repository}"

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.removeprefix(prefix)
                data = b"{}" if self.path == "/v2/" else registry.files.get(path)
                self.send_response(404 if data is None else 200)
                if "/manifests/" in path:
                    kind = "application/vnd.docker.distribution.manifest.v2+json"
                    self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data or b"")

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.name = f"localhost:{self.server.server_port}/{repository}"

    def push(self, tag: str, message: str) -> str:
        """Add an image that holds `/message`, and let the tag mean it; returns its digest."""
        with tempfile.TemporaryDirectory(prefix="push-") as place:
            _save_image(Path(place), f"{self.name}:{tag}", message, "docker-dir")
            for file in Path(place).iterdir():
                self.files[f"/blobs/sha256:{file.name}"] = file.read_bytes()
            manifest = (Path(place) / "manifest.json").read_bytes()
        digest = f"sha256:{sha256(manifest).hexdigest()}"
        self.files |= {f"/manifests/{digest}": manifest, f"/manifests/{tag}": manifest}
        return digest


@contextmanager
def a_registry(repository: str) -> Iterator[Registry]:
    """A running registry."""
    registry = Registry(repository)
    thread = Thread(target=registry.server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        registry.server.shutdown()
        registry.server.server_close()
        thread.join()


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=120)
