"""Many agents in one process, for measures: the real protocol, and jobs that are over at once.

`python -m benchmarks.light_agents --target unix:/path [--target ...] --count 200 --run-ms 0`

Each speaks for a node of its own with eight devices, beats and reads its devices as often as a real
agent, says again all that it holds on every new stream, and follows who leads. Nothing is run: a
start is answered by a beginning and, after its time, by an end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import time

import grpc

from gpu_scheduler import __version__
from gpu_scheduler.agent.server_link import Stream, grpc_stream
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import PROTOCOL

DEVICES = 8
BEAT_S = 5.0
FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0
Key = tuple[str, int]


class LightAgent:
    """One node."""

    def __init__(self, name: str, targets: list[str], run_s: float) -> None:
        """Nothing is connected yet."""
        self.name = name
        self._targets = itertools.cycle(targets)
        self._run_s = run_s
        self._known: dict[Key, list[pb.Fact]] = {}
        self._facts: list[pb.Fact] = []
        self._wake = asyncio.Event()
        self._term = 0

    async def run(self) -> None:
        """Keep a stream open for ever."""
        wait_s = FIRST_WAIT_S
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                async with grpc_stream(next(self._targets)) as stream:
                    if await self._session(stream):
                        wait_s = FIRST_WAIT_S
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(LONGEST_WAIT_S, wait_s * 1.6)

    async def _session(self, stream: Stream) -> bool:
        held = [pb.HeldWork(allocation_id=name, member=member) for name, member in self._known]
        await stream.write(pb.AgentMessage(hello=self._hello(held)))
        self._facts = [fact for facts in self._known.values() for fact in facts]
        self._wake.set()
        speaker = asyncio.gather(self._tell(stream), self._beat(stream))
        welcomed = False
        try:
            async for message in stream:
                kind = message.WhichOneof("message")
                if kind == "orders" and message.orders.term >= self._term:
                    self._obey(message.orders)
                elif kind == "welcome":
                    welcomed = True
                    self._term = max(self._term, message.welcome.term)
                elif kind == "goodbye":
                    break
        finally:
            speaker.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await speaker
        return welcomed

    def _hello(self, held: list[pb.HeldWork]) -> pb.Hello:
        devices = [
            pb.Device(index=n, uuid=f"GPU-{self.name}-{n}", model="H100", memory_mb=81_920)
            for n in range(DEVICES)
        ]
        inventory = pb.Inventory(
            cpu_milli=64_000, memory_mb=1 << 20, devices=devices, detection="declared"
        )
        return pb.Hello(
            node=self.name,
            version=__version__,
            protocol=PROTOCOL,
            boot_id="light",
            instance=self.name,
            inventory=inventory,
            held=held,
            runners=["process"],
            term=self._term,
            address="127.0.0.1",
        )

    async def _beat(self, stream: Stream) -> None:
        """A heartbeat and the readings of all devices, as a real agent with GPUs sends them."""
        readings = [
            pb.DeviceReading(
                index=n,
                utilisation_percent=50,
                memory_used_mb=1_000,
                temperature_c=60,
                power_mw=300_000,
                healthy=True,
                load_percent=50,
                power_known=True,
            )
            for n in range(DEVICES)
        ]
        await asyncio.sleep(random.uniform(0, BEAT_S))
        while True:
            now_ms = time.time_ns() // 1_000_000
            boot_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
            beat = pb.Heartbeat(at_ms=now_ms, boot_ms=boot_ms)
            await stream.write(pb.AgentMessage(heartbeat=beat))
            telemetry = pb.Telemetry(at_ms=now_ms, readings=readings)
            await stream.write(pb.AgentMessage(telemetry=telemetry))
            await asyncio.sleep(BEAT_S * random.uniform(0.8, 1.0))

    async def _tell(self, stream: Stream) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            facts, self._facts = self._facts, []
            if facts:
                await stream.write(pb.AgentMessage(facts=pb.Facts(facts=facts)))

    def _obey(self, orders: pb.Orders) -> None:
        for order in orders.orders:
            key = (order.allocation_id, order.member)
            match order.WhichOneof("order"):
                case "start" if key not in self._known:
                    self._known[key] = []
                    self._say(key, began=pb.Began(pid=1))
                    if self._run_s > 0:
                        loop = asyncio.get_running_loop()
                        loop.call_later(self._run_s, self._end, key, "")
                    else:
                        self._end(key, "")
                case "stop":
                    self._known.setdefault(key, [])
                    self._end(key, order.stop.why)
                case "forget":
                    self._known.pop(key, None)

    def _end(self, key: Key, why: str) -> None:
        facts = self._known.get(key)
        if facts is None or any(fact.WhichOneof("fact") == "over" for fact in facts):
            return
        run_ms = round(1000 * self._run_s)
        self._say(key, over=pb.Over(exit_code=0, ran=True, run_ms=run_ms, stopped_by=why))

    def _say(self, key: Key, began: pb.Began | None = None, over: pb.Over | None = None) -> None:
        now_ms = time.time_ns() // 1_000_000
        fact = pb.Fact(at_ms=now_ms, allocation_id=key[0], member=key[1], began=began, over=over)
        self._known[key].append(fact)
        self._facts.append(fact)
        self._wake.set()


async def serve(targets: list[str], count: int, run_s: float) -> None:
    """All of them, until this process is ended."""
    agents = [LightAgent(f"light-{number:04d}", targets, run_s) for number in range(count)]
    async with asyncio.TaskGroup() as tasks:
        for number, agent in enumerate(agents):
            tasks.create_task(agent.run())
            if number % 50 == 49:
                await asyncio.sleep(0.05)


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", required=True, help="unix:/path or host:port")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--run-ms", type=int, default=0, help="how long each job takes")
    options = parser.parse_args()
    asyncio.run(serve(options.target, options.count, options.run_ms / 1000))


if __name__ == "__main__":
    main()
