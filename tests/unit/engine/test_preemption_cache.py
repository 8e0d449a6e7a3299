"""The negative cache of victim searches."""

from gpu_scheduler.engine.state.cluster_state import NegativeCache

URGENT = (3, 750, False)
LESS_URGENT = (3, 500, False)


def test_failed_search_is_cached_for_request_and_class() -> None:
    cache = NegativeCache()
    cache.add(URGENT, 0b0110)
    cache.add(URGENT, 0b1000)
    assert cache.of(URGENT) == 0b1110
    assert cache.of(LESS_URGENT) == 0


def test_changed_node_is_searched_again() -> None:
    cache = NegativeCache()
    cache.add(URGENT, 0b0110)
    cache.invalidate(0b0010)
    assert cache.of(URGENT) == 0b0100


def test_result_after_change_is_cached_again() -> None:
    cache = NegativeCache()
    cache.invalidate(0b0010)
    cache.add(URGENT, 0b0010)
    assert cache.of(URGENT) == 0b0010
