"""A stand-in for NVIDIA's container runtime: containers get the GPUs that a variable names.

`python nvidia_runtime.py FACTS ...` runs runc with the other arguments. Before runc creates a
container whose variable NVIDIA_VISIBLE_DEVICES names GPUs by their UUIDs, or `all`, it gets their
device nodes, and the fake NVML as the library of the driver.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
STATE = "/run/fake-nvml"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"


def add_gpus(container: dict[str, Any], facts: dict[str, Any]) -> None:
    """Change the configuration of a container, as the runtime specification describes it."""
    variables = dict(line.split("=", 1) for line in container["process"].get("env", ()))
    minors = facts["minors"]
    visible = variables.get(VARIABLE, "")
    names = list(minors) if visible == "all" else visible.split(",")
    wanted = [minors[name] for name in names if name in minors]
    if not wanted:
        return
    linux = container["linux"]
    nodes = linux.setdefault("devices", [])
    known = {one["path"] for one in nodes}
    rules = linux.setdefault("resources", {}).setdefault("devices", [])
    for minor in wanted:
        number = {"type": "c", "major": facts["major"], "minor": minor}
        path = f"/dev/nvidia{minor}"
        if path not in known:
            nodes.append({"path": path, "fileMode": 0o666, "uid": 0, "gid": 0, **number})
        rules.append({"allow": True, "access": "rw", **number})
    state = Path(facts["state"])
    options = ["bind", "ro"]
    container["mounts"] += [
        {"destination": LIBRARY, "source": facts["library"], "type": "bind", "options": options},
        {"destination": STATE, "source": str(state.parent), "type": "bind", "options": options},
    ]
    container["process"]["env"].append(f"FAKE_NVML_STATE={STATE}/{state.name}")


def main(facts_file: str, *arguments: str) -> None:
    """Run runc in place of this process."""
    facts = json.loads(Path(facts_file).read_text(encoding="utf-8"))
    if "create" in arguments:
        path = Path(arguments[arguments.index("--bundle") + 1]) / "config.json"
        container = json.loads(path.read_text(encoding="utf-8"))
        add_gpus(container, facts)
        path.write_text(json.dumps(container), encoding="utf-8")
    os.execv(facts["runc"], [facts["runc"], *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
