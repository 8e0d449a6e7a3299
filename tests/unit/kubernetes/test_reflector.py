"""The cache follows the API server through every kind of gap, on virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.kubernetes.client.client import Answer, ApiClient, Request, Selection
from gpu_scheduler.kubernetes.objects import PODS, Pod
from gpu_scheduler.kubernetes.reflector import Reflector
from tests.fakes.kubernetes.api import FakeApi, Fault
from tests.fakes.kubernetes.transport import FakeTransport
from tests.faults.virtual_loop import VirtualLoop

QUEUE = Selection(fields="spec.schedulerName=gpu-scheduler,spec.nodeName=")


class Recorder:
    """Notes what it hears, and keeps a copy of the cache from that alone."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.copy: dict[tuple[str, str], Pod] = {}

    def on_added(self, new: Pod) -> None:
        assert new.key not in self.copy
        self.copy[new.key] = new
        self.heard.append(("added", new.metadata.name))

    def on_updated(self, old: Pod, new: Pod) -> None:
        assert self.copy[new.key] == old
        assert old.metadata.uid == new.metadata.uid
        self.copy[new.key] = new
        self.heard.append(("updated", new.metadata.name))

    def on_deleted(self, last: Pod) -> None:
        del self.copy[last.key]
        self.heard.append(("deleted", last.metadata.name))

    def take(self) -> list[tuple[str, str]]:
        heard, self.heard = self.heard, []
        return heard


class World:
    """A fake API server, a reflector that runs, and one that listens."""

    def __init__(self, selection: Selection = Selection()) -> None:  # noqa: B008
        self.api = FakeApi()
        self.transport = FakeTransport(self.api)
        self.client = ApiClient(self.transport, random=Random(1))
        self.reflector = Reflector(self.client, PODS, selection, random=Random(2))
        self.recorder = Recorder()
        self.reflector.add_handler(self.recorder)

    async def a_pod(self, name: str) -> None:
        spec = {"schedulerName": "gpu-scheduler", "containers": [{"name": "c"}]}
        await self.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")

    async def label(self, name: str, value: str) -> None:
        changes = {"metadata": {"labels": {"x": value}}}
        await self.client.patch(PODS, name, changes, "default")

    async def delete(self, name: str) -> None:
        await self.client.delete(PODS, name, "default")

    def stored(self) -> dict[tuple[str, str], str]:
        """What the API server has: versions by key."""
        return {
            key[1:]: one["metadata"]["resourceVersion"]
            for key, one in self.api.objects.items()
            if key[0] == "/api/v1/pods"
        }

    def cached(self) -> dict[tuple[str, str], str]:
        versions = {k: o.metadata.resource_version for k, o in self.reflector.objects.items()}
        assert self.recorder.copy == self.reflector.objects
        return versions

    def watches(self) -> list[Request]:
        return [one for one in self.api.requests if dict(one.query).get("watch")]

    def lists(self) -> int:
        mine = [one for one in self.api.requests if (one.method, one.path) == LIST]
        return len(mine) - len(self.watches())


LIST = ("GET", "/api/v1/pods")


def play(
    scenario: Callable[[World], Coroutine[Any, Any, None]],
    selection: Selection = Selection(),  # noqa: B008
) -> None:
    async def main() -> None:
        world = World(selection)
        running = asyncio.create_task(world.reflector.run())
        await scenario(world)
        running.cancel()

    loop = VirtualLoop()
    loop.run(main())
    assert loop.failures == []


def test_the_cache_has_the_list_and_then_follows() -> None:
    async def scenario(world: World) -> None:
        await world.a_pod("before")
        await world.reflector.wait_until_synced()
        assert world.cached() == world.stored()
        await world.a_pod("a")
        await world.label("a", "1")
        await world.delete("before")
        await asyncio.sleep(1)
        assert world.cached() == world.stored()
        assert world.recorder.take() == [
            ("added", "before"),
            ("added", "a"),
            ("updated", "a"),
            ("updated", "before"),
            ("deleted", "before"),
        ]

    play(scenario)


def test_a_handler_that_comes_late_hears_of_everything() -> None:
    async def scenario(world: World) -> None:
        await world.a_pod("a")
        await world.reflector.wait_until_synced()
        late = Recorder()
        world.reflector.add_handler(late)
        assert late.take() == [("added", "a")]

    play(scenario)


def test_a_pod_that_is_bound_leaves_the_queue() -> None:
    async def scenario(world: World) -> None:
        await world.a_pod("a")
        await world.reflector.wait_until_synced()
        (pod,) = world.reflector.objects.values()
        await world.client.bind("a", "default", uid=pod.metadata.uid, node="n1")
        await asyncio.sleep(1)
        assert world.recorder.take() == [("added", "a"), ("deleted", "a")]
        assert not world.reflector.objects

    play(scenario, QUEUE)


def test_a_dropped_connection_continues_without_a_list() -> None:
    async def scenario(world: World) -> None:
        await world.reflector.wait_until_synced()
        await asyncio.sleep(1)
        world.api.drop_watches()
        await world.a_pod("a")
        await asyncio.sleep(2)
        assert world.cached() == world.stored()
        assert len(world.watches()) == 2
        assert world.lists() == 1

    play(scenario)


@pytest.mark.parametrize("way", ["while_watching", "while_away"])
def test_after_a_version_too_old_handlers_hear_the_difference(way: str) -> None:
    async def scenario(world: World) -> None:
        for name in ("keeps", "changes", "goes", "returns"):
            await world.a_pod(name)
        await world.reflector.wait_until_synced()
        await asyncio.sleep(1)
        world.recorder.take()
        world.api.silence_watches()
        await world.a_pod("comes")
        await world.label("changes", "1")
        await world.delete("goes")
        await world.delete("returns")
        await world.a_pod("returns")
        world.api.compact()
        if way == "while_watching":
            world.api.expire_watches()
        else:
            world.api.drop_watches()
        await asyncio.sleep(5)
        assert world.cached() == world.stored()
        assert sorted(world.recorder.take()) == [
            ("added", "comes"),
            ("added", "returns"),
            ("deleted", "goes"),
            ("deleted", "returns"),
            ("updated", "changes"),
        ]
        assert world.lists() == 2

    play(scenario)


def test_events_that_come_twice_are_heard_once() -> None:
    async def scenario(world: World) -> None:
        world.api.sends_twice = True
        await world.reflector.wait_until_synced()
        await world.a_pod("a")
        await world.delete("a")
        await world.a_pod("b")
        await asyncio.sleep(1)
        assert world.recorder.take() == [
            ("added", "a"),
            ("updated", "a"),
            ("deleted", "a"),
            ("added", "b"),
        ]

    play(scenario)


def test_a_silent_connection_is_replaced() -> None:
    async def scenario(world: World) -> None:
        await world.reflector.wait_until_synced()
        await asyncio.sleep(1)
        world.api.silence_watches()
        await world.a_pod("a")
        await asyncio.sleep(60)
        assert world.recorder.take() == []
        assert world.reflector.age_seconds() > 59
        await asyncio.sleep(20)
        assert world.recorder.take() == [("added", "a")]

    play(scenario)


def test_bookmarks_keep_an_idle_watch_and_its_version() -> None:
    async def scenario(world: World) -> None:
        await world.reflector.wait_until_synced()
        before = int(world.reflector.resource_version)
        for _ in range(5):  # other objects move the version on
            body = Request(
                method="POST",
                path="/apis/coordination.k8s.io/v1/namespaces/default/leases",
                body=b'{"metadata": {"generateName": "x"}}',
            )
            assert (await world.transport.send(body)).status == 201
        await asyncio.sleep(200)
        assert int(world.reflector.resource_version) == before + 5
        assert len(world.watches()) == 1
        assert world.reflector.age_seconds() <= 60
        # History before the bookmark is no longer needed.
        world.api.oldest = before + 5
        world.api.drop_watches()
        await asyncio.sleep(5)
        assert world.lists() == 1

    play(scenario)


def test_watches_end_at_different_times() -> None:
    async def scenario(world: World) -> None:
        await world.reflector.wait_until_synced()
        await asyncio.sleep(3600)
        lifetimes = [int(dict(one.query)["timeoutSeconds"]) for one in world.watches()]
        assert len(set(lifetimes)) > 3
        assert all(300 <= seconds <= 600 for seconds in lifetimes)
        assert world.lists() == 1

    play(scenario)


def test_an_outage_is_waited_for_with_growing_delays() -> None:
    async def scenario(world: World) -> None:
        await world.a_pod("a")
        await world.reflector.wait_until_synced()
        await asyncio.sleep(1)
        world.api.drop_watches()
        outage = Fault(times=10**6, refuses_connection=True)
        world.api.faults.append(outage)
        before = outage.times
        await asyncio.sleep(600)
        assert 20 < before - outage.times < 60
        outage.times = 0
        await world.a_pod("b")
        await asyncio.sleep(35)
        assert world.cached() == world.stored()

    play(scenario)


def test_a_busy_server_is_left_alone_as_long_as_it_asks() -> None:
    async def scenario(world: World) -> None:
        body = b'{"reason": "TooManyRequests", "details": {"retryAfterSeconds": 50}}'
        world.api.faults.append(
            Fault(
                matches=lambda one: bool(dict(one.query).get("watch")),
                answer=Answer(status=429, body=body),
            )
        )
        await asyncio.sleep(49)
        assert world.watches() == []
        await asyncio.sleep(3)
        assert len(world.watches()) == 1

    play(scenario)


def test_a_server_that_ends_each_watch_at_once_is_not_asked_in_a_loop() -> None:
    async def scenario(world: World) -> None:
        world.api.faults.append(
            Fault(
                matches=lambda one: bool(dict(one.query).get("watch")),
                times=10**6,
                answer=Answer(status=200),
            )
        )
        await asyncio.sleep(600)
        assert world.reflector.is_synced
        assert 20 < 10**6 - world.api.faults[0].times < 60

    play(scenario)


def test_a_list_that_expires_between_pages_starts_again() -> None:
    async def scenario(world: World) -> None:
        for n in range(5):
            await world.a_pod(f"p{n}")

        def expire(one: Request) -> bool:
            if dict(one.query).get("continue"):
                world.api.compact()
            return False

        world.api.faults.append(Fault(matches=expire))
        listing = await world.client.list(PODS, page_size=2)
        assert len(listing.items) == 5

    play(scenario)


def test_a_handler_that_fails_stops_neither_cache_nor_others() -> None:
    class Failing(Recorder):
        def on_added(self, new: Pod) -> None:
            raise RuntimeError("a bug")

    async def scenario(world: World) -> None:
        world.reflector._handlers.insert(0, Failing())
        await world.reflector.wait_until_synced()
        await world.a_pod("a")
        await asyncio.sleep(1)
        assert world.recorder.take() == [("added", "a")]
        assert world.cached() == world.stored()

    play(scenario)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ("create", "label", "delete", "drop", "expire", "silence", "compact", "twice")
            ),
            st.integers(0, 3),
            st.sampled_from((0.0, 0.01, 0.6, 30.0)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_the_cache_becomes_what_the_server_has(
    steps: list[tuple[str, int, float]],
) -> None:
    async def scenario(world: World) -> None:
        for what, which, pause in steps:
            name = f"p{which}"
            exists = ("default", name) in world.stored()
            match what:
                case "create" if not exists:
                    await world.a_pod(name)
                case "label" if exists:
                    await world.label(name, str(pause))
                case "delete" if exists:
                    await world.delete(name)
                case "drop":
                    world.api.drop_watches()
                case "expire":
                    world.api.expire_watches()
                case "silence":
                    world.api.silence_watches()
                case "compact":
                    world.api.compact()
                case "twice":
                    world.api.sends_twice = not world.api.sends_twice
            await asyncio.sleep(pause)
        await asyncio.sleep(300)
        assert world.cached() == world.stored()

    play(scenario)
