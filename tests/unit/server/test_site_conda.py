"""Conda environments where only programs and scripts of certain directories may run."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.control.messages import Submit, SubmitSeries
from gpu_scheduler.model.errors import Forbidden
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.server.submission_rules import SiteRules
from gpu_scheduler.settings.groups.jobs import SecuritySettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.rows import EnvironmentRow
from tests.builders import a_job

BEN, CARL = 50_001, 50_002
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def a_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)
    return path


def an_environment(prefix: Path) -> Path:
    """The files that `conda create` makes, as far as they are checked."""
    a_file(prefix / "conda-meta/history")
    a_file(prefix / "bin/python3.11")
    (prefix / "bin/python").symlink_to("python3.11")
    a_file(prefix / "bin/torchrun")
    a_file(prefix / "etc/conda/activate.d/cuda.sh")
    return prefix


class Site:
    """A conda of the site with two environments, allowed scripts, and ben's own directory."""

    def __init__(self, place: Path) -> None:
        self.conda = an_environment(place / "conda")
        a_file(self.conda / "bin/conda")
        self.ml = an_environment(self.conda / "envs/ml")
        self.allowed = a_file(place / "allowed/train.py").parent
        self.home = a_file(place / "home/evil.py").parent
        self.mine = an_environment(self.home / "miniconda3/envs/mine")

    def check(self, *argv: str, conda: str = "ml", **launch: object) -> Launch:
        """How ben's job runs."""
        asked = Launch(
            argv=tuple(self.placed(word) for word in argv) or ("python", self.placed("@/train.py")),
            conda=self.placed(conda),
            uid=BEN,
            gid=BEN,
            user="nobody-called-ben",
            **launch,
        )
        allowed = self.rules().check(Submit(a_job(), asked)).launch
        assert allowed is not None
        return allowed

    def rules(self) -> SiteRules:
        security = SecuritySettings(
            allowed_script_paths=(str(self.allowed),), conda_roots=(str(self.conda),)
        )
        return SiteRules(Settings(security=security))

    def placed(self, text: str) -> str:
        for mark, place in (("@", self.allowed), ("~", self.home), ("CONDA", self.conda)):
            text = text.replace(mark, str(place))
        return text


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path.resolve())


def test_named_environment_is_that_of_site(site: Site) -> None:
    allowed = site.check()
    assert (allowed.conda, allowed.conda_exe) == (str(site.ml), f"{site.conda}/bin/conda")
    assert allowed.argv == ("python", f"{site.allowed}/train.py")
    assert site.check(conda="base").conda == str(site.conda)
    assert site.check(conda="CONDA/envs/ml").conda == str(site.ml)


def test_path_with_symlinks_is_resolved(site: Site, tmp_path: Path) -> None:
    (site.conda / "envs/new").symlink_to("ml")
    assert site.check(conda="new").conda == str(site.ml)


def test_every_job_of_batch_runs_in_same_environment(site: Site) -> None:
    script = f"{site.allowed}/train.py"
    commands = (("python", script, "1"), ("python", script, "2"))
    asked = Launch(argv=commands[0], conda="ml", uid=BEN, gid=BEN)
    series = SubmitSeries(a_job(), asked, None, ("a", "b"), commands)
    allowed = site.rules().check(series)
    assert isinstance(allowed, SubmitSeries)
    assert [one.launch.conda for one in allowed.each() if one.launch] == [str(site.ml)] * 2
    assert allowed.commands == commands


@pytest.mark.parametrize(
    "name",
    [
        *("mine", "../x", "../../home/miniconda3/envs/mine", "envs/ml", "ml/", "./ml", ".", ".."),
        *("-p", "--prefix=~/miniconda3/envs/mine", "m\nl", "~/miniconda3/envs/mine"),
        *("CONDA/envs/../../home/miniconda3/envs/mine", "CONDA/envs/theirs", "theirs", "bin"),
    ],
)
def test_conda_environment_of_another_user_is_rejected(site: Site, name: str) -> None:
    (site.conda / "envs/theirs").symlink_to(site.mine)
    a_file(site.conda / "envs/bin/python")
    with pytest.raises(Forbidden, match=r"conda environment.*allowed_script_paths"):
        site.check(conda=name)


def test_error_for_an_unknown_conda_environment_lists_the_known_ones(site: Site) -> None:
    with pytest.raises(Forbidden, match=r"'lm', and the site has only base, ml \(security\.conda"):
        site.check(conda="lm")


@pytest.mark.parametrize(
    "argv",
    [
        ("python", "~/evil.py"),
        ("python", "-c", "import evil"),
        ("python", "-m", "evil"),
        ("python",),
        ("~/evil.py",),
        ("torchrun", "@/train.py"),
        ("sh", "-c", "id"),
        ("python", "@/link.py"),
        ("CONDA/envs/ml/bin/python", "~/evil.py"),
        ("../bin/python", "@/train.py"),
    ],
)
def test_script_path_is_checked_inside_environment(site: Site, argv: tuple[str, ...]) -> None:
    (site.allowed / "link.py").symlink_to(site.home / "evil.py")
    with pytest.raises(Forbidden, match="allowed_script_paths"):
        site.check(*argv)


def test_interpreter_in_allowed_directory_runs_only_scripts_there(site: Site) -> None:
    prefix = an_environment(site.allowed / "env")
    assert site.check(conda="@/env").conda == str(prefix)
    assert site.check("torchrun", "anything", conda="@/env").conda == str(prefix)
    for argv in (("python", "~/evil.py"), ("python", "-c", "1"), ("@/env/bin/python", "-m", "x")):
        with pytest.raises(Forbidden, match="allowed_script_paths"):
            site.check(*argv, conda="@/env")


def test_conda_settings_of_user_shell_are_ignored(site: Site) -> None:
    a_file(site.mine / "bin/conda")
    captured = EnvironmentRow(
        "c", (("PATH", f"{site.mine}/bin:/usr/bin"), ("CONDA_EXE", f"{site.mine}/bin/conda"))
    )
    launch = Launch(argv=("python", f"{site.allowed}/train.py"), conda="ml", captured="c", uid=BEN)
    allowed = site.rules().check(Submit(a_job(), launch, captured)).launch
    assert allowed is not None
    assert allowed.conda_exe == f"{site.conda}/bin/conda"
    with pytest.raises(Forbidden, match="allowed_script_paths"):
        site.rules().check(Submit(a_job(), replace(launch, conda="mine"), captured))


@pytest.mark.parametrize(
    "place", ["bin", "lib", "etc/conda/activate.d", "etc/conda/activate.d/cuda.sh", "", ".."]
)
def test_world_writable_environment_is_rejected(site: Site, place: str) -> None:
    (site.ml / "lib").mkdir()
    found = (site.ml / place).resolve()
    found.chmod(0o777)
    with pytest.raises(Forbidden, match=rf"its user may change {found}, and"):
        site.check()
    found.chmod(0o775)
    os.chown(found, -1, os.getgid())
    assert site.check().conda == str(site.ml), "ben is not of that group"


def test_site_environment_works_in_shared_directory(site: Site) -> None:
    site.ml.parent.chmod(0o1777)
    assert site.check().conda == str(site.ml)


@as_root
@pytest.mark.parametrize(
    ("place", "uid", "gid", "mode", "why"),
    [
        pytest.param("", BEN, BEN, 0o755, "belongs to uid 50001", id="ben's own"),
        pytest.param("", CARL, CARL, 0o755, "belongs to uid 50002", id="a friend's"),
        pytest.param("bin", BEN, BEN, 0o755, "belongs to uid 50001", id="ben's programs"),
        pytest.param(
            "etc/conda/activate.d/cuda.sh", BEN, BEN, 0o644, "belongs to", id="ben's hook"
        ),
        pytest.param("bin", 0, BEN, 0o775, "may change", id="ben's group's programs"),
    ],
)
def test_environment_must_belong_to_its_owner(
    site: Site, place: str, uid: int, gid: int, mode: int, why: str
) -> None:
    found = site.ml / place
    os.chown(found, uid, gid)
    found.chmod(mode)
    with pytest.raises(Forbidden, match=why):
        site.check()


@as_root
def test_owner_of_the_sites_conda_need_not_be_root(site: Site) -> None:
    for place in (site.conda, *site.conda.rglob("*")):
        os.chown(place, CARL, CARL, follow_symlinks=False)
    assert site.check().conda == str(site.ml)


def test_conda_of_user_is_unchanged_without_rule() -> None:
    asked = Submit(a_job(), Launch(argv=("python", "x.py"), conda="mine"))
    assert SiteRules(Settings()).check(asked) is asked
