"""Submissions that the site rules forbid."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.control.messages import Submit, SubmitSeries
from gpu_scheduler.model.errors import Forbidden
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.server.submission_rules import SiteRules
from gpu_scheduler.settings.groups.jobs import GpuSettings, JobSettings, SecuritySettings
from gpu_scheduler.settings.groups.policy import SchedulerSettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.rows import EnvironmentRow
from tests.builders import a_job


def rules(**security: object) -> SiteRules:
    return SiteRules(Settings(security=SecuritySettings(**security)))


def running(*argv: str, workdir: str = "/") -> Submit:
    return Submit(a_job(), Launch(argv=argv, workdir=workdir))


def test_everything_may_run_without_rules() -> None:
    rules().check(running("anything"))


def test_gangs_can_be_disabled() -> None:
    strict = SiteRules(Settings(scheduler=SchedulerSettings(enable_gang_scheduling=False)))
    with pytest.raises(Forbidden, match="enable_gang_scheduling"):
        strict.check(Submit(a_job(members=2)))


def test_job_over_memory_limit_is_rejected() -> None:
    greedy = Submit(a_job(memory_mb=65536))
    with pytest.raises(Forbidden, match=r"65536 MiB .* may have 32768"):
        rules(max_memory_per_job_gb=32.0).check(greedy)


def test_job_over_process_limit_is_rejected() -> None:
    greedy = Submit(a_job(), Launch(argv=("x",), max_processes=101))
    with pytest.raises(Forbidden, match="101 processes, but a job may have 100"):
        rules(max_processes_per_job=100).check(greedy)
    rules(max_processes_per_job=0).check(greedy)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An allowed directory beside one of a user who tries to get round the rule."""
    for name in ("allowed/train.py", "allowed/run", "home/evil.py", "home/python"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch(0o755)
    (tmp_path / "allowed/link.sh").symlink_to(tmp_path / "home/evil.py")
    (tmp_path / "home/later").symlink_to(tmp_path / "allowed")
    (tmp_path / "allowed/bin").mkdir()
    (tmp_path / "allowed/bin/python").symlink_to("/usr/bin/env")
    (tmp_path / "allowed/bin/sh").symlink_to("/bin/sh")
    return tmp_path


def check_script(site: Path, submission: Submit) -> None:
    rules(allowed_script_paths=(str(site / "allowed"),)).check(submission)


def placed(site: Path, argv: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.replace("@", str(site)) for word in argv)


@pytest.mark.parametrize(
    "argv",
    [
        ("./train.py",),
        ("@/allowed/run", "--any", "argument"),
        ("perl", "train.py", "-c", "3"),
        ("/bin/sh", "@/allowed/train.py"),
        ("@/allowed/bin/sh", "train.py"),
    ],
)
def test_script_in_allowed_directory_may_run(site: Path, argv: tuple[str, ...]) -> None:
    check_script(site, running(*placed(site, argv), workdir=f"{site}/allowed"))


@pytest.mark.parametrize(
    "argv",
    [
        ("/usr/bin/env", "@/home/evil.py"),
        ("/usr/bin/env", "@/allowed/train.py"),
        ("/usr/bin/find", "@/allowed/train.py", "-exec", "@/home/evil.py"),
        ("../home/evil.py",),
        ("@/home/python", "@/allowed/train.py"),
        ("perl", "-e", "print(1)"),
        ("perl", "-eprint(1)", "train.py"),
        ("perl", "-w", "@/home/evil.py"),
        ("sh", "-xc", "id"),
        ("sh", "+x", "train.py"),
        ("sh", "missing.sh"),
        ("sh",),
        ("@/allowed/bin/sh", "@/home/evil.py"),
        ("@/allowed/bin/python", "train.py"),
        ("@/home/later/train.py",),
        ("sh", "@/home/later/train.py"),
        ("./link.sh",),
        ("sh", "link.sh"),
        ("train.py",),
    ],
)
def test_script_elsewhere_is_rejected(site: Path, argv: tuple[str, ...]) -> None:
    with pytest.raises(Forbidden, match="allowed_script_paths"):
        check_script(site, running(*placed(site, argv), workdir=f"{site}/allowed"))


@pytest.mark.parametrize(
    "launch",
    [
        Launch(argv=("/bin/sh", "@/allowed/train.py"), environment=(("LD_PRELOAD", "/x.so"),)),
        Launch(argv=("/bin/sh", "@/allowed/train.py"), environment=(("BASH_ENV", "/x"),)),
        Launch(argv=("sh", "@/allowed/train.py"), environment=(("PATH", "@/home:/bin"),)),
        Launch(argv=("@/allowed/run",), script="#!/bin/sh\nevil"),
        Launch(argv=("@/allowed/run",), conda="mine"),
        Launch(argv=("@/allowed/run",), conda="@/home/env"),
        Launch(argv=("@/allowed/run",), conda="@/allowed/../home/env"),
        Launch(argv=("@/allowed/run",), conda="@/allowed/env"),
        Launch(
            argv=("@/allowed/run",),
            conda="@/allowed/env",
            environment=(("CONDA_EXE", "@/home/python"),),
        ),
        Launch(
            argv=("python", "@/home/evil.py"),
            conda="@/allowed/env",
            environment=(("CONDA_EXE", "@/allowed/run"),),
        ),
        Launch(argv=("@/allowed/run",), image="mine", runner=Runner.CONTAINER),
        Launch(argv=("/bin/sh", "train.py")),
    ],
)
def test_launch_that_would_run_other_code_is_rejected(site: Path, launch: Launch) -> None:
    variables = tuple((name, value.replace("@", str(site))) for name, value in launch.environment)
    conda = launch.conda.replace("@", str(site))
    found = replace(launch, argv=placed(site, launch.argv), environment=variables, conda=conda)
    with pytest.raises(Forbidden, match="allowed_script_paths"):
        check_script(site, Submit(a_job(), found))


def test_conda_environment_in_allowed_directory_may_be_used_by_path(site: Path) -> None:
    python = site / "allowed/env/bin/python3.11"
    python.parent.mkdir(parents=True)
    python.touch(0o755)
    (python.parent / "python").symlink_to("python3.11")
    launch = Launch(
        argv=("python", f"{site}/allowed/train.py"),
        conda=f"{site}/allowed/env",
        environment=(("CONDA_EXE", f"{site}/allowed/run"),),
    )
    check_script(site, Submit(a_job(), launch))
    captured = EnvironmentRow("c", (("CONDA_EXE", f"{site}/home/python"), ("PATH", "/bin")))
    with pytest.raises(Forbidden, match=r"is started by .*/home/python"):
        check_script(site, Submit(a_job(), replace(launch, environment=(), captured="c"), captured))


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [
        ("", True),
        ("/usr/local/cuda/lib64:@/allowed/lib", True),
        ("/usr/lib;@/home", False),
        ("/usr/lib:@/home/lib", False),
        (":/usr/lib", False),
        ("/usr/lib:", False),
        ("lib", False),
        ("/usr/$ORIGIN/lib", False),
        ("/usr/../@/home", False),
        ("@/home/later", False),
    ],
)
def test_library_paths_may_name_only_trusted_directories(
    site: Path, value: str, is_allowed: bool
) -> None:
    listed = value.replace("@", str(site))
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH"):
        launch = Launch(argv=(f"{site}/allowed/run",), environment=((name, listed),))
        if is_allowed:
            check_script(site, Submit(a_job(), launch))
            continue
        with pytest.raises(Forbidden, match=f"sets {name}.*leave it out with --export"):
            check_script(site, Submit(a_job(), launch))


@pytest.mark.parametrize(
    ("name", "value", "is_allowed"),
    [
        ("PYTHONPYCACHEPREFIX", "@/home/pyc", False),
        ("PYTHONPYCACHEPREFIX", "@/allowed/pyc", True),
        ("OPENSSL_CONF", "@/home/openssl.cnf", False),
        ("CUDA_INJECTION64_PATH", "@/home/evil.so", False),
        ("OCL_ICD_FILENAMES", "evil.so", False),
        ("PYTHONWARNINGS", "all:0:antigravity.x:0:0", False),
        ("PYTHONWARNINGS", "ignore,error::home.evil.Warning", False),
        ("PYTHONWARNINGS", "ignore::DeprecationWarning,default:::some.module", True),
        ("PYTHONWARNINGS", "ignore", True),
        ("PYTHONUNBUFFERED", "1", True),
        ("JAVA_TOOL_OPTIONS", "-javaagent:@/home/evil.jar", False),
        ("LUA_INIT_5_4", "@@/home/evil.lua", False),
        ("NCCL_NET_PLUGIN", "@/home/evil.so", False),
    ],
)
def test_variables_that_load_other_code_are_rejected(
    site: Path, name: str, value: str, is_allowed: bool
) -> None:
    variables = ((name, value.replace("@", str(site))),)
    launch = Launch(argv=("/bin/sh", f"{site}/allowed/train.py"), environment=variables)
    if is_allowed:
        check_script(site, Submit(a_job(), launch))
        return
    with pytest.raises(Forbidden, match=f"sets {name}, which makes programs load other"):
        check_script(site, Submit(a_job(), launch))


def test_captured_variables_are_checked(site: Path) -> None:
    launch = Launch(argv=("sh", f"{site}/allowed/train.py"), captured="c")

    def from_a_shell(**variables: str) -> Submit:
        return Submit(a_job(), launch, EnvironmentRow("c", tuple(variables.items())))

    check_script(site, from_a_shell(PATH="/usr/bin:/bin"))
    with pytest.raises(Forbidden, match="PYTHONPATH"):
        check_script(site, from_a_shell(PATH="/usr/bin:/bin", PYTHONPATH="/home"))
    with pytest.raises(Forbidden, match="absolute path"):
        check_script(site, from_a_shell(PATH=f"{site}/home:/usr/bin:/bin"))


def test_first_rejected_job_of_batch_is_named(site: Path) -> None:
    good, bad = ("/bin/sh", f"{site}/allowed/train.py"), ("/bin/sh", "-c", "id")
    captured = EnvironmentRow("c", (("PATH", "/usr/bin:/bin"),))
    launch = Launch(argv=good, captured="c")
    many = SubmitSeries(a_job(), launch, captured, ("a", "b", "c"), (good, ("sh", good[1]), bad))
    with pytest.raises(Forbidden) as refusal:
        rules(allowed_script_paths=(str(site / "allowed"),)).check(many)
    assert refusal.value.index == 2


def test_shares_follow_site_steps() -> None:
    halves = SiteRules(Settings(gpu=GpuSettings(allocation_precision=0.25)))
    halves.check(Submit(a_job(gpus=0.75)))
    with pytest.raises(Forbidden, match="allocation_precision"):
        halves.check(Submit(a_job(gpus=0.4)))


# --- variables


@pytest.mark.parametrize("pattern", ["LD_PRELOAD", "LD_*"])
def test_forbidden_variable_is_rejected_from_any_source(pattern: str) -> None:
    strict = rules(forbidden_environment=(pattern,))
    named = Launch(argv=("x",), environment=(("LD_PRELOAD", "/evil.so"),))
    with pytest.raises(Forbidden, match="sets the variable 'LD_PRELOAD'"):
        strict.check(Submit(a_job(), named))
    captured = EnvironmentRow("env-1", (("HOME", "/"), ("LD_PRELOAD", "/evil.so")))
    with pytest.raises(Forbidden, match="brings along the variable 'LD_PRELOAD'"):
        strict.check(Submit(a_job(), Launch(argv=("x",)), captured))
    strict.check(Submit(a_job(), Launch(argv=("x",), environment=(("ld_preload", "y"),))))


@pytest.mark.parametrize("runner", [Runner.TERMINAL, Runner.TMUX, Runner.SCREEN])
def test_job_on_terminal_is_rejected_since_any_program_can_be_started_there(
    site: Path, runner: Runner
) -> None:
    strict = rules(allowed_script_paths=(str(site / "allowed"),))
    launch = Launch(argv=(str(site / "allowed/run"),), workdir="/", runner=runner)
    with pytest.raises(Forbidden, match=r"on a terminal .* --runner process"):
        strict.check(Submit(a_job(), launch))
    rules().check(Submit(a_job(), launch))


def test_site_whose_default_runner_is_screen_accepts_it_for_allowed_programs(site: Path) -> None:
    security = SecuritySettings(allowed_script_paths=(str(site / "allowed"),))
    strict = SiteRules(Settings(security=security, jobs=JobSettings(runner="screen")))
    launch = Launch(argv=(str(site / "allowed/run"),), workdir="/", runner=Runner.SCREEN)
    strict.check(Submit(a_job(), launch))
    with pytest.raises(Forbidden, match=r"on a terminal \(tmux\)"):
        strict.check(Submit(a_job(), replace(launch, runner=Runner.TMUX)))


def test_allowed_script_finds_no_program_of_its_user(site: Path) -> None:
    """A shebang with `env`, and the commands of a shell script, search the PATH."""
    script = site / "allowed/run"
    script.write_text("#!/usr/bin/env python\n")
    (site / "home/python").write_text("#!/bin/sh\necho attack\n")
    (site / "allowed/bin/python").unlink()
    (site / "allowed/bin/python").write_text("#!/bin/sh\necho site\n")
    (site / "allowed/bin/python").chmod(0o755)
    path = f"{site}/home::.:{site}/later/bin:{site}/allowed/bin:/usr/bin:/bin"
    strict = rules(allowed_script_paths=(str(site / "allowed"),))

    def run(path: str) -> str:
        environment = {"PATH": path}
        return subprocess.run(
            [script], env=environment, cwd=site / "home", capture_output=True, text=True, check=True
        ).stdout

    assert run(path) == "attack\n", "the attack works without the rule"
    for launch, row in (
        (Launch(argv=(str(script),), environment=(("PATH", path),)), None),
        (Launch(argv=(str(script),), captured="c"), EnvironmentRow("c", (("PATH", path),))),
    ):
        allowed = strict.check(Submit(a_job(), launch, row)).launch
        assert allowed is not None
        found = dict(allowed.environment)["PATH"]
        assert found == f"{site}/allowed/bin:/usr/bin:/bin"
        assert run(found) == "site\n"


def test_allowed_job_runs_no_start_up_file_of_its_home(site: Path) -> None:
    home = site / "home"
    user_base = home / ".local/lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    user_base.mkdir(parents=True)
    (user_base / "usercustomize.py").write_text("print('attack')")
    (user_base / "x.pth").write_text("import sys; print('attack')\n")
    strict = rules(allowed_script_paths=(str(site / "allowed"),))
    asked = Launch(argv=(str(site / "allowed/run"),), environment=(("PYTHONNOUSERSITE", ""),))
    allowed = strict.check(Submit(a_job(), asked)).launch
    assert allowed is not None

    def output(environment: dict[str, str]) -> str:
        # The interpreter outside of the virtual environment, which has no user packages.
        command = [f"{sys.base_prefix}/bin/python3", "-c", ""]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert "attack" in output({"HOME": str(home)}), "the attack works without the rule"
    assert output({"HOME": str(home), **dict(allowed.environment)}) == ""
    series = SubmitSeries(a_job(), asked, None, ("a",), (asked.argv,))
    checked = strict.check(series).launch
    assert checked is not None
    assert dict(checked.environment)["R_PROFILE_USER"] == "/dev/null"
