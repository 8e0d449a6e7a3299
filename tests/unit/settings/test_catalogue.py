"""Every setting is documented in the page, the sample and the schema."""

import json
from pathlib import Path

import yaml

from gpu_scheduler.engine.presets import PRESETS
from gpu_scheduler.settings.catalogue import (
    ITEMS,
    json_schema,
    plain_values,
    reference_page,
    sample,
)
from gpu_scheduler.settings.groups import policy as declared
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.sources import load

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def test_settings_page_is_generated_from_code() -> None:
    assert PAGE.read_text() == reference_page(), (
        "run 'python -m gpu_scheduler.settings.catalogue > docs/reference/settings.md'"
    )


def test_every_setting_documents_effect_and_range() -> None:
    for item in ITEMS.values():
        assert item.about.endswith("."), item.key
        assert item.checked(item.default) == item.default, item.key
        if item.kind in ("integer", "number"):
            assert item.least is not None, item.key
            assert item.most is not None, item.key


def test_every_policy_can_be_chosen() -> None:
    assert set(declared.PRESET_NAMES) == set(PRESETS)


def test_sample_is_valid_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(sample())
    assert load(str(path), environ={}).settings == Settings()
    live = "".join(
        line.replace("  #", "  ", 1)
        for line in sample().splitlines(keepends=True)
        if not line.lstrip().startswith("# ")
    )
    path.write_text(live)
    loaded = load(str(path), environ={})
    assert loaded.settings == Settings()
    assert "default" not in loaded.origins.values()


def test_schema_has_every_setting() -> None:
    schema = json.loads(json.dumps(json_schema()))
    for item in ITEMS.values():
        described = schema["properties"][item.group]["properties"][item.name]
        assert described["description"] == item.about
    assert yaml.safe_load(sample()).keys() == schema["properties"].keys()


def test_values_can_be_shown_as_plain_data() -> None:
    assert json.loads(json.dumps(plain_values(Settings())))["api.http_port"] == 8080


def test_documented_quota_tree_is_valid(tmp_path: Path) -> None:
    example = PAGE.read_text().split("## quota_tree")[1].split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "config.yaml"
    path.write_text(example)
    assert len(load(str(path), environ={}).settings.quota_tree) == 5
