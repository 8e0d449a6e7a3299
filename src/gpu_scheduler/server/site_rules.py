"""What the owner of the machine does not want to run, whoever asks.

A submission comes in; the submission as it is to run, or a refusal that names the setting, comes
out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from gpu_scheduler.agent.jobs.environment import PLAIN_PATH
from gpu_scheduler.control.messages import Submit, SubmitSeries
from gpu_scheduler.model.errors import Forbidden
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.server.background.notifications import check_notify
from gpu_scheduler.settings.schema import Settings

# --- Whether a path lies in one of certain directories, whatever links are on the way.


def both(directories: Iterable[str]) -> tuple[str, ...]:
    """Directories as they are written and as what they resolve to: an admin may write either."""
    found = [path for one in directories for path in (one.rstrip("/"), os.path.realpath(one))]
    return tuple(dict.fromkeys(found))


def lies_in(path: str, directories: tuple[str, ...]) -> bool:
    """Tell whether both the path as it is written and the file that it means lie in there."""
    texts = (os.path.normpath(path), os.path.realpath(path))
    return all(any(Path(text).is_relative_to(one) for one in directories) for text in texts)


# --- The conda environments of a site, for where only certain programs may run.
#
# What a job calls its environment comes in; the directory that it means and the conda that enters
# it
# come out, or a refusal. A name is sought in the site's own installations and nowhere else: what a
# user's settings of conda say does not count. An environment there runs scripts of its own when it
# is entered, so it must belong to who keeps the installations, and not be the job's user's to
# change.

BASE = "base"
"""What conda calls the environment that an installation itself is."""
META = "conda-meta"
"""The directory by which conda knows an environment."""
MOST_NAMED = 10


class Unfit(Exception):
    """An environment that no job may run in here; the text says which and why."""


class SiteConda:
    """`security.conda_roots` of one server."""

    def __init__(
        self, roots: Iterable[str], allowed: tuple[str, ...], trusted: tuple[str, ...]
    ) -> None:
        """In directories that are `allowed` anybody's programs may be, in others only the site's.

        `trusted` are all of them, and the roots too.
        """
        self._roots = tuple(root.rstrip("/") for root in roots)
        self._allowed = allowed
        self._trusted = trusted

    def prefix(self, launch: Launch) -> str:
        """The directory of the job's environment, without any link on the way."""
        word = launch.conda
        found = self._by_path(word) if "/" in word else self._by_name(word)
        real = os.path.realpath(found)
        if not lies_in(found, self._trusted):
            raise Unfit(f"the job runs in the conda environment {found}{_behind(found, real)}")
        if not lies_in(found, self._allowed):
            self._check_owners(Path(real), launch)
        return real

    def conda_for(self, prefix: str) -> str:
        """The site's conda that enters an environment: its own, else the first; or none."""
        own = [root for root in self._roots if lies_in(prefix, both([root]))]
        for root in (*own, *self._roots):
            program = f"{root}/bin/conda"
            if os.access(program, os.X_OK) and lies_in(program, self._trusted):
                return program
        return ""

    def _by_path(self, word: str) -> str:
        if not word.startswith("/") or ".." in word.split("/"):
            raise Unfit(
                f"the job runs in the conda environment '{word}', which is neither a name nor a "
                "whole path"
            )
        return word

    def _by_name(self, name: str) -> str:
        if not name.isprintable() or name.startswith(("-", ".")):
            raise Unfit(f"the job runs in the conda environment {name!r}, which is no name of one")
        for root in self._roots:
            place = root if name == BASE else f"{root}/envs/{name}"
            if Path(place, META).is_dir():
                return place
        raise Unfit(
            f"the job runs in the conda environment '{name}', and the site has "
            f"{self._names()} (security.conda_roots)"
        )

    def _names(self) -> str:
        """What there is instead."""
        names = sorted({name for root in self._roots for name in _environments(root)})
        if not names:
            return "none"
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"only {', '.join(names[:MOST_NAMED])}{more}"

    def _check_owners(self, prefix: Path, launch: Launch) -> None:
        """Whoever can change an environment can run anything by being in it."""
        if launch.uid == os.geteuid():
            return  # whoever has made the rule
        keepers = {0, os.geteuid(), *(uid for root in self._roots for uid in _owner(root))}
        for place in (*self._way_to(prefix), *_started_from(prefix)):
            owner = _owner(str(place))
            if not owner <= keepers:
                raise Unfit(
                    f"the job runs in the conda environment {prefix}, and {place} belongs to "
                    f"uid {min(owner)} and not to who keeps the site's conda"
                )
            if _may_change(place, launch):
                raise Unfit(
                    f"the job runs in the conda environment {prefix}, and its user may change "
                    f"{place}"
                )

    def _way_to(self, prefix: Path) -> Iterator[Path]:
        """The environment, and what it lies in, as far as that is conda's."""
        yield prefix
        for parent in prefix.parents:
            if not lies_in(str(parent), self._trusted):
                return
            yield parent


def _environments(root: str) -> list[str]:
    try:
        found = [one.name for one in Path(root, "envs").iterdir() if (one / META).is_dir()]
    except OSError:
        found = []
    return [*found, BASE] if Path(root, META).is_dir() else found


def _started_from(prefix: Path) -> Iterator[Path]:
    """What is run for a job of the environment before anything that it names itself."""
    hooks = prefix / "etc/conda/activate.d"
    yield from (prefix / "bin", prefix / "lib", prefix / "etc", hooks.parent, hooks)
    try:
        yield from hooks.iterdir()
    except OSError:
        return


def _owner(place: str) -> set[int]:
    """The uid of who owns it; nobody if there is no such thing."""
    try:
        return {Path(place).stat().st_uid}
    except OSError:
        return set()


def _may_change(place: Path, launch: Launch) -> bool:
    """Tell whether its permissions let the job's user write there; a link is what it leads to."""
    try:
        found = place.stat()
    except OSError:
        return False
    if found.st_uid == launch.uid:
        return True
    mode = found.st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return False  # what others have put there stays theirs
    if mode & stat.S_IWOTH:
        return True
    if not mode & stat.S_IWGRP:
        return False
    return found.st_gid in {launch.gid, *os.getgrouplist(launch.user, launch.gid)}


def _behind(path: str, real: str) -> str:
    return "" if real == os.path.normpath(path) else f" (which is {real})"


# --- Which programs may run where only those in certain directories may.
#
# A launch and its captured environment come in; the launch as it is to run, or a refusal that says
# what to do instead, comes out. Paths are judged by their text and by what they resolve to: so
# nobody
# but who may write to the directories themselves can put something else there after the submission.

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


# --- What the owner of the machine does not want to run, whoever asks.

MB_PER_GB = 1024


class SiteRules:
    """What the settings of a server allow in a submission."""

    def __init__(self, settings: Settings) -> None:
        """Paths are resolved once."""
        security = settings.security
        self._gangs = settings.scheduler.enable_gang_scheduling
        self._most_mb = round(security.max_memory_per_job_gb * MB_PER_GB)
        self._step_milli = round(settings.gpu.allocation_precision * 1000)
        self._most_processes = security.max_processes_per_job
        self._notifications = settings.notifications
        self._forbidden = security.forbidden_environment
        allowed = security.allowed_script_paths
        self._scripts = ScriptRule(allowed, security.conda_roots) if allowed else None

    def check(self, submission: Submit | SubmitSeries) -> Submit | SubmitSeries:
        """Refuse what is against a rule; of many jobs, with the `index` of the first bad one."""
        job = submission.job
        if job.is_gang and not self._gangs:
            raise Forbidden(
                f"the job has {len(job.members)} members and gangs are switched off here "
                "(scheduler.enable_gang_scheduling); ask for one member"
            )
        self._check_memory(job)
        self._check_processes(submission)
        self._check_shares(job)
        if job.notify:
            check_notify(job, self._notifications)
        if self._forbidden:
            self._check_variables(submission)
        if self._scripts is None:
            return submission
        return _check_scripts(self._scripts, submission)

    def _check_variables(self, submission: Submit | SubmitSeries) -> None:
        named = () if submission.launch is None else submission.launch.environment
        captured = () if submission.environment is None else submission.environment.variables
        for variables, where in ((named, "sets"), (captured, "brings along")):
            for name, _ in variables:
                if any(fnmatchcase(name, pattern) for pattern in self._forbidden):
                    raise Forbidden(
                        f"the job {where} the variable {name[:80]!r}, which is not allowed here "
                        "(security.forbidden_environment); unset it, or leave it out with --export"
                    )

    def _check_memory(self, job: Job) -> None:
        asked_mb = max(member.memory_mb for member in job.members)
        if self._most_mb and asked_mb > self._most_mb:
            raise Forbidden(
                f"the job asks for {asked_mb} MiB of memory and a job may have {self._most_mb} "
                "here (security.max_memory_per_job_gb); ask for less"
            )

    def _check_processes(self, submission: Submit | SubmitSeries) -> None:
        asked = 0 if submission.launch is None else submission.launch.max_processes
        if self._most_processes and asked > self._most_processes:
            raise Forbidden(
                f"the job asks for {asked} processes and a job may have {self._most_processes} "
                "here (security.max_processes_per_job); ask for fewer"
            )

    def _check_shares(self, job: Job) -> None:
        for member in job.members:
            for share in (member.gpu_share_milli, member.gpu_extra_milli):
                if share % self._step_milli:
                    raise Forbidden(
                        f"the job asks for {share / 1000:g} of a GPU and shares go in steps of "
                        f"{self._step_milli / 1000:g} here (gpu.allocation_precision)"
                    )


def _check_scripts(rule: ScriptRule, submission: Submit | SubmitSeries) -> Submit | SubmitSeries:
    jobs = submission.each() if isinstance(submission, SubmitSeries) else (submission,)
    allowed = submission.launch
    for index, one in enumerate(jobs):
        if one.launch is None:
            continue
        captured = None if one.environment is None else dict(one.environment.variables)
        try:
            allowed = rule.check(one.launch, captured)
        except Forbidden as error:
            error.index = index
            raise
    if allowed is None or not allowed.conda or submission.launch is None:
        return submission
    # Jobs of a series differ in their commands only.
    site = replace(submission.launch, conda=allowed.conda, conda_exe=allowed.conda_exe)
    return replace(submission, launch=site)
