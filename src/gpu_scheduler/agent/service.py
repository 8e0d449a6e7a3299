"""The agent of one node: it passes the server's orders to the launcher, and its reports back.

The agent stores no job state of its own: the launcher's journal is the record. On every new stream
the agent repeats all reports until the server tells it to forget an allocation. So the agent can be
killed at any moment, and the server can be unreachable for any length of time.

Order of this module: the stream to the server, messages from the server, start orders, reports from
the launcher, devices, and sending.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path

import structlog

from gpu_scheduler import __version__
from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.monitor import DeviceMonitor, DevicePoller
from gpu_scheduler.agent.devices.source import NodeInventory
from gpu_scheduler.agent.jobs.environment import rendezvous_environment, rendezvous_files
from gpu_scheduler.agent.jobs.log_budget import LogCut, LogKeeper
from gpu_scheduler.agent.jobs.log_reader import LogServer
from gpu_scheduler.agent.jobs.mps import MpsError, mps_for
from gpu_scheduler.agent.jobs.orders import NoFreeSlice, OrderTranslator, PortTaken
from gpu_scheduler.agent.jobs.probes import ReadinessProber
from gpu_scheduler.agent.jobs.terminals import Terminals
from gpu_scheduler.agent.launcher_client import Launcher, OrderRefused
from gpu_scheduler.agent.launcher_protocol import (
    NOT_BEGUN,
    Began,
    Key,
    Over,
    Prepared,
    Report,
    Work,
)
from gpu_scheduler.agent.machine import (
    Account,
    AccountLookupTimeout,
    DiskHealth,
    LocalMachine,
    Machine,
    may_be_disk_failure,
)
from gpu_scheduler.agent.server_link import (
    BROKEN,
    Connect,
    LeaderTerm,
    ServerConnector,
    ServerRejected,
    Stream,
    add_report,
    error_text,
    fact_from,
    inventory_of,
    lost_slice_message,
    reports_to_repeat,
    telemetry_of,
)
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import MIN_PROTOCOL, PROTOCOL, TERMINALS, TRUSTS

BACKOFF_FACTOR = 1.6
MAX_FACTS_PER_MESSAGE = 1000
BEGAN_DELAY_S = 0.01
"""A start is reported this much later, so that a short job's start and end share one message."""
MIN_SERVER_TIMEOUT_S = 6.0
SERVER_TIMEOUT_HEARTBEATS = 1.6
"""A server that answers no heartbeat for this many intervals is frozen or cut off."""
DECLARED = "declared"
log = structlog.get_logger("agent")


class Agent:
    """One node's agent."""

    def __init__(
        self,
        config: AgentConfig,
        launcher: Launcher,
        inventory: NodeInventory,
        monitor: DeviceMonitor | None,
        connect: Connect | None = None,
        *,
        machine: Machine | None = None,
        leader_term: LeaderTerm | None = None,
    ) -> None:
        """`monitor` is None on a node that never has devices; `connect` is gRPC by default.

        `leader_term` is by default stored in the agent's directory.
        """
        self._config = config
        self._launcher = launcher
        self._connect = connect or ServerConnector(config.targets)
        self._leader_term = leader_term or LeaderTerm(Path(config.dir))
        self._machine: Machine = machine or LocalMachine()
        self._disk_health = DiskHealth(self._machine, Path(config.dir), self._send_inventory)
        self._poller = (
            None
            if monitor is None
            else DevicePoller(monitor, self._on_readings, self._on_inventory)
        )
        self._has_sensors = inventory.detection != DECLARED
        self._mps = mps_for(config, launcher, is_real=self._has_sensors)
        self._translator = OrderTranslator(config, inventory)
        self._inventory = self._translator.inventory()
        self._terminals = Terminals(self._translator.scratch_dir, self._is_active, self._send)
        self._prober = ReadinessProber(Path(config.dir), self._send_ready, self._machine.wall_ms)
        self.log_keeper = LogKeeper(config, launcher)
        self._logs = LogServer(self._translator.log_path, self._is_over, self._send)

        self._outbox: asyncio.Queue[pb.AgentMessage | pb.Fact] | None = None
        self._reports: dict[Key, list[Report]] = {}
        self._delayed_began: list[pb.Fact] = []
        self._telemetry: pb.AgentMessage | None = None
        self._device_indices: dict[Key, tuple[int, ...]] = {}
        self._awaiting_release: set[Key] = set()
        self._start_slots = asyncio.Semaphore(config.most_starts)
        self._starting: set[Key] = set()
        self._awaiting_account: dict[int, dict[Key, tuple[pb.Order, int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._instance = uuid.uuid4().hex
        self._backoff_s = config.retry_interval_s
        self._is_connected = False
        self._server_answers_heartbeats = False
        self._last_problem = ""
        self._lease_granted_ms = 0

    async def run(self) -> None:
        """Work until cancelled."""
        self._warn_of_lost_slices()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_launcher_reports())
            tasks.create_task(self._keep_connected())
            tasks.create_task(self._send_heartbeats())
            tasks.create_task(self._disk_health.watch(self._config.heartbeat_interval_s))
            if self._poller is not None:
                tasks.create_task(self._poller.run())

    # The stream to the server

    async def _keep_connected(self) -> None:
        """Keep a stream to a server open; reconnect with back-off whenever it breaks."""
        while True:
            try:
                await self._run_session()
                self._log_disconnect("the server closed the stream")
            except ServerRejected as error:
                if error.is_final:
                    raise
                self._log_disconnect(str(error))
                if error.leader and isinstance(self._connect, ServerConnector):
                    self._connect.prefer(error.leader)
            except TimeoutError:
                self._log_disconnect("the server does not answer")
            except BROKEN as error:
                if isinstance(self._connect, ServerConnector):
                    self._log_disconnect(await self._connect.handle_failure(error))
                else:
                    self._log_disconnect(error_text(error))
            finally:
                self._outbox = None
                self._logs.close()
                self._terminals.close()
            await asyncio.sleep(self._backoff_s * random.uniform(0.5, 1.0))
            longest_s = self._config.max_retry_interval_s
            self._backoff_s = min(longest_s, self._backoff_s * BACKOFF_FACTOR)

    def _log_disconnect(self, problem: str) -> None:
        """Log each problem once, not at each retry: it can last for days."""
        was_connected, self._is_connected = self._is_connected, False
        if was_connected:
            log.warning("lost the server; jobs continue, retrying", error=problem)
        elif problem != self._last_problem:
            log.warning("not connected to a server; retrying", error=problem)
        self._last_problem = problem

    async def _run_session(self) -> None:
        """One stream: hello, all known reports, then orders until it ends."""
        async with asyncio.timeout(self._config.connection_timeout_s) as timeout:
            async with self._connect() as stream:
                await stream.write(pb.AgentMessage(hello=await self._hello()))
                self._outbox = asyncio.Queue()
                for reports in self._reports.values():
                    for report in reports_to_repeat(reports):
                        self._send(self._fact(report))
                for fact in self._prober.facts():
                    self._send(fact)
                if self._telemetry is not None:
                    self._send(self._telemetry)
                sender = asyncio.create_task(self._write_outbox(stream, self._outbox))
                try:
                    async for message in stream:
                        timeout.reschedule(self._server_deadline(message))
                        if not self._terminals.handle(message):
                            self._handle_message(message)
                finally:
                    sender.cancel()
                    # Not `suppress(CancelledError)`: that would lose a cancellation of the agent.
                    (error,) = await asyncio.gather(sender, return_exceptions=True)
                if isinstance(error, Exception) and not isinstance(error, BROKEN):
                    raise error

    def _server_deadline(self, message: pb.ServerMessage) -> float | None:
        """Until when the next message must arrive; None for a server that answers no heartbeats."""
        self._server_answers_heartbeats |= message.HasField("renewal")
        if not self._server_answers_heartbeats:
            return None
        interval_s = self._config.heartbeat_interval_s
        timeout_s = max(MIN_SERVER_TIMEOUT_S, SERVER_TIMEOUT_HEARTBEATS * interval_s)
        return asyncio.get_running_loop().time() + timeout_s

    async def _hello(self) -> pb.Hello:
        """Reconcile with the launcher, and describe this node with everything that it holds."""
        self._server_answers_heartbeats = False
        await self._replace_outdated_launcher()
        # Copied before the request to the launcher: an order that it accepts meanwhile is in one.
        starting = set(self._starting)
        held = await self._launcher.held()
        keys = starting.union((work[0], work[1]) for work in held)
        self._translator.assignments.keep_only(keys)
        await self._mps.keep_only(
            starting.union((work[0], work[1]) for work in held if work[2] is None)
        )
        self._prober.keep_only(((work[0], work[1]) for work in held), starting)
        now_ms = self._machine.wall_ms()
        for allocation_id, member, over in held:
            # The launcher itself reports work that has started, is prepared or waits for its gang.
            self._reports.setdefault((allocation_id, member), [])
            if over is not None:
                if over.ran:
                    began = Began(allocation_id=allocation_id, member=member, pid=0, at_ms=now_ms)
                    self._record(began)
                self._on_over(over)
        allowed = self._config.execution_methods
        runners = self._launcher.capabilities.get("runners", ())
        return pb.Hello(
            node=self._config.node,
            version=__version__,
            protocol=PROTOCOL,
            least_protocol=MIN_PROTOCOL,
            term=self._leader_term.newest,
            boot_id=self._machine.boot_id(),
            instance=self._instance,
            inventory=inventory_of(self._inventory, self._disk_health.problem),
            held=[pb.HeldWork(allocation_id=key[0], member=key[1]) for key in sorted(keys)],
            runners=[runner for runner in runners if not allowed or runner in allowed],
            address=self._config.address,
            boot_ms=self._lease_request_ms(),
            abilities=[TERMINALS, TRUSTS],
        )

    async def _replace_outdated_launcher(self) -> None:
        """Replace a launcher of another version once it has no work."""
        if self._launcher.is_outdated and await self._launcher.replace_if_idle():
            log.info("replaced an outdated launcher", pid=self._launcher.pid)
            self._send_heartbeat()
            self._send_inventory()

    # Messages from the server

    def _handle_message(self, message: pb.ServerMessage) -> None:
        match message.WhichOneof("message"):
            case "orders":
                self._leader_term.check(message.orders.term)
                for order in message.orders.orders:
                    self._handle_order(order)
            case "trust":
                if self._poller is not None:
                    self._poller.mark_repaired(message.trust)
            case "log_request":
                self._logs.start_reader(message.log_request)
            case "log_credit":
                self._logs.add_credit(message.log_credit)
            case "log_cancel":
                self._logs.cancel(message.log_cancel.request_id)
            case "renewal":
                self._leader_term.check(message.renewal.term)
                self._lease_granted_ms = message.renewal.boot_ms
                self._run_in_background(self._launcher.renew(self._lease_granted_ms))
            case "welcome":
                self._leader_term.check(message.welcome.term)
                self._backoff_s = self._config.retry_interval_s
                self._is_connected, self._last_problem = True, ""
                log.info("connected", node=self._config.node, server=message.welcome.version)
            case "goodbye":
                raise ServerRejected(message.goodbye.reason, is_final=message.goodbye.final)

    def _handle_order(self, order: pb.Order) -> None:
        """Pass an order to the launcher without waiting for it.

        The launcher gets orders in the order of their arrival, except for starts whose account must
        be looked up first: they follow later, so that a slow directory service delays no other
        user. Nothing relies on the order of different users' starts, as each has its devices
        already. A start that is stopped before it reaches the launcher never runs, and one that is
        forgotten is not sent.
        """
        key = (order.allocation_id, order.member)
        match order.WhichOneof("order"):
            case "start":
                if self._reports.get(key) or key in self._starting:
                    return  # a repeated order; the first one may still be waiting
                self._reports.setdefault(key, [])
                self._starting.add(key)
                self._look_up_account(order)
            case "commit":
                self._run_in_background(self._commit(order))
            case "stop":
                self._run_in_background(self._launcher.stop(*key, order.stop.why))
            case "warn":
                self._run_in_background(self._launcher.warn(*key, order.warn.text))
            case "forget":
                self._starting.discard(key)
                self._reports.pop(key, None)
                self._device_indices.pop(key, None)
                self._translator.assignments.forget(*key)
                self._run_in_background(self._forget(key))

    async def _forget(self, key: Key) -> None:
        await self._launcher.forget(*key)
        await self._replace_outdated_launcher()

    async def _commit(self, order: pb.Order) -> None:
        """Let a prepared gang member run; one whose preparation has expired never does."""
        key, rendezvous = (order.allocation_id, order.member), order.commit.rendezvous
        environment = rendezvous_environment(rendezvous, 0, self._translator.scratch_dir(*key))
        try:
            await self._launcher.commit(*key, environment, rendezvous_files(rendezvous))
        except OrderRefused as error:
            log.warning("commit rejected", allocation=key[0], member=key[1], error=str(error))
            self._report_not_started(key, f"it was committed too late: {error}")

    # Start orders: look up the account, translate the order, start the work

    def _look_up_account(self, order: pb.Order) -> None:
        """Prepare a start once its user's account is known; a user's starts keep their order."""
        uid, key = order.start.uid, (order.allocation_id, order.member)
        # The lease counts from now: by the time the account is known the server may have given the
        # work up and renewed other leases.
        self._awaiting_account.setdefault(uid, {})[key] = (order, self._lease_granted_ms)
        if (account := self._machine.cached_account(uid)) is not None:
            self._prepare_starts(uid, account)
        else:
            self._run_in_background(self._prepare_after_lookup(uid, key))

    async def _prepare_after_lookup(self, uid: int, key: Key) -> None:
        """If the look-up times out, the work ends as a node failure, which the server retries."""
        try:
            self._prepare_starts(uid, await self._machine.account(uid))
        except AccountLookupTimeout as error:
            waiting = self._awaiting_account.get(uid, {}).pop(key, None)
            if waiting is not None and key in self._starting:
                log.warning("start order rejected", allocation=key[0], error=str(error))
                self._starting.discard(key)
                self._report_not_started(key, str(error), NOT_BEGUN)

    def _prepare_starts(self, uid: int, account: Account) -> None:
        """Prepare all waiting starts of a user, except those that were forgotten meanwhile."""
        for key, (order, granted_ms) in self._awaiting_account.pop(uid, {}).items():
            if key in self._starting:
                self._prepare(order, account, granted_ms)

    def _prepare(self, order: pb.Order, account: Account, granted_ms: int) -> None:
        """Translate a start order; an error fails only the work of this order."""
        try:
            work = self._translator.translate(order, account)
            if work.lease_ms:
                work = replace(work, leased_ms=granted_ms)
        except Exception as error:
            # The server repeats its orders, so an error that escaped would end the agent each time.
            if isinstance(error, NoFreeSlice | PortTaken):
                allocation_id = order.allocation_id
                log.warning("start order rejected", allocation=allocation_id, error=str(error))
            else:
                log.exception("cannot translate a start order", allocation=order.allocation_id)
            key = (order.allocation_id, order.member)
            self._starting.discard(key)
            self._report_not_started(key, f"cannot be prepared: {error}")
            return
        indices = tuple(device.index for device in work.devices)
        self._device_indices[work.allocation_id, work.member] = indices
        self._prober.register(order, work)
        if self._poller is not None:
            self._poller.mark_in_use(indices)
        self._run_in_background(self._start(work))

    async def _start(self, work: Work) -> None:
        """Start the work, unless it was forgotten while it waited for a slot or the MPS daemon."""
        key = (work.allocation_id, work.member)
        try:
            async with self._start_slots:
                if key in self._starting:
                    work = await self._mps.attach(work)
                if key in self._starting:
                    await self._launcher.start(work)
        except (OrderRefused, MpsError) as error:
            self._report_not_started(key, str(error))
        finally:
            self._starting.discard(key)
        if not self._is_active(*key):
            await self._mps.detach(key)

    def _report_not_started(self, key: Key, detail: str, stopped_by: str = "") -> None:
        """Report work that has never run and never will."""
        self._on_over(
            Over(
                allocation_id=key[0],
                member=key[1],
                ran=False,
                at_ms=self._machine.wall_ms(),
                stopped_by=stopped_by,
                detail=detail,
            )
        )

    # Reports from the launcher

    async def _read_launcher_reports(self) -> None:
        async for report in self._launcher.reports():
            if isinstance(report, Over):
                self._on_over(report)
            elif isinstance(report, Prepared):
                is_first = report.member == 0
                port = self._translator.gang_port(report.allocation_id) if is_first else 0
                self._record(replace(report, port=port))
            else:
                self._record(report)

    def _on_over(self, over: Over) -> None:
        """Report the end of a job: once its devices are free, or at once if it used none."""
        key = (over.allocation_id, over.member)
        if self._mps.is_used_by(key):
            self._run_in_background(self._mps.detach(key))
        if may_be_disk_failure(over):
            self._run_in_background(self._record_disk_failure(over))
            return
        indices = self._device_indices.get(key)
        is_reported = any(isinstance(report, Over) for report in self._reports.get(key, ()))
        if (
            self._poller is None
            or not self._has_sensors
            or not self._inventory.devices
            or not over.ran
            or indices == ()
            or is_reported
        ):
            self._record(over)
        elif key not in self._awaiting_release:
            self._awaiting_release.add(key)
            self._run_in_background(self._record_after_release(self._poller, over, indices or ()))

    async def _record_disk_failure(self, over: Over) -> None:
        self._record(await self._disk_health.blame_node_for(over))

    async def _record_after_release(
        self, poller: DevicePoller, over: Over, indices: tuple[int, ...]
    ) -> None:
        if not await poller.wait_released(over.allocation_id, indices):
            allocation_id = over.allocation_id
            log.warning("a job has ended but its devices are not free", allocation=allocation_id)
        self._awaiting_release.discard((over.allocation_id, over.member))
        self._record(over)

    def _record(self, report: Report) -> None:
        """Keep a report until the server tells the agent to forget it; send it if it is new."""
        key = (report.allocation_id, report.member)
        if not add_report(self._reports.setdefault(key, []), report):
            return
        if isinstance(report, Began):
            if not self._delayed_began:
                asyncio.get_running_loop().call_later(BEGAN_DELAY_S, self._send_delayed_began)
            self._delayed_began.append(self._fact(report))
            self._prober.start(key, report.pid)
            return
        if isinstance(report, Over):
            if self._translator.assignments.release(*key):
                self._send_inventory_if_changed()
            self._prober.stop(key)
        self._send_delayed_began()
        self._send(self._fact(report))

    def _is_active(self, allocation_id: str, member: int) -> bool:
        return self._is_over((allocation_id, member)) is False

    def _is_over(self, key: Key) -> bool | None:
        """Tell whether the work has ended; None if the agent does not know it."""
        reports = self._reports.get(key)
        return None if reports is None else any(isinstance(one, Over) for one in reports)

    # Devices

    def rescan_devices(self) -> None:
        """Search for devices again, because an administrator has changed them."""
        if self._poller is not None:
            self._poller.rescan()

    def _on_inventory(self, inventory: NodeInventory) -> None:
        """Devices were added or removed."""
        self._translator.set_inventory(inventory)
        self._send_inventory_if_changed()
        self._warn_of_lost_slices()

    def _warn_of_lost_slices(self) -> None:
        """Warn each job whose MIG slice was destroyed, once."""
        for key, index, lost in self._translator.newly_lost_slices():
            text = lost_slice_message(self._config.node, index, lost.profile)
            self._run_in_background(self._launcher.warn(*key, text))

    def _on_readings(self, readings: NodeReadings) -> None:
        if not self._inventory.devices and not readings.readings:
            return
        self._telemetry = pb.AgentMessage(telemetry=telemetry_of(readings))
        self._send(self._telemetry)

    # Sending

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_interval_s * random.uniform(0.8, 1.0))
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        """Send a heartbeat, which also asks the server to renew all leases of this node."""
        if self._outbox is None:
            return
        beat = pb.Heartbeat(
            at_ms=self._machine.wall_ms(),
            boot_ms=self._lease_request_ms(),
            log_bytes=self.log_keeper.log_bytes,
            leftovers=self.log_keeper.leftovers,
            log_cuts=[
                pb.LogCut(**{name: getattr(cut, name) for name in LogCut.__slots__})
                for cut in self.log_keeper.take_cuts()
            ],
        )
        self._send(pb.AgentMessage(heartbeat=beat))

    def _lease_request_ms(self) -> int:
        """The time of a lease request; 0 for an old launcher without leases."""
        return self._machine.boot_ms() if self._launcher.keeps_leases else 0

    def _send_inventory_if_changed(self) -> None:
        """Send the inventory before the server can assign a device that is no longer there."""
        inventory = self._translator.inventory()
        if inventory != self._inventory:
            self._inventory = inventory
            self._send_inventory()

    def _send_inventory(self) -> None:
        inventory = inventory_of(self._inventory, self._disk_health.problem)
        self._send(pb.AgentMessage(inventory=inventory))

    def _send_ready(self, fact: pb.Fact) -> None:
        self._send_delayed_began()
        self._send(fact)

    def _send_delayed_began(self) -> None:
        for fact in self._delayed_began:
            self._send(fact)
        self._delayed_began.clear()

    def _fact(self, report: Report) -> pb.Fact:
        return fact_from(report, self._machine)

    def _send(self, item: pb.AgentMessage | pb.Fact) -> None:
        """Queue a message for the server. Without a stream it is dropped; the next repeats it."""
        if self._outbox is not None:
            self._outbox.put_nowait(item)

    async def _write_outbox(
        self, stream: Stream, outbox: asyncio.Queue[pb.AgentMessage | pb.Fact]
    ) -> None:
        """Send queued messages; facts that are queued together share one message."""
        while True:
            item = await outbox.get()
            facts: list[pb.Fact] = []
            while isinstance(item, pb.Fact):
                facts.append(item)
                if outbox.empty() or len(facts) >= MAX_FACTS_PER_MESSAGE:
                    break
                item = outbox.get_nowait()
            if facts:
                await stream.write(pb.AgentMessage(facts=pb.Facts(facts=facts)))
            if isinstance(item, pb.AgentMessage):
                await stream.write(item)

    def _run_in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("an order failed", error=str(error))
