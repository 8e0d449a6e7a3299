"""Which predictor of run times is used, and why, in the report and the metrics."""

from collections.abc import Iterator

import pytest

from gpu_scheduler.predict import training
from gpu_scheduler.predict.features import NAMES
from gpu_scheduler.predict.selection import SelectedPredictor, StoredComparison, StoredPredictor
from gpu_scheduler.predict.trees import FORMAT, StoredModel, Tree
from tests.unit.api.lab import ApiLab

LEAF = Tree(feature=[], threshold=[], categories=[], left=[], right=[], value=[0.0])


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        yield lab


def scores(jobs: int, history: float, model: float, *, is_used: bool) -> StoredComparison:
    return StoredComparison(
        jobs=jobs,
        weight=1.0,
        history=history,
        model=model,
        squares=0.0,
        all_history=history,
        regret=0.0,
        is_used=is_used,
    )


def a_predictor() -> SelectedPredictor:
    predictor = SelectedPredictor()
    model = StoredModel(
        format=FORMAT,
        features=list(NAMES),
        jobs=700,
        trained_until_ms=1_000,
        forests=[[LEAF], [LEAF], [LEAF]],
    )
    tenants = {
        "default": scores(300, 0.5, 0.6, is_used=False),
        "vision": scores(20, 0.5, 0.1, is_used=False),
    }
    site = scores(1_000, 0.5, 0.4, is_used=True)
    predictor.restore(StoredPredictor(model=model, at_ms=2_000, site=site, tenants=tenants))
    return predictor


def test_history_alone_says_whether_model_is_off_or_not_installed(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab.get("/report/predictors").json["model"]["state"] == "off"
    monkeypatch.setattr(training, "is_available", lambda: False)
    told = lab.get("/report/predictors").json
    assert told["model"]["state"] == "not_installed"
    assert [(one["used"], one["why"]) for one in told["scores"]] == [
        ("history", "the extra 'learned' is not installed")
    ]
    assert "predictor_loss" not in lab.get("/metrics", root=True).body.decode()


def test_scores_say_which_predictor_each_tenant_gets(lab: ApiLab) -> None:
    lab.loop.core.state.predictor = a_predictor()
    told = lab.get("/report/predictors").json
    assert (told["model"]["state"], told["model"]["trained_jobs"]) == ("trained", 700)
    found = {one["tenant_id"]: one for one in told["scores"]}
    assert {name: one["used"] for name, one in found.items()} == {
        None: "model",
        "default": "history",
        "vision": "model",  # too few jobs of its own: as the site
    }
    assert found[None]["gain_percent"] == 20.0
    assert found["default"]["why"] == "the model's loss is 20.0 % more; it is used from 5 %"
    assert found["vision"]["why"] == "20 of 200 jobs scored; as for all tenants"
    text = lab.get("/metrics", root=True).body.decode()
    assert 'gpu_scheduler_predictor_loss{predictor="model"} 0.4' in text
    assert "gpu_scheduler_predictor_model_used 1.0" in text
