"""The agent: orders of the server go to the launcher, reports of the launcher go to the server.

It keeps nothing on disk: the launcher's records are the journal, and on every new stream all of
them are told again until the server says that one can be forgotten. So the agent can be killed at
any moment, and the server can be away for as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path

import structlog

from gpu_scheduler import __version__
from gpu_scheduler.agent.accounts import Account, AccountLookupTimeout
from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.monitor import DeviceMonitor
from gpu_scheduler.agent.devices.poller import DevicePoller
from gpu_scheduler.agent.devices.source import NodeInventory
from gpu_scheduler.agent.jobs.environment import rendezvous_environment, rendezvous_files
from gpu_scheduler.agent.jobs.logs import LogServer
from gpu_scheduler.agent.jobs.mps import MpsError, mps_for
from gpu_scheduler.agent.jobs.orders import NoFreeSlice, OrderTranslator, PortTaken
from gpu_scheduler.agent.jobs.probes import ReadinessProber
from gpu_scheduler.agent.jobs.terminals import Terminals
from gpu_scheduler.agent.launcher_client import Launcher, OrderRefused
from gpu_scheduler.agent.machine import DiskHealth, LocalMachine, Machine, may_be_disk_failure
from gpu_scheduler.agent.messages import (
    add_report,
    fact_from,
    inventory_of,
    lost_slice_message,
    reports_to_repeat,
    telemetry_of,
)
from gpu_scheduler.agent.server_link import (
    BROKEN,
    Connect,
    LeaderTerm,
    ServerConnector,
    ServerRejected,
    Stream,
    error_text,
)
from gpu_scheduler.agent.work import NOT_BEGUN, Began, Over, Prepared, Report, Work
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import MIN_PROTOCOL, PROTOCOL, TERMINALS, TRUSTS

LONGER_EACH_TIME = 1.6
MOST_FACTS_AT_ONCE = 1000
BEGAN_WAITS_S = 0.01
LEAST_PATIENCE_S = 6.0
LATE = 1.6
"""A server that has said nothing for so many heartbeats is frozen or cut off: look for another."""
DECLARED = "declared"
Key = tuple[str, int]
log = structlog.get_logger("agent")


class Agent:
    """One node's agent."""

    def __init__(
        self,
        config: AgentConfig,
        launcher: Launcher,
        found: NodeInventory,
        watcher: DeviceMonitor | None,
        connect: Connect | None = None,
        *,
        machine: Machine | None = None,
        terms: LeaderTerm | None = None,
    ) -> None:
        """`watcher` is None on a node that never has devices; without `connect` it is gRPC.

        `terms` are what leaders it has obeyed; without, they are kept in its directory.
        """
        self._terms = terms or LeaderTerm(Path(config.dir))
        self._config = config
        self._machine: Machine = machine or LocalMachine()
        self._disk_health = DiskHealth(self._machine, Path(config.dir), self._offer)
        self._connect = connect or ServerConnector(config.targets)
        self._launcher = launcher
        self._looker = (
            None if watcher is None else DevicePoller(watcher, self._hear_devices, self._hear_found)
        )
        self._mps = mps_for(config, launcher, is_real=found.detection != DECLARED)
        self._has_sensors = found.detection != DECLARED
        self._indices: dict[Key, tuple[int, ...]] = {}
        self._clearing: set[Key] = set()
        self._orders = OrderTranslator(config, found)
        self._found = self._orders.offered()
        self._terminals = Terminals(self._orders.scratch_dir, self._runs, self._send)
        self._prober = ReadinessProber(Path(config.dir), self._tell_ready, self._machine.wall_ms)
        self._known: dict[Key, list[Report]] = {}
        self._outbox: asyncio.Queue[pb.AgentMessage | pb.Fact] | None = None
        self._logs = LogServer(self._orders.log_path, self._is_over, self._send)
        self._telemetry: pb.AgentMessage | None = None
        self._starts = asyncio.Semaphore(config.most_starts)
        self._starting: set[Key] = set()
        self._unknown: dict[int, dict[Key, tuple[pb.Order, int]]] = {}
        self._began: list[pb.Fact] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._instance = uuid.uuid4().hex
        self._wait_s = config.retry_interval_s
        self._is_welcome = False
        self._hears_answers = False
        self._trouble = ""
        self._granted_ms = 0

    async def run(self) -> None:
        """Work until cancelled."""
        self._tell_lost()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hear_launcher())
            tasks.create_task(self._serve())
            tasks.create_task(self._beat())
            tasks.create_task(self._disk_health.watch(self._config.heartbeat_interval_s))
            if self._looker is not None:
                tasks.create_task(self._looker.run())

    # --- the launcher's side

    async def _hear_launcher(self) -> None:
        async for report in self._launcher.reports():
            if isinstance(report, Over):
                self._over(report)
            elif isinstance(report, Prepared):
                port = self._orders.port_of(report.allocation_id) if report.member == 0 else 0
                self._note(replace(report, port=port))
            else:
                self._note(report)

    def _over(self, over: Over) -> None:
        """Something has ended: told when its devices are free, or at once if it had none."""
        key = (over.allocation_id, over.member)
        if self._mps.is_used_by(key):
            self._in_background(self._mps.leave(key))
        if may_be_disk_failure(over):
            self._in_background(self._blame(over))
            return
        indices = self._indices.get(key)
        is_told = any(isinstance(report, Over) for report in self._known.get(key, ()))
        if (
            self._looker is None
            or not self._has_sensors
            or not self._found.devices
            or not over.ran
            or indices == ()
            or is_told
        ):
            self._note(over)
        elif key not in self._clearing:
            self._clearing.add(key)
            self._in_background(self._clear(self._looker, over, indices or ()))

    async def _blame(self, over: Over) -> None:
        self._note(await self._disk_health.blame_node_for(over))

    async def _clear(self, looker: DevicePoller, over: Over, indices: tuple[int, ...]) -> None:
        key = (over.allocation_id, over.member)
        if not await looker.released(over.allocation_id, indices):
            log.warning("a job is over and its devices are not free", allocation=key[0])
        self._clearing.discard(key)
        self._note(over)

    def _note(self, report: Report) -> None:
        """Remember a report until the server lets us forget it, and tell it if that is new."""
        if not add_report(
            self._known.setdefault((report.allocation_id, report.member), []), report
        ):
            return
        if isinstance(report, Over):
            if self._orders.released(report.allocation_id, report.member):
                self._offer_if_changed()
            self._prober.over((report.allocation_id, report.member))
        self._tell(report)
        if isinstance(report, Began):
            self._prober.began((report.allocation_id, report.member), report.pid)

    def _tell(self, report: Report) -> None:
        """Nobody waits to hear of a start, and many a job ends at once: both travel together."""
        if isinstance(report, Began):
            if not self._began:
                asyncio.get_running_loop().call_later(BEGAN_WAITS_S, self._tell_began)
            self._began.append(self._fact_of(report))
            return
        self._tell_began()
        self._send(self._fact_of(report))

    def _fact_of(self, report: Report) -> pb.Fact:
        return fact_from(report, self._machine.wall_ms())

    def _tell_ready(self, fact: pb.Fact) -> None:
        self._tell_began()
        self._send(fact)

    def _tell_began(self) -> None:
        for fact in self._began:
            self._send(fact)
        self._began.clear()

    def look_again(self) -> None:
        """Somebody has changed the devices of this node: look for all of them again."""
        if self._looker is not None:
            self._looker.look_again()

    def _hear_found(self, found: NodeInventory) -> None:
        """Devices have come or gone: from now on work is done with what is there."""
        self._orders.set_found(found)
        self._offer_if_changed()
        self._tell_lost()

    def _tell_lost(self) -> None:
        """Work whose MIG slice was destroyed under it is told, once."""
        for key, index, lost in self._orders.newly_lost():
            text = lost_slice_message(self._config.node, index, lost.profile)
            self._in_background(self._launcher.warn(*key, text))

    def _offer_if_changed(self) -> None:
        """Tell what there is now, before anything can be given out that is not."""
        offered = self._orders.offered()
        if offered != self._found:
            self._found = offered
            self._offer()

    def _offer(self) -> None:
        self._send(pb.AgentMessage(inventory=self._inventory()))

    def _inventory(self) -> pb.Inventory:
        return inventory_of(self._found, self._disk_health.problem)

    def _hear_devices(self, telemetry: NodeReadings) -> None:
        if not self._found.devices and not telemetry.readings:
            return  # there is nothing to tell of yet
        self._telemetry = pb.AgentMessage(telemetry=telemetry_of(telemetry))
        self._send(self._telemetry)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_interval_s * random.uniform(0.8, 1.0))
            self._ask_for_leases()

    def _ask_for_leases(self) -> None:
        """Each word that says that we are here asks for all leases to be renewed as well."""
        beat = pb.Heartbeat(at_ms=self._machine.wall_ms(), boot_ms=self._asking_ms())
        self._send(pb.AgentMessage(heartbeat=beat))

    def _asking_ms(self) -> int:
        """When a lease is asked for; 0 if the launcher is an old one that keeps none."""
        return self._machine.boot_ms() if self._launcher.keeps_leases else 0

    def _send(self, item: pb.AgentMessage | pb.Fact) -> None:
        """Tell the server, if it is there; else it is told when it comes back."""
        if self._outbox is not None:
            self._outbox.put_nowait(item)

    # --- the server's side

    async def _serve(self) -> None:
        """Keep a stream open, and open it again whenever it breaks."""
        while True:
            try:
                await self._session()
                self._note_trouble("the server has closed the stream")
            except ServerRejected as error:
                if error.is_final:
                    raise
                self._note_trouble(str(error))
                if error.ask and isinstance(self._connect, ServerConnector):
                    self._connect.prefer(error.ask)
            except TimeoutError:
                self._note_trouble("the server does not answer")
            except BROKEN as error:
                self._note_trouble(await self._told_by(error))
            finally:
                self._outbox = None
                self._logs.close()
                self._terminals.close()
            await asyncio.sleep(self._wait_s * random.uniform(0.5, 1.0))
            longest_s = self._config.max_retry_interval_s
            self._wait_s = min(longest_s, self._wait_s * LONGER_EACH_TIME)

    async def _told_by(self, error: Exception) -> str:
        if isinstance(self._connect, ServerConnector):
            return await self._connect.hear(error)
        return error_text(error)

    def _note_trouble(self, trouble: str) -> None:
        """Said once, not each time: it can last for days."""
        was_welcome, self._is_welcome = self._is_welcome, False
        if was_welcome:
            log.warning("the server is gone; jobs go on, and it is tried again", error=trouble)
        elif trouble != self._trouble:
            log.warning("not connected; it is tried again", error=trouble)
        self._trouble = trouble

    async def _session(self) -> None:
        async with asyncio.timeout(self._config.connection_timeout_s) as patience:
            async with self._connect() as call:
                await call.write(pb.AgentMessage(hello=await self._hello()))
                self._outbox = asyncio.Queue()
                for reports in self._known.values():
                    for report in reports_to_repeat(reports):
                        self._send(self._fact_of(report))
                for fact in self._prober.facts():
                    self._send(fact)
                if self._telemetry is not None:
                    self._send(self._telemetry)
                sender = asyncio.create_task(self._write(call, self._outbox))
                try:
                    async for message in call:
                        patience.reschedule(self._patient_until(message))
                        if not self._terminals.hear(message):
                            self._obey(message)
                finally:
                    sender.cancel()
                    with contextlib.suppress(asyncio.CancelledError, *BROKEN):
                        await sender

    def _patient_until(self, message: pb.ServerMessage) -> float | None:
        """Until when to wait for more: a server that answers heartbeats is expected to go on."""
        self._hears_answers |= message.HasField("renewal")
        if not self._hears_answers:
            return None
        patience_s = max(LEAST_PATIENCE_S, LATE * self._config.heartbeat_interval_s)
        return asyncio.get_running_loop().time() + patience_s

    async def _hello(self) -> pb.Hello:
        self._hears_answers = False
        await self._replace_launcher()
        # Asked before the launcher is: what it takes meanwhile is in one of the two.
        starting = set(self._starting)
        held = await self._launcher.held()
        here = starting.union((work[0], work[1]) for work in held)
        self._orders.keep_only(here)
        await self._mps.keep_only(
            starting.union((work[0], work[1]) for work in held if work[2] is None)
        )
        self._prober.keep_only(((work[0], work[1]) for work in held), starting)
        now_ms = self._machine.wall_ms()
        for allocation_id, member, over in held:
            # What has begun or is prepared, the launcher says itself; it may also wait for others.
            self._known.setdefault((allocation_id, member), [])
            if over is not None:
                if over.ran:
                    began = Began(allocation_id=allocation_id, member=member, pid=0, at_ms=now_ms)
                    self._note(began)
                self._over(over)
        return pb.Hello(
            node=self._config.node,
            version=__version__,
            protocol=PROTOCOL,
            least_protocol=MIN_PROTOCOL,
            term=self._terms.newest,
            boot_id=self._machine.boot_id(),
            instance=self._instance,
            inventory=self._inventory(),
            held=[pb.HeldWork(allocation_id=key[0], member=key[1]) for key in sorted(here)],
            runners=self._runners(),
            address=self._config.address,
            boot_ms=self._asking_ms(),
            abilities=[TERMINALS, TRUSTS],
        )

    def _runners(self) -> list[str]:
        """What jobs may run in here: what the launcher has, and was not ruled out."""
        allowed = self._config.execution_methods
        has = self._launcher.capabilities.get("runners", ())
        return [runner for runner in has if not allowed or runner in allowed]

    async def _replace_launcher(self) -> None:
        """A launcher of another version goes when it has nothing left to do."""
        if self._launcher.is_outdated and await self._launcher.replace_if_idle():
            log.info("an old launcher was replaced", pid=self._launcher.pid)
            self._ask_for_leases()
            self._offer()

    async def _write(
        self,
        call: Stream,
        outbox: asyncio.Queue[pb.AgentMessage | pb.Fact],
    ) -> None:
        """Send what is to be sent; facts that wait together travel together."""
        while True:
            item = await outbox.get()
            facts: list[pb.Fact] = []
            while isinstance(item, pb.Fact):
                facts.append(item)
                if outbox.empty() or len(facts) >= MOST_FACTS_AT_ONCE:
                    break
                item = outbox.get_nowait()
            if facts:
                await call.write(pb.AgentMessage(facts=pb.Facts(facts=facts)))
            if isinstance(item, pb.AgentMessage):
                await call.write(item)

    def _obey(self, message: pb.ServerMessage) -> None:
        match message.WhichOneof("message"):
            case "orders":
                self._terms.check(message.orders.term)
                for order in message.orders.orders:
                    self._obey_order(order)
            case "trust":
                self._trust(message.trust)
            case "log_request":
                self._logs.begin(message.log_request)
            case "log_credit":
                self._logs.more(message.log_credit)
            case "log_cancel":
                self._logs.cancel(message.log_cancel.request_id)
            case "renewal":
                self._terms.check(message.renewal.term)
                self._granted_ms = message.renewal.boot_ms
                self._in_background(self._launcher.renew(self._granted_ms))
            case "welcome":
                self._terms.check(message.welcome.term)
                self._wait_s = self._config.retry_interval_s
                self._is_welcome, self._trouble = True, ""
                log.info("connected", node=self._config.node, server=message.welcome.version)
            case "goodbye":
                raise ServerRejected(message.goodbye.reason, is_final=message.goodbye.final)

    def _trust(self, order: pb.Trust) -> None:
        """Somebody has looked after a device."""
        if self._looker is not None:
            self._looker.trust(order)

    def _obey_order(self, order: pb.Order) -> None:
        """Hand an order to the launcher without waiting.

        It gets them in this order, but for starts whose user has to be looked up first: they come
        after those of others, who need not wait for a directory service that is slow. Nothing
        relies on the order of different users' starts, as each has its devices already; what is
        stopped before it has come never begins, and what is forgotten is not sent at all.
        """
        key = (order.allocation_id, order.member)
        match order.WhichOneof("order"):
            case "start":
                if self._known.get(key) or key in self._starting:
                    return  # said again: the first order may wait, and must not be followed twice
                self._known.setdefault(key, [])
                self._starting.add(key)
                self._look_up(order)
            case "commit":
                self._in_background(self._commit(order))
            case "stop":
                self._in_background(self._launcher.stop(*key, order.stop.why))
            case "warn":
                self._in_background(self._launcher.warn(*key, order.warn.text))
            case "forget":
                self._starting.discard(key)
                self._known.pop(key, None)
                self._indices.pop(key, None)
                self._orders.forget(*key)
                self._in_background(self._forget(key))

    async def _forget(self, key: Key) -> None:
        await self._launcher.forget(*key)
        await self._replace_launcher()

    def _look_up(self, order: pb.Order) -> None:
        """Find the account of its user first; starts of one user go on in the order they came."""
        uid, key = order.start.uid, (order.allocation_id, order.member)
        # By the time of its turn the server may have given it up, and grant other leases.
        self._unknown.setdefault(uid, {})[key] = (order, self._granted_ms)
        if (login := self._machine.cached_account(uid)) is not None:
            self._prepare_all(uid, login)
        else:
            self._in_background(self._prepare_later(uid, key))

    async def _prepare_later(self, uid: int, key: Key) -> None:
        """An account that cannot be looked up costs the work of its user, which is tried again."""
        try:
            self._prepare_all(uid, await self._machine.account(uid))
        except AccountLookupTimeout as error:
            waits = self._unknown.get(uid, {}).pop(key, None)
            if waits is not None and key in self._starting:
                log.warning("order refused", allocation=key[0], error=str(error))
                self._starting.discard(key)
                self._refused(key, str(error), NOT_BEGUN)

    def _prepare_all(self, uid: int, login: Account) -> None:
        """Now that this user is known; but for what was forgotten meanwhile."""
        for key, (order, granted_ms) in self._unknown.pop(uid, {}).items():
            if key in self._starting:
                self._prepare(order, login, granted_ms)

    def _prepare(self, order: pb.Order, login: Account, granted_ms: int) -> None:
        """An order that cannot be carried out costs its own work, and nothing else."""
        try:
            work = self._orders.work(order, login)
            if work.lease_ms:
                work = replace(work, leased_ms=granted_ms)
        except (NoFreeSlice, PortTaken) as error:
            log.warning("order refused", allocation=order.allocation_id, error=str(error))
            self._cannot_prepare(order, error)
        except Exception as error:
            # OrderTranslator are repeated: what escaped would kill us again and again.
            log.exception("order not understood", allocation=order.allocation_id)
            self._cannot_prepare(order, error)
        else:
            indices = tuple(device.index for device in work.devices)
            self._indices[work.allocation_id, work.member] = indices
            self._prober.watch(order, work)
            if self._looker is not None:
                self._looker.begin(indices)
            self._in_background(self._start(work))

    def _cannot_prepare(self, order: pb.Order, error: Exception) -> None:
        key = (order.allocation_id, order.member)
        self._starting.discard(key)
        self._refused(key, f"cannot be prepared: {error}")

    async def _start(self, work: Work) -> None:
        """Start it, unless it was stopped and forgotten while it waited for turn and daemon."""
        key = (work.allocation_id, work.member)
        try:
            async with self._starts:
                if key in self._starting:
                    work = await self._mps.join(work)
                if key in self._starting:
                    await self._launcher.start(work)
        except (OrderRefused, MpsError) as error:
            self._refused(key, str(error))
        finally:
            self._starting.discard(key)
        if not self._runs(*key):
            await self._mps.leave(key)

    async def _commit(self, order: pb.Order) -> None:
        """Let a member run that was prepared; one that was given up by now never does."""
        key, rendezvous = (order.allocation_id, order.member), order.commit.rendezvous
        scratch = self._orders.scratch_dir(*key)
        environment = rendezvous_environment(rendezvous, 0, scratch)
        try:
            await self._launcher.commit(*key, environment, rendezvous_files(rendezvous))
        except OrderRefused as error:
            log.warning("a commit was refused", allocation=key[0], member=key[1], error=str(error))
            self._refused(key, f"it was committed too late: {error}")

    def _refused(self, key: Key, detail: str, stopped_by: str = "") -> None:
        """This work has never run and never will."""
        self._over(
            Over(
                allocation_id=key[0],
                member=key[1],
                exit_code=None,
                signal=None,
                ran=False,
                at_ms=self._machine.wall_ms(),
                run_ms=0,
                stopped_by=stopped_by,
                detail=detail,
            )
        )

    def _in_background(self, order: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(order)
        self._under_way.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("order not carried out", error=str(error))

    def _runs(self, allocation_id: str, member: int) -> bool:
        reports = self._known.get((allocation_id, member))
        return reports is not None and not any(isinstance(report, Over) for report in reports)

    def _is_over(self, key: Key) -> bool | None:
        """None for what nobody has spoken of yet."""
        reports = self._known.get(key)
        return None if reports is None else any(isinstance(one, Over) for one in reports)
