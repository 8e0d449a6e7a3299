"""Structured log lines of a process that uses other libraries."""

import json
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import logging, sys, structlog
from gpu_scheduler.logging_setup.structured import LogConfig, configure
configure(LogConfig(file=sys.argv[1], level="INFO", max_bytes=2000, backups=1))
log = structlog.get_logger("server")
log.info("a job started", job_id="job-1", gpu_ids=[0, 1])
log.debug("not said")
logging.getLogger("uvicorn.error").warning("a library: %s", "hm")
logging.getLogger("grpc").info("chatter")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed", path="x\\ny")
"""


def test_own_and_library_lines_are_json_with_same_fields(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "log")], check=True)
    own, library, failed = map(json.loads, (tmp_path / "log").read_text().splitlines())
    for line in (own, library, failed):
        assert list(line)[:5] == ["timestamp", "level", "logger", "thread", "message"]
    assert (own["level"], own["logger"], own["message"]) == ("INFO", "server", "a job started")
    assert (own["job_id"], own["gpu_ids"]) == ("job-1", [0, 1])
    assert library["message"] == "a library: hm"
    assert "ZeroDivisionError" in failed["exception"]


def test_closed_stderr_does_not_stop_the_process() -> None:
    script = SCRIPT.replace("file=sys.argv[1], ", "")
    with open("/dev/full", "w") as full:  # noqa: PTH123
        # -I: also where the caller's environment sets PYTHONUNBUFFERED, which hides the error.
        ended = subprocess.run([sys.executable, "-I", "-c", script], stderr=full, check=False)
    assert ended.returncode == 0


def test_native_crash_leaves_traceback(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from gpu_scheduler.logging_setup.structured import LogConfig, configure\n"
        "configure(LogConfig(file=sys.argv[1], take_stderr=True))\n"
        "def deep(): os.abort()\n"
        "deep()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path / "log")], check=False)
    assert ended.returncode == -signal.SIGABRT
    told = (tmp_path / "log").read_text()
    assert "Fatal Python error: Aborted" in told
    assert "in deep" in told
