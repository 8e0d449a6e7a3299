"""Which jobs share an MPS daemon. The control program is a list of its commands."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.jobs.mps import Mps, MpsError
from gpu_scheduler.agent.launcher_client import OrderRefused
from gpu_scheduler.agent.launcher_protocol import Work, WorkDevice

ANN, BOB = 1000, 1001


class Control:
    """Records its commands and their users; fails when told to."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.environments: list[dict[str, str]] = []
        self.fails: set[str] = set()

    async def run_helper(
        self, argv: tuple[str, ...], environment: dict[str, str], who: tuple[int, int, str]
    ) -> None:
        what = argv[5] if len(argv) > 5 else "-d"
        self.told.append((what, who[0]))
        self.environments.append(environment)
        if what in self.fails:
            raise OrderRefused("exit code 1")

    @property
    def deeds(self) -> list[tuple[str, int]]:
        return [deed for deed in self.told if deed[0] != "get_server_list"]


@pytest.fixture
def control() -> Control:
    return Control()


def an_mps(control: Control, directory: Path, **changes: Any) -> Mps:
    values: dict[str, Any] = {
        "program": "/usr/bin/nvidia-cuda-mps-control",
        "sharing": "auto",
        "directory": directory / "mps",
        "state": directory / "mps.json",
    }
    return Mps(control, **(values | changes))


@pytest.fixture(autouse=True)
def nobody_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories are not given to users that this machine does not have."""
    monkeypatch.setattr("gpu_scheduler.agent.jobs.mps.os.geteuid", lambda: 1)


def a_share(name: str, uid: int = ANN, index: int = 0, **changes: Any) -> Work:
    device = WorkDevice(index=index, uuid=f"GPU-{index}", share_milli=500)
    work = Work(allocation_id=name, uid=uid, gid=uid, user="x", devices=(device,))
    return replace(work, **changes)


def sharing(mps: Mps, *works: Work) -> list[str]:
    async def join() -> list[str]:
        joined = [await mps.attach(work) for work in works]
        return [work.environment.get("TGPU_GPU_SHARING", "") for work in joined]

    return asyncio.run(join())


def test_daemon_lives_from_first_share_to_last(control: Control, tmp_path: Path) -> None:
    mps = an_mps(control, tmp_path)
    assert sharing(mps, a_share("a"), a_share("b")) == ["mps", "mps"]
    asyncio.run(mps.detach(("a", 0)))
    assert control.deeds == [("-d", ANN)]
    assert (tmp_path / "mps" / "0" / "pipe").is_dir()
    asyncio.run(mps.detach(("b", 0)))
    assert control.deeds == [("-d", ANN), ("quit", ANN)]
    assert not (tmp_path / "mps" / "0").exists()


def test_each_device_has_daemon_named_by_uuid(control: Control, tmp_path: Path) -> None:
    assert sharing(an_mps(control, tmp_path), a_share("a"), a_share("b", BOB, 1)) == ["mps", "mps"]
    assert control.deeds == [("-d", ANN), ("-d", BOB)]
    seen = {environment["CUDA_VISIBLE_DEVICES"] for environment in control.environments}
    assert seen == {"GPU-0", "GPU-1"}


def test_second_user_on_device_is_time_sliced(control: Control, tmp_path: Path) -> None:
    mps = an_mps(control, tmp_path)
    assert sharing(mps, a_share("a"), a_share("b", BOB)) == ["mps", "time_slicing"]
    asyncio.run(mps.detach(("a", 0)))
    assert sharing(mps, a_share("c", BOB)) == ["mps"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"devices": (WorkDevice(index=0, uuid="GPU-0"),)}, ""),
        ({"devices": ()}, ""),
        ({"devices": (WorkDevice(index=0, share_milli=500, mig_uuid="MIG-1"),)}, ""),
        ({"image": "ubuntu"}, "time_slicing"),
        (
            {
                "devices": (
                    WorkDevice(index=0, uuid="GPU-0"),
                    WorkDevice(index=1, uuid="GPU-1", share_milli=500),
                )
            },
            "time_slicing",
        ),
    ],
    ids=["whole", "none", "mig", "container", "one and a half"],
)
def test_job_without_use_for_mps_starts_no_daemon(
    control: Control, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    assert sharing(an_mps(control, tmp_path), a_share("a", **changes)) == [told]
    assert control.told == []


def test_device_without_mps_support_is_time_sliced(control: Control, tmp_path: Path) -> None:
    assert sharing(an_mps(control, tmp_path, program=None), a_share("a")) == ["time_slicing"]
    off = an_mps(control, tmp_path, sharing="time_slicing")
    assert sharing(off, a_share("a")) == ["time_slicing"]
    control.fails = {"-d"}
    assert sharing(an_mps(control, tmp_path), a_share("a")) == ["time_slicing"]


def test_required_but_missing_mps_is_explained(control: Control, tmp_path: Path) -> None:
    with pytest.raises(MpsError, match="nvidia-cuda-mps-control is not on the agent's PATH"):
        sharing(an_mps(control, tmp_path, program=None, sharing="mps"), a_share("a"))
    control.fails = {"get_server_list"}
    with pytest.raises(MpsError, match="does not answer"):
        sharing(an_mps(control, tmp_path, sharing="mps"), a_share("a"))


def test_dead_daemon_is_restarted_for_next_job(control: Control, tmp_path: Path) -> None:
    mps = an_mps(control, tmp_path)
    sharing(mps, a_share("a"))
    answers = iter((True, False))
    real = control.run_helper

    async def run_helper(argv: Any, environment: Any, who: Any) -> None:
        await real(argv, environment, who)
        if "get_server_list" in argv and next(answers, False):
            raise OrderRefused("no daemon")

    control.run_helper = run_helper  # type: ignore[method-assign]
    assert sharing(mps, a_share("b")) == ["mps"]
    assert control.deeds == [("-d", ANN), ("-d", ANN)]


def test_next_agent_continues_with_existing_daemons(control: Control, tmp_path: Path) -> None:
    sharing(an_mps(control, tmp_path), a_share("a"), a_share("b", index=1))
    again = an_mps(control, tmp_path)
    asyncio.run(again.keep_only([("a", 0)]))
    assert control.deeds == [("-d", ANN), ("-d", ANN), ("quit", ANN)]
    assert sharing(again, a_share("c"), a_share("d", BOB)) == ["mps", "time_slicing"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"device": "x"}]'])
def test_invalid_file_is_treated_as_missing(control: Control, tmp_path: Path, text: str) -> None:
    (tmp_path / "mps.json").write_text(text)
    assert sharing(an_mps(control, tmp_path), a_share("a")) == ["mps"]


def test_uncreatable_directory_prevents_daemon(control: Control, tmp_path: Path) -> None:
    (tmp_path / "mps").write_text("in the way")
    assert sharing(an_mps(control, tmp_path), a_share("a")) == ["time_slicing"]
