"""From an event to its target: nothing is missed, and a slow target does not delay others."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import (
    Cancel,
    Ended,
    PauseDevice,
    Record,
    SetNode,
    SetTenant,
    Started,
    Submit,
)
from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.notification import read_rules
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.notify import service
from gpu_scheduler.notify.event_rules import EventRules
from gpu_scheduler.notify.service import DROPPED, Notifications
from gpu_scheduler.server.ha.leader import NotificationSource
from gpu_scheduler.settings.fields import Target
from gpu_scheduler.settings.groups.operations import NotificationSettings
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import EventRow, NoticeRow, Write
from gpu_scheduler.store.sqlite.store import SqliteStore
from tests.builders import a_core, a_job, a_node, a_request, a_tenant, an_array
from tests.notification_receivers import HttpReceiver, SmtpReceiver, a_free_port

HOUR_MS = 3_600_000
LONGEST_S = 60.0


class Disk(SqliteStore):
    """A store whose disk can be full."""

    full = False
    blips = 0

    def notices(self) -> list[NoticeRow]:
        if self.blips:
            self.blips -= 1
            raise StoreUnavailable("it is away for a moment")
        return super().notices()

    def commit(self, writes: list[Write]) -> int:
        if self.full:
            raise StoreUnavailable("the disk is full")
        return super().commit(writes)


class NotifyBench:
    """A control loop with one node, and notifications that follow it."""

    def __init__(self, store: Store, settings: NotificationSettings) -> None:
        self.store = store
        self.ahead_ms = 0
        self.loop = Loop(store, lambda: a_core(nodes=[]), self.now_ms, sweep_ms=5)
        self.loop.start()
        self.notifications = Notifications(settings, NotificationSource(self.loop))
        self.task = asyncio.create_task(self.notifications.run())

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.loop.close()

    async def die(self) -> None:
        """As by a kill: nothing more is written."""
        self.store.full = True  # type: ignore[attr-defined]
        await self.close()
        self.store.full = False  # type: ignore[attr-defined]

    async def ran(self, job_id: str, exit_code: int = 0) -> None:
        """A job starts and ends."""
        await self.until(lambda: job_id in self.allocated(), f"{job_id} to be placed")
        await self.loop.apply(Started(self.allocated()[job_id]))
        await self.loop.apply(Ended(self.allocated()[job_id], exit_code=exit_code))

    def allocated(self) -> dict[str, str]:
        return {a.job_id: a.id for a in self.store.allocations()}

    async def submit(self, **changes: Any) -> str:
        outcome = await self.loop.apply(Submit(replace(a_job(id=""), **changes)))
        return outcome.jobs[0].id

    async def until(self, what: Callable[[], Any], why: str) -> Any:
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            if found := what():
                return found
            await asyncio.sleep(0.01)
        raise AssertionError(f"waited in vain: {why}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [dict(event.data) for _, event in self.store.events() if event.kind == kind]


async def read_rows(rules: EventRules, bench: NotifyBench) -> list[NoticeRow]:
    """The notifications of all events, read in a thread as the service does."""
    return await asyncio.to_thread(rules.rows, bench.store.events(), 0)


def with_bench(
    tmp_path: Path, settings: NotificationSettings, test: Callable[[NotifyBench], Awaitable[None]]
) -> None:
    async def run() -> None:
        store = Disk(tmp_path / "store.db")
        bench = NotifyBench(store, settings)
        await bench.loop.apply(SetNode(a_node()))
        # It listens once a cursor could be read, which is so after this.
        await asyncio.sleep(0)
        try:
            await test(bench)
        finally:
            await bench.close()
            store.close()

    asyncio.run(run())


def told(receiver: HttpReceiver, *events: str, **changes: Any) -> NotificationSettings:
    target = Target(kind="webhook", url=receiver.url, events=events, for_jobs=True)
    quick: dict[str, Any] = {"retry_first_s": 0.1, "retry_most_s": 1.0, "timeout_s": 5.0}
    return NotificationSettings(targets={"hook": target}, **(quick | changes))


def test_only_requested_events_of_job_are_notified(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:

        async def test(bench: NotifyBench) -> None:
            quiet = await bench.submit(name="quiet")
            await bench.ran(quiet)
            loud = await bench.submit(
                name="loud", user="ann", notify=read_rules(["start,end,fail"]), retries=0
            )
            await bench.ran(loud, exit_code=3)
            await bench.until(lambda: len(receiver.got) == 2, "two notifications")
            await bench.until(lambda: not bench.store.notices(), "an empty outbox")

        with_bench(tmp_path, told(receiver), test)
    start, end = receiver.got
    assert (start["event"], start["job_name"], start["gpus"]) == ("start", "loud", [0])
    assert (end["event"], end["exit_code"], end["state"]) == ("fail", 3, "failed")
    assert "(loud) of ann failed with exit code 3" in end["text"]


def test_target_gets_events_of_its_tenants_only(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:
        settings = told(receiver, "end")
        target = replace_target(settings, tenants=("vision",))

        async def test(bench: NotifyBench) -> None:
            await bench.loop.apply(SetTenant(a_tenant(id="vision")))
            for tenant in ("default", "vision", "default"):
                await bench.ran(await bench.submit(tenant=tenant))
            job = await bench.submit(tenant="vision", hold=True)
            await bench.loop.apply(Cancel(job))
            await bench.until(lambda: len(receiver.got) == 2, "two notifications")

        with_bench(tmp_path, target, test)
    assert [(one["tenant"], one["state"]) for one in receiver.got] == [
        ("vision", "completed"),
        ("vision", "cancelled"),
    ]


def replace_target(settings: NotificationSettings, **changes: Any) -> NotificationSettings:
    import msgspec

    (target,) = settings.targets.values()
    return replace(settings, targets={"hook": msgspec.structs.replace(target, **changes)})


def test_array_notifies_its_end_once(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:

        async def test(bench: NotifyBench) -> None:
            job = an_array(tasks="0-3", id="", notify=read_rules(["all"]))
            await bench.loop.apply(Submit(job))
            await bench.until(lambda: len(bench.store.allocations()) == 4, "four tasks")
            for allocation in bench.store.allocations():
                await bench.loop.apply(Started(allocation.id))
                await bench.loop.apply(Ended(allocation.id, exit_code=0))
            await bench.until(lambda: receiver.got, "the end of the array")
            await bench.ran(await bench.submit(notify=read_rules(["end"])))
            await bench.until(lambda: len(receiver.got) == 2, "a later one")

        with_bench(tmp_path, told(receiver), test)
    assert [one["event"] for one in receiver.got] == ["end", "end"]


def test_rejected_notification_is_resent_with_same_id(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:
        receiver.status = 500

        async def test(bench: NotifyBench) -> None:
            await bench.ran(await bench.submit(notify=read_rules(["end"])))
            await bench.until(lambda: receiver.requests >= 3, "three tries")
            (row,) = await bench.until(
                lambda: [row for row in bench.store.notices() if row.tries >= 2], "a row"
            )
            assert row.error == "returned status 500"
            receiver.status = 200
            await bench.until(lambda: receiver.got, "the notification at last")
            await bench.until(lambda: not bench.store.notices(), "an empty outbox")
            assert bench.notifications.lanes["hook"].last_error == ""

        with_bench(tmp_path, told(receiver), test)
    assert len(receiver.got) == 1


def test_target_that_is_down_does_not_delay_others(tmp_path: Path) -> None:
    with HttpReceiver() as quick, HttpReceiver() as slow:
        slow.delay_s = 30.0
        settings = told(quick, timeout_s=60.0)
        targets = settings.targets | {
            "slow": Target(kind="webhook", url=slow.url, events=("end",)),
            "down": Target(
                kind="webhook", url=f"http://127.0.0.1:{a_free_port()}/", events=("end",)
            ),
        }

        async def test(bench: NotifyBench) -> None:
            for _ in range(5):
                await bench.ran(await bench.submit(notify=read_rules(["end:hook"])))
            await bench.until(lambda: len(quick.got) == 5, "five notifications")
            await bench.until(lambda: slow.requests, "the slow one to be asked")
            assert slow.requests == 1
            waiting = [row.target for row in bench.store.notices()]
            assert (waiting.count("slow"), waiting.count("down")) == (5, 5)

        with_bench(tmp_path, replace(settings, targets=targets), test)


def test_restart_neither_loses_nor_repeats_stored_notifications(tmp_path: Path) -> None:
    """The receiver is down, the server dies, and an event happens that was not processed yet."""
    with HttpReceiver() as receiver:
        receiver.status = 503
        settings = told(receiver, "end")

        async def run() -> None:
            store = Disk(tmp_path / "store.db")
            bench = NotifyBench(store, settings)
            await bench.loop.apply(SetNode(a_node()))
            first = await bench.submit()
            await bench.ran(first)
            await bench.until(store.notices, "a notification that waits")
            bench.task.cancel()
            await asyncio.gather(bench.task, return_exceptions=True)
            second = await bench.submit()
            await bench.ran(second)
            await bench.die()
            receiver.status = 200
            again = NotifyBench(store, settings)
            await again.loop.apply(SetNode(a_node()))
            await again.until(lambda: len(set(receiver.ids())) == 2, "both")
            told = len(receiver.got)  # repeated, because the dead server had not recorded it
            third = await again.submit()
            await again.ran(third)
            await again.until(lambda: len(set(receiver.ids())) == 3, "the third")
            await again.until(lambda: not store.notices(), "an empty outbox")
            await again.close()
            last = NotifyBench(store, settings)
            await last.loop.apply(SetNode(a_node()))
            await last.ran(await last.submit())
            await last.until(lambda: len(set(receiver.ids())) == 4, "the fourth")
            await last.close()
            store.close()
            assert len(receiver.got) == told + 2

        asyncio.run(run())
    assert len(set(receiver.ids())) == 4


def test_full_disk_delays_and_loses_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(service, "RETRY_S", 0.05)
    with HttpReceiver() as receiver:

        async def test(bench: NotifyBench) -> None:
            job = await bench.submit()
            await bench.until(lambda: job in bench.allocated(), "its start")
            keep = bench.notifications._scheduler.keep
            failures = 0

            async def unable(*_: object) -> None:
                nonlocal failures
                failures += 1
                raise StoreUnavailable("the disk is full")

            bench.notifications._scheduler.keep = unable  # type: ignore[method-assign]
            await bench.ran(job)
            await bench.until(lambda: failures > 1, "failed commits")
            assert receiver.got == []
            bench.notifications._scheduler.keep = keep  # type: ignore[method-assign]
            await bench.until(lambda: receiver.got, "the notification")

        with_bench(tmp_path, told(receiver, "end"), test)
    assert len(receiver.got) == 1


def test_store_outage_at_start_delays_and_loses_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(service, "RETRY_S", 0.05)
    monkeypatch.setattr(Disk, "blips", 2)
    with HttpReceiver() as receiver:

        async def test(bench: NotifyBench) -> None:
            await bench.ran(await bench.submit())
            await bench.until(lambda: receiver.got, "the notification")

        with_bench(tmp_path, told(receiver, "end"), test)
    assert len(receiver.got) == 1


def test_undeliverable_notification_expires_with_event(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:
        receiver.status = 500

        async def test(bench: NotifyBench) -> None:
            await bench.ran(await bench.submit())
            await bench.until(lambda: receiver.requests, "a first try")
            bench.ahead_ms = 25 * HOUR_MS
            await bench.until(lambda: bench.events(DROPPED), "an event")
            await bench.until(lambda: not bench.store.notices(), "an empty outbox")

            (event,) = bench.events(DROPPED)
            assert event == {"target": "hook", "count": 1, "error": "returned status 500"}
            assert bench.notifications.lanes["hook"].given_up == 1

        with_bench(tmp_path, told(receiver, "end", retry_most_s=1.0), test)


def test_notifications_over_backlog_limit_are_dropped_with_event(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:
        receiver.status = 500

        async def test(bench: NotifyBench) -> None:
            for _ in range(5):
                await bench.ran(await bench.submit())
            await bench.until(
                lambda: sum(event["count"] for event in bench.events(DROPPED)) == 3, "three dropped"
            )
            assert len(bench.store.notices()) == 2

        with_bench(tmp_path, told(receiver, "end", max_waiting=2), test)


def test_lane_that_is_woken_and_cancelled_at_once_stops(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:
        receiver.status = 500

        async def test(bench: NotifyBench) -> None:
            await bench.ran(await bench.submit())
            tried = await bench.until(
                lambda: [n for n in bench.store.notices() if n.tries], "a try"
            )
            notifications = bench.notifications
            lane = notifications._lanes[tried[0].target]
            await asyncio.sleep(0.01)
            notifications._wakes[tried[0].target].set()
            lane.cancel()
            await asyncio.wait({lane}, timeout=LONGEST_S)
            assert lane.cancelled()

        with_bench(tmp_path, told(receiver, "end", retry_first_s=60, retry_most_s=60), test)


def test_first_start_does_not_notify_of_old_events(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:

        async def run() -> None:
            store = Disk(tmp_path / "store.db")
            bench = NotifyBench(store, NotificationSettings())
            await bench.loop.apply(SetNode(a_node()))
            await bench.ran(await bench.submit(name="before"))
            await bench.close()
            bench = NotifyBench(store, told(receiver, "end"))
            await bench.loop.apply(SetNode(a_node()))
            await bench.ran(await bench.submit(name="after"))
            await bench.until(lambda: receiver.got, "one")
            await bench.close()
            store.close()

        asyncio.run(run())
    assert [one["job_name"] for one in receiver.got] == ["after"]


def test_free_gpus_are_notified_when_there_were_none_before(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:

        async def test(bench: NotifyBench) -> None:
            large = {"members": (a_request(gpus=8),)}
            first = await bench.submit(**large)
            second = await bench.submit(**large)
            await bench.until(lambda: first in bench.allocated(), "the first")
            await bench.ran(first)
            await bench.until(lambda: second in bench.allocated(), "the second")
            await bench.until(
                lambda: bench.notifications._progress.sequence == bench.store.last_event(),
                "all read",
            )
            assert receiver.got == []
            await bench.ran(second)
            await bench.until(lambda: receiver.got, "free GPUs")

        with_bench(tmp_path, told(receiver, "gpu_free"), test)
    assert [one["text"] for one in receiver.got] == ["8 GPUs are free"]


def test_free_gpus_of_returning_node_are_not_notified(tmp_path: Path) -> None:
    """A server that has just started waits for its node, whose GPUs were free all the time."""
    with HttpReceiver() as receiver:

        async def a_day(store: Disk) -> None:
            bench = NotifyBench(store, told(receiver, "gpu_free", "end"))
            before = len(receiver.got)
            job = await bench.submit()
            await bench.loop.apply(SetNode(a_node()))
            await bench.ran(job)
            await bench.until(lambda: len(receiver.got) > before, "its end")
            await bench.loop.apply(SetNode(replace(a_node(), state=NodeState.LOST)))
            memory = bench.notifications
            await bench.until(lambda: memory._progress.sequence == store.last_event(), "all read")
            await bench.close()

        async def run() -> None:
            store = Disk(tmp_path / "store.db")
            await a_day(store)
            await a_day(store)
            store.close()

        asyncio.run(run())
    assert [one["event"] for one in receiver.got] == ["end", "end"]


def test_budget_is_notified_once_at_each_threshold(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(service, "BUDGET_CHECK_S", 0.02)
    with HttpReceiver() as receiver:

        async def test(bench: NotifyBench) -> None:
            tenant = a_tenant(id="vision", gpu_milli_ms=10 * 1000 * HOUR_MS)
            await bench.loop.apply(SetTenant(tenant))
            job = await bench.submit(tenant="vision", max_runtime_ms=10 * HOUR_MS)
            await bench.until(lambda: job in bench.allocated(), "its start")
            bench.ahead_ms = round(9.1 * HOUR_MS)
            await bench.until(lambda: receiver.got, "nearly used")
            bench.ahead_ms = round(9.5 * HOUR_MS)
            await asyncio.sleep(0.1)
            bench.ahead_ms = round(10.1 * HOUR_MS)
            await bench.until(lambda: len(receiver.got) == 2, "used")

        with_bench(tmp_path, told(receiver, "budget", give_up_hours=100), test)
    nearly, wholly = receiver.got
    assert nearly["text"] == "tenant vision has used 91 % of 10 GPU-hours"
    assert (nearly["percent"], wholly["percent"]) == (91, 101)


def test_user_is_notified_of_the_own_budget(tmp_path: Path, monkeypatch: Any) -> None:
    from gpu_scheduler.model.tenant import Quota

    monkeypatch.setattr(service, "BUDGET_CHECK_S", 0.02)
    with SmtpReceiver() as receiver:
        settings = NotificationSettings(
            targets={"mail": Target(kind="email", to="{user}@lab.example", events=("budget",))},
            smtp_host="127.0.0.1",
            smtp_port=receiver.port,
            smtp_security="none",
            give_up_hours=100,
        )

        async def test(bench: NotifyBench) -> None:
            each = Quota(gpu_milli_ms=10 * 1000 * HOUR_MS)
            tenant = a_tenant(id="vision", gpu_milli_ms=11 * 1000 * HOUR_MS, user_quota=each)
            await bench.loop.apply(SetTenant(tenant))
            job = await bench.submit(tenant="vision", user="ann", max_runtime_ms=10 * HOUR_MS)
            await bench.until(lambda: job in bench.allocated(), "its start")
            bench.ahead_ms = round(9.95 * HOUR_MS)
            await bench.until(lambda: receiver.mails, "nearly used")
            bench.ahead_ms = round(10.1 * HOUR_MS)
            await bench.until(lambda: len(receiver.mails) == 2, "used")
            await bench.until(lambda: not bench.store.notices(), "nothing for nobody")

        with_bench(tmp_path, settings, test)
    assert [to for _, to in receiver.envelopes] == [["ann@lab.example"]] * 2
    assert "user ann of tenant vision has used 99 %" in receiver.mails[0]["Subject"]


def test_problems_of_nodes_and_gpus_are_notified(tmp_path: Path) -> None:
    from gpu_scheduler.control.messages import DeviceSample, DevicesSampled

    with HttpReceiver() as receiver:

        async def test(bench: NotifyBench) -> None:
            await bench.loop.apply(PauseDevice("n0", 1))
            sick = DevicesSampled("n0", (DeviceSample(index=3, healthy=False),))
            await bench.loop.apply(sick)
            await bench.until(lambda: receiver.got, "trouble")

        with_bench(tmp_path, told(receiver, "trouble"), test)
    assert [one["text"] for one in receiver.got] == [
        "GPU 3 of n0 is unhealthy and gets no new work"
    ]


def an_idle_warning(job: str, task: int | None = None) -> Record:
    data = (("minutes", 30), ("text", "its GPUs were idle for 30 minutes"))
    kind = "gpu_idle_warning"
    return Record((EventRow(at_ms=0, kind=kind, job_id=job, task=task, user="ann", data=data),))


def test_idle_warning_reaches_the_owner_without_a_request(tmp_path: Path) -> None:
    with HttpReceiver() as receiver:

        async def test(bench: NotifyBench) -> None:
            job = await bench.submit(name="lazy", user="ann")
            await bench.ran(job)
            await bench.loop.apply(an_idle_warning(job))
            await bench.until(lambda: receiver.got, "the warning")

        with_bench(tmp_path, told(receiver), test)
    (one,) = receiver.got
    assert one["text"].endswith("(lazy) of ann: its GPUs were idle for 30 minutes")
    assert (one["event"], one["minutes"]) == ("idle", 30)


@pytest.mark.parametrize(
    ("notify", "settings", "targets"),
    [
        pytest.param([], {}, ["hook"], id="default"),
        pytest.param(["fail"], {}, ["hook"], id="other event requested"),
        pytest.param(["idle"], {}, ["hook"], id="requested"),
        pytest.param(["idle:other"], {"default_target": "hook"}, ["other"], id="other target"),
        pytest.param(["none"], {}, [], id="none requested"),
        pytest.param(["none", "fail"], {}, [], id="only other event requested"),
        pytest.param([], {"owner_events": ()}, [], id="disabled by site"),
    ],
)
def test_targets_of_idle_warnings(
    tmp_path: Path, notify: list[str], settings: dict[str, Any], targets: list[str]
) -> None:
    hook = Target(kind="webhook", url="http://127.0.0.1:1/", for_jobs=True)
    known = {"hook": hook} if "default_target" not in settings else {"hook": hook, "other": hook}
    wanted = NotificationSettings(targets=known, **settings)

    async def test(bench: NotifyBench) -> None:
        job = await bench.submit(name="lazy", user="ann", notify=read_rules(notify))
        await bench.loop.apply(an_idle_warning(job))
        rows = await read_rows(EventRules(wanted, bench.store), bench)
        assert [row.target for row in rows if '"idle"' in row.document] == targets
        assert len(rows) == len(targets), "starts and ends are nobody's business by default"

    with_bench(tmp_path, NotificationSettings(), test)


def test_owner_gets_one_warning_for_the_tasks_of_an_array(tmp_path: Path) -> None:
    hook = Target(kind="webhook", url="http://127.0.0.1:1/", for_jobs=True)
    wanted = NotificationSettings(targets={"hook": hook})

    async def test(bench: NotifyBench) -> None:
        first = await bench.loop.apply(Submit(an_array(id="", tasks="0-9")))
        second = await bench.loop.apply(Submit(an_array(id="", tasks="0-9")))
        for task in range(5):
            for outcome in (first, second):
                await bench.loop.apply(an_idle_warning(outcome.jobs[0].id, task))
        reader = EventRules(wanted, bench.store)
        rows = await read_rows(reader, bench)
        assert len(rows) == 2
        assert await read_rows(reader, bench) == rows, "if they were not kept"

    with_bench(tmp_path, NotificationSettings(), test)


def test_holdings_are_read_once_for_many_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HttpReceiver() as receiver:
        settings = told(receiver, "start", "end")

        async def test(bench: NotifyBench) -> None:
            for name in ("one", "two", "three"):
                await bench.ran(await bench.submit(name=name))
            reads = []
            held = bench.store.allocations

            def counted() -> list[Allocation]:
                reads.append(1)
                return held()

            monkeypatch.setattr(bench.store, "allocations", counted)
            reader = EventRules(settings, bench.store)
            reads.clear()
            rows = await read_rows(reader, bench)
            assert (len(rows), len(reads)) == (6, 1)

        with_bench(tmp_path, settings, test)
