"""Operations on objects of the Kubernetes API, typed, with errors that say what is known.

Reads are repeated after any failure that may pass. Writes are repeated only if the API server
certainly did not carry them out (no connection, 429), or if repeating cannot do harm (server-side
apply, Binding of one uid). Any other write without an answer raises `OutcomeUnknown`: the caller
reads the object and decides.

A `Transport` is the connection to the API server: `client.http` implements it by aiohttp; tests
implement it without sockets, on virtual time. It raises `Unreachable` if the request certainly was
not sent, and `OutcomeUnknown` if it may have been, and never repeats a request by itself.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from gpu_scheduler.kubernetes.client.errors import (
    Conflict,
    EvictionBlocked,
    Gone,
    KubernetesError,
    MalformedAnswer,
    OutcomeUnknown,
    Status,
    TooManyRequests,
    Unreachable,
    error_of_answer,
    error_of_status,
)
from gpu_scheduler.kubernetes.objects import (
    PODS,
    ListMeta,
    Object,
    ObjectT,
    Pod,
    Resource,
    Value,
)


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Delays that double from `first_seconds` to `longest_seconds`, each 50 to 100 % of its step.

    The jitter keeps many clients that failed together from coming back together.
    """

    first_seconds: float = 0.2
    longest_seconds: float = 10.0
    random: Random = field(default_factory=Random)
    failures: int = 0

    def next_delay(self) -> float:
        """The delay after one more failure."""
        step = min(self.longest_seconds, self.first_seconds * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return step * self.random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again from the first delay, after a success."""
        self.failures = 0


Query = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; `timeout_seconds` limits the wait for the complete answer."""

    method: str
    path: str
    query: Query = ()
    body: bytes = b""
    content_type: str = "application/json"
    timeout_seconds: float = 30.0

    def __str__(self) -> str:
        """As messages name it."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """An answer that goes on; its chunks end, or raise, when the connection does."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Transport(Protocol):
    """A connection to one API server, with the credentials of one identity."""

    async def send(self, request: Request) -> Answer:
        """Send a request and return the complete answer, whatever its status."""
        ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Send a request; `timeout_seconds` limits only the wait for the start of the answer."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


DecodedT = TypeVar("DecodedT")

PAGE_SIZE = 500
MERGE_PATCH = "application/merge-patch+json"
# JSON is YAML, and this is the media type that every server of today accepts.
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often and how long a request is repeated."""

    attempts: int = 5
    first_delay_seconds: float = 0.2
    longest_delay_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects of a resource a list or watch covers; empty parts select everything."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> Query:
        """As the API server reads it."""
        given = (("labelSelector", self.labels), ("fieldSelector", self.fields))
        return tuple((name, value) for name, value in given if value)


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """An object whose fields do not have the expected types: what identifies it, and the error."""

    identity: Object
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[ObjectT]):
    """All selected objects at one version; a watch continues from it.

    Of an `unreadable` object, `items` has its name, node and phase only, or nothing.
    """

    items: list[ObjectT]
    resource_version: str
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent(Generic[ObjectT]):
    """A change (ADDED, MODIFIED, DELETED), or a BOOKMARK that only carries a version."""

    type: str
    resource_version: str
    object: ObjectT | None = None
    unreadable: Unreadable | None = None


class ApiClient:
    """One identity's access to one API server."""

    def __init__(
        self,
        transport: Transport,
        *,
        retries: Retries = Retries(),  # noqa: B008 - frozen
        random: Random | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        """The transport is closed together with the client."""
        self._transport = transport
        self._retries = retries
        self._random = random or Random()
        self._timeout_seconds = timeout_seconds

    async def __aenter__(self) -> "ApiClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    # --- reading

    async def get(self, resource: Resource[ObjectT], name: str, namespace: str = "") -> ObjectT:
        """Read one object."""
        answer = await self._call("GET", resource.path(namespace, name), repeatable=True)
        return _decoded(resource.decoder, answer.body, name)

    async def list(
        self,
        resource: Resource[ObjectT],
        selection: Selection = EVERYTHING,
        *,
        page_size: int = PAGE_SIZE,
    ) -> Listing[ObjectT]:
        """Read all selected objects, page by page, all at the version of the first page.

        The read is consistent: it shows every write that was acknowledged before it began. If the
        server has dropped that version before the last page was read, the list starts again.
        """
        while True:
            try:
                return await self._list_once(resource, selection, page_size)
            except Gone:
                page_size *= 2  # fewer pages, so that it ends in time

    async def _list_once(
        self, resource: Resource[ObjectT], selection: Selection, page_size: int
    ) -> Listing[ObjectT]:
        items: list[ObjectT] = []
        unreadable: list[Unreadable] = []
        token = ""
        while True:
            query = (*selection.query(), ("limit", str(page_size)))
            if token:
                query = (*query, ("continue", token))
            path = resource.path(selection.namespace)
            answer = await self._call("GET", path, query=query, repeatable=True)
            page = _page(resource, answer.body)
            items += page.items
            unreadable += page.unreadable
            token = page.metadata.continue_token
            if not token:
                return Listing(
                    items=items,
                    resource_version=page.metadata.resource_version,
                    unreadable=tuple(unreadable),
                )

    async def watch(
        self,
        resource: Resource[ObjectT],
        selection: Selection = EVERYTHING,
        *,
        resource_version: str,
        lifetime_seconds: int = 300,
    ) -> AsyncGenerator[WatchEvent[ObjectT], None]:
        """Follow changes after a version until the server ends the watch.

        Raises `Gone` if the version is too old, and `OutcomeUnknown` if the connection is lost.
        """
        request = Request(
            method="GET",
            path=resource.path(selection.namespace),
            query=(
                *selection.query(),
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("resourceVersion", resource_version),
                ("timeoutSeconds", str(lifetime_seconds)),
            ),
            timeout_seconds=self._timeout_seconds,
        )
        what = f"watch {resource.plural}"
        async with self._transport.stream(request) as stream:
            if stream.status != 200:
                body = b"".join([chunk async for chunk in stream.chunks])
                raise error_of_answer(what, stream.status, stream.headers, body)
            async for line in _lines(stream.chunks):
                yield _watch_event(resource, line, what)

    # --- writing

    async def create(
        self,
        resource: Resource[ObjectT],
        content: ObjectT | Mapping[str, Any],
        namespace: str = "",
    ) -> ObjectT:
        """Create an object; raises `AlreadyExists` if the name is taken."""
        body = _manifest(resource, content)
        namespace = namespace or body.get("metadata", {}).get("namespace", "")
        answer = await self._call("POST", resource.path(namespace), body=body)
        return _decoded(resource.decoder, answer.body, resource.kind)

    async def replace(
        self, resource: Resource[ObjectT], content: ObjectT, *, subresource: str = ""
    ) -> ObjectT:
        """Replace an object that was read before; raises `Conflict` if it has changed since."""
        if resource.is_partial:
            raise ValueError(f"{resource.kind} is read in part; replacing it would delete fields")
        if not content.metadata.resource_version:
            raise ValueError(f"{resource.kind} {content.metadata.name!r} has no resourceVersion")
        namespace, name = content.key
        path = resource.path(namespace, name, subresource)
        answer = await self._call("PUT", path, body=_manifest(resource, content))
        return _decoded(resource.decoder, answer.body, name)

    async def patch(
        self,
        resource: Resource[ObjectT],
        name: str,
        changes: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
    ) -> ObjectT:
        """Merge changes into an object; None deletes a field.

        With `metadata.resourceVersion` in the changes it raises `Conflict` if the object changed.
        """
        path = resource.path(namespace, name, subresource)
        answer = await self._call("PATCH", path, body=changes, content_type=MERGE_PATCH)
        return _decoded(resource.decoder, answer.body, name)

    async def apply(
        self,
        resource: Resource[ObjectT],
        name: str,
        content: Mapping[str, Any],
        namespace: str = "",
        *,
        field_manager: str,
        force: bool = False,
        subresource: str = "",
    ) -> ObjectT:
        """Own these fields (server-side apply); creates the object if it does not exist.

        Fields that this manager applied before and leaves out now are removed. Raises `Conflict` if
        another manager owns a field with another value, unless `force` takes it over.
        """
        identity = {"apiVersion": resource.api_version, "kind": resource.kind}
        metadata = {**content.get("metadata", {}), "name": name}
        body = {**content, **identity, "metadata": metadata}
        answer = await self._call(
            "PATCH",
            resource.path(namespace, name, subresource),
            query=(("fieldManager", field_manager), ("force", "true" if force else "false")),
            body=body,
            content_type=APPLY_PATCH,
            repeatable=True,
        )
        return _decoded(resource.decoder, answer.body, name)

    async def delete(
        self,
        resource: Resource[ObjectT],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        propagation: str = "",
    ) -> None:
        """Delete an object; with `uid` or `resource_version` only this one (else `Conflict`).

        An object with finalizers, or a pod on a node, exists until those are done.
        """
        options = _delete_options(uid, resource_version, grace_seconds, propagation)
        await self._call("DELETE", resource.path(namespace, name), body=options)

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        """Evict a pod; raises `EvictionBlocked` while a disruption budget forbids it.

        With `uid` or `resource_version` only this one is evicted (else `Conflict`).
        The client does not wait for the budget: the caller may prefer another victim.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, resource_version, grace_seconds, ""),
        }
        await self._call("POST", PODS.path(namespace, name, "eviction"), body=body)

    async def bind(
        self,
        name: str,
        namespace: str,
        *,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        resource_version: str = "",
    ) -> None:
        """Assign a pod to a node, with these annotations in the same write.

        Raises `Conflict` if the pod is assigned, gated, being deleted, or not the one of `uid` (and
        `resource_version`). If an answer was lost, the pod is read to learn whether we were heard.
        """
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        if annotations:
            metadata["annotations"] = dict(annotations)
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        backoff = self._backoff()
        was_lost = False
        while True:
            try:
                await self._call("POST", PODS.path(namespace, name, "binding"), body=body)
            except Conflict:
                if was_lost and _is_bound(
                    await self.get(PODS, name, namespace), uid, node, annotations
                ):
                    return
                raise
            except OutcomeUnknown:
                # Safe to repeat: the API server assigns a uid once and answers 409 afterwards.
                was_lost = True
                delay = backoff.next_delay()
                if backoff.failures >= self._retries.attempts:
                    raise
                await asyncio.sleep(delay)
            else:
                return

    # --- sending

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        repeatable: bool = False,
    ) -> Answer:
        """Send a request, again after failures that may pass, and return the successful answer."""
        request = Request(
            method=method,
            path=path,
            query=query,
            body=b"" if body is None else msgspec.json.encode(body),
            content_type=content_type,
            timeout_seconds=self._timeout_seconds,
        )
        backoff = self._backoff()
        while True:
            try:
                answer = await self._transport.send(request)
                if answer.status < 300:
                    return answer
                raise error_of_answer(str(request), answer.status, answer.headers, answer.body)
            except KubernetesError as error:
                if not _may_repeat(error, repeatable):
                    raise
                delay = backoff.next_delay()
                if backoff.failures >= self._retries.attempts:
                    raise
                if isinstance(error, TooManyRequests | OutcomeUnknown):
                    delay += error.retry_after_seconds or 0.0
            await asyncio.sleep(delay)

    def _backoff(self) -> Backoff:
        return Backoff(
            first_seconds=self._retries.first_delay_seconds,
            longest_seconds=self._retries.longest_delay_seconds,
            random=self._random,
        )


def _may_repeat(error: KubernetesError, repeatable: bool) -> bool:
    match error:
        case EvictionBlocked():
            return False
        case Unreachable() | TooManyRequests():
            return True
        case OutcomeUnknown():
            return repeatable
        case _:
            return False


def _manifest(resource: Resource[ObjectT], content: ObjectT | Mapping[str, Any]) -> dict[str, Any]:
    given = msgspec.to_builtins(content) if isinstance(content, Object) else content
    return {**given, "apiVersion": resource.api_version, "kind": resource.kind}


def _delete_options(
    uid: str, resource_version: str, grace_seconds: int | None, propagation: str
) -> dict[str, Any]:
    preconditions = {
        name: value
        for name, value in (("uid", uid), ("resourceVersion", resource_version))
        if value
    }
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if preconditions:
        options["preconditions"] = preconditions
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    if propagation:
        options["propagationPolicy"] = propagation
    return options


def _is_bound(pod: Pod, uid: str, node: str, annotations: Mapping[str, str] | None) -> bool:
    """Whether this pod has what our Binding wrote."""
    return (
        pod.metadata.uid == uid
        and pod.spec.node_name == node
        and (annotations or {}).items() <= pod.metadata.annotations.items()
    )


def _decoded(decoder: "msgspec.json.Decoder[DecodedT]", body: bytes, what: str) -> DecodedT:
    try:
        return _decoded_object(decoder, body)
    except msgspec.DecodeError as error:
        raise MalformedAnswer(f"{what}: {error}") from error


def _decoded_object(
    decoder: "msgspec.json.Decoder[DecodedT]", body: bytes | msgspec.Raw
) -> DecodedT:
    """Decode an object; a field that is null has its default, as in Go.

    The API server writes null for an empty list that its type does not leave out, such as the
    drivers of a CSINode.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        content = _without_nulls(msgspec.json.decode(body))
        return decoder.decode(msgspec.json.encode(content))


class _RawPage(msgspec.Struct, frozen=True, kw_only=True):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page(Generic[ObjectT]):
    metadata: ListMeta
    items: list[ObjectT]
    unreadable: tuple[Unreadable, ...] = ()


_RAW_PAGES = msgspec.json.Decoder(_RawPage)
_IDENTITY = {
    "metadata": ("name", "namespace", "uid", "resourceVersion"),
    "spec": ("nodeName", "schedulerName"),
    "status": ("phase",),
}
"""What is kept of an object that cannot be read."""


def _page(resource: Resource[ObjectT], body: bytes) -> _Page[ObjectT]:
    """Decode a page; an object that cannot be read does not hide the others."""
    try:
        found = _decoded_object(resource.list_decoder, body)
        return _Page(metadata=found.metadata, items=found.items or [])
    except msgspec.DecodeError:
        raw = _decoded(_RAW_PAGES, body, resource.plural)
    pairs = [_readable(resource, one) for one in raw.items or ()]
    return _Page(
        metadata=raw.metadata,
        items=[one for one, _ in pairs if one is not None],
        unreadable=tuple(problem for _, problem in pairs if problem is not None),
    )


def _readable(
    resource: Resource[ObjectT], body: bytes | msgspec.Raw
) -> tuple[ObjectT | None, Unreadable | None]:
    """Decode an object, or what identifies it together with the reason why it cannot be read."""
    try:
        return _decoded_object(resource.decoder, body), None
    except msgspec.ValidationError as error:
        kept = _identity(msgspec.json.decode(body))
        problem = Unreadable(identity=msgspec.convert(kept, Object), why=str(error))
    try:
        return resource.decoder.decode(msgspec.json.encode(kept)), problem
    except msgspec.ValidationError:
        return None, problem


def _identity(content: Any) -> dict[str, dict[str, str]]:
    parts = content if isinstance(content, dict) else {}
    return {
        part: {
            name: value
            for name, value in parts[part].items()
            if name in names and isinstance(value, str)
        }
        for part, names in _IDENTITY.items()
        if isinstance(parts.get(part), dict)
    }


def _without_nulls(content: Any) -> Any:
    match content:
        case dict():
            return {
                name: _without_nulls(value) for name, value in content.items() if value is not None
            }
        case list():
            return [_without_nulls(value) for value in content]
        case _:
            return content


# --- watches


class _RawEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Versioned(Value, frozen=True, kw_only=True):
    class _Meta(Value, frozen=True, kw_only=True):
        resource_version: str = ""

    metadata: _Meta = _Meta()


_RAW_EVENTS = msgspec.json.Decoder(_RawEvent)
_VERSIONED = msgspec.json.Decoder(_Versioned)
_STATUSES = msgspec.json.Decoder(Status)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Split into lines; an unfinished line is kept in parts, so that long ones cost no copies."""
    parts: list[bytes] = []
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for other in others:
            line = b"".join(parts)
            if line:
                yield line
            parts = [other]


def _watch_event(resource: Resource[ObjectT], line: bytes, what: str) -> WatchEvent[ObjectT]:
    try:
        event = _RAW_EVENTS.decode(line)
        if event.type == "ERROR":
            status = _STATUSES.decode(event.object)
            raise error_of_status(what, status.code or 500, status)
        if event.type == "BOOKMARK":
            version = _VERSIONED.decode(event.object).metadata.resource_version
            return WatchEvent(type=event.type, resource_version=version)
        found, problem = _readable(resource, event.object)
        identity = found if problem is None else problem.identity
    except msgspec.DecodeError as error:
        raise MalformedAnswer(f"{what}: {error}") from error
    version = "" if identity is None else identity.metadata.resource_version
    return WatchEvent(type=event.type, resource_version=version, object=found, unreadable=problem)
