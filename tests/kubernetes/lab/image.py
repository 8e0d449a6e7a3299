"""Container images made of files of this machine, so that tests need neither registry nor builder:
from the static busybox, and our own programs with the Python and the packages that run the tests.
"""

import hashlib
import io
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

BUSYBOX = Path("/usr/bin/busybox")
IMAGE = "localhost/busybox:1"
PAUSE_IMAGE = "localhost/pause:1"
_PROGRAMS = ("sh", "env", "sleep", "cat", "ls", "echo", "true", "false", "kill", "tail")


def write_images(path: Path, scripts: Mapping[str, Mapping[str, str]] | None = None) -> None:
    """Write an archive for `ctr images import`: busybox, pause, and others by name.

    `scripts` are further images: shell scripts in /bin beside busybox, by the name of the image.
    """
    images: dict[str, tuple[list[str], Mapping[str, str]]] = {
        IMAGE: ([], {}),
        PAUSE_IMAGE: (["/bin/sleep", "2147483647"], {}),
        **{name: ([], programs) for name, programs in (scripts or {}).items()},
    }
    manifest = []
    with tarfile.open(path, "w") as archive:
        for name, (entrypoint, programs) in images.items():
            layer = _layer(programs)
            digest = hashlib.sha256(layer).hexdigest()
            _add(archive, f"{digest}.tar", layer)
            config = json.dumps(
                {
                    "architecture": "amd64",
                    "os": "linux",
                    "config": {"Env": ["PATH=/bin"], "Entrypoint": entrypoint or None},
                    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                    "history": [],
                }
            ).encode()
            file = f"{hashlib.sha256(config).hexdigest()}.json"
            _add(archive, file, config)
            manifest.append({"Config": file, "RepoTags": [name], "Layers": [f"{digest}.tar"]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(scripts: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as layer:
        for name in ("bin", "etc", "dev", "proc", "sys", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(folder)
        _add(layer, "bin/busybox", BUSYBOX.read_bytes(), mode=0o755)
        for program in _PROGRAMS:
            link = tarfile.TarInfo(f"bin/{program}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
        for script, text in scripts.items():
            _add(layer, f"bin/{script}", text.encode(), mode=0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    archive.addfile(member, io.BytesIO(content))


# --- our own programs

ROOT = Path(__file__).parents[3]
PINS = ROOT / "requirements" / "kubernetes.txt"
PREFIX = "opt/gpu-scheduler"
"""Where the Dockerfile has the environment of our programs."""
_LEFT_OUT = (
    "test",
    "idlelib",
    "tkinter",
    "_tkinter",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "config-",
)
_VARIABLES = [
    f"PATH=/{PREFIX}/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONUNBUFFERED=1",
    "PYTHONDONTWRITEBYTECODE=1",
]


def write_program_image(path: Path, name: str) -> None:
    """Write an image with scheduler, webhook and agent, laid out as the Dockerfile does it.

    Its packages are those that the Dockerfile installs, from the environment of the tests.
    """
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w") as archive:
        _add_python(archive)
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Env": _VARIABLES,
                "User": "10001:10001",
                "Entrypoint": ["python", "-m", "gpu_scheduler.kubernetes.scheduler"],
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [],
        }
    ).encode()
    file_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": file_name, "RepoTags": [name], "Layers": [f"{digest}.tar"]}]
    with tarfile.open(path, "w") as archive:
        archive.add(layer, f"{digest}.tar")
        _add(archive, file_name, config)
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()


def _add_python(archive: tarfile.TarFile) -> None:
    version = f"python{sysconfig.get_python_version()}"
    python = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    packages = f"{PREFIX}/lib/{version}/site-packages"
    files = {f"usr/local/bin/{version}": python}
    for one in _files_below(library):
        files[f"usr/local/lib/{version}/{one.relative_to(library)}"] = one
    source = ROOT / "src"
    for one in _files_below(source / "gpu_scheduler"):
        files[f"{packages}/{one.relative_to(source)}"] = one
    for name, one in _files_of_packages():
        files[f"{packages}/{name}"] = one
    for one in _shared_libraries([python, *files.values()]):
        files[str(one).lstrip("/")] = one
    for folder in ("tmp", "proc", "sys", "dev", "etc", "run", "var"):
        made = tarfile.TarInfo(folder)
        made.type, made.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(made)
    for name, one in sorted(files.items()):
        # What a link leads to; for every user, because our programs run without root.
        member = tarfile.TarInfo(name)
        stat = one.stat()
        member.size, member.mtime = stat.st_size, int(stat.st_mtime)
        member.mode = 0o755 if stat.st_mode & 0o100 else 0o644
        with one.open("rb") as content:
            archive.addfile(member, content)
    link = tarfile.TarInfo(f"{PREFIX}/bin/python")
    link.type, link.linkname = tarfile.SYMTYPE, f"/usr/local/bin/{version}"
    archive.addfile(link)
    home = "home = /usr/local/bin\ninclude-system-site-packages = false\n"
    _add(archive, f"{PREFIX}/pyvenv.cfg", home.encode())


def _files_below(folder: Path) -> Iterator[Path]:
    for one in folder.rglob("*"):
        parts = one.relative_to(folder).parts
        if one.is_file() and not any(part.startswith(_LEFT_OUT) for part in parts):
            yield one


def _files_of_packages() -> Iterator[tuple[str, Path]]:
    """The files of the pinned packages, by their place in site-packages."""
    for line in PINS.read_text(encoding="utf-8").splitlines():
        found = re.match(r"([A-Za-z0-9._-]+)==", line)
        if found is None:
            continue
        try:
            package = metadata.distribution(found[1])
        except metadata.PackageNotFoundError:
            continue  # of another platform
        for file in package.files or ():
            one = Path(str(file.locate()))
            if ".." in file.parts or not one.is_file():
                continue
            yield str(file), one
            compiled = Path(cache_from_source(one))
            if one.suffix == ".py" and compiled.is_file():
                yield str(Path(file).parent / "__pycache__" / compiled.name), compiled


def _shared_libraries(files: Iterable[Path]) -> set[Path]:
    """What a program and its extension modules load from the system, where they look for it."""
    program, *others = files
    wanted = [program, *(one for one in others if one.suffix == ".so" or ".so." in one.name)]
    done = subprocess.run(["ldd", *wanted], capture_output=True, text=True, check=False)
    found = re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE)
    return {Path(one) for one in found if "/site-packages/" not in one}
