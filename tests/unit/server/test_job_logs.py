"""The node of a job's log is found at any time of the job's life."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Ended, SetNode, Started, Submit
from gpu_scheduler.model.errors import UnknownThing
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.server.background.job_logs import JobLogs
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.wire import agent_pb2 as pb
from tests.builders import a_core, a_job, a_node


def test_log_can_be_read_while_end_is_being_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read(node_id: str, _: pb.LogRequest) -> AsyncIterator[bytes]:
        yield node_id.encode()

    async def run() -> None:
        loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        await loop.apply(SetNode(a_node()))
        await loop.apply(Submit(a_job(id="")))
        await loop.apply(Started("job-1.1"))
        agents = Agents(loop)
        monkeypatch.setattr(agents.logs, "read", read)
        logs = JobLogs(loop, agents)

        async def node_of(allocation_id: str) -> Any:
            source = logs.read_log("job-1", allocation_id, 0, 0, 0, follow=False)
            return [data async for data in source]

        running = await node_of("job-1.1")
        end = loop.core.apply(Ended("job-1.1", exit_code=0), 2_000)
        assert await node_of("job-1.1") == running
        loop.store.commit(end.writes)
        assert await node_of("job-1.1") == running
        with pytest.raises(UnknownThing, match=r"no attempt job-1\.2"):
            await node_of("job-1.2")
        await loop.close()

    asyncio.run(run())


def test_job_that_could_not_be_started_has_no_output() -> None:
    async def run() -> None:
        loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        await loop.apply(SetNode(a_node()))
        launch = Launch(argv=("true",), workdir="/", output="/missing/x")
        await loop.apply(Submit(a_job(id="", name="train"), launch))
        why = "cannot open the output file"
        await loop.apply(Ended("job-1.1", exit_code=None, ran=False, detail=why))
        source = JobLogs(loop, Agents(loop)).read_log("job-1", "job-1.1", 0, 0, 0, follow=False)
        told = "the job has no output: it could not be started: cannot open the output file"
        with pytest.raises(UnknownThing, match=told):
            await anext(aiter(source))
        await loop.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("pattern", "allocation_id", "path"),
    [
        ("out-%j-%a.txt", "job-1_3.1", "/home/ann/out-1_3-3.txt"),
        ("/data/%x.%A", "job-1_3.2", "/data/train.1"),
    ],
)
def test_output_file_of_job_is_named_with_its_placeholders_replaced(
    pattern: str, allocation_id: str, path: str
) -> None:
    async def run() -> None:
        loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: 1_000)
        loop.start()
        launch = Launch(argv=("true",), workdir="/home/ann", output=pattern)
        tasks = Array(tasks=IntervalSet.parse("0-3"))
        await loop.apply(Submit(a_job(id="", name="train", array=tasks), launch))
        source = JobLogs(loop, Agents(loop)).read_log("job-1", allocation_id, 0, 0, 0, follow=False)
        with pytest.raises(UnknownThing, match=f"writes its output to {path}; read it there"):
            await anext(aiter(source))
        await loop.close()

    asyncio.run(run())
