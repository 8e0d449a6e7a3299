"""Prologs and epilogs that fail on some nodes for a while, and admins who resume such nodes.

Only some worlds have them. They have their own random source, so that all other worlds stay the
same.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from gpu_scheduler.control.messages import Uncordon
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.job import JobState
from gpu_scheduler.store.rows import AttemptRow, JobRow
from tests.faults.node import VirtualNode

if TYPE_CHECKING:
    from tests.faults.world import World

OFTEN = 0.3
MOST = CoreLimits().max_prolog_failures


class Hooks:
    """The hooks of one world, and checks of their failures."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self.are_used = random.random() < OFTEN
        self._seen = 0
        self._blamed: dict[str, int] = {}
        """Drained nodes that must get no jobs, with the time of the drain."""
        for node in world.nodes:
            node.prolog = ("check",) if self.are_used else ()

    async def live(self) -> None:
        """Let hooks fail and recover while there are faults; resume drained nodes all the time."""
        world, random = self._world, self._random
        for _ in range(random.randint(4, 16) if self.are_used else 0):
            at_s = random.uniform(0, world.faults_end_s)
            node, hook = random.choice(world.nodes), random.choice(("prolog", "prolog", "epilog"))
            world.loop.tell(None, at_s, self._break, node, hook)
            world.loop.tell(
                None, min(world.faults_end_s, at_s + random.expovariate(1 / 30)), node.mend
            )
        while self.are_used:
            await asyncio.sleep(random.uniform(5, 30))
            for name in sorted(self._blamed):
                if not self._node(name).broken_hooks:
                    await world.client.ask(Uncordon(name))

    def _break(self, node: VirtualNode, hook: str) -> None:
        self._world.audit.note("fault", f"{hook} fails", node.name)
        node.broken_hooks.add(hook)

    def _node(self, name: str) -> VirtualNode:
        return next(node for node in self._world.nodes if node.name == name)

    # --- checks

    def look(self) -> None:
        """After every commit: a node with a failed hook gets no jobs until it is resumed."""
        if not self.are_used:
            return
        rows, audit = self._world.disk.rows, self._world.audit
        for number, event in rows.events(self._seen):
            self._seen = number
            node = str(dict(event.data).get("node", ""))
            if event.kind == "hook_failed":
                self._blamed.setdefault(node, event.at_ms)
            elif event.kind == "node_uncordoned":
                self._blamed.pop(node, None)
        closed = {node.id for node in rows.nodes() if node.closed is not None}
        for node in sorted(self._blamed.keys() - closed):
            audit.problem(f"a hook failed on {node}, and it was not set aside")
        for allocation in rows.allocations():
            for placement in allocation.placements:
                if allocation.start_ms > self._blamed.get(placement.node_id, allocation.start_ms):
                    audit.problem(f"{allocation.id} was given to {placement.node_id}, set aside")

    def check_final_state(self) -> None:
        """At the end: no job failed too early because of a prolog, or lost retries by it."""
        for row in self._world.disk.rows.jobs():
            if self.are_used and row.job.array is None and not row.job.service:
                self._check(row, self._world.disk.rows.attempts(row.job.id))

    def _check(self, row: JobRow, attempts: list[AttemptRow]) -> None:
        audit = self._world.audit
        in_a_row = 0
        for name in (attempt.allocation_id for attempt in reversed(attempts)):
            if name in audit.failed_prologs:
                in_a_row += 1
            elif list(audit.member_runs(name)):
                break  # An attempt that never started for another reason does not count.
        if row.state is JobState.FAILED and 0 < in_a_row < MOST and "prolog" in row.reason:
            audit.problem(f"{row.job.id} has failed after {in_a_row} prologs that failed")
        ran = sum(bool(list(audit.member_runs(a.allocation_id))) for a in attempts)
        if row.failures > ran:
            audit.problem(f"{row.job.id} paid for {row.failures} failures, and ran {ran} times")
