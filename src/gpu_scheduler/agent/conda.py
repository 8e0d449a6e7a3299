"""Entering a conda environment: a start and its variables come in, the command to run comes out.

As a rule it is the submitter's own conda that knows where an environment is. Where the rules of a
site have named conda and environment, nothing of the submitter's conda counts any more: not its
variables, by which another environment would be left first, with scripts of its own, and no
program that its PATH finds before those of the system.
"""

from __future__ import annotations

import os
import shutil

from gpu_scheduler.agent.environment import PLAIN_PATH, home_in
from gpu_scheduler.agent.patience import looked
from gpu_scheduler.wire import agent_pb2 as pb

CONDA_PLACES = (
    *("~/miniconda3", "~/miniforge3", "~/mambaforge", "~/anaconda3"),
    *("/opt/conda", "/opt/miniconda3", "/opt/miniforge3", "/opt/anaconda3"),
)
"""Where conda is when nothing says where: a file of jobs has no shell that has set it up."""
OF_CONDA = ("CONDA", "_CONDA", "_CE_", "MAMBA", "_MAMBA")
"""How the names of variables begin that tell conda what is active, and where things are."""


def in_conda(start: pb.Start, environment: dict[str, str]) -> tuple[str, ...]:
    """The command, inside its conda environment if it has one; `environment` is made to fit."""
    argv = tuple(start.argv)
    if not start.conda:
        return argv
    search = environment.setdefault("PATH", PLAIN_PATH)
    conda = start.conda_exe
    if conda:
        for name in [name for name in environment if name.startswith(OF_CONDA)]:
            del environment[name]
        if search != PLAIN_PATH:
            environment["PATH"] = f"{PLAIN_PATH}:{search}"
    else:
        conda = _conda(environment)
    where = "-p" if "/" in start.conda else "-n"
    return (conda, "run", "--no-capture-output", where, start.conda, *argv)


def _conda(environment: dict[str, str]) -> str:
    """As the submitter's shell names it, on the PATH, else where its installers put it."""
    named = environment.get("CONDA_EXE", "")
    if named:
        return named
    path, home = environment["PATH"], home_in(environment)
    places = [place.replace("~", home, 1) + "/bin/conda" for place in CONDA_PLACES]

    def find() -> str:
        if shutil.which("conda", path=path):
            return "conda"
        return next((place for place in places if os.access(place, os.X_OK)), "conda")

    return looked(f"{path} {home}", find, "conda")
