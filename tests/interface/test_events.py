"""Every recorded event kind is still emitted by the code; `event_record` compares the fields."""

import ast
from collections.abc import Iterator
from pathlib import Path

import gpu_scheduler
from tests.interface.event_record import PATH, recorded


def test_every_recorded_event_kind_is_emitted_by_code() -> None:
    texts = set(texts_of_the_package())
    gone = [kind for kind in recorded() if kind not in texts]
    assert gone == [], f"edit {PATH} if these kinds of events are gone for good"


def texts_of_the_package() -> Iterator[str]:
    """All string constants of the package."""
    for path in Path(gpu_scheduler.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
