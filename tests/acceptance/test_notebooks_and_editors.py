"""`tgpu jupyter` and `tgpu code`: from the command to a reachable notebook or editor."""

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import PROGRAM, RealServer
from tests.terminal import PROMPT, a_terminal, needs_tmux

JUPYTER = """\
import http.server, os, sys
port = int(next(w for w in sys.argv if w.startswith("--port=")).partition("=")[2])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        allowed = self.headers.get("Authorization") == "token " + os.environ["JUPYTER_TOKEN"]
        self.send_response(200 if allowed else 403)
        self.end_headers()
        self.wfile.write(os.environ["CUDA_VISIBLE_DEVICES"].encode())
    def log_message(self, *words):
        pass
print("words", *sys.argv[1:], flush=True)
server = http.server.HTTPServer(("127.0.0.1", port), Handler)
print(f"[I] Jupyter Server is running at:\\n[I] http://127.0.0.1:{port}/lab?token=...", flush=True)
server.serve_forever()
"""
CODE = """\
import sys
print("words", *sys.argv[1:], flush=True)
print("log in at https://example.invalid/login/device with the code ABCD-1234", flush=True)
print("heard", input(), flush=True)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory for PATH; `a_program` puts fakes into it."""
    found = tmp_path / "bin"
    found.mkdir()
    return found


def a_program(programs: Path, name: str, text: str) -> None:
    (programs / f"{name}.py").write_text(text)
    file = programs / name
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {programs}/{name}.py "$@"\n')
    file.chmod(0o755)


def path_with(server: RealServer, programs: Path) -> dict[str, str]:
    return server.environment | {"PATH": f"{programs}:/usr/bin:/bin"}


def last_job(server: RealServer) -> dict[str, Any]:
    found: dict[str, Any] = server.json("list", "-s", "all", "--sort=-number", "-L", 1)["jobs"][0]
    return found


def fetched(address: str, path: str) -> str:
    place, _, token = address.partition("?token=")
    host = place.partition("//")[2].partition("/")[0]
    request = urllib.request.Request(
        f"http://{host}{path}", headers={"Authorization": f"token {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def test_jupyter_starts_notebook_server_on_gpus_and_prints_its_url(
    server: RealServer, programs: Path
) -> None:
    a_program(programs, "jupyter", JUPYTER)
    environment = path_with(server, programs)
    words = ("jupyter", "--gpus", 2, "--time", "1h", "--detach", "--", "--ServerApp.x=1")
    ended = server.tgpu(*words, PATH=environment["PATH"])
    address = ended.stdout.strip()
    port = address.partition("127.0.0.1:")[2].partition("/")[0]
    assert address.startswith(f"http://127.0.0.1:{port}/lab?token=")
    assert f"ssh -L {port}:127.0.0.1:{port} " in ended.stderr
    job = last_job(server)
    assert (job["state"], job["interactive"], job["gpu_count"]) == ("running", True, 2)
    assert job["command"][:2] == ["jupyter", "lab"]
    assert job["command"][-1] == "--ServerApp.x=1"
    devices = ",".join(str(gpu["index"]) for gpu in job["allocation"][0]["gpus"])
    assert fetched(address, "/api/status") == devices
    token = address.partition("?token=")[2]
    assert token not in json.dumps(job)
    assert token not in server.tgpu("logs", job["id"]).stdout
    server.tgpu("cancel", job["id"])


def test_interrupt_ends_notebook_server(server: RealServer, programs: Path) -> None:
    a_program(programs, "jupyter", JUPYTER)
    running = subprocess.Popen(
        [*PROGRAM, "jupyter", "-q", "--notebook", "-G", "0"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=path_with(server, programs),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert running.stdout is not None
    assert running.stdout.readline().startswith("http://127.0.0.1:")
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    running.stdout.close()
    job = last_job(server)
    assert job["command"][1] == "notebook"
    with server.client() as client:
        assert client.wait(job["id"], timeout=60)["state"] == "cancelled"


def test_missing_or_failing_jupyter_is_reported(server: RealServer, programs: Path) -> None:
    for name in ("python3", "sh"):
        (programs / name).symlink_to(str(shutil.which(name)))
    ended = server.tgpu("jupyter", code=2, PATH=str(programs))
    assert "pip install jupyterlab" in ended.stderr
    a_program(programs, "jupyter", "import sys\nsys.exit('no module named torch')")
    ended = server.tgpu("jupyter", code=1, PATH=path_with(server, programs)["PATH"])
    assert "last output: no module named torch" in ended.stderr


def test_real_notebook_server_answers(server: RealServer) -> None:
    beside_python = path_with(server, Path(sys.executable).parent)["PATH"]
    started = server.tgpu("jupyter", "-q", "-G", 1, "--detach", PATH=beside_python)
    address = started.stdout.strip()
    assert json.loads(fetched(address, "/api/status"))["kernels"] == 0
    server.tgpu("cancel", last_job(server)["id"])


@pytest.fixture
def entry(server: RealServer, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    ended = server.tgpu("code", "--ssh", "-G", 2, "--time", "1h", "--host", "gpubox.lab")
    assert "what to do" in ended.stderr
    file = tmp_path / "config"
    file.write_text(ended.stdout)
    job = last_job(server)["id"]
    yield file, job
    server.tgpu("cancel", job)


@pytest.mark.skipif(not shutil.which("ssh"), reason="ssh is not installed")
def test_ssh_entry_connects_to_job(server: RealServer, entry: tuple[Path, str]) -> None:
    file, job = entry
    name = f"tgpu-{job.removeprefix('job-')}"
    shown = subprocess.run(
        ["ssh", "-G", "-F", file, name], capture_output=True, text=True, check=True
    ).stdout
    settings = dict(line.partition(" ")[::2] for line in shown.splitlines())
    assert settings["hostname"] == "gpubox.lab"
    command = settings["remotecommand"]
    assert command.endswith(f"shell --server {server.state_dir} --job {job}")
    # As sshd and VS Code use it: a shell that reads commands from its standard input.
    script = "echo [$CUDA_VISIBLE_DEVICES]; cat <<END\nraw\x01bytes\nEND\nexit 6\n"
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        input=script,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/", "SHELL": "/bin/sh"},
        check=False,
        timeout=60,
    )
    held = last_job(server)["allocation"][0]["gpus"]
    devices = ",".join(str(gpu["index"]) for gpu in held)
    assert ended.stdout == f"[{devices}]\nraw\x01bytes\n", ended.stderr
    assert ended.returncode == 6


@needs_tmux
def test_tunnel_opens_from_inside_job_and_prompts_user(server: RealServer, programs: Path) -> None:
    a_program(programs, "code", CODE)
    with a_terminal(path_with(server, programs)) as terminal:
        terminal.enter("tgpu code -q -G 1 -- --name box")
        terminal.see("ABCD-1234")
        terminal.see("words tunnel --accept-server-license-terms --name box")
        terminal.enter("yes")
        terminal.see("heard yes")
        terminal.until(lambda screen: screen.rstrip().endswith(PROMPT), "the prompt")
        assert terminal.answer("echo $?") == "0"
    job = last_job(server)
    assert (job["name"], job["gpu_count"], job["state"]) == ("code-tunnel", 1, "completed")


def test_invalid_connection_options_are_rejected_with_explanation(
    server: RealServer, programs: Path
) -> None:
    assert "use --ssh" in server.tgpu("code", "--tunnel", code=2, PATH=str(programs)).stderr
    told = server.tgpu("code", "--ssh", "--", "--name", "x", code=2).stderr
    assert "leave it out with --ssh" in told
    told = server.tgpu("code", "--", "--name", "x", code=2, PATH=str(programs)).stderr
    assert "'code' is not on your PATH" in told
    a_program(programs, "code", CODE)
    for word in ("1", "job-1", "last"):  # with and without a program of that name
        for path in (str(programs), "/usr/bin:/bin"):
            told = server.tgpu("code", word, code=2, PATH=path).stderr
            assert f"'tgpu shell --job {word}'" in told
    assert "after '--'" in server.tgpu("code", "box", code=2, PATH=str(programs)).stderr
    told = server.tgpu("code", "--ssh", "--tunnel", code=2).stderr
    assert "leave one of them out" in told


def test_waiting_notebook_server_shows_reason_and_can_be_cancelled(
    server: RealServer, programs: Path
) -> None:
    a_program(programs, "jupyter", JUPYTER)
    # A notebook is interactive: a preemptible job would make room for it.
    holder = server.submit("-G", 8, "-t", "1h", "--no-preempt", "--", "sleep", 600)
    with server.client() as client:
        give_up = time.monotonic() + 60
        while client.get(holder)["state"] != "running":
            assert time.monotonic() < give_up
            time.sleep(0.02)
    running = subprocess.Popen(
        [*PROGRAM, "jupyter", "-G", "1"],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=path_with(server, programs),
    )
    assert running.stderr is not None
    assert any("is pending" in line for line in running.stderr)
    running.terminate()
    assert running.wait(60) == 143
    running.stderr.close()
    assert last_job(server)["state"] == "cancelled"
    server.tgpu("cancel", holder)
