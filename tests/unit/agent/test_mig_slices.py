"""MIG slices that are destroyed while a job holds them."""

from gpu_scheduler.agent.devices.source import DetectedDevice, DetectedSlice, NodeInventory
from gpu_scheduler.agent.jobs.orders import Slice, lost_slices, with_lost_slices

JOB, OTHER = ("job-1.1", 0), ("job-2.1", 0)


def a_node(**uuids: str) -> NodeInventory:
    """Devices 0 (whole) and 1, with slices by profile: `p1g='a b'`."""
    slices = tuple(
        DetectedSlice(profile=profile, uuids=tuple(names.split()))
        for profile, names in uuids.items()
    )
    devices = (DetectedDevice(index=0), DetectedDevice(index=1, mig_slices=slices))
    return NodeInventory(cpu_milli=1000, memory_mb=1000, devices=devices)


def test_what_is_there_is_offered_as_it_is() -> None:
    found = a_node(p1="a b")
    held = {JOB: {1: Slice("a", "p1")}}
    assert with_lost_slices(found, held) is found
    assert list(lost_slices(found, held)) == []


def test_a_slice_that_is_held_and_gone_stays_in_the_count_beside_the_new_ones() -> None:
    held = {JOB: {1: Slice("a", "p3")}, OTHER: {1: Slice("b", "p1")}}
    found = a_node(p1="b c", p3="d")
    assert with_lost_slices(found, held) == a_node(p1="b c", p3="d a")
    assert list(lost_slices(found, held)) == [(JOB, 1, Slice("a", "p3"))]


def test_a_device_that_is_split_no_more_is_split_until_the_job_is_over() -> None:
    held = {JOB: {1: Slice("a", "p3")}}
    assert with_lost_slices(a_node(), held) == a_node(p3="a")
    assert with_lost_slices(a_node(), {}) == a_node()


def test_a_slice_of_a_device_that_is_gone_is_lost_and_not_offered() -> None:
    found = a_node(p1="b")
    held = {JOB: {7: Slice("a", "p1")}}
    assert with_lost_slices(found, held) == found
    assert list(lost_slices(found, held)) == [(JOB, 7, Slice("a", "p1"))]


def test_a_slice_of_which_only_the_name_is_known_is_told_and_not_counted() -> None:
    found = a_node(p1="b")
    held = {JOB: {1: Slice("a")}}
    assert with_lost_slices(found, held) == found
    assert list(lost_slices(found, held)) == [(JOB, 1, Slice("a"))]
