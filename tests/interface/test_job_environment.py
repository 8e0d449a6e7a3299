"""The environment variables that real jobs, services and hooks receive, by kind of job."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler import Client
from tests.acceptance.conftest import LONGEST_S, RealServer, a_state_dir
from tests.interface.stored import check_snapshot

HOOK = """#!/bin/sh
file={place}/{name}.$TGPU_ALLOCATION_ID.$TGPU_MEMBER
env > $file.new
mv $file.new $file
"""
LEFT_OUT = ("GPU_SCHEDULER_", "PYTHONPATH", "NCCL_", "GLOO_")
"""The caller's own in this test, and what depends on the network adapters of the machine."""
OF_HOOKS = ("TGPU_", "CUDA_", "NVIDIA_")
"""Others are those of the launcher."""
KINDS: dict[str, dict[str, Any]] = {
    "one GPU": {"gpus": 1},
    "no GPU": {"gpus": 0},
    "half of a GPU": {"gpus": 0.5},
    "array": {"gpus": 1, "array": "0-1"},
    "gang": {"gpus": 1, "members": 2, "gang_scheduling": True},
    "terminal": {"gpus": 1, "runner": "terminal"},
}


class Site:
    """A running server, called by a user with hardly any variables."""

    def __init__(self, server: RealServer, hooks: Path) -> None:
        self.server = server
        self._hooks = hooks

    def hook(self, name: str, job: str) -> str:
        """The output of a hook for the first attempt of a job, once it is complete."""
        path = self._hooks / f"{name}.{job}.1.0"
        until = time.monotonic() + LONGEST_S
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return path.read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    hooks = tmp_path_factory.mktemp("hooks")
    with a_state_dir() as state_dir:
        server = RealServer(state_dir)
        server.environment = {
            name: value
            for name, value in server.environment.items()
            if name.startswith(("TGPU_", "GPU_SCHEDULER_", "PYTHONPATH"))
        } | {"PATH": os.environ["PATH"], "HOME": state_dir, "LANG": "C.UTF-8"}
        for name in ("prolog", "epilog"):
            (hooks / name).write_text(HOOK.format(place=hooks, name=name))
            (hooks / name).chmod(0o755)
            server.environment[f"GPU_SCHEDULER_JOBS_{name.upper()}"] = str(hooks / name)
        server.start("8xA100-80GB")
        yield Site(server, hooks)
        server.stop()


def test_variables_of_jobs_services_and_hooks(site: Site) -> None:
    server = site.server
    found = {}
    with server.client() as client:
        jobs = {
            kind: client.submit(["env"], capture=False, **fields).id
            for kind, fields in KINDS.items()
        }
        jobs["sweep"] = server.submit("-G", "1", "--param", "lr=1", "--sweep", "s", "--", "env")
        server.tgpu("service", "create", "web", "--gpus", "1", "--restart", "never", "--", "env")
        (replica,) = [job for job in client.list() if job["id"] not in jobs.values()]
        jobs["service"] = replica["id"]
        for kind, job in jobs.items():
            found[kind] = names(output(client, job))
    for name in ("prolog", "epilog"):
        told = names(site.hook(name, jobs["one GPU"]))
        found[name] = [variable for variable in told if variable.startswith(OF_HOOKS)]
    check_snapshot("job_environment.json", found)


def output(client: Client, job: str) -> str:
    ended = client.wait(job, timeout=LONGEST_S)
    return "".join(client.logs(f"{job}_0" if ended["array"] else job))


def names(text: str) -> list[str]:
    """The variable names in the output of `env`, over all members or tasks."""
    found = set(re.findall(r"^(?:\S+: )?([A-Z][A-Z0-9_]*)=", text, re.MULTILINE))
    return sorted(name for name in found if not name.startswith(LEFT_OUT))
