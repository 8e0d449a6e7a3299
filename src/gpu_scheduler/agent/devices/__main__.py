"""Print the devices of this machine and one reading of each, as JSON: for diagnosis.

python -m gpu_scheduler.agent.devices [METHOD] [DECLARED], such as `declared 8xA100-80GB`
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from gpu_scheduler.agent.devices.discovery import DiscoveryOptions, detect
from gpu_scheduler.model.errors import SchedulerError


def main(arguments: list[str]) -> int:
    """Write one JSON object, or the error and its exit code."""
    method, declared, *_ = [*arguments, "", ""]
    try:
        source = detect(DiscoveryOptions(method=method or "auto", declared=declared))
        found, readings = source.find(), source.read()
        source.close()
    except SchedulerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    seen = {"found": asdict(found), "readings": [asdict(reading) for reading in readings]}
    sys.stdout.write(f"{json.dumps(seen, indent=2)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
