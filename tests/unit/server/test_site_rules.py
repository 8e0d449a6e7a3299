"""What the owner of a machine does not want to run."""

from pathlib import Path

import pytest

from gpu_scheduler.control.messages import Submit
from gpu_scheduler.model.errors import Forbidden
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.server.site_rules import SiteRules
from gpu_scheduler.settings.groups import GpuSettings, SchedulerSettings, SecuritySettings, Settings
from tests.builders import a_job


def rules(**security: object) -> SiteRules:
    return SiteRules(Settings(security=SecuritySettings(**security)))


def running(*argv: str, workdir: str = "/") -> Submit:
    return Submit(a_job(), Launch(argv=argv, workdir=workdir))


def test_without_rules_everything_may_run() -> None:
    rules().check(running("anything"))


def test_gangs_can_be_switched_off() -> None:
    strict = SiteRules(Settings(scheduler=SchedulerSettings(enable_gang_scheduling=False)))
    with pytest.raises(Forbidden, match="enable_gang_scheduling"):
        strict.check(Submit(a_job(members=2)))


def test_a_job_that_asks_for_too_much_memory_is_refused() -> None:
    greedy = Submit(a_job(memory_mb=65536))
    with pytest.raises(Forbidden, match=r"65536 MiB .* may have 32768"):
        rules(max_memory_per_job_gb=32.0).check(greedy)


@pytest.mark.parametrize(
    "argv",
    [
        ("train.py",),
        ("python", "train.py", "--epochs", "3"),
        ("python3.11", "-u", "train.py"),
        ("torchrun", "--nproc-per-node=2", "train.py"),
        ("env", "A=1", "bash", "train.py"),
    ],
)
def test_a_script_in_an_allowed_directory_may_run(tmp_path: Path, argv: tuple[str, ...]) -> None:
    (tmp_path / "train.py").touch()
    rules(allowed_script_paths=(str(tmp_path),)).check(running(*argv, workdir=str(tmp_path)))


@pytest.mark.parametrize(
    "argv",
    [
        ("/usr/bin/env", "/etc/evil.sh"),
        ("../evil.sh",),
        ("python", "-c", "print(1)"),
        ("python", "-m", "http.server"),
        ("bash",),
        ("link.sh",),
    ],
)
def test_everything_else_is_refused(tmp_path: Path, argv: tuple[str, ...]) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (tmp_path / "evil.sh").touch()
    (allowed / "link.sh").symlink_to(tmp_path / "evil.sh")
    with pytest.raises(Forbidden, match="allowed_script_paths"):
        rules(allowed_script_paths=(str(allowed),)).check(running(*argv, workdir=str(allowed)))


def test_shares_go_in_the_steps_of_the_site() -> None:
    halves = SiteRules(Settings(gpu=GpuSettings(allocation_precision=0.25)))
    halves.check(Submit(a_job(gpus=0.75)))
    with pytest.raises(Forbidden, match="allocation_precision"):
        halves.check(Submit(a_job(gpus=0.4)))
