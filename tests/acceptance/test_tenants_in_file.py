"""Tenants of the settings file: what the command line changes, the next start may undo."""

import json
from pathlib import Path

from tests.acceptance.conftest import RealServer, a_state_dir


def test_change_that_restart_undoes_is_warned_about(tmp_path: Path) -> None:
    with a_state_dir() as state_dir:
        server = RealServer(state_dir)
        config = tmp_path / "config.yaml"
        config.write_text("tenants:\n  vision:\n    max_gpus: 4\n    max_concurrent_jobs: 9\n")
        config.chmod(0o600)
        server.environment["GPU_SCHEDULER_CONFIG"] = str(config)
        server.start("8xA100-80GB")
        told = server.tgpu("tenants", "update", "vision", "--max-gpus", 8, "--max-gpu-hours", 5)
        assert told.stdout.startswith("tenant vision updated\n")
        assert told.stderr == (
            f"tgpu: warning: max_gpus of tenant vision is set by {config}, line 2; the next start "
            "of the server sets it to 4 again, so change it there as well\n"
        )
        assert server.tgpu("tenants", "update", "vision", "--max-gpus", 4).stderr == ""
        server.tgpu("tenants", "create", "audio")
        assert server.tgpu("tenants", "update", "audio", "--max-gpus", 8).stderr == ""
        told = server.tgpu("tenants", "delete", "vision")
        assert told.stdout == "tenant vision deleted\n"
        assert f"{config}, line 2 names it, so the next start creates it again" in told.stderr
        assert json.loads(server.tgpu("tenants", "show", "audio", "--json").stdout)["max_gpus"] == 8
        server.stop()
