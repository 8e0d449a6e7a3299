"""`python -m gpu_scheduler.kubernetes.crds DIRECTORY` writes the definitions there, as YAML."""

import sys
from pathlib import Path

from gpu_scheduler.kubernetes.crds.registry import CUSTOM_RESOURCES


def main(directory: Path) -> None:
    """Write one file for each resource."""
    directory.mkdir(parents=True, exist_ok=True)
    for resource in CUSTOM_RESOURCES:
        path = directory / f"{resource.plural}.yaml"
        path.write_text(resource.yaml(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
