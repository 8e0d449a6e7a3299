"""Services keep their number of replicas."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.api.routes.services import is_reached
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import (
    Cancel,
    Command,
    CreateService,
    DeleteService,
    Drain,
    Ended,
    Fact,
    NodeFenced,
    NodeReported,
    NodeSilent,
    ReplicaChecked,
    Retry,
    ScaleService,
    SetNode,
    Started,
    Update,
    UpdateService,
)
from gpu_scheduler.control.restore import restore
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.errors import (
    AlreadyExists,
    Forbidden,
    InvalidRequest,
    NeverFits,
    SchedulerError,
    UnknownThing,
    WrongState,
)
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.launch import Launch, Probe, ProbeKind
from gpu_scheduler.model.service import Replica, Restart, RestartRule, Service
from gpu_scheduler.predict.preemption_risk import LEAST
from tests.builders import HOUR, MINUTE, SECOND, a_cluster, a_core, a_job, a_node, a_tenant
from tests.scenarios.lab import Lab

HTTP = Probe(kind=ProbeKind.HTTP, path="/health")


def a_service(*, name: str = "web", gpus: float = 1, **changes: Any) -> Service:
    """Service `web` of `ada`, with one replica of one GPU that is ready when it runs."""
    job = replace(a_job(gpus=gpus), id="", max_runtime_ms=0)
    values = {"probe": None} | changes
    return Service(
        id="",
        number=0,
        name=name,
        tenant=job.tenant,
        user=job.user,
        job=job,
        launch=Launch(argv=("serve",), user=job.user),
        **values,
    )


class ServiceLab(Lab):
    """A lab for one service."""

    def service(self, name: str = "web") -> Service:
        found = [service for service in self.store.services() if service.name == name]
        assert found, f"there is no service {name}"
        return found[0]

    def replicas(self, name: str = "web") -> dict[int, Replica]:
        return {replica.index: replica for replica in self.service(name).live}

    def ready(self, *job_ids: str) -> None:
        """The probes of these replicas (or of all that run) succeed."""
        chosen = job_ids or [replica.job_id for replica in self.service().live]
        for job_id in chosen:
            if job_id in self.running():
                self.tell(ReplicaChecked(self.allocation(job_id).id, is_ready=True, port=4000))
        self.cycle()

    def places(self, name: str = "web") -> list[str]:
        return sorted(
            node
            for replica in self.service(name).live
            if replica.job_id in self.running()
            for node in self.nodes_of(replica.job_id)
        )

    def restart(self) -> None:
        """Restart the server from the store."""
        for node in self.core.state.cluster.snapshot().nodes:
            self.store.commit([node])
        core = a_core()
        restore(core.state, self.store, self.now_ms)
        self.core = core

    def kinds(self) -> list[str]:
        """The events of services."""
        return [row.kind for _, row in self.store.events() if row.kind.startswith("service")]


# --- number and placement of replicas


def test_service_runs_requested_number_of_replicas() -> None:
    lab = ServiceLab(nodes=a_cluster(nodes=3))
    lab.do(CreateService(a_service(replicas=3)))
    assert len(lab.running()) == 3
    assert lab.service().state == "ready"
    assert {row.job.pool.value for row in lab.store.live_jobs()} == {"online"}


def test_replicas_are_spread_over_nodes() -> None:
    lab = ServiceLab(nodes=a_cluster(nodes=3))
    lab.do(CreateService(a_service(replicas=5)))
    assert sorted(lab.places().count(node) for node in ("n0", "n1", "n2")) == [1, 2, 2]


def test_replicas_share_node_when_there_is_no_other() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(replicas=4)))
    assert lab.places() == ["n0"] * 4


def test_nothing_is_reserved_for_job_waiting_for_end_of_service() -> None:
    lab = ServiceLab(nodes=(a_node(gpus=1),), policy=preset("fair"))
    quiet = a_service(gpus=0.25)
    lab.do(CreateService(replace(quiet, job=replace(quiet.job, preemptible=False))))
    lab.submit(a_job(number=50, gpus=1, priority=2500))
    lab.now_ms += MINUTE
    lab.do(CreateService(a_service(name="other", gpus=0.25)))
    assert (lab.places(), lab.places("other")) == (["n0"], ["n0"])
    assert "j50" not in lab.running()


def test_preempted_replicas_say_nothing_about_the_risk_of_jobs() -> None:
    """Replicas do not end by themselves, so all of their attempts would count as preempted."""
    tenant = a_tenant(max_preemptions=LEAST)
    lab = ServiceLab(nodes=(a_node(gpus=1),), policy=preset("fair"), tenants=[tenant])
    service = a_service()
    lab.do(CreateService(service))
    for number in range(50, 50 + LEAST):
        lab.now_ms += HOUR
        lab.submit(a_job(number=number, gpus=1, priority=2500))
        lab.cycle()
        assert f"j{number}" in lab.running()
        lab.ends(f"j{number}")
        lab.cycle()
    assert len(lab.stopped()) == LEAST
    assert lab.core.state.preemption_risk.of(service.job) is None


def test_replicas_with_same_port_never_share_node() -> None:
    lab = ServiceLab(nodes=a_cluster(nodes=2))
    lab.do(CreateService(a_service(replicas=3, port=8000)))
    assert lab.places() == ["n0", "n1"]
    waiting = [row for row in lab.store.live_jobs() if row.state is JobState.PENDING]
    assert len(waiting) == 1
    assert lab.last_plan is not None
    reasons = [str(reason) for _, reason in lab.last_plan.job_reasons]
    assert reasons == ["its port is taken on every node that has room"]
    lab.do(SetNode(a_node(ordinal=2)))
    assert lab.places() == ["n0", "n1", "n2"]


def test_services_with_same_port_never_share_node() -> None:
    lab = ServiceLab(nodes=a_cluster(nodes=2))
    lab.do(CreateService(a_service(port=8000)), CreateService(a_service(name="api", port=8000)))
    assert sorted(lab.places() + lab.places("api")) == ["n0", "n1"]
    lab.do(CreateService(a_service(name="third", port=8000)))
    assert lab.places("third") == []
    lab.do(CreateService(a_service(name="other", port=8001)))
    assert len(lab.places("other")) == 1


def test_service_is_scaled_up_and_down() -> None:
    lab = ServiceLab(nodes=a_cluster(nodes=2))
    lab.do(CreateService(a_service(replicas=1)))
    service_id = lab.service().id
    lab.do(ScaleService(service_id, 4))
    assert sorted(lab.replicas()) == [0, 1, 2, 3]
    lab.do(ScaleService(service_id, 2))
    assert sorted(lab.replicas()) == [0, 1]
    assert len(lab.running()) == 2
    lab.do(ScaleService(service_id, 0))
    assert lab.running() == []
    assert lab.service().state == "stopped"


def test_scale_down_removes_unready_replica_first() -> None:
    lab = ServiceLab(nodes=a_cluster(nodes=2))
    lab.do(CreateService(a_service(replicas=3, probe=HTTP)))
    lab.ready(lab.replicas()[1].job_id, lab.replicas()[2].job_id)
    lab.do(ScaleService(lab.service().id, 2))
    assert sorted(lab.replicas()) == [1, 2]


def test_deleted_service_disappears_with_last_replica() -> None:
    lab = ServiceLab(nodes=(a_node(),), obedient=False)
    lab.do(CreateService(a_service(replicas=2)))
    service_id = lab.service().id
    jobs = [replica.job_id for replica in lab.service().members]
    lab.do(DeleteService(service_id))
    assert lab.service().state == "deleting"
    with pytest.raises(WrongState):
        lab.tell(ScaleService(service_id, 3))
    lab.ends(*jobs, exit_code=None, signal=15)
    assert lab.store.services() == []
    assert lab.store.live_jobs() == []
    with pytest.raises(UnknownThing):
        lab.tell(DeleteService(service_id))


class Slow(ServiceLab):
    """A lab in which orders are never executed."""

    def tell(self, message: Command | Fact) -> Outcome:
        return Outcome() if isinstance(message, Started) else super().tell(message)


def test_service_deleted_during_replica_failure_disappears() -> None:
    limits = CoreLimits(start_timeout_ms=MINUTE)
    lab = Slow(nodes=[a_node()], limits=limits, obedient=False)
    lab.do(CreateService(a_service()))
    lab.at(MINUTE)
    (first,) = lab.running()
    assert lab.stopped() == [(f"{first}.1", "not_begun")]
    lab.do(DeleteService(lab.service().id))
    lab.do(Ended(f"{first}.1", exit_code=None, ran=False))
    assert lab.state(first) is JobState.CANCELLED
    assert lab.store.services() == []


def test_service_with_ended_replicas_can_be_deleted() -> None:
    lab = ServiceLab(nodes=(a_node(),), obedient=False)
    rule = RestartRule(policy=Restart.NEVER)
    lab.do(CreateService(a_service(replicas=2, restart=rule)))
    first, second = (replica.job_id for replica in lab.service().members)
    lab.ends(first, exit_code=0)
    lab.do(DeleteService(lab.service().id))
    assert lab.service().state == "deleting", "the other one still runs"
    lab.ends(second, exit_code=0)
    assert lab.store.services() == []


# --- restarts


@pytest.mark.parametrize(
    ("policy", "exit_code", "follows"),
    [
        (Restart.ALWAYS, 0, JobState.PENDING),
        (Restart.ALWAYS, 1, JobState.PENDING),
        (Restart.ON_FAILURE, 0, JobState.COMPLETED),
        (Restart.ON_FAILURE, 1, JobState.PENDING),
        (Restart.NEVER, 0, JobState.COMPLETED),
        (Restart.NEVER, 1, JobState.FAILED),
    ],
)
def test_restart_policy_decides_what_follows_exit(
    policy: Restart, exit_code: int, follows: JobState
) -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(restart=RestartRule(policy=policy))))
    (job_id,) = lab.running()
    lab.ends(job_id, exit_code=exit_code)
    assert lab.state(job_id) is follows
    lab.at(10 * SECOND)
    assert bool(lab.running()) == (follows is JobState.PENDING)


def test_permanently_ended_replica_is_not_replaced() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(replicas=2, restart=RestartRule(policy=Restart.NEVER))))
    lab.ends(*lab.running(), exit_code=1)
    lab.at(MINUTE)
    assert lab.running() == []
    assert lab.service().state == "ended"


def test_restart_backoff_doubles_until_good_run() -> None:
    rule = RestartRule(backoff_ms=1000, max_backoff_ms=4000, reset_after_ms=MINUTE)
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(restart=rule)))
    (job_id,) = lab.running()
    pauses = []
    for _ in range(4):
        lab.ends(job_id, exit_code=1)
        pauses.append(lab.row(job_id).resume_ms - lab.now_ms)
        lab.at(lab.now_ms + pauses[-1])
        assert lab.running() == [job_id]
    assert pauses == [1000, 2000, 4000, 4000]
    lab.at(lab.now_ms + MINUTE)
    lab.ends(job_id, exit_code=1)
    assert lab.row(job_id).resume_ms - lab.now_ms == 1000
    assert lab.service().restarts == 5
    assert lab.kinds().count("service_restart") == 5


def test_cancelled_replica_is_replaced() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(replicas=2)))
    before = lab.running()
    lab.do(Cancel(before[0]))
    after = lab.running()
    assert len(after) == 2
    assert before[0] not in after
    assert sorted(lab.replicas()) == [0, 1]


def test_replica_cannot_be_retried_or_updated_as_job() -> None:
    lab = ServiceLab(nodes=(a_node(gpus=1),))
    lab.do(CreateService(a_service(replicas=2, restart=RestartRule(policy=Restart.NEVER))))
    (first,) = lab.running()
    waiting = next(r.job_id for r in lab.service().live if r.job_id != first)
    with pytest.raises(WrongState, match="replica of a service"):
        lab.tell(Update(waiting, (("priority", 9),)))
    lab.ends(first, exit_code=1)
    with pytest.raises(WrongState, match="replica of a service"):
        lab.tell(Retry(first))


def test_replica_has_no_time_limit() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service()))
    lab.at(400 * 24 * 60 * MINUTE)
    assert len(lab.running()) == 1
    assert lab.stops == []


# --- lost and drained nodes


def test_replica_on_lost_node_is_not_replaced_before_node_is_dead() -> None:
    lab = ServiceLab(nodes=a_cluster(nodes=2))
    lab.do(CreateService(a_service()))
    (job_id,) = lab.running()
    (node,) = lab.nodes_of(job_id)
    lab.do(NodeSilent(node))
    lab.at(60 * MINUTE)
    assert lab.nodes_of(job_id) == [node]
    lab.do(NodeFenced(node))
    assert lab.nodes_of(job_id) != [node]
    assert lab.state(job_id) is JobState.RUNNING


def test_replicas_leave_drained_node_one_by_one() -> None:
    lab = ServiceLab(nodes=a_cluster(nodes=2), obedient=True)
    lab.do(CreateService(a_service(replicas=4, probe=HTTP)))
    lab.ready()
    assert lab.places() == ["n0", "n0", "n1", "n1"]
    lab.do(Drain("n0"))
    assert lab.service().ready_count == 3
    assert lab.places() == ["n0", "n1", "n1", "n1"]
    lab.at(MINUTE)
    assert lab.places() == ["n0", "n1", "n1", "n1"]
    lab.ready()
    assert lab.places() == ["n1"] * 4
    lab.ready()
    assert lab.service().state == "ready"


# --- readiness


def test_replica_counts_as_ready_when_probe_succeeds() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(probe=HTTP)))
    assert lab.service().state == "starting"
    (job_id,) = lab.running()
    allocation = lab.allocation(job_id).id
    lab.do(ReplicaChecked(allocation, is_ready=False, port=4001, detail="connection refused"))
    assert lab.replicas()[0].port == 4001
    assert lab.replicas()[0].detail == "connection refused"
    assert lab.service().state == "starting"
    lab.do(ReplicaChecked(allocation, is_ready=True, port=4001))
    assert lab.service().state == "ready"
    lab.do(ReplicaChecked(allocation, is_ready=False, port=4001, detail="503"))
    assert lab.service().ready_count == 0
    not_ready = "service_not_ready"
    assert lab.kinds() == ["service_created", not_ready, "service_ready", not_ready]


def test_probe_result_of_former_attempt_is_ignored() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(probe=HTTP)))
    (job_id,) = lab.running()
    old = lab.allocation(job_id).id
    lab.ends(job_id, exit_code=1)
    lab.at(10 * SECOND)
    lab.do(ReplicaChecked(old, is_ready=True, port=4000))
    assert lab.service().ready_count == 0


def test_repeated_probe_result_writes_nothing() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(probe=HTTP)))
    fact = ReplicaChecked(lab.allocation(lab.running()[0]).id, is_ready=True, port=4000)
    lab.do(fact)
    assert lab.tell(fact).writes == []


def test_restarted_replica_is_unready_until_probe_succeeds() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(probe=HTTP)))
    lab.ready()
    lab.ends(*lab.running(), exit_code=1)
    assert lab.service().ready_count == 0
    assert lab.replicas()[0].port == 0
    lab.at(10 * SECOND)
    assert lab.service().ready_count == 0
    lab.ready()
    assert lab.service().state == "ready"


# --- updates


def another(service: Service, **changes: Any) -> Service:
    return replace(service, launch=replace(service.launch, argv=("serve", "--v2")), **changes)


def test_update_replaces_replicas_one_by_one() -> None:
    lab = ServiceLab(nodes=(a_node(gpus=3),))
    lab.do(CreateService(a_service(replicas=3, probe=HTTP)))
    lab.ready()
    lab.do(UpdateService(lab.service().id, another(a_service(replicas=3, probe=HTTP))))
    for done in range(3):
        assert lab.service().ready_count == 2
        assert lab.service().updated_count == done + 1
        assert lab.service().state == ("updating" if done < 2 else "degraded")
        lab.at(lab.now_ms + MINUTE)
        assert lab.service().updated_count == done + 1
        lab.ready()
    assert lab.service().state == "ready"
    assert lab.service().generation == 2
    launches = [lab.store.launch(replica.job_id) for replica in lab.service().live]
    assert {launch.argv for launch in launches if launch} == {("serve", "--v2")}


def test_update_that_never_becomes_ready_keeps_other_replicas() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(replicas=3, probe=HTTP)))
    lab.ready()
    lab.do(UpdateService(lab.service().id, another(a_service(replicas=3, probe=HTTP))))
    for _ in range(5):
        bad = next(r.job_id for r in lab.service().live if r.generation == 2)
        if bad in lab.running():
            lab.ends(bad, exit_code=1)
        lab.at(lab.now_ms + 10 * MINUTE)
    assert lab.service().ready_count == 2
    assert lab.service().updated_count == 1


def test_update_with_surge_stops_nothing_before_new_replica_is_ready() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(probe=HTTP, surge=True)))
    lab.ready()
    (old,) = lab.running()
    lab.do(UpdateService(lab.service().id, another(a_service(probe=HTTP, surge=True))))
    assert old in lab.running()
    assert len(lab.running()) == 2
    assert lab.service().ready_count == 1
    new = next(job_id for job_id in lab.running() if job_id != old)
    lab.ready(new)
    assert lab.running() == [new]
    assert lab.service().state == "ready"


def test_new_replica_count_or_policy_replaces_no_replica() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service()))
    before = lab.running()
    wanted = a_service(replicas=2, restart=RestartRule(policy=Restart.ON_FAILURE))
    lab.do(UpdateService(lab.service().id, wanted))
    assert before[0] in lab.running()
    assert len(lab.running()) == 2
    assert lab.service().generation == 1


def test_update_restarts_ended_replicas() -> None:
    never = RestartRule(policy=Restart.NEVER)
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(restart=never)))
    lab.ends(*lab.running(), exit_code=1)
    assert lab.service().state == "ended"
    lab.do(UpdateService(lab.service().id, another(a_service(restart=never))))
    assert lab.service().state == "ready"


# --- errors and restarts


def test_service_that_never_fits_is_rejected_and_leaves_nothing() -> None:
    lab = ServiceLab(nodes=(a_node(gpus=2),))
    with pytest.raises(NeverFits):
        lab.tell(CreateService(a_service(gpus=4)))
    assert lab.core.state.services == {}
    assert lab.core.state.jobs == {}


def test_service_name_is_unique_in_tenant() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service()))
    with pytest.raises(AlreadyExists, match="svc-1"):
        lab.tell(CreateService(a_service()))


def test_service_of_another_user_cannot_be_changed() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service()))
    with pytest.raises(Forbidden):
        lab.tell(UpdateService(lab.service().id, replace(another(a_service()), user="eve")))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Web"},
        {"name": ""},
        {"name": "a" * 64},
        {"name": "-a"},
        {"replicas": -1},
        {"replicas": 1001},
        {"port": 70_000},
        {"port": -1},
        {"job": replace(a_job(members=2), max_runtime_ms=0)},
        {"job": replace(a_job(), max_runtime_ms=1000)},
        {"job": replace(a_job(), max_runtime_ms=0, retries=1)},
        {"job": replace(a_job(), max_runtime_ms=0, hold=True)},
    ],
)
def test_invalid_service_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        replace(a_service(), **changes)


def test_service_continues_after_server_restart() -> None:
    lab = ServiceLab(nodes=a_cluster(nodes=2))
    lab.do(CreateService(a_service(replicas=2, probe=HTTP)))
    lab.ready(lab.replicas()[0].job_id)
    before = lab.service()
    lab.restart()
    assert lab.core.state.services[before.id] == before
    lab.at(MINUTE)
    assert lab.service() == before
    for node in a_cluster(nodes=2):
        lab.tell(
            NodeReported(
                node_id=node.id,
                cpu_milli=node.cpu_milli,
                memory_mb=node.memory_mb,
                devices=node.devices,
                rack=node.rack,
            )
        )
    lab.do(ScaleService(before.id, 3))
    assert len(lab.running()) == 3


def test_interrupted_scaling_is_completed_after_restart() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(replicas=1)))
    # The count was stored, and the server died before the jobs were.
    lab.store.commit([replace(lab.service(), replicas=3)])
    lab.restart()
    lab.do(
        NodeReported(node_id="n0", cpu_milli=64_000, memory_mb=512_000, devices=a_node().devices)
    )
    assert len(lab.running()) == 3


def test_replicas_rejected_by_full_queue_are_created_later() -> None:
    lab = ServiceLab(nodes=(a_node(gpus=1),), limits=CoreLimits(max_queued_tasks=2))
    lab.submit(*(a_job(number=number, gpus=1) for number in (1, 2)))
    lab.tell(CreateService(a_service(replicas=1)))
    with pytest.raises(SchedulerError):
        lab.tell(ScaleService(lab.service().id, 2))
    lab.do(Ended(lab.allocation("j1").id))
    assert lab.service().problem == ""


def test_restarted_server_removes_no_endpoint() -> None:
    lab = ServiceLab(nodes=(a_node(),))
    lab.do(CreateService(a_service(probe=HTTP)))
    lab.ready()

    def is_endpoint() -> bool:
        (replica,) = lab.service().live
        return is_reached(replica, lab.core.state.cluster.index.resources("n0").node)

    assert is_endpoint()
    lab.restart()
    assert is_endpoint()
    lab.tell(NodeSilent("n0", 15 * SECOND))
    assert not is_endpoint()
    lab.restart()
    assert not is_endpoint()
