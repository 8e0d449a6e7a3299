"""The memory of job groups is bounded."""

from gpu_scheduler.predict.history import MAX_GROUPS, History, LruGroups
from tests.builders import HOUR, MINUTE, a_job


def test_least_recently_updated_group_is_evicted() -> None:
    groups: LruGroups[list[int]] = LruGroups(most=2)
    groups.learning("a", list).append(1)
    groups.learning("b", list).append(2)
    groups.learning("a", list).append(3)
    groups.learning("c", list).append(4)
    assert (groups.get("a"), groups.get("b"), groups.get("c")) == ([1, 3], None, [4])


def test_lookup_does_not_keep_group() -> None:
    groups: LruGroups[list[int]] = LruGroups(most=2)
    groups.learning("a", list)
    groups.learning("b", list)
    groups.get("a")
    groups.learning("c", list)
    assert "a" not in groups


def test_endless_names_do_not_fill_memory() -> None:
    history = History()
    history.end(a_job(name="first"), 5 * HOUR, 0)
    for number in range(MAX_GROUPS + 10):
        history.end(a_job(name=f"run-{number}"), MINUTE, 0)
    assert len(history._mean._groups) == MAX_GROUPS
    assert len(history._quantiles._groups) == MAX_GROUPS
    # The name is forgotten; the history of the user's jobs of that size is not.
    assert history.expect(a_job(name="first"), 0) == history.expect(a_job(name="never seen"), 0)
