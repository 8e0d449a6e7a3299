"""Site rules: what the settings of a server forbid in a submission, for every caller.

A submission comes in; the submission as it will run goes out, or a `Forbidden` error that names
the setting. Where only programs in certain directories may run, a path is checked as written and
as resolved, so that only a user who may write to those directories can replace a program after the
submission.
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
from gpu_scheduler.model.errors import Forbidden, InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.notify.event_rules import why_not
from gpu_scheduler.settings.schema import Settings

MB_PER_GB = 1024
CONDA_BASE = "base"
"""The name that conda gives to the environment of the installation itself."""
CONDA_META = "conda-meta"
"""The directory that identifies a conda environment."""
MAX_NAMES = 10
MAX_ENVIRONMENTS = 1000
SYSTEM = ("/usr", "/bin", "/sbin")
"""Directories where only root installs programs."""
INTERPRETERS = frozenset(
    ("python", "bash", "sh", "dash", "zsh", "ksh", "perl", "Rscript", "julia", "node", "ruby")
)
LOADER_PREFIXES = ("LD_", "BASH_FUNC_", "LUA_")
LOADER_NAMES = frozenset(
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
        *("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"),
        *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH"),
        *("DOTNET_STARTUP_HOOKS", "GUILE_LOAD_PATH", "TCLLIBPATH", "PHPRC", "PHP_INI_SCAN_DIR"),
    )
)
"""Variables that make a program load other code."""
PATH_LISTS = frozenset(
    (
        *("LD_LIBRARY_PATH", "PYTHONPATH", "PERL5LIB", "PERLLIB", "RUBYLIB", "NODE_PATH"),
        *("R_LIBS", "R_LIBS_USER", "R_LIBS_SITE"),
        *("PYTHONPYCACHEPREFIX", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES"),
        *("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "OCL_ICD_VENDORS"),
    )
)
"""Those that only list paths: harmless if all paths are in trusted directories."""

WITHOUT_START_FILES = (
    *(("PYTHONNOUSERSITE", "1"), ("ZDOTDIR", "/dev/null")),
    *(("R_PROFILE_USER", "/dev/null"), ("R_ENVIRON_USER", "/dev/null")),
)
"""Keep interpreters from running files of the user's home: usercustomize and .pth, .zshenv,
.Rprofile and .Renviron."""


def with_resolved(directories: Iterable[str]) -> tuple[str, ...]:
    """Each directory as written and as resolved: an admin may write either."""
    found = [path for one in directories for path in (one.rstrip("/"), os.path.realpath(one))]
    return tuple(dict.fromkeys(found))


def is_within(path: str, directories: tuple[str, ...]) -> bool:
    """Whether both the path as written and the resolved path are within the directories."""
    texts = (os.path.normpath(path), os.path.realpath(path))
    return all(any(Path(text).is_relative_to(one) for one in directories) for text in texts)


class CondaError(Exception):
    """A job may not use this conda environment; the message says why."""


class SiteConda:
    """The conda environments of the site (`security.conda_roots`).

    A name is looked up only in the site's own installations; the user's conda configuration is
    ignored. Entering an environment runs its scripts, so the environment must belong to the owner
    of the installations, and the job's user must not be able to change it.
    """

    def __init__(
        self, roots: Iterable[str], allowed: tuple[str, ...], trusted: tuple[str, ...]
    ) -> None:
        """`allowed` directories may hold programs of any user; `trusted` are all directories."""
        self._roots = tuple(root.rstrip("/") for root in roots)
        self._allowed = allowed
        self._trusted = trusted

    def prefix(self, launch: Launch) -> str:
        """The resolved directory of the job's environment."""
        name = launch.conda
        found = self._by_path(name) if "/" in name else self._by_name(name)
        real = os.path.realpath(found)
        if not is_within(found, self._trusted):
            raise CondaError(f"the job runs in the conda environment {found}{_behind(found, real)}")
        if not is_within(found, self._allowed):
            self._check_owners(Path(real), launch)
        return real

    def conda_for(self, prefix: str) -> str:
        """The conda program for an environment: of its own installation, else the first one."""
        own = [root for root in self._roots if is_within(prefix, with_resolved([root]))]
        for root in (*own, *self._roots):
            program = f"{root}/bin/conda"
            if os.access(program, os.X_OK) and is_within(program, self._trusted):
                return program
        return ""

    def _by_path(self, path: str) -> str:
        if not path.startswith("/") or ".." in path.split("/"):
            raise CondaError(
                f"the job runs in the conda environment '{path}', which is neither a name nor an "
                "absolute path"
            )
        return path

    def _by_name(self, name: str) -> str:
        if not name.isprintable() or name.startswith(("-", ".")):
            raise CondaError(
                f"the job runs in the conda environment {name!r}, which is not a valid name"
            )
        for root in self._roots:
            place = root if name == CONDA_BASE else f"{root}/envs/{name}"
            if Path(place, CONDA_META).is_dir():
                return place
        raise CondaError(
            f"the job runs in the conda environment '{name}', and the site has "
            f"{self._names()} (security.conda_roots)"
        )

    def _names(self) -> str:
        """The available environments, for a message."""
        names = sorted({name for root in self._roots for name in _environments(root)})
        if not names:
            return "none"
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        return f"only {', '.join(names[:MAX_NAMES])}{more}"

    def _check_owners(self, prefix: Path, launch: Launch) -> None:
        """Reject an environment that the job's user could change to run other code."""
        if launch.uid == os.geteuid():
            return  # the server's own user made the rule
        trusted_owners = {0, os.geteuid(), *(uid for root in self._roots for uid in _owner(root))}
        for place in (*self._parents_of(prefix), *_run_on_entry(prefix)):
            owner = _owner(str(place))
            if not owner <= trusted_owners:
                raise CondaError(
                    f"the job runs in the conda environment {prefix}, and {place} belongs to "
                    f"uid {min(owner)}, who does not own the site's conda"
                )
            if _may_change(place, launch):
                raise CondaError(
                    f"the job runs in the conda environment {prefix}, and its user may change "
                    f"{place}"
                )

    def _parents_of(self, prefix: Path) -> Iterator[Path]:
        """The environment and its parent directories within the trusted ones."""
        yield prefix
        for parent in prefix.parents:
            if not is_within(str(parent), self._trusted):
                return
            yield parent


def _environments(root: str) -> list[str]:
    try:
        found = [one.name for one in Path(root, "envs").iterdir() if (one / CONDA_META).is_dir()]
    except OSError:
        found = []
    return [*found, CONDA_BASE] if Path(root, CONDA_META).is_dir() else found


def _run_on_entry(prefix: Path) -> Iterator[Path]:
    """Files and directories that run code before the job's own command."""
    hooks = prefix / "etc/conda/activate.d"
    yield from (prefix / "bin", prefix / "lib", prefix / "etc", hooks.parent, hooks)
    try:
        yield from hooks.iterdir()
    except OSError:
        return


def _owner(place: str) -> set[int]:
    """The owner's uid; empty if the file does not exist."""
    try:
        return {Path(place).stat().st_uid}
    except OSError:
        return set()


def _may_change(place: Path, launch: Launch) -> bool:
    """Whether the job's user may write to the file or directory; links are followed."""
    try:
        found = place.stat()
    except OSError:
        return False
    if found.st_uid == launch.uid:
        return True
    mode = found.st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return False  # users can replace only their own files
    if mode & stat.S_IWOTH:
        return True
    if not mode & stat.S_IWGRP:
        return False
    return found.st_gid in {launch.gid, *os.getgrouplist(launch.user, launch.gid)}


def _behind(path: str, real: str) -> str:
    return "" if real == os.path.normpath(path) else f" (which is {real})"


class ScriptRule:
    """Restricts programs to `security.allowed_script_paths` of one server."""

    def __init__(
        self,
        allowed: Iterable[str],
        conda_roots: Iterable[str] = (),
        default_runner: Runner = Runner.PROCESS,
    ) -> None:
        self._runners = {Runner.PROCESS, default_runner}
        self._allowed_text = ", ".join(allowed)
        self._allowed = with_resolved(allowed)
        self._trusted = with_resolved((*self._allowed, *SYSTEM, *conda_roots))
        self._conda = SiteConda(conda_roots, self._allowed, self._trusted)
        self._environments: dict[str, dict[str, str]] = {}

    def check(self, launch: Launch, captured: Mapping[str, str] | None) -> Launch:
        """Reject a launch, or return it as it may run.

        It has the absolute path of its conda environment, the `WITHOUT_START_FILES`, and a PATH of
        trusted directories: `#!/usr/bin/env python3` and a script's own commands are found there.

        `captured` is None also if an earlier job of the request brought the same environment.
        """
        if launch.script:
            raise self._refusal("the job is a script that was submitted as text")
        if launch.image:
            raise self._refusal("the job runs in a container")
        if launch.runner not in self._runners:
            raise self._refusal(
                f"the job runs on a terminal ({launch.runner.value}), where any program can be "
                "started (submit it with --runner process)"
            )
        if not launch.argv:
            raise self._refusal("the job names no program")
        explicit = dict(launch.environment)
        self._check_variables(explicit)
        if captured is not None:
            self._check_variables(captured)
        environment = self._captured(launch.captured, captured) | explicit
        search = environment.get("PATH", PLAIN_PATH)
        if launch.conda:
            launch = self._use_site_conda(launch, environment.get("CONDA_EXE", ""), search)
            # The environment's programs come first, then those of the system.
            search = f"{launch.conda}/bin:{PLAIN_PATH}:{search}"
        self._check_program(launch, self._find_program(launch, launch.argv[0], search))
        trusted = filter(self._is_trusted_list, environment.get("PATH", "").split(":"))
        path = ":".join(filter(None, trusted)) or PLAIN_PATH
        own = dict(launch.environment) | {"PATH": path} | dict(WITHOUT_START_FILES)
        return replace(launch, environment=tuple(own.items()))

    def _check_program(self, launch: Launch, program: str) -> None:
        is_interpreter = _plain_name(program) in INTERPRETERS
        if not is_interpreter and is_within(program, self._allowed):
            return
        if not is_within(program, self._trusted):
            raise self._refusal(f"the job runs {program}")
        if not is_interpreter:
            raise self._refusal(f"the job runs {program}, which is not a script interpreter")
        self._check_argument(launch, program)

    def _check_variables(self, variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            is_loading = (
                name in LOADER_NAMES or name.startswith(LOADER_PREFIXES) or _imports(name, value)
            )
            if is_loading and not (name in PATH_LISTS and self._is_trusted_list(value)):
                raise self._refusal(
                    f"the job sets {name}, which makes programs load other code (unset it, or "
                    "leave it out with --export)"
                )

    def _is_trusted_list(self, directories: str) -> bool:
        """Whether a path list has only trusted directories; an empty part is the current one."""
        parts = directories.replace(";", ":").split(":") if directories else []
        return all(
            part.startswith("/") and "$" not in part and is_within(part, self._trusted)
            for part in parts
        )

    def _captured(self, name: str, captured: Mapping[str, str] | None) -> dict[str, str]:
        """PATH and CONDA_EXE of a captured environment, remembered for later jobs of a request."""
        if not name:
            return {}
        if captured is not None:
            while len(self._environments) >= MAX_ENVIRONMENTS:
                del self._environments[next(iter(self._environments))]
            self._environments[name] = {
                key: captured[key] for key in ("PATH", "CONDA_EXE") if key in captured
            }
        return dict(self._environments.get(name, {"PATH": ""}))

    def _use_site_conda(self, launch: Launch, named: str, search: str) -> Launch:
        """The launch with the site's environment and the site's conda program."""
        try:
            prefix = self._conda.prefix(launch)
        except CondaError as error:
            raise self._refusal(str(error)) from None
        # conda runs the command in this shell, which is looked up like any program.
        self._find_program(launch, "bash", PLAIN_PATH)
        program = self._conda.conda_for(prefix)
        if not program:
            program = self._find_program(launch, named or "conda", search)
            if not is_within(program, self._trusted):
                raise self._refusal(f"the job is started by {program}")
        return replace(launch, conda=prefix, conda_exe=program)

    def _find_program(self, launch: Launch, word: str, search: str) -> str:
        """The file that will be executed; no other file can take precedence later."""
        if "/" in word:
            return self._absolute(word, launch)
        for directory in search.split(":"):
            if not is_within(directory, self._trusted):
                break
            path = f"{directory}/{word}"
            if os.access(path, os.X_OK) and Path(path).is_file():
                return path
        raise self._refusal(
            f"the job runs '{word}', which is not in the first directories of PATH that belong to "
            "the system; give its absolute path"
        )

    def _absolute(self, word: str, launch: Launch) -> str:
        is_absolute = word.startswith("/")
        if not (is_absolute or launch.workdir) or ".." in (
            *word.split("/"),
            *launch.workdir.split("/"),
        ):
            raise self._refusal(f"the job names '{word}'; give its absolute path")
        return word if is_absolute else f"{launch.workdir}/{word}"

    def _check_argument(self, launch: Launch, program: str) -> None:
        """Require a script as the first argument: options could contain code or other files."""
        word = launch.argv[1] if len(launch.argv) > 1 else ""
        if not word or word.startswith(("-", "+")):
            raise self._refusal(
                f"the job runs {program} with '{word}', but the first argument of an interpreter "
                "must be the script"
            )
        script = self._absolute(word, launch)
        if not is_within(script, self._allowed) or not Path(script).is_file():
            raise self._refusal(f"the job runs {script}")

    def _refusal(self, reason: str) -> Forbidden:
        return Forbidden(
            f"{reason}, and only programs and scripts in these directories may run here "
            f"(security.allowed_script_paths): {self._allowed_text}"
        )


def _imports(name: str, value: str) -> bool:
    """Whether PYTHONWARNINGS makes Python import a warning class by its path."""
    if name != "PYTHONWARNINGS":
        return False
    kinds = [rule.split(":")[2:3] for rule in value.split(",")]
    return any("." in kind[0] for kind in kinds if kind)


def _plain_name(program: str) -> str:
    """The name of a program without its version: `python` for /usr/bin/python3.11."""
    return Path(os.path.realpath(program)).name.rstrip("0123456789.")


class SiteRules:
    """All rules of one server."""

    def __init__(self, settings: Settings) -> None:
        security = settings.security
        self._allows_gangs = settings.scheduler.enable_gang_scheduling
        self._max_memory_mb = round(security.max_memory_per_job_gb * MB_PER_GB)
        self._step_milli = round(settings.gpu.allocation_precision * 1000)
        self._max_processes = security.max_processes_per_job
        self._notifications = settings.notifications
        self._forbidden = security.forbidden_environment
        allowed = security.allowed_script_paths
        runner = Runner(settings.jobs.runner)
        self._scripts = ScriptRule(allowed, security.conda_roots, runner) if allowed else None

    def check(self, submission: Submit | SubmitSeries) -> Submit | SubmitSeries:
        """Raise `Forbidden` if a rule is broken; of several jobs, with the `index` of the first."""
        job = submission.job
        if job.is_gang and not self._allows_gangs:
            raise Forbidden(
                f"the job has {len(job.members)} members, but gangs are switched off here "
                "(scheduler.enable_gang_scheduling); ask for one member"
            )
        self._check_memory(job)
        self._check_processes(submission)
        self._check_shares(job)
        if job.notify:
            for rule in job.notify:
                why = why_not(rule, job, self._notifications)
                if why:
                    raise InvalidRequest(f"notify '{str(rule)[:80]}': {why}")
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
        requested_mb = max(member.memory_mb for member in job.members)
        if self._max_memory_mb and requested_mb > self._max_memory_mb:
            raise Forbidden(
                f"the job asks for {requested_mb} MiB of memory, but a job may have "
                f"{self._max_memory_mb} here (security.max_memory_per_job_gb); ask for less"
            )

    def _check_processes(self, submission: Submit | SubmitSeries) -> None:
        processes = 0 if submission.launch is None else submission.launch.max_processes
        if self._max_processes and processes > self._max_processes:
            raise Forbidden(
                f"the job asks for {processes} processes, but a job may have {self._max_processes} "
                "here (security.max_processes_per_job); ask for fewer"
            )

    def _check_shares(self, job: Job) -> None:
        for member in job.members:
            for share in (member.gpu_share_milli, member.gpu_extra_milli):
                if share % self._step_milli:
                    raise Forbidden(
                        f"the job asks for {share / 1000:g} of a GPU, but shares here must be "
                        f"multiples of {self._step_milli / 1000:g} (gpu.allocation_precision)"
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
    if allowed is None or submission.launch is None:
        return submission
    # Jobs of a series differ in their commands only.
    launch = replace(
        submission.launch,
        conda=allowed.conda,
        conda_exe=allowed.conda_exe,
        environment=allowed.environment,
    )
    return replace(submission, launch=launch)
