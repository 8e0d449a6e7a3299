"""What is remembered of searches for victims that found nothing."""

from gpu_scheduler.engine.preemption.cache import NegativeCache

URGENT = (3, 750, False)
LESS_URGENT = (3, 500, False)


def test_a_node_that_was_searched_in_vain_is_remembered_for_that_request_and_class() -> None:
    barren = NegativeCache()
    barren.add(URGENT, 0b0110)
    barren.add(URGENT, 0b1000)
    assert barren.of(URGENT) == 0b1110
    assert barren.of(LESS_URGENT) == 0


def test_a_node_on_which_something_changed_is_searched_again() -> None:
    barren = NegativeCache()
    barren.add(URGENT, 0b0110)
    barren.note_change(0b0010)
    assert barren.of(URGENT) == 0b0100


def test_what_is_found_after_a_change_is_remembered_again() -> None:
    barren = NegativeCache()
    barren.note_change(0b0010)
    barren.add(URGENT, 0b0010)
    assert barren.of(URGENT) == 0b0010
