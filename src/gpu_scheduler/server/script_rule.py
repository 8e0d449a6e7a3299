"""Which programs may run where only those in certain directories may.

A launch and its captured environment come in; the launch as it is to run, or a refusal that says
what to do instead, comes out. Paths are judged by their text and by what they resolve to: so nobody
but who may write to the directories themselves can put something else there after the submission.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpu_scheduler.agent.environment import PLAIN_PATH
from gpu_scheduler.model.errors import Forbidden
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.server.places import both, lies_in
from gpu_scheduler.server.site_conda import SiteConda, Unfit

SYSTEM = ("/usr", "/bin", "/sbin")
"""Where only root puts programs."""
INTERPRETERS = frozenset(
    ("python", "bash", "sh", "dash", "zsh", "ksh", "perl", "Rscript", "julia", "node", "ruby")
)
LOADING_PREFIXES = ("LD_", "BASH_FUNC_")
LOADING = frozenset(
    (
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONBREAKPOINT"),
        *("PYTHONINSPECT", "PYTHONEXECUTABLE", "PYTHONPLATLIBDIR"),
        *("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "ZDOTDIR", "FPATH", "GCONV_PATH"),
        *("PERL5LIB", "PERLLIB", "PERL5OPT", "PERL5DB", "NODE_OPTIONS", "NODE_PATH"),
        *("RUBYLIB", "RUBYOPT", "R_HOME", "R_LIBS", "R_LIBS_USER", "R_LIBS_SITE"),
        *("R_PROFILE", "R_PROFILE_USER", "R_ENVIRON", "R_ENVIRON_USER"),
        *("JULIA_LOAD_PATH", "JULIA_DEPOT_PATH", "JULIA_PROJECT", "JULIA_BINDIR"),
        *("PYTHONPYCACHEPREFIX", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES"),
        *("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"),
    )
)
"""Variables that make a program run something besides what is named."""
SEARCHED = frozenset(
    (
        *("LD_LIBRARY_PATH", "PYTHONPATH", "PERL5LIB", "PERLLIB", "RUBYLIB", "NODE_PATH"),
        *("R_LIBS", "R_LIBS_USER", "R_LIBS_SITE"),
        *("PYTHONPYCACHEPREFIX", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES"),
        *("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "OCL_ICD_VENDORS"),
    )
)
"""Those of them that only list paths: harmless if the lists lead nowhere else."""
REMEMBERED = 1000


class ScriptRule:
    """`security.allowed_script_paths` of one server."""

    def __init__(self, allowed: Iterable[str], conda_roots: Iterable[str] = ()) -> None:
        """Both the text and what it resolves to are allowed, as an admin may write either."""
        self.shown = ", ".join(allowed)
        self._allowed = both(allowed)
        self._trusted = both((*self._allowed, *SYSTEM, *conda_roots))
        self._conda = SiteConda(conda_roots, self._allowed, self._trusted)
        self._surroundings: dict[str, dict[str, str]] = {}

    def check(self, launch: Launch, captured: Mapping[str, str] | None) -> Launch:
        """Refuse a launch, or say how it runs: a conda environment gets its whole path.

        `captured` is None also where the same one came along before.
        """
        for is_so, what in (
            (launch.script, "is a script that was submitted as a text"),
            (launch.image, "runs in a container"),
        ):
            if is_so:
                raise self._refusal(f"the job {what}")
        if not launch.argv:
            raise self._refusal("the job names no program")
        explicit = dict(launch.environment)
        self._check_variables(explicit)
        if captured is not None:
            self._check_variables(captured)
        around = self._around(launch.captured, captured) | explicit
        search = around.get("PATH", PLAIN_PATH)
        if launch.conda:
            launch = self._in_conda(launch, around.get("CONDA_EXE", ""), search)
            # What the environment has comes first there, and then the system.
            search = f"{launch.conda}/bin:{PLAIN_PATH}:{search}"
        self._check_program(launch, self._program(launch, launch.argv[0], search))
        return launch

    def _check_program(self, launch: Launch, program: str) -> None:
        is_interpreter = _plain_name(program) in INTERPRETERS
        if not is_interpreter and lies_in(program, self._allowed):
            return
        if not lies_in(program, self._trusted):
            raise self._refusal(f"the job runs {program}")
        if not is_interpreter:
            raise self._refusal(f"the job runs {program}, which is no interpreter of scripts")
        self._check_argument(launch, program)

    def _check_variables(self, variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            is_loading = (
                name in LOADING or name.startswith(LOADING_PREFIXES) or _imports(name, value)
            )
            if is_loading and not (name in SEARCHED and self._leads_nowhere_else(value)):
                raise self._refusal(
                    f"the job sets {name}, which makes programs load others (unset it, or leave "
                    "it out with --export)"
                )

    def _leads_nowhere_else(self, directories: str) -> bool:
        """Tell whether a list names only trusted directories; an empty part is the current one."""
        parts = directories.replace(";", ":").split(":") if directories else []
        return all(
            part.startswith("/") and "$" not in part and lies_in(part, self._trusted)
            for part in parts
        )

    def _around(self, name: str, captured: Mapping[str, str] | None) -> dict[str, str]:
        """What counts of a captured environment; the jobs behind the first name it only."""
        if not name:
            return {}
        if captured is not None:
            while len(self._surroundings) >= REMEMBERED:
                del self._surroundings[next(iter(self._surroundings))]
            self._surroundings[name] = {
                key: captured[key] for key in ("PATH", "CONDA_EXE") if key in captured
            }
        return dict(self._surroundings.get(name, {"PATH": ""}))

    def _in_conda(self, launch: Launch, named: str, search: str) -> Launch:
        """The same launch, in the environment that the site means, entered by its own conda."""
        try:
            prefix = self._conda.prefix(launch)
        except Unfit as error:
            raise self._refusal(str(error)) from None
        # It runs what it does in this shell, found as any program is.
        self._program(launch, "bash", PLAIN_PATH)
        program = self._conda.conda_for(prefix)
        if not program:
            program = self._program(launch, named or "conda", search)
            if not lies_in(program, self._trusted):
                raise self._refusal(f"the job is started by {program}")
        return replace(launch, conda=prefix, conda_exe=program)

    def _program(self, launch: Launch, word: str, search: str) -> str:
        """The file that will be executed; nobody can put another one before it later."""
        if "/" in word:
            return self._whole(word, launch)
        for directory in search.split(":"):
            if not lies_in(directory, self._trusted):
                break
            path = f"{directory}/{word}"
            if os.access(path, os.X_OK) and Path(path).is_file():
                return path
        raise self._refusal(
            f"the job runs '{word}', which is not found before PATH leaves the directories of the "
            "system; name it by its whole path"
        )

    def _whole(self, word: str, launch: Launch) -> str:
        is_whole = word.startswith("/")
        if not (is_whole or launch.workdir) or ".." in (
            *word.split("/"),
            *launch.workdir.split("/"),
        ):
            raise self._refusal(f"the job names '{word}'; name it by its whole path")
        return word if is_whole else f"{launch.workdir}/{word}"

    def _check_argument(self, launch: Launch, program: str) -> None:
        """Options can hold code, or name other files, in more ways than anybody can list."""
        word = launch.argv[1] if len(launch.argv) > 1 else ""
        if not word or word.startswith(("-", "+")):
            raise self._refusal(
                f"the job runs {program} with '{word}', and the first word behind an interpreter "
                "must be the script"
            )
        script = self._whole(word, launch)
        if not lies_in(script, self._allowed) or not Path(script).is_file():
            raise self._refusal(f"the job runs {script}")

    def _refusal(self, what: str) -> Forbidden:
        return Forbidden(
            f"{what}, and only programs and scripts in these directories may run here "
            f"(security.allowed_script_paths): {self.shown}"
        )


def _imports(name: str, value: str) -> bool:
    """Tell whether a variable makes Python import something: the class of a warning by its path."""
    if name != "PYTHONWARNINGS":
        return False
    kinds = [rule.split(":")[2:3] for rule in value.split(",")]
    return any("." in kind[0] for kind in kinds if kind)


def _plain_name(program: str) -> str:
    return Path(os.path.realpath(program)).name.rstrip("0123456789.")
