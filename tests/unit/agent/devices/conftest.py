"""Fixtures of a fake NVML driver."""

from tests.fakes.nvml import fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]
