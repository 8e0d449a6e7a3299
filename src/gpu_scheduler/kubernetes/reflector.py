"""A cache that follows the API server: list once, then watch; handlers receive every difference.

The cache always shows a state that the API server was in: it moves from version to version, and
handlers are called after it has moved. Whatever goes wrong (a lost connection, silence, a version
that the server has dropped, a duplicated event) costs time, never a change: after a gap the list is
compared with the cache and handlers receive the difference.

An object that cannot be read does not stop the others: it is among `unreadable`, and `objects` has
what identifies it, if that is enough for an object of its type.

Handlers are plain functions and run in the order of the changes; a slow one holds up the cache.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import structlog

from gpu_scheduler.kubernetes.client.client import (
    EVERYTHING,
    ApiClient,
    Backoff,
    Listing,
    Selection,
    Unreadable,
    WatchEvent,
)
from gpu_scheduler.kubernetes.client.errors import (
    Gone,
    KubernetesError,
    OutcomeUnknown,
    TooManyRequests,
)
from gpu_scheduler.kubernetes.objects import ObjectT, Resource

log = structlog.get_logger("reflector")

Key = tuple[str, str]
HeardT_contra = TypeVar("HeardT_contra", contravariant=True)


class Handler(Protocol[HeardT_contra]):
    """A handler of changes; the cache shows the new state already."""

    def on_added(self, new: HeardT_contra, /) -> None:
        """The object is new, or has a new uid under an old name."""
        ...

    def on_updated(self, old: HeardT_contra, new: HeardT_contra, /) -> None:
        """The object has changed, perhaps several times since."""
        ...

    def on_deleted(self, last: HeardT_contra, /) -> None:
        """The object is gone, or no longer selected; `last` is how it was last seen."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorSettings:
    """Times of a reflector."""

    shortest_watch_seconds: int = 300
    longest_watch_seconds: int = 600
    """A watch ends after a random time in between, so that not all end together."""
    silence_seconds: float = 70.0
    """The server sends a bookmark each minute; after this time without one, reconnect."""
    first_delay_seconds: float = 0.5
    longest_delay_seconds: float = 30.0
    stable_seconds: float = 5.0
    """A watch that lasted so long, or brought an event, resets the back-off."""


class Reflector(Generic[ObjectT]):
    """The selected objects of one resource, as the API server has them."""

    def __init__(
        self,
        client: ApiClient,
        resource: Resource[ObjectT],
        selection: Selection = EVERYTHING,
        *,
        settings: ReflectorSettings = ReflectorSettings(),  # noqa: B008 - frozen
        random: Random | None = None,
    ) -> None:
        """Nothing happens until `run`."""
        self._client = client
        self._resource = resource
        self._selection = selection
        self._settings = settings
        self._random = random or Random()
        self._objects: dict[Key, ObjectT] = {}
        self._unreadable: dict[Key, Unreadable] = {}
        self._handlers: list[Handler[ObjectT]] = []
        self._synced = asyncio.Event()
        self._last_contact = float("-inf")
        self.resource_version = ""

    @property
    def objects(self) -> Mapping[Key, ObjectT]:
        """All objects by namespace and name; a live view."""
        return MappingProxyType(self._objects)

    @property
    def unreadable(self) -> Mapping[Key, Unreadable]:
        """The objects whose fields do not have the expected types; a live view."""
        return MappingProxyType(self._unreadable)

    @property
    def is_synced(self) -> bool:
        """Whether the first list is complete."""
        return self._synced.is_set()

    def age_seconds(self) -> float:
        """The time since the server last said anything: how stale the cache may be."""
        return asyncio.get_running_loop().time() - self._last_contact

    async def wait_until_synced(self) -> None:
        """Wait until the first list is complete."""
        await self._synced.wait()

    def add_handler(self, handler: Handler[ObjectT]) -> None:
        """Tell a handler of all objects that are known, and of every change from now on."""
        self._handlers.append(handler)
        for one in list(self._objects.values()):
            self._call(handler.on_added, one)

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        backoff = Backoff(
            first_seconds=self._settings.first_delay_seconds,
            longest_seconds=self._settings.longest_delay_seconds,
            random=self._random,
        )
        has_list = False
        while True:
            asked_delay = 0.0
            try:
                if not has_list:
                    self._take_list(await self._client.list(self._resource, self._selection))
                    has_list = True
                if await self._follow():
                    backoff.reset()
                    continue
            except Gone:
                log.info("version too old; listing again", resource=self._resource.plural)
                has_list = False
            except KubernetesError as error:
                log.warning(
                    "watch failed; will retry",
                    resource=self._resource.plural,
                    code=error.code,
                    error=str(error),
                )
                if self.age_seconds() < self._settings.stable_seconds:
                    backoff.reset()
                if isinstance(error, TooManyRequests | OutcomeUnknown):
                    asked_delay = error.retry_after_seconds or 0.0
            await asyncio.sleep(asked_delay + backoff.next_delay())

    async def _follow(self) -> bool:
        """Watch until it ends; whether it was a good one, after which nothing needs to wait."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        lifetime = self._random.randint(
            self._settings.shortest_watch_seconds, self._settings.longest_watch_seconds
        )
        watch = self._client.watch(
            self._resource,
            self._selection,
            resource_version=self.resource_version,
            lifetime_seconds=lifetime,
        )
        async with aclosing(watch):
            while True:
                try:
                    async with asyncio.timeout(self._settings.silence_seconds):
                        event = await anext(watch)
                except TimeoutError:
                    log.warning("watch is silent; reconnecting", resource=self._resource.plural)
                    return True
                except StopAsyncIteration:
                    return (
                        self._last_contact >= began
                        or loop.time() - began >= self._settings.stable_seconds
                    )
                self._last_contact = loop.time()
                self._take_event(event)

    def _take_list(self, listing: Listing[ObjectT]) -> None:
        """Move to the state of a list, and tell handlers the difference."""
        before = self._objects
        self._objects = {one.key: one for one in listing.items}
        self._unreadable = {}
        for problem in listing.unreadable:
            self._note_unreadable(problem)
        self.resource_version = listing.resource_version
        self._last_contact = asyncio.get_running_loop().time()
        for key, old in before.items():
            if key not in self._objects:
                self._tell_deleted(old)
        for key, new in self._objects.items():
            self._tell_change(before.get(key), new)
        self._synced.set()

    def _take_event(self, event: WatchEvent[ObjectT]) -> None:
        """Move on by one event; one that the cache has seen already is ignored."""
        if not _is_later(event.resource_version, self.resource_version):
            return
        self.resource_version = event.resource_version
        new = event.object
        identity = new if event.unreadable is None else event.unreadable.identity
        if identity is None:
            return
        self._unreadable.pop(identity.key, None)
        if event.unreadable is not None and event.type != "DELETED":
            self._note_unreadable(event.unreadable)
        if event.type == "DELETED" or new is None:
            old = self._objects.pop(identity.key, None)
            if old is not None:
                self._tell_deleted(new or old)
        else:
            old = self._objects.get(new.key)
            self._objects[new.key] = new
            self._tell_change(old, new)

    def _note_unreadable(self, problem: Unreadable) -> None:
        namespace, name = problem.identity.key
        self._unreadable[problem.identity.key] = problem
        log.warning(
            "object cannot be read",
            resource=self._resource.plural,
            namespace=namespace,
            name=name,
            error=problem.why,
        )

    def _tell_change(self, old: ObjectT | None, new: ObjectT) -> None:
        if old is not None and old.metadata.uid != new.metadata.uid:
            self._tell_deleted(old)
            old = None
        if old is None:
            for handler in self._handlers:
                self._call(handler.on_added, new)
        elif old.metadata.resource_version != new.metadata.resource_version:
            for handler in self._handlers:
                self._call(handler.on_updated, old, new)

    def _tell_deleted(self, last: ObjectT) -> None:
        for handler in self._handlers:
            self._call(handler.on_deleted, last)

    def _call(self, function: Callable[..., None], *objects: ObjectT) -> None:
        """A handler that fails must not stop the cache, or the other handlers."""
        try:
            function(*objects)
        except Exception:
            log.exception("handler failed", resource=self._resource.plural)


def _is_later(version: str, than: str) -> bool:
    """Whether an event is news: Kubernetes' versions grow, which it guarantees since 1.35."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than
