"""Gang placement: at least the minimum of members is placed, or the transaction is undone."""

from gpu_scheduler.engine.placement import placer
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.job import Job
from tests.builders import a_cluster, a_job, a_mig_device, a_node, a_state, on, running


def place(state: ClusterState, job: Job, **changes) -> list[str] | None:
    """The nodes of the members; the transaction is kept."""
    transaction = Transaction(state.index)
    grants = placer.place_gang(state.job_shape(job), transaction, state.index.find, **changes)
    assert grants is None or [grant.member for grant in grants] == list(range(len(grants)))
    return None if grants is None else [grant.resources.node.id for grant in grants]


def test_gang_members_may_share_node() -> None:
    state = a_state(nodes=a_cluster(nodes=2, gpus=4))
    assert place(state, a_job(gpus=2, members=3)) == ["n0", "n0", "n1"]


def test_gang_that_does_not_fit_takes_nothing() -> None:
    state = a_state(nodes=a_cluster(nodes=2, gpus=4))
    assert place(state, a_job(gpus=3, members=3)) is None
    assert state.index.free_devices == 8


def test_elastic_gang_takes_between_minimum_and_all_members() -> None:
    state = a_state(nodes=a_cluster(nodes=2, gpus=4))
    assert place(state, a_job(gpus=4, members=5, min_members=2)) == ["n0", "n1"]
    assert place(state, a_job(gpus=4, members=5, min_members=1)) is None


def test_tightest_single_rack_is_preferred() -> None:
    held = [running(a_job(number=9, gpus=4), on("n2", [0, 1, 2, 3]))]
    state = a_state(nodes=a_cluster(nodes=6, racks=2, gpus=4), held=held)
    assert [node.rack for node in a_cluster(nodes=6, racks=2)] == ["r0"] * 3 + ["r1"] * 3
    assert place(state, a_job(gpus=4, members=2)) == ["n0", "n1"]


def test_gang_spans_racks_when_no_rack_has_room() -> None:
    state = a_state(nodes=a_cluster(nodes=4, racks=2, gpus=4))
    assert place(state, a_job(gpus=4, members=3)) == ["n0", "n1", "n2"]


def test_required_rack_is_never_left() -> None:
    state = a_state(nodes=a_cluster(nodes=4, racks=2, gpus=4))
    assert place(state, a_job(gpus=4, members=3, same_rack=True)) is None
    assert state.index.free_devices == 16
    assert place(state, a_job(gpus=4, members=2, same_rack=True)) == ["n0", "n1"]


def test_elastic_gang_stays_in_required_rack_with_fewer_members() -> None:
    state = a_state(nodes=a_cluster(nodes=4, racks=2, gpus=4))
    elastic = {"gpus": 4, "members": 4, "min_members": 2}
    assert place(state, a_job(**elastic, same_rack=True)) == ["n0", "n1"]
    fresh = a_state(nodes=a_cluster(nodes=4, racks=2, gpus=4))
    assert place(fresh, a_job(**elastic)) == ["n0", "n1", "n2", "n3"]


def test_same_rack_holds_trivially_in_single_rack_cluster() -> None:
    state = a_state(nodes=a_cluster(nodes=2, gpus=4))
    assert place(state, a_job(gpus=4, members=2, same_rack=True)) == ["n0", "n1"]


def test_rack_capacity_includes_mig_slices() -> None:
    nodes = [
        a_node(ordinal=ordinal, rack=f"r{ordinal}", devices=[a_mig_device()]) for ordinal in (0, 1)
    ]
    gang_of_slices = a_job(mig_profile="1g.10gb", members=2, same_rack=True)
    assert place(a_state(nodes=nodes), gang_of_slices) == ["n0", "n0"]


def test_rack_is_too_small_for_more_slices_than_it_has() -> None:
    nodes = [
        a_node(ordinal=ordinal, rack=f"r{ordinal}", devices=[a_mig_device(slices={"3g.40gb": 2})])
        for ordinal in (0, 1)
    ]
    state = a_state(nodes=nodes)
    assert place(state, a_job(mig_profile="3g.40gb", members=3, same_rack=True)) is None
    assert place(state, a_job(mig_profile="3g.40gb", members=3)) == ["n0", "n0", "n1"]


def test_gang_of_shares_goes_to_tightest_rack() -> None:
    held = [running(a_job(number=9, gpus=0.5), on("n1", {0: 500}))]
    nodes = a_cluster(nodes=2, racks=2, gpus=1)
    shares = a_job(gpus=0.25, members=2, same_rack=True)
    assert place(a_state(nodes=nodes, held=held), shares) == ["n1", "n1"]
    more = a_job(gpus=0.3, members=2, same_rack=True)
    assert place(a_state(nodes=nodes, held=held), more) == ["n0", "n0"]


def test_disallowed_nodes_are_skipped() -> None:
    state = a_state(nodes=a_cluster(nodes=3, gpus=4))
    without_first = ~state.index.resources("n0").bit
    assert place(state, a_job(gpus=4, members=2), within=without_first) == ["n1", "n2"]


def test_remainder_can_go_to_freest_node() -> None:
    nodes = a_cluster(nodes=4, gpus=8)
    held = [running(a_job(number=9, gpus=4), on("n3", [0, 1, 2, 3]))]
    state = a_state(nodes=nodes, held=held)
    job = Job(
        id="j1",
        number=1,
        submit_ms=0,
        members=(a_job(gpus=8).members[0], a_job(gpus=2).members[0]),
    )

    def freest(shape, within):
        return state.index.find(shape, within, spread=True)

    assert place(state, job, find_remainder=freest) == ["n0", "n1"]
    fresh = a_state(nodes=nodes, held=held)
    assert place(fresh, job) == ["n0", "n3"]
