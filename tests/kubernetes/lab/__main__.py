"""`python -m tests.kubernetes.lab build|up|down`: build the lab, start and stop a control plane."""

import argparse
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from tests.kubernetes.lab.build import CONTROL_PLANE, EVERYTHING, CannotBuild, lab, root
from tests.kubernetes.lab.control_plane import ControlPlane, kwok_node


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.lab", description=__doc__)
    parser.add_argument("--kubernetes", default="", metavar="VERSION", help="such as 1.35.8")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="compile what is missing")
    build.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {' '.join(EVERYTHING)}")
    build.add_argument("--jobs", type=int, default=0, help="cores that Go may use (0: all)")
    up = commands.add_parser("up", help="start a control plane that stays")
    up.add_argument("--nodes", type=int, default=0, help="nodes with 8 GPUs, run by kwok")
    commands.add_parser("down", help="stop it")
    arguments = parser.parse_args()
    match arguments.command:
        case "build":
            return build_lab(arguments.kubernetes, arguments.programs, arguments.jobs)
        case "up":
            return start(arguments.kubernetes, arguments.nodes)
        case _:
            return stop()


def build_lab(version: str, programs: list[str], jobs: int) -> int:
    unknown = sorted({*programs} - {*EVERYTHING})
    if unknown:
        print(f"unknown: {' '.join(unknown)}; choose from {' '.join(EVERYTHING)}", file=sys.stderr)
        return 2
    found = lab(version)
    try:
        found.build(programs or EVERYTHING, jobs=jobs, report=lambda line: print(line, flush=True))
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    print(f"programs: {found.directory / 'bin'}")
    return 0


def start(version: str, nodes: int) -> int:
    found = lab(version)
    missing = found.missing([*CONTROL_PLANE, "kwok"] if nodes else CONTROL_PLANE)
    if missing:
        print(f"not built: {', '.join(missing)}; run 'make kubernetes-lab'", file=sys.stderr)
        return 1
    directory = root() / "running"
    if directory.exists():
        print(f"{directory} exists; run 'down' first", file=sys.stderr)
        return 1
    directory.mkdir(parents=True)
    plane = ControlPlane(found, directory=directory, dies_with_us=False)
    try:
        plane.start()
        if nodes:
            plane.start_kwok()
            manifests = "\n---\n".join(json.dumps(kwok_node(f"kwok-{n}")) for n in range(nodes))
            plane.kubectl("create", "-f", "-", stdin=manifests)
    except BaseException:
        plane.stop()
        shutil.rmtree(directory)
        raise
    pids = {str(one.pid): start_time(one.pid) for one in plane.processes.values()}
    (directory / "pids.json").write_text(json.dumps(pids), encoding="utf-8")
    print(f"export KUBECONFIG={plane.kubeconfig}\nexport PATH={found.directory / 'bin'}:$PATH")
    return 0


def stop() -> int:
    directory = root() / "running"
    pids = directory / "pids.json"
    if pids.exists():
        for pid, began in json.loads(pids.read_text(encoding="utf-8")).items():
            if start_time(int(pid)) == began:
                os.kill(int(pid), signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)
    return 0


def start_time(pid: int) -> str:
    """When the process began, which tells it from a later one of the same id; "" if it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[19]
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
