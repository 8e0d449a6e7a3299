"""Transactions: undo leaves no trace."""

from gpu_scheduler.engine.state.node_index import NodeIndex, vector_of
from gpu_scheduler.engine.state.transaction import Transaction
from tests.builders import a_cluster, a_device, a_mig_device, a_node, a_request


def an_index() -> NodeIndex:
    index = NodeIndex()
    for node in a_cluster(nodes=2, gpus=4):
        index.add_node(node)
    index.add_node(a_node(ordinal=2, devices=[a_mig_device(), a_device(index=1)]))
    return index


def state_of(index: NodeIndex) -> list[object]:
    index.refresh()
    return [
        (
            vector_of(resources),
            resources.bucket,
            resources.steps,
            dict(resources.mig),
            index.free_devices,
        )
        for resources in index.by_id.values()
    ]


def test_undo_restores_index_exactly() -> None:
    index = an_index()
    transaction = Transaction(index)
    before = state_of(index)
    for request in (
        a_request(gpus=2, cpus=3),
        a_request(gpus=0.5),
        a_request(gpus=1.5),
        a_request(mig_profile="1g.10gb"),
        a_request(gpus=0, cpus=5),
    ):
        grant = index.find(index.shape(request))
        assert grant is not None
        transaction.take(grant)
    assert state_of(index) != before
    transaction.undo()
    assert state_of(index) == before


def test_undo_to_mark_keeps_earlier_changes() -> None:
    index = an_index()
    transaction = Transaction(index)
    shape = index.shape(a_request(gpus=3))
    kept = index.find(shape)
    transaction.take(kept)
    after_first = state_of(index)
    mark = transaction.mark()
    transaction.give(kept)
    transaction.take(index.find(shape))
    transaction.take(index.find(shape))
    transaction.undo(mark)
    assert state_of(index) == after_first


def test_committed_changes_stay() -> None:
    index = an_index()
    transaction = Transaction(index)
    transaction.take(index.find(index.shape(a_request(gpus=3))))
    committed = state_of(index)
    transaction.commit()
    transaction.undo()
    assert state_of(index) == committed
