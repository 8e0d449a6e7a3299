"""From members to attempts."""

from dataclasses import replace

from gpu_scheduler.control.members import MemberEnd, Members
from gpu_scheduler.control.messages import Ended
from gpu_scheduler.model.allocation import Allocation
from tests.builders import on

WELL = MemberEnd(exit_code=0, signal=None)
FAILED = MemberEnd(exit_code=3, signal=None)
STOPPED = MemberEnd(exit_code=None, signal=15)


def an_allocation(members: int) -> Allocation:
    placements = tuple(replace(on("n0", [i]), member=i) for i in range(members))
    return Allocation(id="j.1", job_id="j", task=None, attempt=1, placements=placements, start_ms=0)


def test_an_attempt_has_begun_when_its_last_member_has() -> None:
    members, gang = Members(), an_allocation(3)
    assert [members.began(gang, member) for member in (0, 2, 2, 1)] == [False, False, False, True]


def test_an_attempt_is_over_when_its_last_member_is() -> None:
    members, gang = Members(), an_allocation(2)
    assert members.over(gang, 0, WELL) is None
    assert members.to_stop(gang) == []
    assert members.over(gang, 1, WELL) == Ended("j.1", exit_code=0)


def test_when_one_member_fails_the_others_are_stopped_once_and_its_failure_counts() -> None:
    members, gang = Members(), an_allocation(3)
    assert members.over(gang, 1, FAILED) is None
    assert members.to_stop(gang) == [0, 2]
    assert members.to_stop(gang) == []
    assert members.over(gang, 0, STOPPED) is None
    assert members.over(gang, 2, STOPPED) == Ended("j.1", exit_code=3)


def test_the_member_that_failed_by_itself_decides_also_when_its_end_is_told_last() -> None:
    members, gang = Members(), an_allocation(3)
    stopped = replace(STOPPED, stopped_by="gang", at_ms=30)
    assert members.over(gang, 0, stopped) is None
    assert members.over(gang, 1, replace(FAILED, exit_code=4, at_ms=20)) is None
    assert members.over(gang, 2, replace(FAILED, at_ms=10)) == Ended("j.1", exit_code=3)


def test_members_that_must_stop_are_told_again_when_their_agent_has_come_back() -> None:
    members, gang = Members(), an_allocation(3)
    members.over(gang, 1, FAILED)
    assert members.to_stop(gang) == [0, 2]
    members.reconnected()
    members.over(gang, 1, FAILED)
    assert members.to_stop(gang) == [0, 2]


def test_a_repeated_report_changes_nothing() -> None:
    members, gang = Members(), an_allocation(2)
    members.over(gang, 0, FAILED)
    assert members.over(gang, 0, WELL) is None
    assert members.over(gang, 1, WELL) == Ended("j.1", exit_code=3)


def test_an_end_that_nobody_saw_is_not_a_success() -> None:
    members, alone = Members(), an_allocation(1)
    unknown = MemberEnd(exit_code=None, signal=None, detail="the launcher had died")
    ended = members.over(alone, 0, unknown)
    assert ended is not None
    assert (ended.exit_code, ended.detail) == (None, "the launcher had died")
