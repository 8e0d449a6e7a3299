"""Promise: what was tried is undone to the last bit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.engine.state.node_index import Index
from gpu_scheduler.engine.state.node_resources import Hold
from gpu_scheduler.engine.state.transaction import Draft
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
    index = Index()
    if watch != "no":
        index.watch(sizes=watch == "sizes")
    for node in machines:
        index.add_node(node)
    kept = Draft(index)
    holds = attempt(kept, held, [])
    before = index_values(index)

    draft = Draft(index)
    attempt(draft, tried, holds)
    draft.undo()

    assert index_values(index) == before


def attempt(draft: Draft, trials: list[tuple[Request, bool, int]], holds: list[Hold]) -> list[Hold]:
    """Take a place for each request, or let one go that was taken before."""
    for request, gives, which in trials:
        if gives and holds:
            draft.give(holds.pop(which % len(holds)))
            continue
        hold = draft.index.find(draft.index.shape(request))
        if hold is not None:
            draft.take(hold)
            holds.append(hold)
    return holds


@settings(max_examples=examples(100))
@given(machines=nodes(), held=TRIALS)
def test_an_index_kept_through_changes_is_like_one_built_from_what_is_held(
    machines: tuple[Node, ...], held: list[tuple[Request, bool, int]]
) -> None:
    index, fresh = Index(), Index()
    for node in machines:
        index.add_node(node)
        fresh.add_node(node)

    for hold in attempt(Draft(index), held, []):
        fresh.take(hold.on(fresh.slot(hold.slot.node.id)))

    assert index_values(index) == index_values(fresh)
