"""Guarantee: an undone transaction leaves no trace."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import Request
from tests.effort import examples
from tests.properties.dump import index_values
from tests.properties.strategies import ANY_REQUEST, nodes

TRIALS = st.lists(
    st.tuples(st.sampled_from(ANY_REQUEST), st.booleans(), st.integers(0, 9)), max_size=12
)


@settings(max_examples=examples(150))
@given(
    machines=nodes(), held=TRIALS, tried=TRIALS, watch=st.sampled_from(("no", "vectors", "sizes"))
)
def test_undo_restores_every_bucket_row_part_slot_and_vector(
    machines: tuple[Node, ...],
    held: list[tuple[Request, bool, int]],
    tried: list[tuple[Request, bool, int]],
    watch: str,
) -> None:
    index = NodeIndex()
    if watch != "no":
        index.watch(sizes=watch == "sizes")
    for node in machines:
        index.add_node(node)
    kept = Transaction(index)
    grants = attempt(kept, held, [])
    before = index_values(index)

    transaction = Transaction(index)
    attempt(transaction, tried, grants)
    transaction.undo()

    assert index_values(index) == before


def attempt(
    transaction: Transaction, trials: list[tuple[Request, bool, int]], grants: list[Grant]
) -> list[Grant]:
    """Take a place for each request, or release one taken before."""
    for request, gives, which in trials:
        if gives and grants:
            transaction.give(grants.pop(which % len(grants)))
            continue
        grant = transaction.index.find(transaction.index.shape(request))
        if grant is not None:
            transaction.take(grant)
            grants.append(grant)
    return grants


@settings(max_examples=examples(100))
@given(machines=nodes(), held=TRIALS)
def test_incremental_index_equals_rebuilt_index(
    machines: tuple[Node, ...], held: list[tuple[Request, bool, int]]
) -> None:
    index, fresh = NodeIndex(), NodeIndex()
    for node in machines:
        index.add_node(node)
        fresh.add_node(node)

    for grant in attempt(Transaction(index), held, []):
        fresh.take(grant.on(fresh.resources(grant.resources.node.id)))

    assert index_values(index) == index_values(fresh)
