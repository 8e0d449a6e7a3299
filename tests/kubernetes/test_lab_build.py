"""The lab builds each program once, says why it cannot, and leaves nothing half done."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.kubernetes.lab.build import (
    EVERYTHING,
    KWOK,
    CannotBuild,
    Lab,
    find_go,
    lab,
    root,
)
from tests.kubernetes.lab.fixtures import skip_unless_built

GO = """#!/bin/sh
# Stands in for Go: notes its arguments, and writes what -o names.
echo "$@" >>"$CALLS"
[ -n "$FAILS" ] && { echo "cannot find module" >&2; exit 1; }
if [ "$1" = mod ]; then echo "{\\"Dir\\": \\"$STAGES\\"}"; exit; fi
while [ "$1" != -o ]; do shift; done
echo program >"$2"; chmod +x "$2"
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go that builds nothing in no time; returns the file of its calls."""
    folder = tmp_path / "go"
    folder.mkdir()
    (folder / "go").write_text(GO)
    (folder / "go").chmod(0o755)
    stages = tmp_path / "stages" / "kustomize" / "stage" / "pod" / "fast"
    stages.mkdir(parents=True)
    (stages / "a.yaml").write_text("kind: Stage")
    (stages / "kustomization.yaml").write_text("kind: Kustomization")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("STAGES", str(tmp_path / "stages"))
    monkeypatch.setenv("TGPU_KUBERNETES_LAB", str(tmp_path / "lab"))
    monkeypatch.delenv("TGPU_KUBERNETES_VERSION", raising=False)
    return tmp_path / "calls"


def built(found: Lab, *names: str) -> list[str]:
    lines: list[str] = []
    found.build(names, report=lines.append)
    return [line.split()[2] for line in lines if line.startswith("[")]


def test_everything_is_built_once(go: Path) -> None:
    found = lab()
    assert built(found, *EVERYTHING) == list(EVERYTHING)
    assert built(found, *EVERYTHING) == []
    assert found.missing(EVERYTHING) == []
    assert found.program("kubectl").read_text() == "program\n"
    assert found.kwok_stages.read_text() == "kind: Stage"
    assert "k8s.io/kubernetes/cmd/kube-apiserver" in go.read_text()


def test_another_version_has_its_own_programs(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(lab(), "kubectl")
    monkeypatch.setenv("TGPU_KUBERNETES_VERSION", "1.36.3")
    other = lab()
    assert other.version == "1.36.3"
    assert built(other, "kubectl") == ["kubectl"]
    module = (other.directory / "modules" / "kubernetes" / "go.mod").read_text()
    assert "k8s.io/streaming => k8s.io/streaming v0.36.3" in module


def test_a_changed_recipe_is_built_again(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = lab()
    built(found, "kwok", "etcd")
    monkeypatch.setattr("tests.kubernetes.lab.build.KWOK", f"{KWOK}-new")
    assert found.missing(["kwok", "etcd"]) == ["kwok"]


def test_a_failed_build_leaves_no_program(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "yes")
    with pytest.raises(CannotBuild, match="cannot find module"):
        built(lab(), "etcd")
    assert lab().missing(["etcd"]) == ["etcd"]


def test_few_cores_are_passed_on(go: Path) -> None:
    lab().build(["etcd"], jobs=1, report=lambda _: None)
    assert "-p=1" in go.read_text()


def test_a_second_build_waits_for_the_first(go: Path) -> None:
    found = lab()
    found.directory.mkdir(parents=True)
    waits, lines = threading.Event(), []

    def report(line: str) -> None:
        lines.append(line)
        waits.set()

    with (found.directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=found.build, args=(["etcd"],), kwargs={"report": report})
        second.start()
        assert waits.wait(60)
        assert "another build holds" in lines[0]
        assert found.missing(["etcd"]) == ["etcd"]
    second.join(60)
    assert found.missing(["etcd"]) == []


def test_without_go_or_programs_a_test_is_skipped_with_the_reason(
    go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"not built: etcd .run 'make kubernetes-lab'"):
        skip_unless_built("etcd")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotBuild, match="Go is not installed"):
        find_go()
    with pytest.raises(pytest.skip.Exception, match="Go is not installed"):
        skip_unless_built("etcd")


def test_programs_are_kept_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TGPU_KUBERNETES_LAB", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert root() == Path("/cache/gpu-scheduler/kubernetes")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/eva")
    assert root() == Path("/home/eva/.cache/gpu-scheduler/kubernetes")


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.kubernetes.lab", *arguments],
            env=os.environ | {"TGPU_KUBERNETES_LAB": str(tmp_path), "PATH": "/nowhere"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    assert run("build", "minikube") == (
        2,
        f"unknown: minikube; choose from {' '.join(EVERYTHING)}\n",
    )
    code, said = run("build")
    assert (code, "Go is not installed" in said) == (1, True)
    code, said = run("up")
    assert (code, "run 'make kubernetes-lab'" in said) == (1, True)
    assert run("down") == (0, "")


def test_down_spares_a_process_that_only_has_the_same_id(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        running = tmp_path / "running"
        running.mkdir()
        (running / "pids.json").write_text(json.dumps({str(other.pid): "1"}))
        subprocess.run(
            [sys.executable, "-m", "tests.kubernetes.lab", "down"],
            env=os.environ | {"TGPU_KUBERNETES_LAB": str(tmp_path)},
            check=True,
        )
        assert other.poll() is None
        assert not running.exists()
    finally:
        other.kill()
        other.wait()
