"""A fake libnvidia-ml.so.1: unmodified pynvml and gpustat see GPUs that do not exist.

Give a test the fixture by importing it in a conftest.py beside it:

    from tests.fakes.nvml import fake_nvml, fake_nvml_library

    __all__ = ["fake_nvml", "fake_nvml_library"]

In this process `fake_nvml` is loaded already; for another one start it with `env=fake_nvml.env`.
"""

import ctypes
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")
SWITCHES = ("0000:c4:00.0", "0000:c5:00.0", "0000:c6:00.0")


class FakeNvml:
    """The state that the library reports. Every change is visible to the next call."""

    def __init__(self, library: Path, state: Path) -> None:
        self.library = library
        self.state = state
        self.values: dict[str, str] = {}
        self._events = 0

    @property
    def env(self) -> dict[str, str]:
        """An environment in which other programs load the fake."""
        return os.environ | {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_NVML_STATE": str(self.state),
        }

    def load_here(self) -> None:
        """Make this process load the fake for libnvidia-ml.so.1."""
        library = ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        library.fake_nvml_state(str(self.state).encode())

    def set(self, **values: object) -> None:
        """Set keys of all kinds; None removes one. Dots are written as two underscores."""
        self.change({key.replace("__", "."): value for key, value in values.items()})

    def gpu(self, index: int, **values: object) -> None:
        """Set values of one GPU."""
        self.change({f"gpu.{index}.{key.replace('__', '.')}": v for key, v in values.items()})

    def fail(self, call: str, code: int, *, gpu: int | None = None) -> None:
        """Let a call return an error, on every GPU or on one. '*' with a GPU is every call."""
        self.change({f"error.{call}" if gpu is None else f"error.{call}.{gpu}": code})

    def mend(self) -> None:
        """Remove all errors and hanging calls."""
        keys = [key for key in self.values if key.startswith(("error.", "hang."))]
        self.change(dict.fromkeys(keys))

    def hang(self, call: str) -> None:
        """Block a call until `mend`."""
        self.change({f"hang.{call}": 1})

    def xid(self, gpu: int, code: int) -> None:
        """Let the driver report an error."""
        self._events += 1
        self.change({f"xid.{self._events}": f"{gpu}:{code}"})

    def change(self, values: dict[str, object]) -> None:
        for key, value in values.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = str(value)
        fresh = self.state.with_suffix(".new")
        fresh.write_text("".join(f"{key}={value}\n" for key, value in self.values.items()))
        fresh.replace(self.state)

    def a100s(self, count: int = 8) -> None:
        """A machine with A100-SXM4-80GB GPUs, joined by NVSwitch."""
        values: dict[str, object] = {"count": count}
        for index in range(count):
            values |= {f"gpu.{index}.{key}": value for key, value in _a100(index).items()}
        self.change(values)

    def split(self, index: int, *profiles: str, era: int = 0) -> None:
        """Turn MIG on, with one slice of each profile named; another `era` gives other UUIDs.

        Slices that were at other places are destroyed.
        """
        values: dict[str, object] = dict.fromkeys(self._slices(index))
        values[f"gpu.{index}.mig"] = 1
        for place, profile in enumerate(profiles):
            size_mb = int(profile.partition(".")[2].removesuffix("gb")) * 1024 - 512
            uuid = f"MIG-{index:04d}{place:04d}-58ce-5a9a-8f9a-dbc22a66a{era:03d}"
            values[f"gpu.{index}.slice.{place}"] = f"{profile}|{uuid}|{size_mb}"
        self.change(values)

    def unsplit(self, index: int) -> None:
        """Destroy all slices and turn MIG off."""
        self.change({**dict.fromkeys(self._slices(index)), f"gpu.{index}.mig": 0})

    def _slices(self, index: int) -> list[str]:
        return [key for key in self.values if key.startswith(f"gpu.{index}.slice.")]


def _a100(index: int) -> dict[str, object]:
    facts: dict[str, object] = {
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": f"GPU-{index:08d}-7d19-9063-b049-1e69664bb298",
        "pci": f"0000:{0x07 + 8 * index:02x}:00.0",
        "minor": index,
        "memory_total_mb": 81920,
        "memory_used_mb": 0,
        "memory_reserved_mb": 621,
        "temperature": 30 + index,
        "power_mw": 60_000 + 1000 * index,
        "power_limit_mw": 400_000,
        "utilisation": 0,
        "sm_clock": 210,
        "memory_clock": 1593,
        "throttle": 1,
        "ecc": 0,
        "ecc_corrected": 0,
        "numa": index // 4,
        "cpus": "f0f" if index < 4 else "f0f0",
        "mig": 0,
        "link_mbps": 25781,
    }
    links = {f"link.{link}": SWITCHES[link % len(SWITCHES)] for link in range(12)}
    return facts | links


def built(directory: Path) -> Path:
    """The library, compiled once for all workers of a session."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed, so the fake libnvidia-ml.so.1 cannot be built")
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / "libnvidia-ml.so.1"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            fresh = directory / "fresh.so"
            flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
            soname = "-Wl,-soname,libnvidia-ml.so.1"
            subprocess.run([compiler, *flags, soname, str(SOURCE), "-o", str(fresh)], check=True)
            fresh.replace(library)
    return library


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return built(shared / "fake-nvml")


@pytest.fixture
def fake_nvml(fake_nvml_library: Path, tmp_path: Path) -> Iterator[FakeNvml]:
    """Eight healthy A100, idle."""
    fake = FakeNvml(fake_nvml_library, tmp_path / "nvml.state")
    fake.a100s()
    fake.load_here()
    yield fake
    fake.mend()
