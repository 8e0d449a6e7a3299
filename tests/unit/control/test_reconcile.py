"""Differences between the core and a node, and their repair."""

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import StartOrder, StopOrder
from gpu_scheduler.control.messages import Cancel, Ended, RunCycle, SetNode, Started, Submit
from gpu_scheduler.control.nodes.reconcile import Held, Repairs, reconcile
from tests.builders import a_core, a_job, a_node


def a_placed_job() -> tuple[Core, StartOrder]:
    core = a_core()
    core.apply(SetNode(a_node(id="n0")), 0)
    core.apply(Submit(a_job(id="j")), 0)
    (order,) = core.apply(RunCycle(), 0).effects
    assert isinstance(order, StartOrder)
    return core, order


def compare(core: Core, held: set[Held], committed: set[str]) -> Repairs:
    return reconcile(core.state, "n0", held, committed)


def test_node_that_matches_state_needs_no_repair() -> None:
    core, order = a_placed_job()
    assert not compare(core, {(order.allocation.id, 0)}, {order.allocation.id})


def test_missing_job_is_ordered_again() -> None:
    core, order = a_placed_job()
    assert compare(core, set(), {order.allocation.id}).starts == [order]


def test_started_job_without_record_ends_with_unknown_result() -> None:
    core, order = a_placed_job()
    core.apply(Started(order.allocation.id), 1)
    repairs = compare(core, set(), {order.allocation.id})
    assert (repairs.gone, repairs.starts) == ([(order.allocation.id, 0)], [])


def test_stop_is_repeated_even_if_start_never_arrived() -> None:
    core, order = a_placed_job()
    core.apply(Cancel("j"), 1)
    stop = StopOrder(order.allocation.id, "cancelled")
    for held in ({(order.allocation.id, 0)}, set()):
        repairs = compare(core, held, {order.allocation.id})
        assert (repairs.stops, repairs.gone, repairs.starts) == ([stop], [], [])


def test_unknown_job_on_node_is_stopped() -> None:
    core, _ = a_placed_job()
    assert compare(core, {("other.1", 0)}, set()).unknown == [("other.1", 0)]


def test_uncommitted_changes_are_left_alone() -> None:
    core, order = a_placed_job()
    assert not compare(core, set(), set())
    core.apply(Ended(order.allocation.id), 1)
    assert not compare(core, {(order.allocation.id, 0)}, {order.allocation.id})
