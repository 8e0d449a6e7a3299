"""Advance reservations: GPUs are kept free, used by their owners, and released."""

import pytest

from gpu_scheduler.control.access.permissions import check
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import (
    CancelReservation,
    DeviceSample,
    DevicesSampled,
    NodeLost,
    NodeReported,
    NodeSilent,
    PauseDevice,
    RemoveTenant,
    Reserve,
    SetTenant,
)
from gpu_scheduler.control.restore import restore
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.engine.forecast import forecast
from gpu_scheduler.engine.reservation import reserved_devices
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.errors import Forbidden, QuotaTooSmall, UnknownThing, WrongState
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.plan import ReservationSpec
from tests.builders import Stated, a_job, a_node, a_policy, a_tenant
from tests.scenarios.lab import Lab

H = 3_600_000
MINUTE = 60_000
FAIR = a_policy(name="fair")


def a_lab(**changes: object) -> Lab:
    tenants = (a_tenant(id="vision"), a_tenant(id="nlp"))
    return Lab(policy=FAIR, nodes=[a_node(gpus=4)], tenants=tenants, **changes)  # type: ignore[arg-type]


def keep(lab: Lab, gpus: int = 2, at_h: float = 2, hours: float = 2, **changes: object) -> str:
    start_ms = round(at_h * H)
    wish = ReservationSpec(
        tenant="vision",
        gpus=gpus,
        start_ms=start_ms,
        end_ms=start_ms + round(hours * H),
        **changes,  # type: ignore[arg-type]
    )
    window = lab.tell(Reserve(wish, "root")).advance_reservation
    assert window is not None
    lab.cycle()
    return window.id


def work(
    name: str, tenant: str = "nlp", *, gpus: float = 4, hours: float = 1, **more: object
) -> Job:
    changes: dict[str, object] = {"preemptible": False} | more
    return a_job(
        id=name,
        gpus=gpus,
        tenant=tenant,
        user=f"{tenant}-user",
        max_runtime_ms=round(hours * H),
        estimate_ms=round(hours * H),
        **changes,
    )


def indices(lab: Lab, name: str) -> list[int]:
    return [share.index for p in lab.allocation(name).placements for share in p.devices]


def test_job_that_ends_before_advance_reservation_may_use_its_gpus() -> None:
    lab = a_lab()
    keep(lab)
    lab.submit(work("short", hours=1))
    assert lab.running() == ["short"]


def test_job_whose_limit_overlaps_advance_reservation_does_not_get_its_gpus() -> None:
    lab = a_lab()
    keep(lab)
    lab.submit(work("small", gpus=2, hours=5), work("long", gpus=1, hours=2))
    assert lab.running() == ["small"]
    assert not set(indices(lab, "small")) & {0, 1}


def test_reason_names_reservation_and_its_duration() -> None:
    lab = a_lab()
    keep(lab)
    lab.submit(work("long", hours=2))
    assert lab.last_plan is not None
    reason = explain(lab.core.state.cluster, lab.last_plan, 1)
    assert str(reason) == (
        "2 GPUs are reserved for vision from 1970-01-01 02:00 UTC until 1970-01-01 04:00 UTC "
        "(res-1), and the job may still run then; a shorter --time helps"
    )
    lab.at(3 * H)
    reason = explain(lab.core.state.cluster, lab.last_plan, 1)
    assert str(reason) == "2 GPUs are reserved for vision until 1970-01-01 04:00 UTC (res-1)"


def test_blocked_job_is_forecast_for_end_of_reservation() -> None:
    lab = a_lab()
    keep(lab)
    lab.submit(work("long", hours=3))
    assert forecast(lab.core.state.cluster, lab.now_ms) == {1: 4 * H}
    lab.at(4 * H)
    assert lab.running() == ["long"]


def test_reserved_gpus_are_used_and_preferred_only_by_tenant() -> None:
    lab = a_lab()
    keep(lab, gpu_model="A100", indices=(2, 3))
    lab.at(2 * H)
    lab.submit(work("foreign", gpus=1), work("own", "vision", gpus=1))
    assert indices(lab, "own") == [2]
    assert indices(lab, "foreign")[0] in {0, 1}
    lab.submit(work("more", gpus=2))
    assert "more" not in lab.running()


def test_user_reservation_is_closed_to_other_users_of_tenant() -> None:
    lab = a_lab()
    keep(lab, gpus=4, at_h=0, user="vision-user")
    lab.submit(a_job(id="colleague", tenant="vision", user="somebody", gpus=1))
    lab.submit(work("own", "vision", gpus=1))
    assert lab.running() == ["own"]


def test_tenant_job_may_start_before_reservation_and_stay() -> None:
    lab = a_lab()
    keep(lab, gpus=4)
    lab.submit(work("early", "vision", hours=6))
    assert lab.running() == ["early"]
    lab.at(3 * H)
    assert lab.running() == ["early"]


def test_preemptible_job_backfills_and_is_stopped_before_reservation() -> None:
    lab = a_lab()
    keep(lab, gpus=4)
    lab.submit(a_job(id="gap", tenant="nlp", user="u", gpus=4, estimate_ms=H, max_runtime_ms=9 * H))
    assert lab.running() == ["gap"]
    lab.at(2 * H - 2 * MINUTE)
    assert lab.running() == ["gap"]
    lab.at(2 * H - MINUTE)
    assert lab.running() == []
    assert lab.stopped() == [("gap.1", "preempted")]
    assert lab.state("gap") is JobState.PENDING


def test_preemptible_job_waits_when_backfill_is_off() -> None:
    lab = Lab(
        policy=a_policy(name="fair", fills_gaps=False),
        nodes=[a_node(gpus=4)],
        tenants=[a_tenant(id="vision")],
    )
    keep(lab, gpus=4)
    lab.submit(a_job(id="gap", tenant="nlp", gpus=4, estimate_ms=H, max_runtime_ms=9 * H))
    assert lab.running() == []


def test_cancelled_reservation_frees_its_gpus_at_once() -> None:
    lab = a_lab()
    name = keep(lab)
    lab.submit(work("long", hours=3))
    assert lab.running() == []
    lab.do(CancelReservation(name))
    assert lab.running() == ["long"]
    with pytest.raises(WrongState, match="is over"):
        lab.tell(CancelReservation(name))
    with pytest.raises(UnknownThing, match="res-9"):
        lab.tell(CancelReservation("res-9"))


def test_only_admins_and_tenant_members_cancel_reservation() -> None:
    lab = a_lab()
    name = keep(lab)
    tom = Caller(user="tom", tenants=frozenset({"vision"}), administers=frozenset({"vision"}))
    check(lab.core.state, tom, CancelReservation(name))
    for stranger in ("eve", "mia"):
        with pytest.raises(Forbidden, match=f"'{stranger}' may not cancel reservation '{name}'"):
            check(lab.core.state, Caller(user=stranger), CancelReservation(name))


def test_infeasible_reservation_is_rejected_with_what_would_fit() -> None:
    lab = a_lab()
    lab.submit(work("long", gpus=3, hours=9))
    with pytest.raises(WrongState) as refused:
        keep(lab, gpus=2)
    assert str(refused.value) == (
        "2 GPUs cannot be free at 1970-01-01 02:00 UTC: of 4 that match, 1 can "
        "(3 used by jobs that may run longer); ask for 1 or fewer, or begin at "
        "1970-01-01 09:01 UTC"
    )


def test_preempting_reservation_ignores_preemptible_jobs() -> None:
    lab = a_lab()
    lab.submit(a_job(id="batch", gpus=4, tenant="nlp", estimate_ms=9 * H))
    with pytest.raises(WrongState, match="--preempt"):
        keep(lab)
    keep(lab, preempts=True)
    lab.at(2 * H)
    assert lab.running() == []


def test_overlapping_reservations_share_no_gpu() -> None:
    lab = a_lab()
    keep(lab, gpus=3)
    with pytest.raises(WrongState, match="3 already reserved"):
        keep(lab, gpus=2, at_h=3)
    keep(lab, gpus=4, at_h=4)
    assert list(lab.core.state.cluster.advance_reservations) == ["res-1", "res-2"]


def test_paused_gpus_are_not_reserved() -> None:
    lab = a_lab()
    lab.do(PauseDevice("n0", 0))
    with pytest.raises(WrongState, match="1 paused, unhealthy, drained or not online"):
        keep(lab, gpus=4)
    keep(lab, gpus=3)


def test_reservation_over_tenant_quota_is_rejected() -> None:
    lab = a_lab()
    lab.tell(SetTenant(a_tenant(id="vision", gpus=1)))
    with pytest.raises(QuotaTooSmall, match="may hold 1 GPUs"):
        keep(lab, gpus=2)


def test_reservations_survive_restart() -> None:
    lab = a_lab()
    lab.store.commit(list(lab.core.state.cluster.snapshot().nodes))
    lab.store.commit(list(lab.core.state.cluster.snapshot().tenants))
    keep(lab)
    done = keep(lab, at_h=5)
    lab.do(CancelReservation(done))
    core = Core(FAIR, Stated())
    restore(core.state, lab.store, lab.now_ms)
    assert core.state.cluster.advance_reservations == lab.core.state.cluster.advance_reservations
    assert core.state.past_advance_reservations == lab.core.state.past_advance_reservations
    assert core.state.next_reservation_number == 3
    assert core.next_timer_ms() is not None


def test_reservation_begin_and_end_are_events() -> None:
    lab = a_lab()
    keep(lab)
    lab.at(5 * H)
    kinds = [row.kind for _, row in lab.store.events()]
    assert kinds == ["reservation_made", "reservation_begun", "reservation_ended"]
    assert [window.over_ms for window in lab.store.advance_reservations()] == [4 * H]


def test_gang_is_planned_around_reservation() -> None:
    lab = Lab(policy=FAIR, nodes=[a_node(gpus=2), a_node(ordinal=1, gpus=2)], tenants=[a_tenant()])
    keep(lab, gpus=2)
    lab.submit(work("pair", gpus=2, members=2, hours=3))
    assert lab.running() == []
    assert forecast(lab.core.state.cluster, lab.now_ms) == {1: 4 * H}
    lab.at(4 * H)
    assert lab.running() == ["pair"]


def test_job_waiting_for_end_of_reservation_does_not_block_its_owner() -> None:
    lab = a_lab()
    keep(lab, at_h=0)
    lab.submit(work("wide", hours=1))
    assert [r.at_ms for r in lab.core.state.cluster.reservations.values()] == [2 * H]
    lab.submit(work("own", "vision", gpus=1, hours=9))
    assert lab.running() == ["own"]


def test_long_job_beside_reservation_does_not_block_shorter_one() -> None:
    lab = a_lab()
    keep(lab, gpus=1, at_h=0, hours=20)
    lab.submit(work("first", gpus=2, hours=2))
    lab.submit(work("big", gpus=3, hours=2), work("long", gpus=1, hours=5))
    lab.submit(work("short", gpus=1, hours=1))
    assert lab.running() == ["first", "short"]


def test_rejection_names_feasible_time_and_tries_few_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [a_node(id=f"node-{number}", ordinal=number, gpus=8) for number in range(12)]
    lab = Lab(policy=FAIR, nodes=nodes, tenants=(a_tenant(id="vision"), a_tenant(id="nlp")))
    lab.submit(*(work(f"job-{minute}", gpus=1, hours=1 + minute / 60) for minute in range(96)))
    assert len(lab.running()) == 96
    looks: list[int] = []
    survey = reserved_devices._DeviceSurvey

    def looked(cluster: ClusterState, wish: ReservationSpec, start_ms: int) -> object:
        looks.append(start_ms)
        return survey(cluster, wish, start_ms)

    monkeypatch.setattr(reserved_devices, "_DeviceSurvey", looked)
    with pytest.raises(WrongState, match="begin at 1970-01-01 02:36"):
        keep(lab, gpus=96, at_h=0.5)
    assert len(looks) <= 1 + reserved_devices.MOST_TIMES


def test_tenant_with_reservation_cannot_be_deleted() -> None:
    lab = a_lab()
    kept = keep(lab)
    with pytest.raises(WrongState, match=f"reserved for tenant 'vision' .{kept}.; cancel that"):
        lab.tell(RemoveTenant("vision"))
    lab.tell(RemoveTenant("nlp"))
    lab.tell(CancelReservation(kept))
    lab.tell(RemoveTenant("vision"))
    assert not {"vision", "nlp"} & lab.core.state.cluster.tenants.keys()


# --- devices that break


def sick(lab: Lab, node: str, *indices: int) -> None:
    lab.do(
        DevicesSampled(
            node, tuple(DeviceSample(index=i, healthy=False, why="XID 79") for i in indices)
        )
    )


def two_nodes(**changes: object) -> Lab:
    nodes = [a_node(gpus=4), a_node(ordinal=1, gpus=4, **changes)]
    return Lab(policy=FAIR, nodes=nodes, tenants=(a_tenant(id="vision"), a_tenant(id="nlp")))


def kept(lab: Lab) -> dict[str, tuple[int, ...]]:
    (window,) = lab.core.state.cluster.advance_reservations.values()
    assert [window] == lab.store.advance_reservations()
    return dict(window.devices)


def told(lab: Lab, kind: str) -> list[dict[str, object]]:
    return [dict(row.data) for _, row in lab.store.events() if row.kind == kind]


def test_failed_reserved_gpu_is_replaced_on_same_node() -> None:
    lab = two_nodes()
    keep(lab, gpus=2)
    assert kept(lab) == {"n0": (0, 1)}
    sick(lab, "n0", 1)
    assert kept(lab) == {"n0": (0, 2)}
    (event,) = told(lab, "reservation_changed")
    assert (event["from"], event["to"]) == ("n0[1]", "n0[2]")
    lab.at(2 * H)
    lab.submit(work("mine", "vision", gpus=2))
    lab.cycle()
    assert indices(lab, "mine") == [0, 2]


def test_gpus_of_lost_node_are_replaced_by_same_model_elsewhere() -> None:
    lab = two_nodes()
    keep(lab, gpus=3)
    lab.do(NodeSilent("n0"), NodeLost("n0"))
    assert kept(lab) == {"n1": (0, 1, 2)}
    other = two_nodes(device={"model": "H100"})
    keep(other, gpus=3)
    other.do(NodeSilent("n0"), NodeLost("n0"))
    assert kept(other) == {"n0": (0, 1, 2)}
    (event,) = told(other, "reservation_short")
    assert event["broken"] == "n0[0,1,2]"


def test_explicitly_reserved_gpus_are_not_replaced_and_return_when_healthy() -> None:
    lab = two_nodes()
    keep(lab, gpus=2, node="n0", indices=(0, 1))
    sick(lab, "n0", 0)
    lab.cycle()
    assert kept(lab) == {"n0": (0, 1)}
    assert len(told(lab, "reservation_short")) == 1
    lab.do(DevicesSampled("n0", (DeviceSample(index=0),)))
    assert not lab.core.state.short_advance_reservations


def test_missing_reserved_gpu_is_replaced_as_soon_as_one_is_free() -> None:
    lab = a_lab()
    keep(lab, gpus=4)
    sick(lab, "n0", 3)
    assert kept(lab) == {"n0": (0, 1, 2, 3)}
    fresh = a_node(ordinal=1, gpus=1)
    lab.do(
        NodeReported(
            node_id=fresh.id,
            cpu_milli=fresh.cpu_milli,
            memory_mb=fresh.memory_mb,
            devices=fresh.devices,
        )
    )
    lab.at(2 * MINUTE)
    assert kept(lab) == {"n0": (0, 1, 2), "n1": (0,)}


def test_only_preempting_reservation_stops_job_on_replacement_gpu() -> None:
    for preempts in (False, True):
        lab = a_lab()
        window = keep(lab, gpus=2, at_h=0, preempts=preempts)
        lab.submit(work("filler", gpus=2, hours=8, preemptible=True))
        lab.cycle()
        assert indices(lab, "filler") == [2, 3]
        sick(lab, "n0", 1)
        assert bool(lab.stopped()) is preempts
        assert (window in lab.core.state.short_advance_reservations) is not preempts
