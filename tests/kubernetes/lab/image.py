"""Container images from the static busybox of this machine, so that tests need no registry."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
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
