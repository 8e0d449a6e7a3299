"""A standby reads consistent snapshots while the leader writes."""

import asyncio
import os
import pwd
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gpu_scheduler.api.auth.accounts import Directory
from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.auth.tokens import BearerAuthenticator
from gpu_scheduler.api.expected_times import Explainer
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Cancel, RunCycle, SetNode, SetTenant, Submit
from gpu_scheduler.model.errors import NotLeader
from gpu_scheduler.model.identity import SYSTEM, Token
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.model.reasons import ReasonCode
from gpu_scheduler.server.ha.standby import StandbyService
from gpu_scheduler.store.postgres.store import PostgresStore
from gpu_scheduler.store.rows import EventRow
from gpu_scheduler.wire.handshake import secret_hash
from tests.builders import a_core, a_job, a_node, a_tenant
from tests.postgres import address_of, database_url

__all__ = ["database_url"]


@pytest.fixture
def store(database_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(address_of(database_url))
    yield store
    store.close()


def a_standby(store: PostgresStore) -> StandbyService:
    return StandbyService(store, a_core, lambda: 1_000)


def an_event(number: int) -> EventRow:
    return EventRow(at_ms=number, kind="test", job_id=f"job-{number}")


def test_snapshot_does_not_see_later_commits(store: PostgresStore) -> None:
    store.commit([an_event(1)])

    def twice(reads: PostgresStore) -> tuple[int, int]:
        first = reads.last_event()
        store.commit([an_event(2)])
        return first, reads.last_event()

    assert store.read_snapshot(twice) == (1, 1)  # type: ignore[arg-type]
    assert store.last_event() == 2
    assert store.commit([an_event(3)]) == 3, "and nothing is left open"


def test_slow_read_of_one_table_does_not_lose_the_snapshot(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_scheduler.store.postgres.connection.IDLE_IN_TRANSACTION_S", 1)
    store = PostgresStore(address_of(database_url))

    def slowly(reads: PostgresStore) -> int:
        reads.nodes()
        time.sleep(1.5)
        return reads.last_event()

    assert store.read_snapshot(slowly) == 0  # type: ignore[arg-type]
    store.close()


def test_node_liveness_is_that_seen_by_leader(store: PostgresStore) -> None:
    node = replace(a_node(id="n1"), state=NodeState.ONLINE)
    store.commit([node])
    standby = a_standby(store)
    asyncio.run(standby.fresh())
    assert standby.core.state.cluster.index.by_id["n1"].node.state is NodeState.ONLINE
    assert standby.age_s < 60


async def a_leader(store: PostgresStore) -> Loop:
    """One node of eight GPUs, and a tenant that may hold two."""
    loop = Loop(store, a_core, lambda: 1_000)
    loop.start()
    await loop.apply(SetTenant(a_tenant(id="vision", gpus=2)))
    await loop.apply(SetNode(replace(a_node(id="n1"), state=NodeState.ONLINE)))
    return loop


async def submit(loop: Loop, **job: Any) -> str:
    return (await loop.apply(Submit(a_job(id="", **job)))).jobs[0].id


def test_standby_gives_the_same_reason_as_the_leader(store: PostgresStore) -> None:
    async def play() -> None:
        loop, standby = await a_leader(store), a_standby(store)
        await submit(loop, gpus=2)
        waits = await submit(loop, gpus=2)
        await loop.apply(RunCycle())
        reason = Explainer(loop).reason(waits)
        await loop.close()
        await standby.fresh()
        assert reason is not None
        assert reason.code is ReasonCode.QUOTA
        assert Explainer(standby).reason(waits) == reason

    asyncio.run(play())


def test_forecast_of_older_state_is_not_reused(store: PostgresStore) -> None:
    async def play() -> None:
        loop, standby = await a_leader(store), a_standby(store)
        await submit(loop, gpus=2)
        first, second = await submit(loop, gpus=2), await submit(loop, gpus=2)
        await loop.apply(RunCycle())
        seconds = 0.0
        explainer = Explainer(standby, lambda: seconds)
        await standby.fresh()
        number = standby.core.state.jobs[second].job.number
        before = explainer.expected_start_ms(number)
        await loop.apply(Cancel(first), SYSTEM)
        await loop.close()
        standby._loaded_at, seconds = -1e9, 60.0
        await standby.fresh()
        after = explainer.expected_start_ms(number)
        assert before is not None
        assert after is not None
        assert after < before, "one job less is before it"

    asyncio.run(play())


def test_invalid_tokens_do_not_make_standby_reload_each_time(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = a_standby(store)
    looks: list[int] = []
    monkeypatch.setattr(store, "tokens", lambda: looks.append(1) or [])
    for _ in range(50):
        standby.look_for_tokens()
    assert len(looks) == 1


def test_standby_without_plan_still_answers(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("gpu_scheduler.server.ha.standby.decide", broken)
    standby = a_standby(store)
    asyncio.run(standby.fresh())
    assert standby.last_plan == Plan()


def test_token_is_known_as_soon_as_created(store: PostgresStore) -> None:
    standby = a_standby(store)
    asyncio.run(standby.fresh())
    account = pwd.getpwuid(os.getuid())
    store.commit(
        [
            a_tenant(id="new"),
            Token(
                id="t1",
                secret_hash=secret_hash("tgpu_secret"),
                user=account.pw_name,
                uid=account.pw_uid,
                tenant="new",
                created_by="root",
                created_ms=500,
                expires_ms=9_000,
            ),
        ]
    )
    people = Directory(0, (), lambda: standby.core.state.tenant_directory)
    shown = {b"authorization": b"Bearer tgpu_secret"}
    tokens = BearerAuthenticator(standby, people)
    find = partial(tokens.caller, Peer(uid=None, gid=None, host="10.0.0.1"), shown)
    caller = asyncio.run(people.accounts.wait_for(find))
    assert caller is not None
    assert (caller.user, caller.tenant) == (account.pw_name, "new")


def test_leader_events_are_streamed_until_standby_leads(
    store: PostgresStore,
) -> None:
    async def play() -> list[int]:
        standby = a_standby(store)
        store.commit([an_event(1)])
        seen = []
        async for sequence, _ in standby.subscribe(0):
            seen.append(sequence)
            if sequence == 1:
                store.commit([an_event(2)])
            else:
                standby.close()
        return seen

    assert asyncio.run(play()) == [1, 2]


def test_standby_rejects_commands(store: PostgresStore) -> None:
    with pytest.raises(NotLeader, match="is a standby"):
        asyncio.run(a_standby(store).apply(RunCycle(), SYSTEM))
