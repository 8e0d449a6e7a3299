"""Every test here can have GPUs that are not there."""

from tests.fakes.nvml import fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]
