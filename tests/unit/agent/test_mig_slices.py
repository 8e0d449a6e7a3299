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


def test_existing_slices_are_offered_unchanged() -> None:
    found = a_node(p1="a b")
    held = {JOB: {1: Slice("a", "p1")}}
    assert with_lost_slices(found, held) is found
    assert list(lost_slices(found, held)) == []


def test_destroyed_held_slice_stays_in_count_beside_new_ones() -> None:
    held = {JOB: {1: Slice("a", "p3")}, OTHER: {1: Slice("b", "p1")}}
    found = a_node(p1="b c", p3="d")
    assert with_lost_slices(found, held) == a_node(p1="b c", p3="d a")
    assert list(lost_slices(found, held)) == [(JOB, 1, Slice("a", "p3"))]


def test_unsplit_device_stays_split_until_job_ends() -> None:
    held = {JOB: {1: Slice("a", "p3")}}
    assert with_lost_slices(a_node(), held) == a_node(p3="a")
    assert with_lost_slices(a_node(), {}) == a_node()


def test_slice_of_removed_device_is_lost_and_not_offered() -> None:
    found = a_node(p1="b")
    held = {JOB: {7: Slice("a", "p1")}}
    assert with_lost_slices(found, held) == found
    assert list(lost_slices(found, held)) == [(JOB, 7, Slice("a", "p1"))]


def test_slice_known_only_by_name_is_reported_and_not_counted() -> None:
    found = a_node(p1="b")
    held = {JOB: {1: Slice("a")}}
    assert with_lost_slices(found, held) == found
    assert list(lost_slices(found, held)) == [(JOB, 1, Slice("a"))]
