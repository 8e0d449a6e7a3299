"""The roles of a server, and the change between leader and standby.

The listeners stay open. A change of role first replaces the HTTP application behind them and then
stops the old one, so that a former leader does not answer requests.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from functools import partial

import structlog

from gpu_scheduler import __version__
from gpu_scheduler.agent.launcher_protocol import Work, WorkDevice
from gpu_scheduler.agent.runners import attach_command
from gpu_scheduler.api.ha.forwarded_identity import ForwardedIdentityMiddleware, IdentityVerifier
from gpu_scheduler.api.ha.leadership_gate import LeaderGate, LeadershipStatus, SwitchableApp
from gpu_scheduler.api.ha.proxy import LeaderProxy
from gpu_scheduler.api.http.app import Applications, build
from gpu_scheduler.api.interfaces import ApiSettings, Bounds
from gpu_scheduler.model.errors import ClusterError, InternalError
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.server.from_settings import new_core, prices_of
from gpu_scheduler.server.grpc import AgentGate
from gpu_scheduler.server.ha.election import LeaderElector
from gpu_scheduler.server.ha.leader import Components, Leader
from gpu_scheduler.server.ha.standby import StandbyApplication, StandbyService
from gpu_scheduler.server.network_access import host_names, speaks_tls
from gpu_scheduler.settings.schema import Settings

LAST_ANSWERS_S = 2.0
log = structlog.get_logger("server")


class StandaloneRole:
    """The only server of its database: it leads from start to stop."""

    def __init__(self, components: Components, gate: AgentGate) -> None:
        self._components = components
        self._leader = Leader(components)
        self.gate = gate

    async def start(self) -> Applications:
        """Start to lead; return the HTTP applications."""
        await self._leader.start()
        self.gate.open(self._leader.agents)
        return leader_api(self._components, self._leader)

    async def wait_for_leader(self) -> None:
        """Return at once: this server is the leader."""

    async def watch(self) -> None:
        """Never return: this role cannot be lost."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop leading."""
        self.gate.shut()
        await self._leader.stop()


class ReplicatedRole:
    """One of several servers on the same database: one of them leads, the others are standbys."""

    def __init__(
        self,
        components: Components,
        gate: AgentGate,
        election: LeaderElector,
        fence: Callable[[int], None],
    ) -> None:
        """`fence` binds all further commits to a term; with 0 every commit fails."""
        self._components = components
        self._election = election
        self._fence = fence
        self._secret = b""
        self._is_stopped = False
        self._leader: Leader | None = None
        self._standby: StandbyService | None = None
        self._main = SwitchableApp()
        self._metrics = SwitchableApp()
        self._answer_gate: LeaderGate | None = None
        self._election_task: asyncio.Task[None] | None = None
        self.gate = gate
        gate.election = election

    async def start(self) -> Applications:
        """Start as a standby and take part in the election; return the HTTP applications."""
        election = self._election
        self._secret = await election.cluster_secret()
        await election.register()
        lead = election.lead
        another_leads = lead.is_held and lead.holder != election.me.name
        if another_leads and not self._components.settings.replication.enabled:
            raise ClusterError(
                f"server '{lead.holder}' at {lead.address} uses this database, and "
                "replication.enabled is off; stop that server first, or switch replication on"
            )
        self._fence(0)
        self._become_standby()
        self._election_task = asyncio.create_task(election.run(self._on_elected, self._on_deposed))
        return Applications(self._main, self._metrics)

    async def wait_for_leader(self) -> None:
        """Wait until another server leads, or this one does and accepts agents."""
        election = self._election
        while self.gate.service is None:
            lead = election.lead
            if lead.is_held and lead.holder != election.me.name and not election.is_late:
                return
            await election.changed()

    async def watch(self) -> None:
        """Raise when this server no longer takes part in the election."""
        cause: BaseException | None = None
        if self._election_task is not None:
            await asyncio.wait({self._election_task})
            if not self._election_task.cancelled():
                cause = self._election_task.exception()
        raise InternalError(
            f"the leader election of this server has stopped ({cause!r}), so the server stops; "
            "start it again"
        ) from cause

    async def stop(self) -> None:
        """Hand over: finish accepted work as the leader, then release the lease."""
        if self._is_stopped:
            return
        self._is_stopped = True
        leader = self._leader
        if leader is not None:
            self._become_standby()
            await leader.stop()
            if self._answer_gate is not None:
                await self._answer_gate.finish_changes(LAST_ANSWERS_S)
        if self._election_task is not None:
            self._election_task.cancel()
            await asyncio.gather(self._election_task, return_exceptions=True)
        await self._election.release()
        self._election.close()

    async def _on_elected(self, term: int) -> None:
        """Load all state and lead."""
        self._fence(term)
        election, components = self._election, self._components

        def may_order() -> bool:
            return election.term == term and election.is_held

        leader = await asyncio.to_thread(Leader, components, term=term, may_order=may_order)
        leader.loop.on_deposed(election.step_down)
        leader.loop.on_written(election.on_commit)
        self._leader = leader
        await leader.start()
        applications = leader_api(components, leader, election)
        verifier = IdentityVerifier(self._secret, term)
        most_bytes = round(components.settings.api.max_body_mb * (1 << 20))
        main = ForwardedIdentityMiddleware(applications.main, verifier, election, most_bytes)
        self._answer_gate = self._main.application = LeaderGate(main, election, term)
        self._metrics.application = LeaderGate(applications.metrics, election, term)
        self.gate.open(leader.agents)
        if self._standby is not None:
            self._standby.close()
        log.info("leading", term=term, nodes=len(leader.loop.core.state.cluster.index.by_id))
        election.notify_waiters()

    async def _on_deposed(self) -> None:
        """Become a standby again; the database rejects unfinished writes of the old leader."""
        leader, self._leader = self._leader, None
        self._fence(0)
        self._become_standby()
        if leader is not None:
            await leader.stop()

    def _become_standby(self) -> None:
        self.gate.shut()
        components, settings = self._components, self._components.settings
        standby = StandbyService(components.store, new_core(settings), components.clock.now_ms)
        self._standby = standby
        forwarder = LeaderProxy(
            leadership=self._election,
            secret=self._secret,
            tls=lambda: ssl.create_default_context(cafile=settings.server.ca_file or None),
            age_s=lambda: standby.age_s,
        )
        api = _api_settings(components, None, self._election)
        applications = build(standby, api, jwt_verifier=components.signed, proxy=forwarder)
        for switch, application in (
            (self._main, applications.main),
            (self._metrics, applications.metrics),
        ):
            switch.application = StandbyApplication(application, standby, self._election)


Role = StandaloneRole | ReplicatedRole


def leader_api(
    components: Components, leader: Leader, election: LeadershipStatus | None = None
) -> Applications:
    """The HTTP applications of a leader."""
    api = _api_settings(components, leader, election)
    terminals = leader.agents.terminals
    return build(
        leader.loop, api, logs=leader.logs, terminals=terminals, jwt_verifier=components.signed
    )


def _api_settings(
    components: Components, leader: Leader | None, election: LeadershipStatus | None
) -> ApiSettings:
    settings = components.settings
    return ApiSettings(
        server_uid=os.geteuid(),
        version=__version__,
        admins=settings.security.admins,
        runner=Runner(settings.jobs.runner),
        attach=partial(
            attach_command_of,
            components.paths.scratch,
            components.node,
            settings.agent.container_engine_user,
        ),
        notifications=None if leader is None else leader.notifications,
        vitals=None if leader is None else leader.vitals,
        prices=prices_of(settings.costs),
        host_names=host_names(settings.api),
        auth=settings.auth.enabled,
        max_token_days=settings.auth.max_token_days,
        warnings=components.warnings,
        plain_nodes=not speaks_tls(settings),
        bounds=bounds_of(settings),
        leadership=election,
        started=components.started,
        file_tenants=tuple(settings.tenants),
        running=settings,
    )


def bounds_of(settings: Settings) -> Bounds:
    """The limits of one request."""
    api = settings.api
    bulk_bytes = round(api.max_body_mb * (1 << 20))
    return Bounds(
        body_bytes=min(bulk_bytes, Bounds().body_bytes),
        bulk_bytes=bulk_bytes,
        bulk_jobs=api.max_jobs_per_request,
        receive_seconds=api.slow_request_s,
        requests_per_second=api.requests_per_second,
        requests_burst=api.requests_burst,
        body_mb_per_hour=api.body_mb_per_hour,
    )


def attach_command_of(
    scratch: str, node: str, engine_user: str, job: Job, launch: Launch, allocation: Allocation
) -> tuple[str, ...]:
    """The command that attaches a terminal on this machine to a job's first member.

    Empty for a job on another node. The `Work` has the fields that name the session.
    """
    placement = allocation.placements[0]
    if placement.node_id != node:
        return ()
    return attach_command(
        Work(
            allocation_id=allocation.id,
            member=placement.member,
            job_id=job.id,
            task=allocation.task,
            attempt=allocation.attempt,
            name=job.name,
            uid=launch.uid,
            gid=launch.gid,
            user=launch.user,
            runner=launch.runner.value,
            image=launch.image,
            engine_user=engine_user,
            devices=tuple(WorkDevice(index=share.index) for share in placement.devices),
            scratch_dir=f"{scratch}/{allocation.id}.{placement.member}",
        )
    )
