"""Readiness probes of service replicas."""

import asyncio
import threading

import pytest

from gpu_scheduler.agent.jobs import probes
from gpu_scheduler.agent.jobs.probes import ProbeTarget, probe

MANY = 40
"""More than the threads of Python's default executor on any machine."""


def test_hanging_probe_commands_do_not_block_device_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go = threading.Event()

    def hangs(asked: ProbeTarget) -> str:
        let_go.wait(120)
        return asked.allocation_id

    monkeypatch.setattr(probes, "_run_command", hangs)

    async def scenario() -> list[str]:
        asked = [
            ProbeTarget(allocation_id=f"{n}", member=0, port=1, kind="command", timeout_ms=60_000)
            for n in range(MANY)
        ]
        answers = [asyncio.create_task(probe(each)) for each in asked]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await asyncio.to_thread(int)
        finally:
            let_go.set()
        return await asyncio.gather(*answers)

    assert asyncio.run(scenario()) == [f"{n}" for n in range(MANY)]
