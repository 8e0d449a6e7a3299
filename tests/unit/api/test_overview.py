"""The overview for live screens: order, window, filter, visibility."""

from collections.abc import Iterator

import pytest

from gpu_scheduler.api.queue_order import SortedJobsCache
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.model.identity import Caller, Role
from tests.unit.api.lab import ApiLab


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(policy=Policy()) as lab:
        yield lab


def ids(lab: ApiLab, query: str = "") -> list[str]:
    return [job["id"] for job in lab.get(f"/overview{query}").json["jobs"]]


def test_running_jobs_are_listed_before_queue_and_held_jobs(lab: ApiLab) -> None:
    held = lab.submit(gpu_count=1, hold=True)
    runs = lab.submit(gpu_count=8)
    low, high, normal = (
        lab.submit(gpu_count=8, priority=name) for name in ("low", "high", "normal")
    )
    lab.start(runs)
    assert ids(lab) == [runs, high, normal, low, held]
    cluster = lab.get("/overview").json
    assert cluster["counts"] == {"running": 1, "scheduled": 0, "pending": 3, "held": 1}
    assert cluster["total"] == 5
    first, second = cluster["jobs"][:2]
    assert (first["state"], len(first["places"]), first["may_change"]) == ("running", 1, True)
    assert (second["position"], second["reason"] != "") == (1, True)
    assert second["expected_start"] > first["started_at"]
    assert [gpu["index"] for gpu in cluster["gpus"]] == list(range(8))


def test_window_moves_over_queue_and_job_is_found_in_it(lab: ApiLab) -> None:
    every = [lab.submit(gpu_count=1, hold=True) for _ in range(7)]
    assert ids(lab, "?limit=3") == every[:3]
    assert ids(lab, "?limit=3&offset=3") == every[3:6]
    page = lab.get(f"/overview?limit=3&offset=99&find={every[2]}").json
    assert ([job["id"] for job in page["jobs"]], page["offset"]) == (every[4:], 4)
    assert (page["found"], page["total"]) == (2, 7)
    assert lab.get("/overview?limit=0").json["jobs"] == []
    assert lab.get("/overview?find=job-99").json["found"] is None


def test_jobs_are_sorted_both_ways_and_filtered_by_text(lab: ApiLab) -> None:
    a = lab.submit(name="beta", gpu_count=2, hold=True)
    b = lab.submit(name="alpha", gpu_count=1, hold=True, command=["python", "train.py"])
    c = lab.submit(name="gamma", gpu_count=3, hold=True)
    assert ids(lab, "?sort=name") == [b, a, c]
    assert ids(lab, "?sort=-gpus") == [c, a, b]
    assert ids(lab, "?sort=-number") == [c, b, a]
    assert ids(lab, "?sort=-user") == [a, b, c]
    assert ids(lab, "?filter=ALPHA") == [b]
    assert ids(lab, "?filter=train+alph") == [b]
    assert ids(lab, "?filter=alpha+gamma") == []
    assert ids(lab, "?user=nobody-at-all") == []
    for sort in ("time", "priority", "state", "tenant", "queue"):
        assert len(ids(lab, f"?sort={sort}")) == 3


def test_invalid_overview_query_is_rejected_with_explanation(lab: ApiLab) -> None:
    assert "queue, number" in lab.get("/overview?sort=shoe").error
    for query in ("?limit=501", "?limit=x", "?offset=-1", "?colour=red"):
        assert lab.get(f"/overview{query}").status == 400


def test_ended_or_cancelled_jobs_disappear(lab: ApiLab) -> None:
    job = lab.submit(gpu_count=1)
    lab.start(job)
    lab.end(job)
    other = lab.submit(gpu_count=1, hold=True)
    assert ids(lab) == [other]
    lab.call("DELETE", f"/jobs/{other}")
    assert ids(lab) == []


def test_jobs_of_others_are_visible_but_hidden_fields_are_not_searchable(
    lab: ApiLab,
) -> None:
    job = lab.submit(name="secret", gpu_count=1, hold=True, command=["python", "paper.py"])
    stranger = Caller(user="stranger", uid=4242, role=Role.USER)
    orders = SortedJobsCache(lab.loop)
    assert orders.find(stranger, "queue", (), "").ids == [job]
    for words in (("secret",), ("paper.py",)):
        assert orders.find(stranger, "queue", words, "").ids == []
    assert orders.find(stranger, "name", ("held",), "").ids == []
    assert orders.find(stranger, "-priority", ("pending",), "").ids == [job]


def test_order_is_cached_while_unchanged_and_briefly_under_load(
    lab: ApiLab,
) -> None:
    clock = [0.0]
    work = iter(range(100))
    lab.submit(gpu_count=1, hold=True)
    admin = Caller(user="root", role=Role.ADMIN)
    orders = SortedJobsCache(lab.loop, lambda: clock[0], lambda: next(work) / 2)
    first = orders.find(admin, "queue", (), "")
    assert orders.find(admin, "queue", (), "") is first
    lab.submit(gpu_count=1, hold=True)
    clock[0] += 9
    assert orders.find(admin, "queue", (), "") is first
    clock[0] += 2
    assert len(orders.find(admin, "queue", (), "").ids) == 2


def test_queue_head_equals_head_of_full_order(lab: ApiLab) -> None:
    lab.start(lab.submit(gpu_count=8))
    for number in range(40):
        lab.submit(
            name=f"n{number}",
            gpu_count=1 + number % 3,
            priority=("low", "normal", "high")[number % 3],
            hold=number % 7 == 0,
            **({"array": "0-3"} if number % 11 == 0 else {}),
        )
    admin = Caller(user="root", role=Role.ADMIN)
    # A word that every job has, so all of them are sorted.
    every = SortedJobsCache(lab.loop).find(admin, "queue", ("job-",), "")
    merged = SortedJobsCache(lab.loop).find(admin, "queue", (), "")
    assert merged.ids == every.ids
    assert merged.counts == every.counts
    assert merged.total == 41
    head = SortedJobsCache(lab.loop).find(admin, "queue", (), "", need=5)
    assert head.ids == every.ids[:5]
    assert (head.total, head.counts) == (41, every.counts)
    # Positions beyond the head are found too, those behind the queue only roughly.
    for place in (7, 20, 30):
        job = every.ids[place]
        fresh = lab.get(f"/overview?limit=3&find={job}").json
        assert fresh["found"] == place
    assert ids(lab, "?limit=5&offset=20") == every.ids[20:25]
    assert ids(lab, "?limit=5&offset=999") == every.ids[-5:]
