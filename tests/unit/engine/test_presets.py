"""Policies by name."""

import pytest

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.presets import LITERATURE, PRESETS, preset
from gpu_scheduler.model.errors import UnknownThing
from tests.builders import a_job, a_node, a_state, started


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_policy_starts_what_fits_an_empty_cluster(name: str) -> None:
    policy = preset(name)
    assert policy.name == name
    jobs = [a_job(number=n, gpus=g) for n, g in enumerate((2, 0.5, 0, 1), start=1)]
    plan = decide(a_state(policy=policy, nodes=[a_node()], queue=jobs), policy, 0)
    assert sorted(started(plan)) == ["j1", "j2", "j3", "j4"]
    assert plan.complete


def test_nearly_correct_policy_name_is_suggested() -> None:
    with pytest.raises(UnknownThing, match=r"policy 'fivo' is not known; did you mean 'fifo'\?"):
        preset("fivo")
    with pytest.raises(UnknownThing, match=r"policy 'xyzzy' is not known[.;:] Known: fifo, "):
        preset("xyzzy")


@pytest.mark.parametrize(
    ("name", "ours"),
    [("tiresias", "las"), ("QSSF", "short"), ("easy-backfill", "easy"), ("FCFS", "fifo")],
)
def test_name_of_literature_leads_to_our_policy(name: str, ours: str) -> None:
    with pytest.raises(UnknownThing, match=f"policy '{name}' is '{ours}' here"):
        preset(name)


def test_names_of_literature_lead_to_policies_that_exist() -> None:
    assert {ours for ours, _ in LITERATURE.values()} <= set(PRESETS)
    assert not set(LITERATURE) & set(PRESETS)
