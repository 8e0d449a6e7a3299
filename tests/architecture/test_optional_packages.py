"""Packages of an extra are imported only where the extra is needed."""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "gpu_scheduler"


def test_only_parts_that_speak_http_import_aiohttp() -> None:
    found = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if "import aiohttp" in (text := path.read_text(encoding="utf-8"))
        or "from aiohttp" in text
        or "from yarl" in text
    ]
    assert found == [
        "kubernetes/client/http.py",
        "kubernetes/scheduler/__main__.py",
        "kubernetes/webhook/http.py",
    ]


def test_only_training_imports_library_of_extra_learned() -> None:
    found = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if "import lightgbm" in (text := path.read_text(encoding="utf-8")) or "import numpy" in text
    ]
    assert found == ["predict/training.py"]


def test_the_rest_of_the_kubernetes_package_works_without_it() -> None:
    modules = [
        "gpu_scheduler." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in sorted((SOURCE / "kubernetes").rglob("*.py"))
        if path.name not in ("http.py", "__init__.py", "__main__.py")
    ]
    program = f"import sys, {', '.join(modules)}; sys.exit('aiohttp' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
