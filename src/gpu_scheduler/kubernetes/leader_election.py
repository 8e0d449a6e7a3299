"""Leader election by a Lease: of several candidates at most one leads at a time.

The leader renews the lease every few seconds. A candidate takes it over when the lease has not
changed for its whole duration, as measured by the candidate's own clock since the candidate saw the
last change; times that other machines wrote are never compared with ours, so clock skew between
machines does no harm. The leader counts its time from when it *sent* the renewal that succeeded,
and stops leading `renew_deadline_seconds` later, before any candidate can take over.

`is_leader` looks at the clock itself, so a process that was frozen knows at once that it may have
been replaced. A write that was on its way can still arrive late: writes that must not come from an
old leader need their own guard (a uid, a resourceVersion, or the `term` written with them).

A candidate for which `may_lead` is false, because it hangs, gives the lease up and does not stand.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

import structlog
from msgspec.structs import replace

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import (
    AlreadyExists,
    Conflict,
    KubernetesError,
    NotFound,
)
from gpu_scheduler.kubernetes.objects import LEASES, Lease, LeaseSpec, ObjectMeta

log = structlog.get_logger("leader-election")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """Times of an election; the same for all candidates."""

    lease_duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0
    attempt_timeout_seconds: float = 4.0

    def __post_init__(self) -> None:
        """Reject times with which two could lead at once, or none for long."""
        if not (
            0
            < self.retry_period_seconds
            < self.renew_deadline_seconds
            < self.lease_duration_seconds
        ):
            raise ValueError(
                "times of the election must grow: retry period < renew deadline < lease duration"
            )


class LeaderElector:
    """One candidate. `identity` must differ for each process, also after a restart."""

    def __init__(  # noqa: PLR0913 - named, and each with one meaning
        self,
        client: ApiClient,
        *,
        name: str,
        namespace: str,
        identity: str,
        on_elected: Callable[[int], None],
        on_lost: Callable[[], None],
        may_lead: Callable[[], bool] = lambda: True,
        settings: ElectionSettings = ElectionSettings(),  # noqa: B008 - frozen
        clock: Callable[[], float] | None = None,
        random: Random | None = None,
    ) -> None:
        """`on_elected` gets the term, which grows with each election while the Lease exists.

        `may_lead` is asked before each renewal.
        """
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._may_lead = may_lead
        self._settings = settings
        self._clock = clock or _boot_time
        self._random = random or Random()
        self._lease: Lease | None = None
        """The lease as it was last read or written."""
        self._seen_at = 0.0
        """When its content was last seen to change."""
        self._led_until = float("-inf")
        self._led_term = 0
        self._announced = False

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now; ask before each action that only the leader may do."""
        return self._clock() < self._led_until

    @property
    def term(self) -> int:
        """The number of the last election that this process has won.

        A decision that was begun in one term must not be carried out in a later one: another
        process may have led in between.
        """
        return self._led_term

    @property
    def leader(self) -> str:
        """The identity of the last known holder."""
        return "" if self._lease is None else self._lease.spec.holder_identity

    async def run(self) -> None:
        """Stand for election, lead, and stand again, until cancelled; then release the lease."""
        try:
            while True:
                if self._may_lead():
                    await self._try_once()
                elif self._announced:
                    log.error("the scheduler hangs; giving up the lease", lease=self._name)
                    await self._release()
                if self.is_leader and not self._announced:
                    self._announced = True
                    log.info("elected as leader", lease=self._name, term=self._led_term)
                    self._on_elected(self._led_term)
                await self._wait()
                if self._announced and not self.is_leader:
                    self._lose()
        finally:
            if self._announced:
                await self._release()

    async def _try_once(self) -> None:
        try:
            async with asyncio.timeout(self._attempt_seconds()):
                await self._acquire_or_renew()
        except Conflict:
            log.info("another candidate was faster", lease=self._name)
        except (KubernetesError, TimeoutError) as error:
            log.warning(
                "lease not renewed; will retry" if self._announced else "lease not acquired",
                lease=self._name,
                error=str(error) or "timeout",
            )
        if self._announced and not self.is_leader:
            self._lose()

    def _attempt_seconds(self) -> float:
        limit = self._settings.attempt_timeout_seconds
        return min(limit, max(self._led_until - self._clock(), 0.1)) if self._announced else limit

    async def _acquire_or_renew(self) -> None:
        """One attempt: renew what we know to be ours without reading it, else read and judge."""
        if self._lease is not None and self.leader == self._identity:
            try:
                await self._write(self._lease)
            except (Conflict, NotFound):
                self._lease = None  # our knowledge is old, perhaps by an own write without answer
            else:
                return
        try:
            found = await self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            await self._write(None)
            return
        self._observe(found)
        holder = found.spec.holder_identity
        if holder in ("", self._identity) or self._has_expired(found):
            await self._write(found)
        else:
            self._led_until = float("-inf")

    def _observe(self, found: Lease) -> None:
        """Note when the content last changed, by our own clock."""
        known = self._lease
        if known is None or known.spec != found.spec or known.metadata.uid != found.metadata.uid:
            self._seen_at = self._clock()
        self._lease = found

    def _has_expired(self, found: Lease) -> bool:
        duration = found.spec.lease_duration_seconds or self._settings.lease_duration_seconds
        return self._clock() - self._seen_at >= duration

    async def _write(self, known: Lease | None) -> None:
        """Create, take over or renew the lease; on success we lead from when this was sent."""
        sent_at = self._clock()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._settings.lease_duration_seconds,
            acquire_time=now,
            renew_time=now,
            lease_transitions=1,
        )
        if known is None:
            meta = ObjectMeta(name=self._name, namespace=self._namespace)
            try:
                written = await self._client.create(LEASES, Lease(metadata=meta, spec=spec))
            except AlreadyExists:
                self._led_until = float("-inf")
                raise
        else:
            if self._announced and known.spec.holder_identity == self._identity:
                spec = replace(known.spec, renew_time=now)
            else:
                spec = replace(spec, lease_transitions=(known.spec.lease_transitions or 0) + 1)
            written = await self._client.replace(LEASES, replace(known, spec=spec))
        self._lease = written
        self._led_term = written.spec.lease_transitions or 0
        self._led_until = sent_at + self._settings.renew_deadline_seconds

    async def _wait(self) -> None:
        """Until the next attempt; candidates at slightly different times."""
        delay = self._settings.retry_period_seconds
        if self._announced:
            delay = min(delay, max(0.0, self._led_until - self._clock()))
        else:
            delay *= self._random.uniform(0.8, 1.2)
        await asyncio.sleep(delay)

    def _lose(self) -> None:
        self._announced = False
        self._led_until = float("-inf")
        log.warning("no longer the leader", lease=self._name, leader=self.leader)
        self._on_lost()

    async def _release(self) -> None:
        """Stop leading, then let the next candidate lead at once, before the lease expires."""
        lease, was_leader = self._lease, self.is_leader
        self._lose()
        if not was_leader:
            return
        try:
            async with asyncio.timeout(self._settings.attempt_timeout_seconds):
                while lease is None or not await self._write_release(lease):
                    # A renewal was on its way when we were cancelled.
                    lease = await self._client.get(LEASES, self._name, self._namespace)
        except (KubernetesError, TimeoutError) as error:
            log.warning("lease not released; it will expire", lease=self._name, error=str(error))

    async def _write_release(self, lease: Lease) -> bool:
        """Release the lease if this server holds it; False if it has changed meanwhile."""
        if lease.spec.holder_identity != self._identity:
            return True
        spec = replace(lease.spec, holder_identity="", lease_duration_seconds=1)
        try:
            await self._client.replace(LEASES, replace(lease, spec=spec))
        except Conflict:
            return False
        return True


def _boot_time() -> float:
    """The boot-time clock: never stepped, and it counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
