"""Running attempts count in fair shares from their start."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.ledger.decayed_usage import ProjectedUsage

TENANT, USER = "t", ("t", "u")


def test_projection_shrinks_with_time_and_ends() -> None:
    projected = ProjectedUsage()
    projected.add("job-1.1", (TENANT, USER), 2_000, 3_600)
    assert projected.at(TENANT, 0) == projected.at(USER, 0) == 2_000 * 3_600
    assert projected.at(USER, 3_500) == 2_000 * 100
    assert projected.at(USER, 9_999) == 0
    projected.remove("job-1.1")
    assert projected.at(TENANT, 9_999) == 0


def test_attempt_that_ends_early_is_projected_no_more() -> None:
    projected = ProjectedUsage()
    projected.add("job-1.1", (TENANT,), 1_000, 100)
    projected.add("job-1.2", (TENANT,), 3_000, 200)
    projected.remove("job-1.2")
    assert projected.at(TENANT, 50) == 1_000 * 50


@given(
    attempts=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 8_000), st.integers(1, 90), st.booleans()),
        max_size=20,
    ),
    times=st.lists(st.integers(0, 100), max_size=5),
)
def test_projection_is_the_sum_over_the_attempts(
    attempts: list[tuple[str, int, int, bool]], times: list[int]
) -> None:
    """Whatever has ended or expired before."""
    projected = ProjectedUsage()
    for number, (tenant, gpu_milli, until_ms, _) in enumerate(attempts):
        projected.add(str(number), (tenant, (tenant, "u")), gpu_milli, until_ms)
    for number, (_, _, _, ends) in enumerate(attempts):
        if ends:
            projected.remove(str(number))
    for now_ms in sorted(times):
        for tenant in "ab":
            expected = sum(
                gpu_milli * max(0, until_ms - now_ms)
                for name, gpu_milli, until_ms, ends in attempts
                if name == tenant and not ends
            )
            assert projected.at(tenant, now_ms) == projected.at((tenant, "u"), now_ms) == expected
