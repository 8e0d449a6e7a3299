"""The pins are exact, hashed, and name no host."""

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
PIN_FILES = sorted(REQUIREMENTS.glob("*.txt"))
PIN = re.compile(r"^[a-z0-9][a-z0-9._-]*==[^ ]+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+$")


@pytest.mark.parametrize("path", PIN_FILES, ids=lambda path: path.name)
def test_every_pin_is_exact_and_hashed(path: Path) -> None:
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    pins = re.split(r"\n(?=\S)", text.strip())
    assert [pin for pin in pins if not PIN.match(pin)] == []


@pytest.mark.parametrize("path", PIN_FILES, ids=lambda path: path.name)
def test_no_pin_file_names_a_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"://|--index-url|--extra-index-url|--find-links", text)


def test_images_install_tested_versions() -> None:
    def pinned(name: str) -> set[str]:
        text = (REQUIREMENTS / name).read_text(encoding="utf-8")
        return set(re.findall(r"^[a-z0-9][a-z0-9._-]*==[^ ]+", text, flags=re.MULTILINE))

    for extra in ("kubernetes.txt", "learned.txt"):
        assert pinned("run.txt") < pinned(extra) < pinned("dev.txt")
