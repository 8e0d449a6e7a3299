"""Every link, heading, file, setting and variable named on a page exists."""

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import yaml

from gpu_scheduler.settings.schema import GROUPS
from gpu_scheduler.settings.sources import ALIASES, UNUSED
from tests.docs.pages import PAGES, ROOT, text_of, without_blocks

SETTINGS = {f"{group}.{each.name}" for group, kind in GROUPS.items() for each in fields(kind)}
VARIABLES = {f"GPU_SCHEDULER_{key.replace('.', '_').upper()}" for key in SETTINGS}
NOT_SETTINGS = {
    *("server.id", "server.sock", "server.json", "server.log", "agent.log", "scheduler.db"),
    *("jobs.txt", "jobs.spec", "jobs.launch", "jobs.life"),
    "gpu.scheduling",
}
"""Files, columns of tables and an API group, whose names begin like those of settings."""


@cache
def headings(page: Path) -> set[str]:
    """The anchors of a page, as Markdown renderers name them."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"(?m)^#+ (.*)$", without_blocks(page.read_text("utf-8"))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        times = found[anchor] = found.get(anchor, -1) + 1
        anchors.add(f"{anchor}-{times}" if times else anchor)
    return anchors


@cache
def source() -> str:
    """The source text of the whole program."""
    return "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))


def dead_links(page: str, text: str) -> list[str]:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in headings(target)
        ):
            dead.append(link)
    return dead


@cache
def chart_values() -> frozenset[str]:
    """The values of the Helm chart on the first two levels, such as `agent.cdi`."""
    chart = yaml.safe_load((ROOT / "charts/gpu-scheduler/values.yaml").read_text("utf-8"))
    return frozenset(
        f"{group}.{name}"
        for group, values in chart.items()
        if isinstance(values, dict)
        for name in values
    )


def unknown_settings(text: str) -> list[str]:
    """Settings and variables that are never read; names of other programs are allowed."""
    keys = re.findall(r"`([a-z]+\.[a-z_]+)`", text)
    known = SETTINGS | NOT_SETTINGS | ALIASES.keys() | UNUSED.keys() | chart_values()
    unread = [key for key in keys if key.partition(".")[0] in GROUPS and key not in known]
    variables = set(re.findall(r"GPU_SCHEDULER_[A-Z0-9_]+", text)) - VARIABLES
    return unread + sorted(name for name in variables if name not in source())


def missing_files(text: str) -> list[str]:
    names = re.findall(r"`((?:src|tests|docs|deploy|examples|benchmarks)/[\w./-]+)`", text)
    return [name for name in names if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_resolves(page: str) -> None:
    assert dead_links(page, text_of(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_named_setting_variable_and_file_exists(page: str) -> None:
    assert unknown_settings(text_of(page)) == []
    assert missing_files(text_of(page)) == []


def test_check_finds_missing_targets() -> None:
    text = "[a](nosuch.md) [b](#nosuch) `api.nosuch` `GPU_SCHEDULER_NO_SUCH` `docs/nosuch.md`"
    assert dead_links("README.md", text) == ["nosuch.md", "#nosuch"]
    assert unknown_settings(text) == ["api.nosuch", "GPU_SCHEDULER_NO_SUCH"]
    assert missing_files(text) == ["docs/nosuch.md"]
