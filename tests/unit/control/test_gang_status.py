"""The status of an attempt from the reports of its members."""

from dataclasses import replace

from gpu_scheduler.control.gang_commit import GangStatus, MemberResult
from gpu_scheduler.control.messages import Ended
from gpu_scheduler.model.launch import EPILOG, PROLOG, HookFailure
from gpu_scheduler.model.plan import Allocation, Rendezvous
from tests.builders import on

WELL = MemberResult(exit_code=0, signal=None)
FAILED = MemberResult(exit_code=3, signal=None)
STOPPED = MemberResult(exit_code=None, signal=15)


def an_allocation(members: int) -> Allocation:
    placements = tuple(replace(on("n0", [i]), member=i) for i in range(members))
    return Allocation(id="j.1", job_id="j", task=None, attempt=1, placements=placements, start_ms=0)


def test_attempt_starts_with_its_last_member() -> None:
    members, gang = GangStatus(), an_allocation(3)
    assert [members.on_started(gang, member) for member in (0, 2, 2, 1)] == [
        False,
        False,
        False,
        True,
    ]


def test_attempt_ends_with_its_last_member() -> None:
    members, gang = GangStatus(), an_allocation(2)
    assert members.on_ended(gang, 0, WELL) is None
    assert members.to_stop(gang) == []
    assert members.on_ended(gang, 1, WELL) == Ended("j.1", exit_code=0)


def test_attempt_end_time_is_that_of_last_member_in_any_report_order() -> None:
    members, gang = GangStatus(), an_allocation(2)
    members.on_ended(gang, 0, replace(WELL, ended_ms=900, run_ms=50))
    ended = members.on_ended(gang, 1, replace(WELL, ended_ms=300, run_ms=70))
    assert ended == Ended("j.1", exit_code=0, at_ms=900, run_ms=70)
    members.forget("j.1")
    members.on_ended(gang, 0, replace(WELL, ended_ms=900))
    assert members.on_ended(gang, 1, WELL) == Ended("j.1", exit_code=0)


def test_attempt_counts_as_stopped_if_any_member_was() -> None:
    members, gang = GangStatus(), an_allocation(2)
    assert members.on_ended(gang, 1, replace(WELL, stopped_by="preempted")) is None
    assert members.on_ended(gang, 0, WELL) == Ended("j.1", exit_code=0, stopped_by="preempted")


def test_failed_member_stops_others_once_and_its_failure_counts() -> None:
    members, gang = GangStatus(), an_allocation(3)
    assert members.on_ended(gang, 1, FAILED) is None
    assert members.to_stop(gang) == [0, 2]
    assert members.to_stop(gang) == []
    assert members.on_ended(gang, 0, STOPPED) is None
    blamed = "member 1 on n0: exit code 3"
    assert members.on_ended(gang, 2, STOPPED) == Ended("j.1", exit_code=3, detail=blamed)


def test_first_failed_member_decides_result_in_any_report_order() -> None:
    members, gang = GangStatus(), an_allocation(3)
    stopped = replace(STOPPED, stopped_by="gang", at_ms=30)
    assert members.on_ended(gang, 0, stopped) is None
    assert members.on_ended(gang, 1, replace(FAILED, exit_code=4, at_ms=20)) is None
    ended = members.on_ended(gang, 2, replace(FAILED, at_ms=10))
    assert ended == Ended("j.1", exit_code=3, detail="member 2 on n0: exit code 3")


def test_stop_is_repeated_for_members_of_reconnected_agent() -> None:
    members, gang = GangStatus(), an_allocation(3)
    assert members.on_ended(gang, 0, WELL) is None
    assert members.to_stop_on("n0") == []
    members.on_ended(gang, 1, FAILED)
    assert members.to_stop(gang) == [2]
    assert members.to_stop_on("n0") == [("j.1", 2)]
    assert members.to_stop_on("n1") == []
    members.on_ended(gang, 2, STOPPED)
    assert members.to_stop_on("n0") == []


def test_reported_end_is_known_even_if_end_was_known_before() -> None:
    members, gang = GangStatus(), an_allocation(2)
    assert members.places("j.1") == []
    members.on_ended(gang, 0, FAILED)
    assert members.places("j.1") == [(0, "n0", False), (1, "n0", False)]
    members.on_ended(gang, 0, replace(FAILED, is_reported=True))
    assert members.places("j.1") == [(0, "n0", True), (1, "n0", False)]


def test_repeated_member_report_changes_nothing() -> None:
    members, gang = GangStatus(), an_allocation(2)
    members.on_ended(gang, 0, FAILED)
    assert members.on_ended(gang, 0, WELL) is None
    ended = members.on_ended(gang, 1, WELL)
    assert ended == Ended("j.1", exit_code=3, detail="member 0 on n0: exit code 3")


def test_unobserved_end_is_not_success() -> None:
    members, alone = GangStatus(), an_allocation(1)
    unknown = MemberResult(exit_code=None, signal=None, detail="the launcher had died")
    ended = members.on_ended(alone, 0, unknown)
    assert ended is not None
    assert (ended.exit_code, ended.detail) == (None, "the launcher had died")


def over_nodes(members: int) -> Allocation:
    placements = tuple(replace(on(f"n{i}", [0]), member=i) for i in range(members))
    return replace(an_allocation(1), placements=placements)


def test_gang_is_prepared_with_last_member_and_uses_port_of_first() -> None:
    members, gang = GangStatus(), over_nodes(3)
    said = [members.on_prepared(gang, number, port) for number, port in ((1, 0), (0, 4711), (1, 0))]
    assert said == [None, None, None]
    assert members.on_prepared(gang, 2, 0) == 4711
    assert members.progress(gang.id) == ([0, 1, 2], [])


def test_prepared_report_of_disconnected_node_does_not_count() -> None:
    members, gang = GangStatus(), over_nodes(2)
    members.on_prepared(gang, 0, 4711)
    members.on_disconnected("n0")
    assert members.on_prepared(gang, 1, 0) is None
    assert members.on_prepared(gang, 0, 4712) == 4712


def test_gang_is_not_prepared_when_prepared_member_has_ended() -> None:
    members, gang = GangStatus(), over_nodes(2)
    members.on_prepared(gang, 0, 4711)
    members.on_ended(gang, 0, replace(FAILED, ran=False, exit_code=None))
    assert members.on_prepared(gang, 1, 0) is None


def test_late_member_is_named_with_node_and_connection_state() -> None:
    members, gang = GangStatus(), over_nodes(3)
    members.on_prepared(gang, 0, 4711)
    late = members.note_late(gang, {"n2"}, 60_000)
    assert late == (
        "member 1 on n1 was not prepared within 60 s; "
        "member 2 on n2 was not prepared within 60 s, and its node does not answer"
    )
    stopped = MemberResult(exit_code=None, signal=None, ran=False, stopped_by="not_begun")
    ends = [members.on_ended(gang, number, stopped) for number in range(3)]
    assert ends[2] is not None
    assert ends[2].detail == late


def test_after_commit_member_that_did_not_start_is_late() -> None:
    members = GangStatus()
    gang = replace(over_nodes(2), rendezvous=Rendezvous(at_ms=5, port=4711, hosts=("a", "b")))
    members.on_started(gang, 0)
    assert members.note_late(gang, (), 1_500) == "member 1 on n1 did not begin within 1.5 s"


# --- hooks

NO_DISK = MemberResult(
    exit_code=None, signal=None, ran=False, detail="the prolog failed", prolog_failed="exit code 3"
)


def test_failed_prolog_is_reported_with_node() -> None:
    ended = GangStatus().on_ended(an_allocation(1), 0, NO_DISK)
    assert ended == Ended(
        "j.1",
        exit_code=None,
        ran=False,
        detail="node n0: the prolog failed",
        hooks=(HookFailure("n0", PROLOG, "exit code 3"),),
    )


def test_failed_prolog_decides_result_of_gang() -> None:
    members, gang = GangStatus(), over_nodes(3)
    earlier = replace(FAILED, exit_code=None, ran=False, detail="no such directory", at_ms=1)
    assert members.on_ended(gang, 0, earlier) is None
    assert members.on_ended(gang, 1, replace(NO_DISK, at_ms=2)) is None
    ended = members.on_ended(gang, 2, replace(STOPPED, stopped_by="gang", epilog_failed="signal 9"))
    assert ended is not None
    assert ended.detail == "member 1 on n1: the prolog failed"
    assert ended.hooks == (
        HookFailure("n1", PROLOG, "exit code 3"),
        HookFailure("n2", EPILOG, "signal 9"),
    )


def test_hook_failure_is_reported_once_per_node() -> None:
    members, gang = GangStatus(), an_allocation(3)
    ends = [members.on_ended(gang, number, NO_DISK) for number in range(3)]
    assert ends[2] is not None
    assert ends[2].hooks == (HookFailure("n0", PROLOG, "exit code 3"),)
