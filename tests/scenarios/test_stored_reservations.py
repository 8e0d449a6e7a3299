"""Reservations of waiting jobs survive restarts of the scheduler."""

from dataclasses import replace

from gpu_scheduler.control.messages import Cancel, Hold, Release, SetNode
from gpu_scheduler.control.restore import restore
from gpu_scheduler.control.scheduling.cycle import RETURN_MS
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Reservation
from gpu_scheduler.store.rows import ReservationRow
from tests.builders import HOUR, a_cluster, a_core, a_job, on
from tests.scenarios.lab import Lab

NODES = a_cluster(nodes=2, gpus=4)


def a_lab_with_a_reservation() -> Lab:
    """The third job is reserved after the first one, on its node, after two hours."""
    lab = Lab(policy=preset("easy"))
    lab.do(*(SetNode(node) for node in NODES))
    lab.submit(
        a_job(number=1, gpus=4, estimate_ms=2 * HOUR),
        a_job(number=2, gpus=4, estimate_ms=3 * HOUR),
        a_job(number=3, gpus=4),
    )
    assert (reservation_of(lab, 3).at_ms, reservation_of(lab, 3).placements[0].node_id) == (
        2 * HOUR,
        "n0",
    )
    lab.now_ms = HOUR
    return lab


def reservation_of(lab: Lab, number: int) -> Reservation:
    return lab.core.state.cluster.reservations[number]


def restart(lab: Lab) -> None:
    """The process is killed, and another one starts from the store."""
    lab.store.commit(lab.core.ledger_writes())
    lab.core = a_core(policy=preset("easy"))
    restore(lab.core.state, lab.store, lab.now_ms)
    lab.cycle()


def node_returns(lab: Lab, node: Node) -> None:
    lab.do(SetNode(node))


def test_reservation_is_unchanged_when_nodes_return_one_by_one() -> None:
    lab = a_lab_with_a_reservation()
    before = reservation_of(lab, 3)
    restart(lab)
    assert reservation_of(lab, 3) == before
    node_returns(lab, NODES[1])
    assert reservation_of(lab, 3) == before
    node_returns(lab, NODES[0])
    assert reservation_of(lab, 3) == before
    lab.now_ms = 2 * HOUR
    lab.ends("j1")
    assert lab.nodes_of("j3") == ["n0"]


def test_reserved_place_is_kept_while_nodes_return() -> None:
    lab = a_lab_with_a_reservation()
    lab.submit(a_job(number=4, estimate_ms=5 * HOUR, submit_ms=HOUR))
    restart(lab)
    for node in NODES:
        node_returns(lab, node)
    lab.ends("j1")
    assert lab.running() == ["j2", "j3"]


def test_missing_node_does_not_delay_reserved_job() -> None:
    lab = a_lab_with_a_reservation()
    restart(lab)
    node_returns(lab, NODES[1])
    lab.now_ms += RETURN_MS
    lab.do(Hold("j3"), Release("j3"))
    assert reservation_of(lab, 3).placements[0].node_id == "n1"


def test_reservation_is_removed_when_job_no_longer_waits() -> None:
    lab = a_lab_with_a_reservation()
    assert [row.job_id for row in lab.store.reservations()] == ["j3"]
    lab.tell(Cancel("j3"))
    assert lab.store.reservations() == []


def test_reservation_is_removed_when_job_starts() -> None:
    lab = a_lab_with_a_reservation()
    lab.ends("j1")
    assert lab.running() == ["j2", "j3"]
    assert lab.store.reservations() == []


def test_reservation_of_unknown_devices_is_made_anew() -> None:
    lab = a_lab_with_a_reservation()
    before = reservation_of(lab, 3)
    gone = replace(before, placements=(on("n0", [4, 5, 6, 7]),))
    lab.store.commit([ReservationRow("j3", gone)])
    restart(lab)
    for node in NODES:
        node_returns(lab, node)
    assert reservation_of(lab, 3).placements == before.placements
    assert lab.store.reservations() == [reservation_of(lab, 3)]
