"""`tgpu submit` builds the request from options, script or file."""

import json
import os
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.cli.main import main
from gpu_scheduler.cli.submit.body import SHORT_SCALE_TOP, default_name, priority_of
from gpu_scheduler.model.job import parse_priority
from tests.unit.client.fake_server import USER, FakeServer, a_server

Body = dict[str, Any]
Submit = Callable[..., Body]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with a_server() as running:
        monkeypatch.setenv("TGPU_SERVER", running.directory)
        yield running


@pytest.fixture
def submitted(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Submit with these arguments and return the body that reached the server."""

    def submit(*words: str, command: str = "submit") -> Body:
        assert main([command, *words]) == 0
        return server.bodies[-1]

    return submit


@pytest.fixture
def refused(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Submit with these arguments and return the error message."""

    def submit(*words: str, command: str = "submit") -> str:
        try:
            code = main([command, *words])
        except SystemExit as end:
            code = int(str(end.code))
        shown = capsys.readouterr().err
        assert code == 2, shown
        assert server.bodies == []
        return shown.removeprefix("tgpu: error: ").rstrip("\n")

    return submit


def test_command_after_double_dash_is_taken_literally(submitted: Submit) -> None:
    body = submitted("-G", "2", "--", "python", "train.py", "--gpus", "9", "--", "x")
    assert body["command"] == ["python", "train.py", "--gpus", "9", "--", "x"]
    assert body["gpu_count"] == 2
    assert body["name"] == "train.py"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("python3 -c 'import os; print(os)'", "python3"),
        ("python -uc 'import os' x", "python"),
        ("python -u train.py -c x", "train.py"),
        ("python -m torch.run train.py", "torch.run"),
        ("/usr/bin/perl -ne 'print if /x/' file", "perl"),
        ("node --eval 'x()'", "node"),
        ("bash -e run.sh", "run.sh"),
        ("bash -lc 'python train.py'", "train.py"),
        ("sh -c ''", "sh"),
        ("sh -c", "sh"),
        ("nvidia-smi -l 1", "nvidia-smi"),
        ("ssh box train.py", "ssh"),
        ("/usr/bin/python3", "python3"),
    ],
)
def test_job_without_name_is_named_after_program(words: str, name: str) -> None:
    assert default_name(shlex.split(words)) == name


def test_double_dash_may_be_omitted(submitted: Submit) -> None:
    body = submitted("-G2", "-Hq", "--time=2h", "echo", "--hold", "-G", "9")
    assert body["command"] == ["echo", "--hold", "-G", "9"]
    assert (body["gpu_count"], body["hold"], body["max_runtime_seconds"]) == (2, True, 7200)


def test_documented_option_forms_are_accepted(submitted: Submit) -> None:
    body = submitted("--gpus", "2", "--priority", "5", "--", "cmd=python train.py")
    assert body["command"] == ["/bin/sh", "-c", "python train.py"]
    assert (body["gpu_count"], body["priority"], body["name"]) == (2, 750, "train.py")
    body = submitted(
        *("--name", "x", "--gpus", "2", "--priority", "500", "--tenant-id", "T", "--", "cmd")
    )
    assert (body["name"], body["priority"], body["tenant_id"]) == ("x", 500, "T")


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (["-G", "0.5"], {"gpu_count": 0.5}),
        (["--gpu-memory", "20G"], {"gpu_memory_mb": 20480}),
        (["--gpu-memory-per-gpu", "10G"], {"gpu_memory_mb_per_gpu": 10240}),
        (["-G", "1", "--gpu-model", "A100,H100"], {"gpu_models": ["A100", "H100"]}),
        (["--mig", "1g.5gb", "--gpu-model", "A100"], {"gpu_models": ["A100"]}),
        (["--gpu-memory", "20G", "--gpu-model", "A100"], {"gpu_models": ["A100"]}),
        (["--mig", "3g.40gb"], {"mig_profile": "3g.40gb"}),
        (["-G", "1", "--allowed-gpus", "0-3"], {"allowed_gpus": "0-3"}),
        (["-c", "4", "-m", "32G"], {"cpu_cores": 4, "memory_mb": 32768}),
        (["-n", "4"], {"cpu_cores": 4}),
        (["--label", "zone=a"], {"node_labels": {"zone": "a"}}),
        (["-N", "4", "--min-members", "2"], {"members": 4, "gang_scheduling": True}),
        (["-t", "90"], {"max_runtime_seconds": 5400}),
        (["--estimate", "1h", "--grace", "30"], {"estimate_seconds": 3600, "grace_seconds": 30}),
        (
            ["-d", "afterok:1:2,afterany:job-3"],
            {"dependencies": ["afterok:job-1", "afterok:job-2", "afterany:job-3"]},
        ),
        (["-d", "7"], {"dependencies": ["afterok:job-7"]}),
        (["-a", "0-99%10"], {"array": "0-99%10"}),
        (["--begin", "1970-01-01T00:01:00Z"], {"begin_at": 60}),
        (["--deadline", "1970-01-01T00:01:00Z"], {"deadline": 60}),
        (
            ["--retries", "3", "--retry-exit-codes", "1,137"],
            {"retries": 3, "retry_exit_codes": [1, 137]},
        ),
        (["-p", "high"], {"priority": 1500}),
        (["-p", "0"], {"priority": 0}),
        (["-p", "10"], {"priority": 1500}),
        (["-p", "2000"], {"priority": 2000}),
        (["--no-preempt", "--interactive"], {"preemptible": False, "interactive": True}),
        (["--signal", "USR1@120"], {"signal": "USR1@120"}),
        (["--conda", "ml", "--runner", "tmux"], {"conda": "ml", "runner": "tmux"}),
        (
            ["--image", "pytorch", "--mount", "/a:/b:ro"],
            {"image": "pytorch", "runner": "container", "mounts": ["/a:/b:ro"]},
        ),
        (
            ["-e", "A=b=c", "--export", "NONE"],
            {"environment": {"A": "b=c"}, "captured_environment": {}},
        ),
        (["--pool", "online", "--topology", "any"], {"pool": "online", "topology": "any"}),
        (["-o", "out.txt"], {"output": "out.txt"}),
    ],
)
def test_every_option_reaches_server(submitted: Submit, words: list[str], fields: Body) -> None:
    body = submitted(*words, "--", "true")
    assert {name: body.get(name) for name in fields} == fields


def test_empty_name_is_ignored(submitted: Submit) -> None:
    assert submitted("--name", "", "--", "python", "train.py")["name"] == "train.py"


@pytest.mark.parametrize(
    "option",
    [
        *("--array", "--tenant", "--gpu-model", "--allowed-gpus", "--nodelist", "--exclude"),
        *("--image", "--conda", "--chdir", "--output", "--dependency", "--mig", "--export"),
        *("--signal", "--retry-exit-codes", "--llm", "--param-file", "--priority", "--sweep"),
        "--server",
    ],
)
def test_empty_option_value_suggests_unset_variable(
    refused: Callable[..., str], option: str
) -> None:
    assert f"{option} is empty; is a variable not set?" in refused(option, "", "--", "true")


def test_non_utf8_variable_is_left_out_and_named(
    submitted: Submit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD", "\udcff")
    assert "ODD" not in submitted("--", "true")["captured_environment"]
    assert "variable 'ODD' is left out: it is not valid UTF-8" in capsys.readouterr().err
    submitted("--export", "PATH", "--", "true")
    assert capsys.readouterr().err == ""


def test_unset_options_are_not_sent(submitted: Submit) -> None:
    body = submitted("true")
    surroundings = {"captured_environment", "working_directory", "umask"}
    assert body.keys() - surroundings == {"command", "name"}


def test_short_priority_scale_equals_model() -> None:
    for text in (*map(str, range(SHORT_SCALE_TOP + 3)), "low", "urgent", "9999"):
        assert priority_of(text) == parse_priority(text, short_scale=True)


def test_environment_is_captured(
    submitted: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv("VIRTUAL_ENV", "/v")
    monkeypatch.chdir(tmp_path)
    body = submitted("-D", "sub/dir", "true")
    assert body["working_directory"] == f"{tmp_path}/sub/dir"
    assert body["captured_environment"]["VIRTUAL_ENV"] == "/v"
    assert "CUDA_VISIBLE_DEVICES" not in body["captured_environment"]
    assert body["umask"] == os.umask(body["umask"])


def test_script_is_sent_as_text_and_its_directives_are_options(
    submitted: Submit, tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n#TGPU --gpus 2 --time 1h\n# TGPU --name 'my job'  # a comment\n\n"
        "echo hi\n#TGPU --gpus 7\n"
    )
    body = submitted(str(script), "a", "-b")
    assert body["script"] == script.read_text()
    assert body["args"] == ["a", "-b"]
    assert "command" not in body
    assert (body["gpu_count"], body["max_runtime_seconds"], body["name"]) == (2, 3600, "my job")
    body = submitted("--gpus", "4", "-J", "other", str(script))
    assert (body["gpu_count"], body["max_runtime_seconds"], body["name"]) == (4, 3600, "other")


def test_file_after_double_dash_is_command(submitted: Submit, tmp_path: Path) -> None:
    for name in ("train.sh", "job.yaml", "jobs.txt"):
        path = tmp_path / name
        path.write_text("#!/bin/sh\n#TGPU --gpus 2\n")
        path.chmod(0o755)
        body = submitted("--", str(path))
        assert body["command"] == [str(path)]
        assert "gpu_count" not in body


def test_invalid_script_directive_is_named(refused: Callable[..., str], tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\n#TGPU --gpus 2\n#TGPU --gpsu 2\n")
    assert refused(str(script)) == (
        f"{script}, line 3: unknown option '--gpsu'; did you mean '--gpus'?"
    )
    script.write_text("#!/bin/bash\n#TGPU --name 'x\n")
    assert "line 2: No closing quotation" in refused(str(script))
    script.write_text("#!/bin/bash\n#TGPU --gpus two\n")
    assert "line 2: --gpus is 'two'" in refused(str(script))
    script.write_text("#!/bin/bash\n#TGPU -d after:3\n")
    assert "line 2: --dependency has 'after:3'" in refused(str(script))
    script.write_bytes(b"#!/bin/bash\n\xff\n")
    assert "is not UTF-8" in refused(str(script))
    script.write_bytes(b"#!/bin/bash\n" + b"#" * 600_000)
    assert "larger" in refused(str(script))


def test_job_file_is_read(submitted: Submit, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: python train.py\nnum_gpus: 2\npriority: 5\n")
    body = submitted(str(path))
    assert body["command"] == ["/bin/sh", "-c", "python train.py"]
    assert (body["gpu_count"], body["priority"], body["name"]) == (2, 750, "train.py")
    path.write_text(
        "command: [python, train.py, 3]\ntime: 2h\nmemory: 40G\nenv: {LR: 0.1, ON: true}\n"
        "dependency: afterok:3\narray: 0-9\nmax_processes: 5\ngrace: 5\n"
        "begin: '1970-01-02T00:00Z'\n"
    )
    body = submitted("--gpus", "1", str(path))
    assert body["command"] == ["python", "train.py", "3"]
    assert (body["max_runtime_seconds"], body["memory_mb"], body["gpu_count"]) == (7200, 40960, 1)
    assert body["environment"] == {"LR": "0.1", "ON": "true"}
    assert (body["dependencies"], body["begin_at"]) == (["afterok:job-3"], 86400)


def test_command_words_in_job_file_are_literal(submitted: Submit, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: [echo, yes, 1.10, null]\nargs: [0x10]\n")
    body = submitted(str(path))
    assert (body["command"], body["args"]) == (["echo", "yes", "1.10", "null"], ["0x10"])
    path.write_text("command: false\n")
    assert submitted(str(path))["command"] == ["/bin/sh", "-c", "false"]
    path.write_text("command: |\n  cd x\n  ./y\n")
    assert submitted(str(path))["command"] == ["/bin/sh", "-c", "cd x\n./y\n"]


def test_job_file_may_hold_several_jobs(
    server: FakeServer, submitted: Submit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps([{"command": ["a"]}, {"command": ["b"], "gpus": 1}]))
    submitted(str(path))
    assert [body["command"] for body in server.bodies] == [["a"], ["b"]]
    assert "submitted 2 jobs: job-1 to job-2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("command: x\ngpsu: 2\n", "line 2: unknown field 'gpsu'; did you mean 'gpus'?"),
        ("command: x\ngpus: 1\nnum_gpus: 2\n", "line 3: 'num_gpus' is given twice; remove one"),
        ("command: x\ntime: soon\n", "line 2: time is 'soon'"),
        ("command: x\ntime: 0\n", "line 2: time is '0', but must be more than 0"),
        ("command: x\nnum_gpus: two\n", "line 2: num_gpus is 'two'; write a number such as 2"),
        ("command: x\nretries: 1.5\n", "line 2: retries is '1.5'; write a whole number"),
        ("command: x\nhold: maybe\n", "line 2: hold is 'maybe'; write true or false"),
        ("command: x\ndependency: after:3\n", "line 2: dependency has 'after:3'; write afterok"),
        ("command: x\ndependencies: [a]\n", "line 2: dependencies has 'a'; write afterok:12"),
        ("name: x\ncommand:\n", "line 2: command is empty; write a shell command"),
        ("command: [x\n", "invalid YAML"),
        ("command: x\nenv: [a]\n", "line 2: variables are written as"),
        ("command: x\nenv: {a: [b]}\n", "expected a single value"),
        ("command: x\nenv: {A: 1, C: null}\n", "line 2: variable C is null, which could be"),
        (
            "command: x\nenv:\n  C: ~\n",
            "line 3: variable C is ~, which could be text or empty",
        ),
        (
            "command: x\nenv:\n  1A: 3\n",
            "line 2: env has the variable '1A', which is not a valid name",
        ),
        ("command: x\nnode_labels: !!set {a, b}\n", "line 2: has a value of type !!set"),
        ("command: x\nname: !!binary aGk=\n", "line 2: has a value of type !!binary"),
        ("command: x\nnode_labels:\n  a: !own b\n", "line 3: has a value of type !own"),
        (
            "command: !!python/object/apply:os.system [id]\n",
            "line 1: has a value of type !!pyth",
        ),
        ("command: !!python/name:os.system id\n", "line 1: has a value of type !!python/name:"),
        (
            "command: x\nretries: !!int many\n",
            "line 2: retries has a value that is not a valid int",
        ),
        ("command: x\nhold: !!bool maybe\n", "line 2: hold has a value that is not a valid bool"),
        ("command: x\ngpus: .nan\n", "line 2: gpus is 'nan'; write a number"),
        ("command: x\ngpus: .inf\n", "line 2: gpus is 'inf'; write a number"),
        ("command: x\nname: a\x01b\n", "line 2: has an invalid character (#x0001)"),
        ("command: x\nnode_labels: &a {b: *a}\n", "invalid YAML"),
        ("just words\n", "line 1: a job is written as 'name: value' lines"),
        ("", "is empty"),
    ],
)
def test_invalid_job_file_is_named_with_line(
    refused: Callable[..., str], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert message in refused(str(path))


def test_missing_job_file_is_not_taken_for_command(
    submitted: Submit, refused: Callable[..., str], tmp_path: Path
) -> None:
    path = str(tmp_path / "jbo.yaml")
    assert refused(path) == f"{path}: file not found; check its name"
    # A program may have this name in an image or after a double dash.
    assert submitted("--image", "busybox", path)["command"] == [path]
    assert submitted("--", path)["command"] == [path]


def test_number_in_text_field_of_job_file_is_accepted(submitted: Submit, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: x\nname: 2024\ngpus: 0.5\nretries: 2\nhold: true\n")
    body = submitted(str(path))
    assert (body["name"], body["gpu_count"]) == ("2024", 0.5)
    assert (body["retries"], body["hold"]) == (2, True)


def test_yaml_date_is_kept_as_text(submitted: Submit, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "command: x\nname: 2026-01-01\ntenant: 2026-01-01 10:00:00\nconda: 1.10\nimage: yes\n"
        "node_labels: {since: 2026-01-01, 2026-01-02: b}\nenv: {D: 2026-01-01, E: , F: yes}\n"
        "deadline: 2099-01-01\nbegin: !!timestamp 2026-01-31T18:00:00Z\n"
    )
    body = submitted(str(path))
    assert (body["name"], body["tenant_id"]) == ("2026-01-01", "2026-01-01 10:00:00")
    assert (body["conda"], body["image"]) == ("1.10", "yes")
    assert body["node_labels"] == {"since": "2026-01-01", "2026-01-02": "b"}
    assert body["environment"] == {"D": "2026-01-01", "E": "", "F": "yes"}
    assert body["begin_at"] == datetime(2026, 1, 31, 18, tzinfo=UTC).timestamp()
    assert body["deadline"] > body["begin_at"]


def test_sweep_submits_one_job_per_combination(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--param", "lr=0.1,0.01", "--param", "bs=32,64", "-J", "train", "-e", "TAG=r{lr}"]
    assert main(["submit", *words, "--", "python", "t.py", "--lr={lr}", "{bs}", "{other}"]) == 0
    assert [body["command"][2:] for body in server.bodies] == [
        ["--lr=0.1", "32", "{other}"],
        ["--lr=0.1", "64", "{other}"],
        ["--lr=0.01", "32", "{other}"],
        ["--lr=0.01", "64", "{other}"],
    ]
    first = server.bodies[0]
    assert first["environment"] == {
        "TAG": "r0.1",
        "TGPU_PARAM_LR": "0.1",
        "TGPU_PARAM_BS": "32",
        "TGPU_SWEEP": first["sweep"],
    }
    assert first["sweep"].startswith("train-")
    assert {body["sweep"] for body in server.bodies} == {first["sweep"]}
    assert first["params"] == {"lr": "0.1", "bs": "32"}
    assert first["name"] == "train lr=0.1,bs=32"
    told = capsys.readouterr().err
    assert "{other} is left unchanged: it is not a parameter; known: lr, bs" in told
    assert "{lr}" not in told


def test_missing_local_directories_are_warned_about(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--chdir", "/nope", "--output", "/neither/x.log", "--", "true"]) == 0
    told = capsys.readouterr().err
    assert "directory '/nope' does not exist on this machine" in told
    assert "the output directory '/neither' does not exist on this machine" in told
    assert len(server.bodies) == 1


def test_parameter_file_gives_one_job_per_row(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("lr,name\n0.1,a\n0.2,b\n")
    assert main(["submit", "--param-file", str(path), "--param", "s=1,2", "x", "{lr}{s}"]) == 0
    assert [body["command"][1] for body in server.bodies] == ["0.11", "0.12", "0.21", "0.22"]


@pytest.mark.parametrize("text", ["", "lr\n", "lr,lr\n1,2\n", "a b\n1\n", "a,b\n1\n"])
def test_invalid_parameter_file_is_rejected(
    refused: Callable[..., str], tmp_path: Path, text: str
) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    assert str(path) in refused("--param-file", str(path), "x")


@pytest.mark.parametrize(
    "params", [["lr"], ["lr="], ["1x=2"], ["lr=1", "lr=2"], ["a=1,2,3"] * 0 + ["=1"]]
)
def test_invalid_parameter_is_rejected(refused: Callable[..., str], params: list[str]) -> None:
    words = [word for param in params for word in ("--param", param)]
    assert "--param " in refused(*words, "x")


def test_parameters_with_same_variable_name_are_rejected(refused: Callable[..., str]) -> None:
    told = refused("--param", "lr=1", "--param", "LR=2", "x")
    assert "parameters 'lr' and 'LR' would share the variable TGPU_PARAM_LR" in told


@pytest.mark.parametrize("name", ["12", "job-3", "last", "all", "retry", "a b", "", "x/y", "-x"])
def test_sweep_name_must_not_look_like_job(refused: Callable[..., str], name: str) -> None:
    assert "--sweep is" in refused(f"--sweep={name}", "--param", "a=1", "x")


def test_sweep_name_requires_parameters(refused: Callable[..., str]) -> None:
    assert "--sweep needs parameters" in refused("--sweep", "grid", "x")


def test_too_many_combinations_are_rejected(refused: Callable[..., str]) -> None:
    many = ",".join(map(str, range(400)))
    assert "160,000 combinations" in refused("--param", f"a={many}", "--param", f"b={many}", "x")


def test_dry_run_submits_nothing_and_shows_no_secrets(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    assert main(["submit", "--dry-run", "-G", "1", "true"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["gpu_count"] == 1
    assert "variables" in shown["captured_environment"]
    assert main(["submit", "--dry-run", "--param", "a=1,2", "-G1", "x", "{a}"]) == 0
    table = capsys.readouterr().out
    assert table.splitlines() == [
        "a  GPUS  COMMAND",
        "1  1     x 1",
        "2  1     x 2",
        "2 jobs would be submitted",
    ]
    assert main(["submit", "--dry-run", "--json", "--param", "a=1,2", "x"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert "hunter2" not in table
    assert server.requests == ["POST /api/v1/jobs/validate"] * 3
    assert server.jobs == {}


def test_dry_run_prints_answer_of_server(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--dry-run", "-G", "1", "true"]) == 0
    why = "job 1 comes before it and has no time limit of its own and no history"
    assert capsys.readouterr().err.splitlines() == [
        "tgpu: warning: it becomes 2 members",
        "tgpu: the server would accept the job",
        "tgpu: queue position: 1",
        f"tgpu: expected start: unknown: {why}",
    ]
    server.refusal = (409, {"error": "4 more do not fit", "code": "quota_exceeded"})
    assert main(["submit", "--dry-run", "-G", "1", "true"]) == 5
    shown = capsys.readouterr()
    assert json.loads(shown.out)["gpu_count"] == 1
    assert "tgpu: error: 4 more do not fit" in shown.err


def test_dry_run_without_server_says_that_nothing_was_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["submit", "--server", str(tmp_path), "--dry-run", "-G", "1", "true"]) == 0
    assert "tgpu: not checked by a server" in capsys.readouterr().err


def test_gpu_memory_without_a_unit_is_warned_about(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for size, is_warned in (("20", True), ("20G", False), ("20480", False)):
        assert main(["submit", "--gpu-memory", size, "true"]) == 0
        assert ("20 MB of GPU memory; write 20G" in capsys.readouterr().err) == is_warned


def test_program_is_looked_up_with_the_parameters_of_a_sweep_filled_in(
    server: FakeServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.sh").write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / f"{name}.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert main(["submit", "--param", "script=a,b", "./{script}.sh"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["submit", "--param", "script=c,d", "./{script}.sh"]) == 2
    assert "there is no file './c.sh' in " in capsys.readouterr().err


def test_missing_script_is_rejected_unless_forced_or_written_by_an_earlier_job(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "./missing.sh"]) == 2
    assert "there is no file './missing.sh' in " in capsys.readouterr().err
    for words in (["--force"], ["-d", "afterok:1"], ["--chdir", "/of/the/nodes"]):
        assert main(["submit", *words, "./missing.sh"]) == 0
        assert "warning: " in capsys.readouterr().err


@pytest.mark.parametrize("line", ["python train.py > out.txt", "python train.py", "./a b"])
def test_command_line_in_quotes_is_rejected_unless_forced_or_a_program(
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
) -> None:
    for before in ([], ["--"], ["-d", "afterok:1"], ["--chdir", "/of/the/nodes"]):
        assert main(["submit", *before, line]) == 2
        told = capsys.readouterr().err
        assert f"there is no program '{line}'" in told
        assert f"sh -c '{line}', or add --force" in told
        assert ("without the quotes" in told) == (">" not in line)
    assert main(["submit", "--force", line]) == 0
    assert f"warning: there is no program '{line}'" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "a b"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert main(["submit", "--", "a b"]) == 0
    assert main(["submit", "--", str(program)]) == 0
    assert capsys.readouterr().err == ""
    assert len(server.jobs) == 3


def test_program_that_may_be_on_the_nodes_is_warned_about(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--", "/no/such/program"]) == 0
    told = capsys.readouterr().err
    assert "warning: program '/no/such/program' not found on this machine" in told


def test_answer_is_printed_as_text_id_or_json(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["submit", "true"])
    main(["submit", "-q", "true"])
    main(["submit", "-a", "0-99", "true"])
    assert capsys.readouterr().out == "submitted job-1\njob-2\nsubmitted job-3 with 100 tasks\n"
    main(["submit", "--json", "true"])
    assert json.loads(capsys.readouterr().out)["job_id"] == "job-4"


def test_submit_wait_returns_exit_code_of_job(server: FakeServer) -> None:
    server.when_submitted(exit_code=7)
    assert main(["submit", "-W", "false"]) == 7


def test_missing_program_is_warned_about(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "pyhton", "x"]) == 0
    assert "program 'pyhton' not found on this machine" in capsys.readouterr().err
    assert main(["submit", "bin/missing"]) == 0
    assert "program 'bin/missing' not found" in capsys.readouterr().err
    assert main(["submit", "--image", "i", "pyhton"]) == 0
    assert main(["submit", "--export", "NONE", "pyhton"]) == 0
    assert main(["submit", "true"]) == 0
    assert capsys.readouterr().err == ""


def test_file_that_is_no_program_is_rejected_unless_forced(
    server: FakeServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("pass\n")
    for words, problem in (
        (["train.py"], "'train.py' is a file, not a program on the PATH; write './train.py'"),
        (["./train.py"], "'./train.py' is not executable; make it so with chmod +x"),
        (["--", str(path)], f"'{path}' is not executable"),
    ):
        assert main(["submit", *words]) == 2
        assert problem in capsys.readouterr().err
    path.chmod(0o755)
    assert main(["submit", "./train.py"]) == 2
    assert "does not start with '#!' and is not a binary" in capsys.readouterr().err
    assert not server.bodies
    assert main(["submit", "--force", "train.py"]) == 0
    assert "warning: 'train.py' is a file, not a program" in capsys.readouterr().err
    assert main(["submit", "--image", "i", "./train.py"]) == 0
    path.write_text("#!/usr/bin/env python3\n")
    assert main(["submit", "--", "./train.py"]) == 0
    assert main(["submit", "/bin/sh"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mark", ["#PBS", "#BSUB", "#GFLOW", "# GFLOW"])
def test_directives_of_another_scheduler_are_rejected(
    server: FakeServer, capsys: pytest.CaptureFixture[str], tmp_path: Path, mark: str
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/sh\n# how it runs\n{mark} --gpus=2\npython train.py\n")
    assert main(["submit", str(script)]) == 2
    assert f"{script}, line 3: {mark} lines are ignored" in capsys.readouterr().err
    assert not server.bodies
    assert main(["submit", "--force", str(script)]) == 0
    assert f"warning: {script}, line 3: {mark} lines are ignored" in capsys.readouterr().err
    script.write_text(f"#!/bin/sh\n# a note\npython train.py\n{mark} --gpus=2\n")
    assert main(["submit", str(script)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mark", ["#PBS", "#BSUB", "#GFLOW", "# GFLOW"])
def test_own_directives_beside_those_of_another_scheduler_count(
    server: FakeServer, capsys: pytest.CaptureFixture[str], tmp_path: Path, mark: str
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/sh\n{mark} --mem=3G\n#TGPU --gpus 2\n{mark} -x\npython train.py\n")
    assert main(["submit", str(script)]) == 0
    told = capsys.readouterr().err
    assert told.count("lines are ignored") == told.count(f"line 2: {mark} ") == 1
    assert server.bodies[-1]["gpu_count"] == 2


def test_byte_order_mark_is_ignored(
    server: FakeServer, submitted: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.csv").write_text("lr\n0.1\n", encoding="utf-8-sig")
    assert submitted("--param-file", "p.csv", "x", "{lr}")["command"] == ["x", "0.1"]
    Path("job.yaml").write_text("command: x\n", encoding="utf-8-sig")
    assert submitted("job.yaml")["command"] == ["/bin/sh", "-c", "x"]
    Path("train.sh").write_text("#!/bin/sh\n#TGPU --gpus 2\n", encoding="utf-8-sig")
    body = submitted("train.sh")
    assert (body["script"], body["gpu_count"]) == ("#!/bin/sh\n#TGPU --gpus 2\n", 2)
    Path("llm_config.json").write_text('{"models": {"m": 3}}', encoding="utf-8-sig")
    Path("jobs.txt").write_text("0,a.sh,,--llm m,\n", encoding="utf-8-sig")
    body = submitted("jobs.txt")
    assert (body["command"], body["gpu_count"]) == (["a.sh", "--llm", "m"], 3)


def test_row_with_too_few_values_is_explained(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("a,b\n1,2\n1\n")
    told = refused("--param-file", str(path), "x")
    assert "line 3: has 1 value for 2 parameters; write one for each" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no command given; write it after '--'"),
        (["--gpu", "2", "x"], "unknown option '--gpu'; did you mean '--gpus'?"),
        (["--xyzzy", "x"], "unknown option '--xyzzy'; 'tgpu submit --help' lists the options"),
        (["--frobnicate", "x"], "'--frobnicate'; 'tgpu submit --help' lists the options"),
        (["-5m", "x"], "unknown option '-5m'; 'tgpu submit --help' lists the options"),
        (["--gres=gpu:2", "x"], "unknown option '--gres'; did you mean '--gpus'?"),
        (["--after", "3", "x"], "unknown option '--after'; did you mean '--dependency'?"),
        (["--wrap=x"], "unknown option '--wrap'; write the command after '--', as in"),
        (["--test-only", "x"], "unknown option '--test-only'; did you mean '--dry-run'?"),
        (["--time", "2", "hours", "--", "x"], "quote a value with spaces, as in --time '2 hours'"),
        (["missing.sh"], "there is no file 'missing.sh' in "),
        (["python.py", "--lr", "1"], "there is no file 'python.py' in "),
        (["--mem", "-1G", "x"], "--memory is '-1G'; write a size"),
        (["-t", "-5m", "x"], "--time is '-5m'; write a time"),
        (["echo", "\udcff"], "command[1]: '\\udcff' contains bytes that are not UTF-8"),
        (["-J", "bad\udcff", "x"], "name: 'bad\\udcff' contains bytes that are not UTF-8"),
        (["--gpus"], "-G/--gpus needs a value"),
        (["--hold=1", "x"], "-H/--hold takes no value"),
        (["--gpus", "two", "x"], "--gpus is 'two'; write a number such as 2 or 0.5"),
        (["--runner", "tmx", "x"], "--runner is 'tmx'; did you mean 'tmux'? expected one of"),
        (["-t", "soon", "x"], "--time is 'soon'; write a time"),
        (["-t", "0", "x"], "--time is '0', but must be more than 0; leave it out for"),
        (["-t", "0s", "x"], "or write up to 3650d"),
        (["-p", "highest", "x"], "priority 'highest' is not known"),
        (["-d", "after:3", "x"], "--dependency has 'after:3'"),
        (["-e", "A", "x"], "--env is 'A'; write NAME=VALUE"),
        (
            ["-e", "1A=3", "x"],
            "--env has the variable '1A', which is not a valid name; use",
        ),
        (["--export", "A-B=3", "x"], "--export has the variable 'A-B', which is not a valid name"),
        (
            ["--gpu-model", "H100", "x"],
            "--gpu-model chooses GPUs, but the job requests none; add --gpus 1",
        ),
        (
            ["-G", "0", "--allowed-gpus", "1", "x"],
            "--allowed-gpus chooses GPUs, but the job requests none",
        ),
        (["--contiguous", "x"], "--contiguous chooses GPUs, but the job requests none"),
        (["--topology", "require_island", "x"], "--topology says how GPUs are connected, but the"),
        (["--retry-exit-codes", "300", "x"], "--retry-exit-codes is '300'"),
        (["--export", "NONE,A", "x"], "NONE cannot be combined"),
    ],
)
def test_mistake_is_explained_in_plain_words(
    refused: Callable[..., str], words: list[str], message: str
) -> None:
    assert message in refused(*words)


def test_unreadable_file_is_named_once_with_reason(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    missing = tmp_path / "no.csv"
    told = refused("--param-file", str(missing), "x")
    assert told.endswith(f"{missing}: cannot be read: No such file or directory")
    odd = tmp_path / "job.yaml"
    odd.write_bytes(b"command: caf\xe9\n")
    assert "it is not UTF-8 text (byte 13)" in refused(str(odd))


def test_jobs_txt_is_submitted_line_by_line(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llm_config.json").write_text(
        json.dumps({"default_requirement": 1.0, "models": {"qwen2.5-3b-inst": 0.5}})
    )
    Path("jobs.txt").write_text(
        "# Priority, Script, Conda_Env, Arguments, Allowed_GPUs\n"
        "0,/data/evaluate.py,ml_env,--llm qwen2.5-3b-inst --mode test,0-3\n\n"
        "2,/data/run.sh,,--model large --list 1,2,\n"
    )
    assert main(["submit", "jobs.txt"]) == 0
    first, second = server.bodies
    assert first["command"] == [
        *("python", "/data/evaluate.py", "--llm", "qwen2.5-3b-inst", "--mode", "test"),
    ]
    assert (first["priority"], first["gpu_count"]) == (1500, 0.5)
    assert (first["conda"], first["allowed_gpus"]) == ("ml_env", "0-3")
    assert second["command"] == ["/data/run.sh", "--model", "large", "--list", "1,2"]
    assert (second["priority"], second["gpu_count"]) == (250, 1.0)
    assert "conda" not in second


@pytest.mark.parametrize("line", ["9,x.py,,,", "1,,,,", "1,x.py,,'open,"])
def test_invalid_line_of_jobs_txt_is_named(
    refused: Callable[..., str], tmp_path: Path, line: str
) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(f"# jobs\n{line}\n")
    assert f"{path}, line 2:" in refused(str(path))


def test_add_takes_columns_of_jobs_txt_as_options(
    submitted: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    words = ["/s/t.py", "--args", "--llm m --mode test", "--priority", "1", "--gpus", "0,1"]
    body = submitted(*words, command="add")
    assert body["command"] == ["python", "/s/t.py", "--llm", "m", "--mode", "test"]
    assert (body["priority"], body["allowed_gpus"], body["gpu_count"]) == (750, "0,1", 1.0)
    body = submitted("t.sh", "--gpu-count", "2", "--screen", "--json", command="add")
    assert (body["gpu_count"], body["runner"]) == (2, "screen")


@pytest.mark.parametrize(
    ("script", "told"),
    [("gone.py", "gone.py"), ("./gone.sh", "./gone.sh"), ("here.py", ""), ("./here.sh", "")],
)
def test_add_warns_of_missing_script(
    submitted: Submit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    for name in ("here.py", "here.sh"):
        (tmp_path / name).touch(mode=0o755)
    submitted(script, command="add")
    warning = (
        f"tgpu: warning: '{told}' not found on this machine; the job will need it\n" if told else ""
    )
    assert capsys.readouterr().err == warning


@pytest.mark.parametrize("command", ["submit", "run"])
def test_invalid_program_is_rejected(refused: Callable[..., str], command: str) -> None:
    assert "tgpu does not read scripts from standard input" in refused("-", command=command)
    assert "the program is an empty string" in refused("--", "", "x", command=command)


def test_service_checks_gpu_and_environment_options(refused: Callable[..., str]) -> None:
    told = refused("create", "web", "--gpu-model", "H100", "--", "x", command="service")
    assert told == "--gpu-model chooses GPUs, but the job requests none; add --gpus 1"
    told = refused("create", "web", "-e", "1A=3", "--", "x", command="service")
    assert "--env has the variable '1A', which is not a valid name" in told


def test_directory_is_not_a_program(
    submitted: Submit,
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = f"{tmp_path}/' is a directory, not a program; name a program in it, such as"
    assert told in refused("--", f"{tmp_path}/")
    assert told in refused(f"{tmp_path}/")
    monkeypatch.chdir(tmp_path)
    Path("train").mkdir()
    assert "'train' is a directory" in refused("train")
    Path("true").mkdir()
    assert submitted("true")["command"] == ["true"]
    assert submitted("--image", "busybox", str(tmp_path))["command"] == [str(tmp_path)]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--gpus", "3"], "--gpus 3"),
        (["-G", "3"], "-G 3"),
        (["--gpus=3", "x"], "--gpus=3"),
        (["x", "--exclusive", "y"], "--exclusive"),
        (["--epochs", "3", "-t", "x", "--", "y"], ""),
        (["--tenant", "vision"], ""),
        (["x", "y"], ""),
    ],
)
def test_options_after_script_belong_to_it_with_hint(
    submitted: Submit,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    hint: str,
) -> None:
    script = tmp_path / "t.sh"
    script.write_text("#!/bin/sh\n#TGPU --gpus 1\n")
    body = submitted("--tenant", "nlp", str(script), *words)
    assert (body["args"], body["gpu_count"]) == (words, 1)
    told = f"tgpu: note: {hint} after {script} goes to the script"
    shown = capsys.readouterr().err
    assert shown.startswith(told) if hint else not shown


def test_run_without_command_explains_usage(refused: Callable[..., str]) -> None:
    assert "'tgpu run --gpus 1 -- python train.py'" in refused("-G", "1", command="run")


def test_duplicate_parameter_differs_from_parameter_without_values(
    refused: Callable[..., str],
) -> None:
    assert "write a name and values" in refused("--param", "lr", "x")
    told = refused("--param", "lr=1,2", "--param", "lr=3", "x")
    assert "--param lr is given twice; write all of its values at once, as lr=1,2,3" in told


def test_invalid_llm_config_is_rejected(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    for text in ("{", "[]", '{"models": {"a": "b"}}', '{"default_requirement": -1}'):
        path.write_text(text)
        assert str(path) in refused("x.py", "--llm-config", str(path), command="add")
    assert "--args" in refused("x.py", "--args", "'open", command="add")


def test_model_of_file_sets_gpus_unless_given(server: FakeServer, tmp_path: Path) -> None:
    models = tmp_path / "models.json"
    models.write_text(json.dumps({"models": {"ours": 1.5}}))
    words = ["submit", "--llm", "ours", "--llm-config", str(models)]
    assert main([*words, "--", "true"]) == 0
    assert main([*words, "-G", "3", "--", "true"]) == 0
    assert [body["gpu_count"] for body in server.bodies] == [1.5, 3]


def test_unlisted_model_is_estimated_with_reason(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--llm", "llama-3.1-8b,context=4k", "--", "true"]) == 0
    assert "llama-3.1-8b needs 16." in capsys.readouterr().err
    assert 0 < server.bodies[0]["gpu_count"] <= 1


def test_model_of_unknown_size_is_rejected(refused: Callable[..., str]) -> None:
    told = refused("--llm", "mystery", "x")
    assert "cannot be read from its name; write it as in mystery-7b" in told
    assert "--params" not in told


def test_dependency_may_name_last_jobs(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.cli.jobs.columns.mine", lambda: USER)
    for _ in range(3):
        assert main(["submit", "-q", "--", "true"]) == 0
    words = ["-d", "afterok:last:@~1,afterany:@", "-d", "afternotok:1"]
    assert main(["submit", "-q", *words, "--", "true"]) == 0
    assert server.bodies[-1]["dependencies"] == [
        *("afterok:job-3", "afterok:job-2", "afterany:job-3", "afternotok:job-1"),
    ]
    assert main(["submit", "-d", "afterok:@~99", "--", "true"]) != 0


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (
            ["--deadline", "+1h", "-t", "2h"],
            "the deadline leaves 60 min, but the job may run for 2 h",
        ),
        (["--deadline", "+3h", "--begin", "+2h", "-t", "2h"], "leaves 60 min"),
        (["--deadline", "+1h", "--begin", "+2h", "-t", "2h"], "leaves no time"),
        (["--deadline", "+1h", "-t", "2h", "--estimate", "30m"], ""),
        (["--deadline", "+3h", "-t", "2h"], ""),
        (["--deadline", "+1h"], ""),
    ],
)
def test_deadline_before_time_limit_is_warned_about(
    submitted: Submit, capsys: pytest.CaptureFixture[str], words: list[str], warning: str
) -> None:
    submitted(*words, "--", "true")
    shown = capsys.readouterr().err
    assert warning in shown
    assert ("deadline" in shown) == bool(warning)


def test_files_and_scripts_may_name_last_jobs(
    server: FakeServer, submitted: Submit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gpu_scheduler.cli.jobs.columns.mine", lambda: USER)
    submitted("--", "true")
    path = tmp_path / "job.yaml"
    path.write_text("command: x\ndependency: afterok:last\n")
    assert submitted(str(path))["dependencies"] == ["afterok:job-1"]
    path.write_text("command: x\ndependencies: [afterany:@~1, 1, {type: afterok, job_id: 1}]\n")
    named = ["afterany:job-1", "afterok:job-1", {"type": "afterok", "job_id": 1}]
    assert submitted(str(path))["dependencies"] == named
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n#TGPU -d afterok:last\n")
    assert submitted(str(script))["dependencies"] == ["afterok:job-3"]
