"""Requests become model values, or errors that say what to write."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import Dependency, DependencyKind, Job, Pool
from gpu_scheduler.model.launch import Launch, Mount, Runner, Terminal
from gpu_scheduler.model.request import Topology
from gpu_scheduler.wire.job_reader import JobReader, Submission, read_patch
from gpu_scheduler.wire.jobs import JobPatch, JobRequest, TaskRequest

ADA = Caller(user="ada", uid=1000, gid=100)


def a_reader(caller: Caller = ADA) -> JobReader:
    return JobReader(caller, lambda named: named)


def asked(**fields: Any) -> JobRequest:
    return msgspec.convert({"command": ["true"], **fields}, JobRequest)


def read(**fields: Any) -> Submission:
    return a_reader().read(asked(**fields))


def job(**fields: Any) -> Job:
    return read(**fields).job


def launch(**fields: Any) -> Launch:
    return read(**fields).launch


def patched(known: Job, **fields: Any) -> dict[str, Any]:
    return dict(read_patch(msgspec.convert(fields, JobPatch), known))


def test_job_belongs_to_caller() -> None:
    read_job, read_launch = read().job, read().launch
    assert (read_job.user, read_launch.user, read_launch.uid, read_launch.gid) == (
        *("ada", "ada"),
        *(1000, 100),
    )


@pytest.mark.parametrize("field", ["user", "uid", "gid", "id", "number", "submit_ms", "captured"])
def test_no_request_field_sets_caller(field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"command": ["true"], field: 0}, JobRequest)


def test_arguments_follow_command() -> None:
    made = read(command=["python", "train.py"], args=["--epochs", "3"])
    assert made.job.command == made.launch.argv == ("python", "train.py", "--epochs", "3")


@pytest.mark.parametrize(
    ("gpus", "milli"), [(0, 0), (2, 2000), (0.5, 500), (1.5, 1500), (0.01, 10), (8.0, 8000)]
)
def test_gpus_may_be_whole_or_fractional(gpus: float, milli: int) -> None:
    assert job(gpu_count=gpus).gpu_milli == milli


@pytest.mark.parametrize("gpus", [0.0001, 0.005, 0.3333333])
def test_too_fine_share_is_rejected_not_rounded(gpus: float) -> None:
    with pytest.raises(InvalidRequest, match="est step"):
        job(gpu_count=gpus)


def test_gpu_memory_is_total_over_all_gpus() -> None:
    assert job(gpu_count=4, gpu_memory_mb=40_000).members[0].gpu_memory_mb == 10_000
    assert job(gpu_count=4, gpu_memory_mb_per_gpu=10_000).members[0].gpu_memory_mb == 10_000


@pytest.mark.parametrize(
    ("given", "priority"),
    [(1000, 1000), ("low", 250), ("normal", 750), ("high", 1500), ("urgent", 2500), ("42", 42)],
)
def test_priorities_are_numbers_or_names(given: int | str, priority: int) -> None:
    assert job(priority=given).priority == priority


def test_gang_is_number_of_equal_members_or_list() -> None:
    assert len(job(members=4, gpu_count=2).members) == 4
    mixed = job(members=[{"gpu_count": 1}, {"gpu_count": 2, "cpu_cores": 4}])
    assert [member.gpu_milli for member in mixed.members] == [1000, 2000]
    with pytest.raises(InvalidRequest, match="set it in each member"):
        job(members=[{"gpu_count": 1}], gpu_count=2)


def test_run_time_is_in_minutes_or_seconds_but_not_both() -> None:
    assert job(max_runtime_minutes=1.5).max_runtime_ms == 90_000
    assert job(max_runtime_seconds=30).max_runtime_ms == 30_000
    with pytest.raises(InvalidRequest, match="not both"):
        job(max_runtime_minutes=1, max_runtime_seconds=1)


@pytest.mark.parametrize("given", [{"max_runtime_minutes": 0}, {"max_runtime_seconds": 0.0001}])
def test_zero_limit_is_not_taken_for_default(given: dict[str, float]) -> None:
    assert job().max_runtime_ms == 0
    with pytest.raises(InvalidRequest, match="leave it out for the default"):
        job(**given)
    with pytest.raises(InvalidRequest, match="leave it out for the default"):
        patched(job(), **given)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:10Z", 10_000),
        ("1970-01-01T01:00:10+01:00", 10_000),
        ("1970-01-01T00:00:10", 10_000),
        (10, 10_000),
        (10.5, 10_500),
    ],
)
def test_times_are_iso_text_or_seconds(text: str | float, milliseconds: int) -> None:
    assert job(deadline=text).deadline_ms == milliseconds
    assert job(begin_at=text).begin_ms == milliseconds


@pytest.mark.parametrize("text", ["tomorrow", "", "9999999-01-01", 1e300])
def test_invalid_time_is_rejected(text: str | float) -> None:
    with pytest.raises(InvalidRequest, match="deadline"):
        job(deadline=text)


def test_dependencies_have_three_forms() -> None:
    given = ["afterok:job-3", "4", {"type": "afterany", "job_id": 5}, "afterok:3"]
    assert job(dependencies=given).dependencies == (
        Dependency(DependencyKind.AFTER_OK, "job-3"),
        Dependency(DependencyKind.AFTER_OK, "job-4"),
        Dependency(DependencyKind.AFTER_ANY, "job-5"),
    )


@pytest.mark.parametrize("text", ["before:3", "afterok:x", "afterok:3_1", "afterok:"])
def test_invalid_dependency_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest):
        job(dependencies=[text])


def test_arrays_are_text_or_object() -> None:
    short = job(array="0-99%10").array
    long = job(array={"tasks": "0-99", "max_running": 10}).array
    assert short == long
    assert short is not None
    assert (len(short.tasks), short.max_running) == (100, 10)


@pytest.mark.parametrize(
    "text",
    ["0-2000000", "0-999999999999:2", "0-9%x", "x", "0-9%", "9" * 40, ",".join(["1"] * 20_000)],
)
def test_oversized_or_invalid_array_is_rejected_at_once(text: str) -> None:
    with pytest.raises(InvalidRequest):
        job(array=text)


def test_array_of_million_tasks_is_one_range() -> None:
    array = job(array="0-999999").array
    assert array is not None
    assert array.tasks.ranges == ((0, 999_999),)


def test_image_means_container() -> None:
    assert launch(image="pytorch:2.0").runner is Runner.CONTAINER
    assert launch().runner is Runner.PROCESS
    assert launch(runner="tmux").runner is Runner.TMUX


def test_terminal_is_described_for_jobs_that_have_one() -> None:
    assert launch(runner="terminal").terminal == Terminal()
    asked = {"rows": 50, "columns": 132, "idle_seconds": 1.5, "on_disconnect": "end"}
    made = launch(runner="terminal", terminal=asked).terminal
    assert made == Terminal(rows=50, columns=132, idle_ms=1500, keep=False)
    with pytest.raises(InvalidRequest, match="runner 'terminal'"):
        launch(terminal=asked)


def test_mounts_name_two_absolute_paths() -> None:
    made = launch(image="x", mounts=["/data:/in:ro", "/out:/out"])
    assert made.mounts == (Mount("/data", "/in", read_only=True), Mount("/out", "/out"))
    for bad in ("data:/in", "/data", "/a:/b:xx"):
        with pytest.raises(InvalidRequest, match="mount"):
            launch(image="x", mounts=[bad])
    with pytest.raises(InvalidRequest, match="need a container"):
        launch(mounts=["/a:/b"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("USR1@120", ("USR1", 120_000)), ("SIGUSR2", ("USR2", 60_000)), ("", ("", 0))],
)
def test_warning_is_signal_and_seconds(text: str, expected: tuple[str, int]) -> None:
    made = launch(signal=text)
    assert (made.warn_signal, made.warn_before_ms) == expected


@pytest.mark.parametrize("text", ["NOPE@1", "USR1@", "USR1@x", "@5"])
def test_invalid_warning_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="signal"):
        launch(signal=text)


def test_captured_environment_is_stored_separately_by_name() -> None:
    variables = {"HOME": "/home/ada", "API_KEY": "s3cret"}
    mine = read(captured_environment=variables)
    assert mine.environment == (("API_KEY", "s3cret"), ("HOME", "/home/ada"))
    assert mine.launch.captured.startswith("env-")
    assert mine.launch.captured == read(captured_environment=dict(variables)).launch.captured
    bob = JobReader(Caller(user="bob", uid=1001, gid=100), lambda named: named)
    theirs = bob.read(asked(captured_environment=variables))
    assert theirs.launch.captured != mine.launch.captured


@pytest.mark.parametrize("variables", [{"": "x"}, {"A=B": "x"}, {"A": "\0"}, {"A\0": "x"}])
def test_invalid_variables_are_rejected(variables: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="variable"):
        launch(environment=variables)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": []},
        {"working_directory": "relative"},
        {"command": ["a\0b"]},
        {"name": "two\nlines"},
        {"name": "\x1b[31m"},
        {"allowed_gpus": "a-b"},
        {"gpu_count": 3, "allowed_gpus": [0, 1]},
        {"runner": "container"},
        {"mig_profile": "9g.1gb"},
    ],
)
def test_launch_that_no_agent_could_run_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read(**fields)


@pytest.mark.parametrize("name", ["working_directory", "output"])
@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", "\x7f", "\0"])
def test_control_characters_in_paths_are_rejected(name: str, character: str) -> None:
    with pytest.raises(InvalidRequest, match="control character"):
        read(**{name: f"/a{character}b"})


def test_all_other_fields_are_read() -> None:
    made = read(
        name="x",
        tenant_id="vision",
        gpu_count=2,
        gpu_model="A100",
        allowed_gpus="0-3",
        node_labels={"b": "2", "a": "1"},
        topology="require_island",
        contiguous=True,
        min_bandwidth_gbps=100,
        pool="online",
        interactive=True,
        preemptible=False,
        estimate_seconds=60,
        hold=True,
        retries=2,
        retry_exit_codes=[75, 1],
        requeue_on_node_loss=True,
        same_rack=True,
        umask=0o077,
        grace_seconds=5,
        max_processes=64,
        conda="py311",
        output="out.txt",
    )
    request = made.job.members[0]
    assert (request.gpu_models, request.device_ids) == (("A100",), (0, 1, 2, 3))
    assert request.node_labels == (("a", "1"), ("b", "2"))
    assert (request.topology, request.contiguous) == (Topology.REQUIRE_ISLAND, True)
    assert (made.job.tenant, made.job.pool, made.job.interactive) == ("vision", Pool.ONLINE, True)
    assert (made.job.preemptible, made.job.hold, made.job.retries) == (False, True, 2)
    assert (made.job.retry_exit_codes, made.job.estimate_ms) == ((1, 75), 60_000)
    assert (made.launch.umask, made.launch.grace_ms) == (0o077, 5000)
    assert (made.launch.max_processes, made.launch.conda) == (64, "py311")


@pytest.mark.parametrize(
    ("fields", "cpu_milli", "is_limited"),
    [
        ({}, 1000, False),
        ({"cpu_cores": 0}, 0, True),
        ({"cpu_cores": 2}, 2000, True),
        ({"gpu_count": 1}, 0, True),
        ({"gpu_memory_mb": 100}, 0, True),
        ({"mig_profile": "1g.10gb"}, 0, True),
        ({"members": [{"gpu_count": 1}, {}]}, 1000, False),
    ],
)
def test_job_without_gpu_and_cpu_counts_as_one_core_and_may_use_more(
    fields: dict[str, Any], cpu_milli: int, is_limited: bool
) -> None:
    """Otherwise an array of a million such tasks would start at once."""
    made = read(**fields)
    assert made.job.members[-1].cpu_milli == cpu_milli
    assert made.launch.limits_cpu is is_limited


def alone(found: tuple[Submission, str, tuple[str, ...]]) -> Submission:
    """The individual fields of a job, merged into the common ones."""
    common, name, argv = found
    job = replace(common.job, name=name, command=argv)
    return Submission(job, replace(common.launch, argv=argv), common.environment)


def test_identical_jobs_are_read_as_if_each_were_alone() -> None:
    reader = a_reader()
    shared = {"gpu_count": 1, "captured_environment": {"A": "1"}, "retries": 1}
    for number in range(5):
        fields = {**shared, "name": f"n{number}", "args": [str(number)]}
        assert alone(reader.read_similar(asked(**fields))) == read(**fields)
    assert alone(reader.read_similar(asked(**shared, priority=5))) == read(**shared, priority=5)
    with pytest.raises(InvalidRequest, match="NUL"):
        reader.read_similar(asked(**shared, args=["\0"]))
    with pytest.raises(InvalidRequest, match="nothing to run"):
        reader.read_similar(asked(command=[]))


def test_identical_objects_are_read_as_if_each_were_one_request() -> None:
    reader = a_reader()
    shared = {"gpu_count": 1, "captured_environment": {"A": "1"}, "retries": 1}
    for number in range(5):
        fields = {**shared, "name": f"n{number}", "command": ["a"], "args": [str(number)]}
        assert alone(reader.read_json_object(dict(fields))) == read(**fields)
    other = {"command": ["a"], "priority": 5, "begin_at": "2030-01-01T00:00:00Z"}
    assert alone(reader.read_json_object(dict(other))) == read(**other)
    with pytest.raises(InvalidRequest, match="NUL"):
        reader.read_json_object({"command": ["a", "\0"]})
    with pytest.raises(InvalidRequest, match="nothing to run"):
        reader.read_json_object({"gpu_count": 1})


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "python train.py"},
        {"command": ["a", 1]},
        {"command": ["a"], "args": None},
        {"command": ["a"], "name": 5},
        {"command": ["a"], "name": "n" * 257},
        {"command": ["a" * (1 << 17), "b"]},
        {"command": ["a"] * 10_001},
        {"command": ["a"], "hold": 1},
        {"command": ["a"], "gpu_count": True},
        {"command": ["a"], "retries": 1 << 70},
        {"command": ["a"], "gpus": 1},
    ],
)
def test_doubtful_object_is_left_to_full_validation(
    fields: dict[str, Any],
) -> None:
    """Also beside others that compare equal in Python."""
    reader = a_reader()
    reader.read_json_object({"command": ["a"], "hold": True})
    reader.read_json_object({"command": ["a"], "gpu_count": 1})
    with pytest.raises(msgspec.ValidationError):
        reader.read_json_object(fields)


def test_caller_without_local_account_cannot_submit() -> None:
    with pytest.raises(InvalidRequest, match="no account"):
        a_reader(Caller(user="token"))


def test_short_form_is_shell_command_line() -> None:
    task = TaskRequest(command="python train.py > log", priority="high", env={"A": "1"})
    made = a_reader().read_task(task)
    assert made.launch.argv == ("/bin/sh", "-c", "python train.py > log")
    assert (made.job.priority, made.launch.environment) == (1500, (("A", "1"),))


def test_patch_changes_only_named_fields() -> None:
    known = job(gpu_count=2, gpu_memory_mb=20_000, cpu_cores=4, gpu_model="A100")
    assert patched(known) == {}
    assert patched(known, priority="high", name="y", hold=True) == {
        "priority": 1500,
        "name": "y",
        "hold": True,
    }
    assert patched(known, max_runtime_minutes=2, begin_at=5, deadline=None) == {
        "max_runtime_ms": 120_000,
        "begin_ms": 5000,
        "deadline_ms": 0,
    }
    (member,) = patched(known, gpu_count=1)["members"]
    assert (member.gpu_milli, member.gpu_memory_total_mb, member.cpu_milli) == (1000, 20_000, 4000)
    assert member.gpu_models == ("A100",)


def test_gang_request_cannot_be_patched() -> None:
    with pytest.raises(InvalidRequest, match="gang"):
        patched(job(members=2, gpu_count=1), gpu_count=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpu_model": "H100"}, "gpu_model is given without gpu_count; add the number"),
        ({"gpu_models": ["H100"]}, "gpu_models is given without gpu_count"),
        ({"members": [{"gpu_model": "H100"}]}, "gpu_model is given without gpu_count"),
        ({"allowed_gpus": "0-3"}, "allowed_gpus is given without gpu_count"),
        ({"contiguous": True}, "contiguous is given without gpu_count"),
        ({"min_bandwidth_gbps": 100}, "min_bandwidth_gbps is given without gpu_count"),
        ({"topology": "require_island"}, "topology is given without gpu_count"),
        ({"array": "0-3%0"}, "must be 1 or more; leave it out for no limit"),
        ({"name": "  "}, "the name contains only spaces; write a name, or leave it out"),
    ],
)
def test_invalid_values_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read(**fields)


def test_gpu_model_may_go_with_memory_or_slice_alone() -> None:
    assert job(gpu_model="H100", gpu_memory_mb=1024).members[0].gpu_models == ("H100",)
    assert job(gpu_model="H100", mig_profile="1g.10gb").members[0].gpu_models == ("H100",)
    assert job(array={"tasks": "0-3", "max_running": 0}).array is not None


@pytest.mark.parametrize(
    "written", ["RTX 4090", "rtx4090", "NVIDIA GeForce RTX 4090", "RTX-4090", "RTX4090"]
)
def test_gpu_model_has_several_spellings(written: str) -> None:
    assert job(gpu_count=1, gpu_model=written).members[0].gpu_models == ("RTX4090",)
