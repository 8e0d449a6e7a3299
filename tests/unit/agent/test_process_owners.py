"""Attribution of processes to jobs."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.agent.devices.processes import ProcessOwners

ANN, BOB = 1000, 1001


class Machine:
    """Processes, and jobs that the launcher holds."""

    def __init__(self, directory: Path) -> None:
        self._processes = directory / "proc"
        self._scratch = directory / "scratch"
        self._scratch.mkdir()

    def process(self, pid: int, uid: int, parent: int = 1, **variables: str) -> None:
        place = self._processes / str(pid)
        place.mkdir(parents=True)
        text = "".join(f"{name}={value}\0" for name, value in variables.items())
        (place / "environ").write_text(text)
        (place / "status").write_text(
            f"Name:\ta) b: c\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t0\t0\nGid:\t1\t1\t1\t1\n"
        )

    def group(self, pid: int, path: str) -> None:
        (self._processes / str(pid) / "cgroup").write_text(f"4:pids:/\n0::{path}\n")

    def owner(self, pid: int) -> str | None:
        return ProcessOwners(str(self._scratch), self._processes).owner_of(pid)

    def work(self, name: str, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
        (self._scratch / name).mkdir()
        real = Path.stat

        def stat(path: Path, **options: bool) -> os.stat_result:
            facts = real(path, **options)
            if path.name != name:
                return facts
            return os.stat_result((*facts[:4], uid, *facts[5:10]))

        monkeypatch.setattr(Path, "stat", stat)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    machine.work("job-1.1.3", monkeypatch, ANN)
    return machine


def test_process_of_job_user_and_its_children_belong_to_job(machine: Machine) -> None:
    machine.process(10, ANN, TGPU_ALLOCATION_ID="job-1.1", TGPU_MEMBER="3")
    machine.process(11, ANN, parent=10)
    machine.process(12, 0, TGPU_ALLOCATION_ID="job-1.1", TGPU_MEMBER="3")
    assert [machine.owner(pid) for pid in (10, 11, 12)] == ["job-1.1"] * 3


def test_container_user_process_belongs_to_job_by_parent(machine: Machine) -> None:
    machine.process(10, ANN, TGPU_ALLOCATION_ID="job-1.1", TGPU_MEMBER="3")
    machine.process(11, 100_005, parent=10, TGPU_ALLOCATION_ID="job-1.1", TGPU_MEMBER="3")
    assert machine.owner(11) == "job-1.1"


@pytest.mark.parametrize(
    ("uid", "allocation", "member"),
    [
        (BOB, "job-1.1", "3"),
        (ANN, "x", "0"),
        (ANN, "job-1.1", "2"),
        (ANN, "../scratch/job-1.1", "3"),
        (0, ".", "."),
        (ANN, "", ""),
    ],
)
def test_environment_variable_alone_proves_nothing(
    machine: Machine, uid: int, allocation: str, member: str
) -> None:
    machine.process(10, uid, TGPU_ALLOCATION_ID=allocation, TGPU_MEMBER=member)
    assert machine.owner(10) is None


def test_vanished_process_belongs_to_no_job(machine: Machine) -> None:
    assert machine.owner(10) is None


def test_process_without_variables_belongs_to_job_by_cgroup(
    machine: Machine,
) -> None:
    machine.process(10, ANN)
    machine.group(10, "/system.slice/gpu-scheduler-12ab34cd/job-1.1.3")
    machine.process(11, BOB)
    machine.group(11, "/user.slice/job-1.1.3")
    machine.process(12, ANN)
    machine.group(12, "/user.slice/session-1.scope/job-9.1.0")
    assert [machine.owner(pid) for pid in (10, 11, 12)] == ["job-1.1", None, None]
