"""Ports, slices and paths that an agent assigns are kept, also when the agent is killed."""

from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.source import DetectedDevice, DetectedSlice, NodeInventory
from gpu_scheduler.agent.jobs.environment import PLAIN_PATH
from gpu_scheduler.agent.jobs.network import free_port
from gpu_scheduler.agent.jobs.orders import (
    ASSIGNMENTS_FILE,
    NoFreeSlice,
    OrderTranslator,
    PortTaken,
)
from gpu_scheduler.wire import agent_pb2 as pb

PROFILE = "1g.10gb"
SPLIT = DetectedDevice(
    index=0, mig_slices=(DetectedSlice(profile=PROFILE, uuids=("MIG-a", "MIG-b")),)
)


def an_agent(directory: Path, *devices: DetectedDevice) -> OrderTranslator:
    config = AgentConfig(
        node="n0",
        targets=("unix:/nowhere",),
        dir=str(directory),
        logs_dir=str(directory),
        scratch_dir=str(directory),
    )
    found = NodeInventory(cpu_milli=1000, memory_mb=1000, devices=devices or (SPLIT,))
    return OrderTranslator(config, found)


def a_member(member: int) -> pb.Order:
    rendezvous = pb.Rendezvous(rank=member, world_size=2, hosts=["n0", "n0"])
    start = pb.Start(job_id="job-1", attempt=1, argv=["true"], rendezvous=rendezvous)
    return pb.Order(allocation_id="job-1.1", member=member, start=start)


def of_a_slice(name: str) -> pb.Order:
    device = pb.HeldDevice(index=0, share_milli=0, mig_profile=PROFILE)
    start = pb.Start(job_id=name, attempt=1, argv=["true"], devices=[device])
    return pb.Order(allocation_id=f"{name}.1", start=start)


def slices(orders: OrderTranslator, name: str) -> list[str]:
    return [device.mig_uuid for device in orders.translate(of_a_slice(name)).devices]


def test_all_gang_members_get_one_port_also_after_agent_restart(tmp_path: Path) -> None:
    first = an_agent(tmp_path).translate(a_member(0)).environment["MASTER_PORT"]
    assert int(first) > 0
    assert an_agent(tmp_path).translate(a_member(1)).environment["MASTER_PORT"] == first


def test_held_slice_is_assigned_to_no_other_job(tmp_path: Path) -> None:
    assert slices(an_agent(tmp_path), "job-1") == ["MIG-a"]
    again = an_agent(tmp_path)
    assert slices(again, "job-2") == ["MIG-b"]
    assert slices(again, "job-1") == ["MIG-a"]


def test_slice_is_free_when_its_job_is_forgotten_or_not_held(tmp_path: Path) -> None:
    orders = an_agent(tmp_path)
    assert slices(orders, "job-1") == ["MIG-a"]
    orders.assignments.forget("job-1.1", 0)
    assert slices(orders, "job-2") == ["MIG-a"]
    again = an_agent(tmp_path)
    again.assignments.keep_only([("job-3.1", 0)])
    assert slices(again, "job-3") == ["MIG-a"]


def test_slice_is_free_for_next_job_as_soon_as_its_job_ends(tmp_path: Path) -> None:
    orders = an_agent(tmp_path)
    assert [*slices(orders, "job-1"), *slices(orders, "job-2")] == ["MIG-a", "MIG-b"]
    with pytest.raises(NoFreeSlice, match="of GPU 0 is free on this node"):
        slices(orders, "job-3")
    orders.assignments.release("job-1.1", 0)
    assert slices(orders, "job-3") == ["MIG-a"]


def port(orders: OrderTranslator, job: str, **asked: Any) -> int:
    """The port that a replica is assigned."""
    start = pb.Start(job_id=job, attempt=1, argv=["true"], **asked)
    work = orders.translate(pb.Order(allocation_id=f"{job}.1", start=start))
    return int(work.environment["TGPU_SERVICE_PORT"])


def test_port_is_free_as_soon_as_its_replica_ends_also_after_restart(
    tmp_path: Path,
) -> None:
    wanted = free_port()
    assert port(an_agent(tmp_path), "job-1", port=wanted) == wanted
    again = an_agent(tmp_path)
    with pytest.raises(PortTaken, match=f"port {wanted} is in use on this node"):
        port(again, "job-2", port=wanted)
    again.assignments.release("job-1.1", 0)
    assert port(again, "job-2", port=wanted) == wanted


@pytest.mark.parametrize("text", ["", "[]", '{"ports": 1}', '{"ports": {}, "slices": [[1]]}'])
def test_invalid_assignment_file_blocks_no_job(tmp_path: Path, text: str) -> None:
    (tmp_path / ASSIGNMENTS_FILE).write_text(text, encoding="utf-8")
    assert slices(an_agent(tmp_path), "job-1") == ["MIG-a"]


@pytest.mark.parametrize(
    ("output", "task", "path"),
    [
        ("out_%j.txt", None, "/w/out_12.txt"),
        ("out_%j.txt", 4, "/w/out_12_4.txt"),
        ("%A/%a.txt", 4, "/w/12/4.txt"),
        ("%a", None, "/w/0"),
        ("/logs/%x-%j", None, "/logs/a_b-12"),
        ("50%%j.txt", None, "/w/50%j.txt"),
        ("50%.%n", None, "/w/50%.%n"),
    ],
)
def test_output_file_name_may_contain_job_id(
    tmp_path: Path, output: str, task: int | None, path: str
) -> None:
    start = pb.Start(
        job_id="job-12", attempt=1, argv=["x"], workdir="/w", output=output, name="a/b", task=task
    )
    order = pb.Order(allocation_id="a", member=0, start=start)
    assert an_agent(tmp_path).translate(order).log_path == path


@pytest.mark.parametrize(
    ("workdir", "output", "path"),
    [
        ("/home/ann/project", "out.txt", "/home/ann/project/out.txt"),
        ("/home/ann/project", "/data/out.txt", "/data/out.txt"),
    ],
)
def test_output_file_is_relative_to_job_directory(
    tmp_path: Path, workdir: str, output: str, path: str
) -> None:
    start = pb.Start(job_id="job-1", attempt=1, argv=["true"], workdir=workdir, output=output)
    work = an_agent(tmp_path).translate(pb.Order(allocation_id="job-1.1", start=start))
    assert work.log_of_user
    assert work.log_path == path


def test_job_gets_cpus_near_its_gpus_if_known(tmp_path: Path) -> None:
    near = {0: (0, 1), 1: (2, 3), 2: ()}
    devices = tuple(DetectedDevice(index=index, cpus=cpus) for index, cpus in near.items())
    orders = an_agent(tmp_path, *devices)

    def cpus(*held: int) -> tuple[int, ...]:
        shares = [pb.HeldDevice(index=index, share_milli=1000) for index in held]
        start = pb.Start(job_id="job-1", attempt=1, argv=["true"], devices=shares)
        return orders.translate(pb.Order(allocation_id="job-1.1", start=start)).cpus

    assert cpus(1) == (2, 3)
    assert cpus(0, 1) == (0, 1, 2, 3)
    # If the CPUs of one GPU are unknown, or there is no GPU, it may run anywhere.
    assert cpus(0, 2) == cpus() == ()


def conda_command(directory: Path, home: Path, **variables: str) -> tuple[str, ...]:
    given = {"HOME": str(home), "PATH": str(home / "bin")} | variables
    start = pb.Start(job_id="job-1", attempt=1, argv=["python", "train.py"], conda="ml")
    start.environment.update(given)
    work = an_agent(directory).translate(pb.Order(allocation_id="job-1.1", start=start))
    assert work.argv[1:] == ("run", "--no-capture-output", "-n", "ml", "python", "train.py")
    return work.argv


def test_conda_is_found_in_shell_path_or_install_directory(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for place in ("bin", "miniforge3/bin"):
        (home / place).mkdir(parents=True)
    assert conda_command(tmp_path, home)[0] == "conda", "there is none, and its start will say so"
    (home / "miniforge3/bin/conda").touch(0o755)
    assert conda_command(tmp_path, home)[0] == f"{home}/miniforge3/bin/conda"
    (home / "bin/conda").touch(0o755)
    assert conda_command(tmp_path, home)[0] == "conda"
    assert conda_command(tmp_path, home, CONDA_EXE="/c/bin/conda")[0] == "/c/bin/conda"


def test_site_conda_overrides_conda_of_user(tmp_path: Path) -> None:
    start = pb.Start(job_id="job-1", attempt=1, argv=["python", "train.py"])
    start.conda, start.conda_exe = "/opt/conda/envs/ml", "/opt/conda/bin/conda"
    start.environment.update(
        {
            "PATH": "/home/ben/bin",
            "LANG": "de",
            "CONDARC": "/home/ben/rc",
            "CONDA_EXE": "/home/ben/conda",
            "CONDA_PREFIX": "/home/ben/env",
            "CONDA_SHLVL": "1",
            "_CE_M": "-m",
            "_CE_CONDA": "evil",
            "MAMBA_EXE": "/x",
        }
    )
    work = an_agent(tmp_path).translate(pb.Order(allocation_id="job-1.1", start=start))
    assert work.argv[:5] == (start.conda_exe, "run", "--no-capture-output", "-p", start.conda)
    assert work.environment["PATH"] == f"{PLAIN_PATH}:/home/ben/bin"
    assert work.environment["LANG"] == "de"
    assert not {"CONDARC", "CONDA_EXE", "CONDA_PREFIX", "CONDA_SHLVL"} & work.environment.keys()
    assert not {"_CE_M", "_CE_CONDA", "MAMBA_EXE"} & work.environment.keys()
