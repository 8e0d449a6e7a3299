"""What each node of the quota tree is shown to use, borrow and lend."""

from gpu_scheduler.engine.quota.node_shares import node_shares
from tests.builders import a_node, a_state
from tests.quota_lab import QuotaLab, a_quota, gpus

TREE = (
    a_quota("science", gpus(12)),
    a_quota("optics", gpus(8, lend=6), parent="science"),
    a_quota("lasers", gpus(2), parent="science"),
    a_quota("industry", gpus(4)),
)


def shown(lab: QuotaLab) -> dict[str, tuple[float, float, float]]:
    """Used, borrowed and lent GPUs by node."""
    return {
        share.name: (share.used_milli / 1000, share.borrowed_milli / 1000, share.lent_milli / 1000)
        for share in node_shares(lab.state)
        if share.model == "*"
    }


def test_without_a_tree_there_are_no_shares() -> None:
    assert node_shares(a_state(nodes=[a_node()])) == []


def test_idle_tree_lends_nothing() -> None:
    assert set(shown(QuotaLab(*TREE)).values()) == {(0, 0, 0)}


def test_free_gpus_are_used_before_guarantees_are_lent() -> None:
    lab = QuotaLab(*TREE)
    lab.submit("lasers", 4)
    lab.settle()
    assert shown(lab)["lasers"] == (4, 2, 0)
    assert shown(lab)["optics"] == (0, 0, 0)


def test_borrowed_gpus_are_lent_by_idle_nodes_up_to_their_limit() -> None:
    lab = QuotaLab(*TREE)
    lab.submit("lasers", 16)
    lab.settle()
    assert shown(lab) == {
        "cluster": (14, 0, 0),
        "science": (14, 4, 0),
        "optics": (0, 0, 6),
        "lasers": (14, 12, 0),
        # Science has 14 GPUs and the two that optics keeps to itself.
        "industry": (0, 0, 4),
        # What science is guaranteed beyond its teams is lent as well.
        "(others)": (0, 0, 2),
    }


def test_jobs_outside_the_tree_are_a_row_of_their_own() -> None:
    lab = QuotaLab(*TREE)
    lab.submit("guests", 14)
    lab.settle()
    found = {share.name: share for share in node_shares(lab.state) if share.level == 1}
    assert (found["(others)"].used_milli, found["(others)"].borrowed_milli) == (14_000, 14_000)
    assert (found["science"].lent_milli, found["industry"].lent_milli) == (10_000, 4000)


def test_gpus_that_are_missing_for_guarantees_are_a_row_of_their_own() -> None:
    lab = QuotaLab(*TREE, nodes=[a_node()])
    lab.submit("industry", 4)
    lab.submit("guests", 2)
    lab.settle()
    assert shown(lab)["(missing)"] == (8, 8, 0)
    assert shown(lab)["science"] == (0, 0, 10)


def test_models_are_shown_where_they_have_quotas() -> None:
    lab = QuotaLab(a_quota("vision", gpus(8, model="A100")), nodes=[a_node()])
    lab.submit("vision", 3, gpu_models=("A100",))
    lab.settle()
    found = {(share.name, share.model): share.used_milli for share in node_shares(lab.state)}
    assert found["vision", "A100"] == found["vision", "*"] == found["cluster", "A100"] == 3000
