"""A real server that discovers its GPUs through a fake NVML library."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.fakes.nvml import FakeNvml, fake_nvml, fake_nvml_library

__all__ = ["a_box", "box", "fake_nvml", "fake_nvml_library"]


@pytest.fixture
def box(fake_nvml: FakeNvml) -> Iterator[tuple[RealServer, FakeNvml]]:
    """A server that discovers eight A100 by NVML."""
    fake_nvml.a100s(8)
    with a_box(fake_nvml) as found:
        yield found


@contextmanager
def a_box(fake_nvml: FakeNvml) -> Iterator[tuple[RealServer, FakeNvml]]:
    """A server on a machine with the GPUs of the fake library."""
    with a_state_dir() as state_dir:
        server = RealServer(state_dir)
        server.environment |= {
            "LD_LIBRARY_PATH": fake_nvml.env["LD_LIBRARY_PATH"],
            "FAKE_NVML_STATE": fake_nvml.env["FAKE_NVML_STATE"],
            "GPU_SCHEDULER_GPU_MONITOR_INTERVAL_S": "0.1",
            "GPU_SCHEDULER_GPU_UTILIZATION_WINDOW_S": "1",
        }
        server.tgpu("up", "--daemon", "--state-dir", state_dir)
        yield server, fake_nvml
        server.stop()
