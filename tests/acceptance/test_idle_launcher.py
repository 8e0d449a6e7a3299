"""A launcher without an agent and without jobs exits."""

# ruff: noqa: ASYNC110, ASYNC220
# This test polls a file; its event loop has nothing else to do.

import asyncio
import subprocess
import sys

from gpu_scheduler.agent.launcher_client import Launcher
from tests.launcher_rig import Rig, with_launcher

IMPATIENT = """
import sys
from gpu_scheduler.agent.launcher import loop, service
loop.MAX_WAIT_MS = 50
service.IDLE_EXIT_MS = 2_000
service.serve(sys.argv[1], None)
"""


def test_idle_launcher_without_agent_exits_and_keeps_its_records() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.hang_up()
        await rig.launcher.leave()
        command = [sys.executable, "-c", IMPATIENT, str(rig.directory / "agent")]
        alone = subprocess.Popen(command)
        async with asyncio.timeout(30):
            while not (rig.directory / "agent" / "launcher.sock").exists():
                await asyncio.sleep(0.01)
        rig.launcher = await Launcher.connect(rig.directory / "agent")
        await rig.launcher.start(rig.work("job-1.1", "sh", "-c", "sleep 1; echo on; exit 7"))
        await rig.launcher.close()
        assert await asyncio.to_thread(alone.wait, 60) == 0
        assert rig.log(rig.work("job-1.1")) == "on\n"
        await rig.open()
        assert (await rig.over("job-1.1")).exit_code == 7

    with_launcher(scenario)
