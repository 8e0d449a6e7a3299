"""The doctor looks at driver, NVML and nvidia-smi. What may hang runs in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

from gpu_scheduler.cli.doctor_lines import OK, PROBLEM, WARNING, Line, Surroundings

DRIVER = "/proc/driver/nvidia/version"
NODES = "/dev"
Told = Generator[Line, None, bool]
"""Lines, and whether it is good."""


def gpus(around: Surroundings) -> Iterator[Line]:
    """Driver, library, program; or the GPUs that are declared."""
    gpu = around.settings.gpu
    if declared := gpu.simulate or _told_by_a_flag(around):
        yield from _by_method(around, "declared", declared)
        return
    if gpu.detection_method == "none":
        yield Line("gpus", OK, "GPUs are switched off by gpu.detection_method")
        return
    has_driver = yield from _driver()
    found_nvml = yield from _by_method(around, "nvml")
    found_smi = yield from _smi(around)
    if not (found_nvml or found_smi):
        status = PROBLEM if has_driver else WARNING
        yield Line(
            "gpus",
            status,
            "no GPU can be used; jobs without GPUs run all the same",
            "load the NVIDIA driver (modprobe nvidia; nvidia-smi should answer), or declare GPUs "
            "to try it without: tgpu up --simulate 8xA100-80GB",
        )


def _told_by_a_flag(around: Surroundings) -> str:
    """What `tgpu up --simulate` declared, if a server was started so and we may look."""
    try:
        text = Path(around.paths.agent, "agent.json").read_text(encoding="utf-8")
        return str(json.loads(text).get("simulate") or "")
    except (OSError, ValueError):
        return ""


def _driver() -> Told:
    """Whether the kernel has a driver and its device nodes."""
    try:
        version = Path(DRIVER).read_text(encoding="utf-8", errors="replace").split("\n", 1)[0]
    except OSError:
        nodes = list(Path(NODES).glob("nvidia[0-9]*"))
        if nodes:
            yield Line(
                "driver",
                PROBLEM,
                f"there are {len(nodes)} device nodes and no driver behind them",
                "load it: modprobe nvidia; after an update of the kernel it must be built anew",
            )
        else:
            yield Line("driver", OK, "no NVIDIA driver is loaded")
        return False
    yield Line("driver", OK, version.replace("NVRM version: ", "").strip())
    blocked = [
        str(node)
        for node in sorted(Path(NODES).glob("nvidia[0-9]*"))
        if node.stat().st_mode & 0o006 != 0o006
    ]
    if blocked:
        yield Line(
            "driver",
            WARNING,
            f"not everybody may use {', '.join(blocked[:4])}",
            "jobs of other users cannot open it; see NVreg_DeviceFileMode of the driver, or udev",
        )
    return True


def _by_method(around: Surroundings, method: str, declared: str = "") -> Told:
    """Find and read devices in another process, as a driver can hang for ever."""
    command = [sys.executable, "-m", "gpu_scheduler.agent.devices", method, declared]
    code, said = around.output(command)
    if code:
        told = said.rsplit("\n", 1)[-1]
        remedy = "restart the driver or the machine" if code == 124 else "see what it says"
        yield Line(method, PROBLEM, f"devices cannot be found: {told}", remedy)
        return False
    found = json.loads(said)["found"]
    devices = found["devices"]
    if not devices:
        yield Line(method, WARNING if method == "nvml" else PROBLEM, _short(found["problem"]), "")
        return False
    models: dict[str, int] = {}
    for device in devices:
        models[device["model"]] = models.get(device["model"], 0) + 1
    text = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    yield Line(method, OK, f"{text}" + (f" ({found['problem']})" if found["problem"] else ""))
    return True


def _smi(around: Surroundings) -> Told:
    program = around.program("nvidia-smi")
    if program is None:
        yield Line(
            "nvidia-smi",
            WARNING,
            "nvidia-smi is not on the PATH",
            "it is the second way to find GPUs, and how people look at them; install the driver's "
            "utilities",
        )
        return False
    code, said = around.output([program, "-L"])
    if code:
        yield Line(
            "nvidia-smi",
            PROBLEM,
            f"{program} fails: {said.splitlines()[0] if said else f'exit code {code}'}",
            "driver and library must be of one version (a reboot after an update); a hanging one "
            "needs a reset or a restart of the machine",
        )
        return False
    yield Line("nvidia-smi", OK, f"{program} lists {len(said.splitlines())} devices")
    return True


def _short(problem: str) -> str:
    return problem.split("; to try without", maxsplit=1)[0] or "no device was found"
