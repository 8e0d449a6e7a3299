"""Drivers that are loaded after the agent has started."""

import threading

import pytest

from gpu_scheduler.agent.devices.declared import DeclaredSource
from gpu_scheduler.agent.devices.discovery import (
    DiscoveryOptions,
    EmptySource,
    RetryingSource,
    detect,
    open_source,
)
from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.source import DevicesUnreadable
from tests.fakes.nvml import FakeNvml

HOST = Host(cores=4)
DRIVER_NOT_LOADED = 9


def retrying_source(wanted: DiscoveryOptions) -> RetryingSource:
    return RetryingSource(lambda: detect(wanted, host=HOST))


@pytest.mark.parametrize("method", ["auto", "nvml"])
def test_gpus_appear_when_driver_is_loaded(fake_nvml: FakeNvml, method: str) -> None:
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    source = retrying_source(DiscoveryOptions(method=method, nvidia_smi="no-such-smi"))
    first = source.find()
    assert (first.devices, first.detection) == ((), "none")
    assert source.read() == []
    fake_nvml.mend()
    then = source.find()
    assert (len(then.devices), then.detection) == (8, "nvml")
    assert len(source.read()) == 8
    source.close()


def test_gpus_added_to_empty_driver_appear(fake_nvml: FakeNvml) -> None:
    fake_nvml.set(count=0)
    source = retrying_source(DiscoveryOptions(nvidia_smi="no-such-smi"))
    assert source.find().devices == ()
    fake_nvml.set(count=8)
    assert len(source.find().devices) == 8
    source.close()


def test_hanging_driver_uses_one_thread_despite_retries(
    fake_nvml: FakeNvml,
) -> None:
    fake_nvml.hang("nvmlInitWithFlags")
    source = retrying_source(DiscoveryOptions(method="nvml", find_deadline_s=2))
    assert source.find().devices == ()
    for _ in range(3):
        with pytest.raises(DevicesUnreadable, match="earlier question"):
            source.find()
    (hanging,) = [one for one in threading.enumerate() if one.name == "devices"]
    fake_nvml.mend()
    hanging.join(60)
    assert len(source.find().devices) == 8
    source.close()


def test_only_hardware_methods_are_retried() -> None:
    assert isinstance(open_source(DiscoveryOptions(method="none")), EmptySource)
    for wanted in (
        DiscoveryOptions(declared="2xL4"),
        DiscoveryOptions(method="declared", declared="2xL4"),
    ):
        assert isinstance(open_source(wanted), DeclaredSource)
