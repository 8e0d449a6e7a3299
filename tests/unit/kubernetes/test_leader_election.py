"""At most one candidate leads at a time, whatever the clocks and the network do."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.leader_election import ElectionSettings, LeaderElector
from gpu_scheduler.kubernetes.objects import LEASES, Lease
from tests.fakes.kubernetes.api import FakeApi, Fault
from tests.fakes.kubernetes.transport import FakeTransport
from tests.faults.virtual_loop import Part, VirtualLoop


class Candidate:
    """A process that stands for election; its clock may begin anywhere and go a bit wrong."""

    def __init__(self, world: "World", name: str, *, offset: float, rate: float) -> None:
        self.world = world
        self.name = name
        self.part = Part(name)
        self.transport = FakeTransport(world.api)
        self.client = ApiClient(self.transport, random=Random(name))
        self.terms: list[int] = []
        self.losses = 0
        self.elector = LeaderElector(
            self.client,
            name="gpu-scheduler",
            namespace="kube-system",
            identity=name,
            on_elected=self.terms.append,
            on_lost=self._lose,
            clock=lambda: offset + world.loop.time() * rate,
            random=Random(name),
        )
        self.task = world.loop.start(self.part, self.elector.run())

    def _lose(self) -> None:
        self.losses += 1

    @property
    def leads(self) -> bool:
        """Frozen processes do nothing, so what they believe does no harm."""
        return self.elector.is_leader and not self.part.is_dead and not self.part.is_frozen


class World:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.api = FakeApi()
        self.candidates: list[Candidate] = []
        self.terms: list[tuple[int, str]] = []

    def candidate(self, name: str, *, offset: float = 0.0, rate: float = 1.0) -> Candidate:
        made = Candidate(self, name, offset=offset, rate=rate)
        self.candidates.append(made)
        return made

    def leaders(self) -> list[str]:
        return [one.name for one in self.candidates if one.leads]

    async def pass_time(self, seconds: float) -> None:
        """Let time pass; at no moment do two lead."""
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            assert len(self.leaders()) <= 1, self.leaders()
            await asyncio.sleep(0.25)

    async def lease(self) -> Lease:
        client = ApiClient(FakeTransport(self.api))
        return await client.get(LEASES, "gpu-scheduler", "kube-system")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - on virtual time
        await asyncio.sleep(0.01)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    world = World()

    async def main() -> None:
        await scenario(world)
        for one in world.candidates:
            one.task.cancel()

    world.loop.run(main())
    assert world.loop.failures == []


def test_one_of_three_is_elected_and_stays() -> None:
    async def scenario(world: World) -> None:
        for name in "abc":
            world.candidate(name)
        await world.pass_time(3)
        (leader,) = world.leaders()
        await world.pass_time(600)
        assert world.leaders() == [leader]
        assert [one.losses for one in world.candidates] == [0, 0, 0]
        lease = await world.lease()
        assert lease.spec.holder_identity == leader
        assert lease.spec.lease_duration_seconds == 15

    play(scenario)


def test_a_killed_leader_is_replaced_after_the_lease() -> None:
    async def scenario(world: World) -> None:
        first = world.candidate("a")
        await world.pass_time(3)
        second = world.candidate("b")
        await world.pass_time(10)
        world.loop.kill(first.part)
        await world.pass_time(12)
        assert world.leaders() == []
        await world.pass_time(8)
        assert world.leaders() == ["b"]
        assert first.terms == [1]
        assert second.terms == [2]

    play(scenario)


def test_a_leader_that_ends_releases_the_lease() -> None:
    async def scenario(world: World) -> None:
        first = world.candidate("a")
        await world.pass_time(3)
        second = world.candidate("b")
        await world.pass_time(3)
        first.task.cancel()
        await world.pass_time(3)
        assert (first.losses, world.leaders()) == (1, ["b"])
        assert second.terms == [2]

    play(scenario)


def test_a_leader_that_ends_during_a_renewal_releases_the_lease_too() -> None:
    async def scenario(world: World) -> None:
        first = world.candidate("a")
        await world.pass_time(3)
        world.candidate("b")
        world.api.faults.append(
            Fault(matches=lambda request: request.method == "PUT", answer_delay_seconds=3.0)
        )
        await until(lambda: not world.api.faults[0].times)
        await asyncio.sleep(0.1)
        first.task.cancel()
        await world.pass_time(3)
        assert world.leaders() == ["b"]

    play(scenario)


def test_a_candidate_with_another_clock_waits_as_long() -> None:
    async def scenario(world: World) -> None:
        first = world.candidate("a")
        await world.pass_time(3)
        world.candidate("years-ahead", offset=1e8)
        world.candidate("years-behind", offset=-1e8)
        await world.pass_time(120)
        assert world.leaders() == ["a"]
        assert first.losses == 0

    play(scenario)


def test_a_leader_without_connection_stops_before_another_starts() -> None:
    async def scenario(world: World) -> None:
        first = world.candidate("a")
        await world.pass_time(3)
        world.candidate("b")
        await world.pass_time(5)
        first.transport.is_cut = True
        await world.pass_time(12)
        assert (first.losses, world.leaders()) == (1, [])
        await world.pass_time(8)
        assert world.leaders() == ["b"]
        first.transport.is_cut = False
        await world.pass_time(60)
        assert world.leaders() == ["b"]

    play(scenario)


def test_a_frozen_leader_knows_at_once_when_it_thaws() -> None:
    async def scenario(world: World) -> None:
        first = world.candidate("a")
        await world.pass_time(3)
        world.candidate("b")
        await world.pass_time(3)
        world.loop.freeze(first.part)
        await world.pass_time(30)
        assert world.leaders() == ["b"]
        world.loop.thaw(first.part)
        assert not first.elector.is_leader
        await world.pass_time(30)
        assert world.leaders() == ["b"]
        assert first.losses == 1

    play(scenario)


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_lost_answer_does_not_cost_the_leadership(method: str) -> None:
    async def scenario(world: World) -> None:
        world.api.faults.append(
            Fault(matches=lambda request: request.method == method, loses_answer=True)
        )
        first = world.candidate("a")
        await world.pass_time(30)
        assert world.leaders() == ["a"]
        assert first.losses == 0
        assert len(first.terms) == 1

    play(scenario)


def test_one_slow_answer_does_not_use_up_the_deadline() -> None:
    async def scenario(world: World) -> None:
        first = world.candidate("a")
        await world.pass_time(3)
        world.api.faults.append(Fault(delay_seconds=20))
        await world.pass_time(60)
        assert world.leaders() == ["a"]
        assert first.losses == 0

    play(scenario)


def test_a_deleted_lease_is_created_again() -> None:
    async def scenario(world: World) -> None:
        first = world.candidate("a")
        await world.pass_time(3)
        await first.client.delete(LEASES, "gpu-scheduler", "kube-system")
        await world.pass_time(5)
        assert (await world.lease()).spec.holder_identity == "a"
        assert first.losses == 0

    play(scenario)


def test_a_note_on_the_lease_costs_nothing_and_prolongs_nothing() -> None:
    async def scenario(world: World) -> None:
        first = world.candidate("a")
        await world.pass_time(3)
        world.candidate("b")

        async def write_notes() -> None:
            client = ApiClient(FakeTransport(world.api))
            for n in range(100):
                note = {"metadata": {"annotations": {"note": str(n)}}}
                await client.patch(LEASES, "gpu-scheduler", note, "kube-system")
                await asyncio.sleep(0.7)

        notes = asyncio.create_task(write_notes())
        await world.pass_time(20)
        assert (world.leaders(), first.losses) == (["a"], 0)
        world.loop.kill(first.part)
        await world.pass_time(20)
        assert world.leaders() == ["b"]
        notes.cancel()

    play(scenario)


def test_times_that_let_two_lead_are_refused() -> None:
    with pytest.raises(ValueError, match="lease duration"):
        ElectionSettings(lease_duration_seconds=10, renew_deadline_seconds=10)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("freeze", "thaw", "cut", "mend", "lose_answer", "slow", "restart")),
            st.integers(0, 2),
            st.sampled_from((0.5, 3.0, 9.0, 14.0, 20.0)),
        ),
        max_size=15,
    )
)
def test_two_never_lead_and_somebody_leads_in_the_end(
    steps: list[tuple[str, int, float]],
) -> None:
    async def scenario(world: World) -> None:
        members = [
            world.candidate("a", offset=5.0),
            world.candidate("b", offset=-1e6, rate=1.05),
            world.candidate("c", rate=0.95),
        ]
        for what, which, pause in steps:
            one = members[which]
            match what:
                case "freeze":
                    world.loop.freeze(one.part)
                case "thaw":
                    world.loop.thaw(one.part)
                case "cut" | "mend":
                    one.transport.is_cut = what == "cut"
                case "lose_answer":
                    world.api.faults.append(Fault(times=2, loses_answer=True))
                case "slow":
                    world.api.faults.append(Fault(times=2, delay_seconds=3.0))
                case "restart":
                    world.loop.kill(one.part)
                    members[which] = world.candidate(f"{one.name}'")
            await world.pass_time(pause)
        for one in members:
            one.transport.is_cut = False
            world.loop.thaw(one.part)
        await world.pass_time(60)
        assert len(world.leaders()) == 1
        terms = [term for one in world.candidates for term in one.terms]
        assert len(terms) == len(set(terms))

    play(scenario)
