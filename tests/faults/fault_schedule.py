"""Faults: which, when and for how long, all drawn from the seed at the start.

Every world has its own mix: some kinds of faults often, others never, so that rare combinations
occur in some world. After the last fault everything is repaired, and must settle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.faults.disk import Disk
from tests.faults.network import Network
from tests.faults.node import VirtualNode
from tests.faults.server import VirtualServer
from tests.faults.virtual_loop import VirtualLoop

Mend = Callable[[], None]


@dataclass(slots=True)
class FaultTargets:
    """Everything that can fail."""

    loop: VirtualLoop
    network: Network
    disk: Disk
    nodes: list[VirtualNode]
    servers: list[VirtualServer]
    confirm_dead: Callable[[VirtualNode], None]
    """Lets an admin confirm that a machine that is off is dead, and switch it on later."""


class FaultSchedule:
    """Draws the faults of a world and injects them."""

    def __init__(
        self,
        place: FaultTargets,
        random: Random,
        note: Callable[..., None],
        fault_kinds: tuple[str, ...] = (),
    ) -> None:
        """`fault_kinds` names the kinds of faults; by default some are drawn."""
        self._place = place
        self._random = random
        self._note = note
        self._mends: dict[int, Mend] = {}
        self._number = 0
        self._until_s = 0.0
        self._spite = random.choice((0.0, 0.01, 0.05))
        self._aim = ""
        kinds: list[tuple[str, Callable[[], Mend]]] = [
            ("agent killed", self._kill_agent),
            ("agent frozen", self._freeze_agent),
            ("launcher killed", self._kill_launcher),
            ("power lost", self._power),
            ("machine dead", self._death),
            ("server killed", self._kill_server),
            ("server frozen", self._freeze_server),
            ("link cut", self._cut),
            ("node cut off", self._cut_node),
            ("connection reset", self._reset),
            ("network slow", self._slow_network),
            ("database fails", self._fail_commits),
            ("answers of the database lost", self._lose_answers),
            ("database slow", self._slow_database),
            ("database away", self._database_away),
            ("server cut off from the database", self._cut_database),
            ("disk of a node slow", self._slow_disk),
            ("clock wrong", self._skew),
        ]
        chosen = random.sample(kinds, random.randint(1, 7))
        if fault_kinds:
            chosen = [(name, fault) for name, fault in kinds if name in fault_kinds]
            self._spite = random.choice((0.0, 0.1))
        self._kinds = [(name, fault, random.uniform(0.2, 1.0)) for name, fault in chosen]

    def schedule(self, until_s: float) -> None:
        """Inject faults until then, and repair everything at the end."""
        self._until_s = self._place.loop.time() + until_s
        mean_s = self._random.choice((4.0, 10.0, 25.0))
        at_s = self._random.uniform(1.0, 10.0)
        weights = [weight for *_, weight in self._kinds]
        while at_s < until_s:
            name, fault, _ = self._random.choices(self._kinds, weights)[0]
            lasts_s = (
                self._random.choice((0.0, 0.5, 5.0, 20.0, 60.0, 240.0)) * self._random.random()
            )
            self._place.loop.tell(None, at_s, self._strike, name, fault, lasts_s)
            at_s += self._random.expovariate(1 / mean_s)
        self._place.loop.tell(None, until_s, self._mend_all)

    def chance(self, node: str) -> None:
        """A critical moment on this node ("": anywhere): sometimes inject a fault there."""
        if self._random.random() < self._spite and self._place.loop.time() < self._until_s:
            weights = [weight for *_, weight in self._kinds]
            name, fault, _ = self._random.choices(self._kinds, weights)[0]
            at_s = self._random.choice((0.001, 0.02, 0.3)) * self._random.random()
            lasts_s = self._random.choice((0.0, 0.5, 10.0, 150.0)) * self._random.random()
            self._place.loop.tell(None, at_s, self._strike, name, fault, lasts_s, node)

    def _strike(self, name: str, fault: Callable[[], Mend], lasts_s: float, aim: str = "") -> None:
        if self._place.loop.time() >= self._until_s:
            return
        self._number += 1
        self._aim = aim
        self._note("fault", name, f"{lasts_s:.3f}", aim)
        self._mends[self._number] = fault()
        self._place.loop.tell(None, lasts_s, self._mend, self._number)

    def _mend(self, number: int) -> None:
        mend = self._mends.pop(number, None)
        if mend is not None:
            mend()

    def _mend_all(self) -> None:
        self._note("calm")
        for number in list(self._mends):
            self._mend(number)

    # --- faults; each returns how it is mended

    def _node(self) -> VirtualNode:
        for node in self._place.nodes:
            if node.name == self._aim:
                return node
        return self._random.choice(self._place.nodes)

    def _server(self) -> VirtualServer:
        return self._random.choice(self._place.servers)

    def _kill_agent(self) -> Mend:
        node = self._node()
        if node.agent is not None:
            node.kill_agent()
            self._place.network.end_of("agent", node.name, quietly=False)
        return node.start_agent

    def _freeze_agent(self) -> Mend:
        agent = self._node().agent
        if agent is None:
            return lambda: None
        self._place.loop.freeze(agent)
        return lambda: self._place.loop.thaw(agent)

    def _kill_launcher(self) -> Mend:
        node = self._node()
        node.kill_launcher()
        return node.start_launcher

    def _power(self) -> Mend:
        node = self._node()
        if not node.is_on:
            return lambda: None
        node.power_off()
        self._place.network.end_of("agent", node.name, quietly=True)
        return node.power_on

    def _death(self) -> Mend:
        node = self._node()
        if node.is_on:
            node.power_off()
            self._place.network.end_of("agent", node.name, quietly=True)
            self._place.confirm_dead(node)
        return lambda: None

    def _kill_server(self) -> Mend:
        server = self._server()
        if not server.part.is_dead:
            server.kill()
            quietly = self._random.random() < 0.3
            self._place.network.end_of("server", server.name, quietly=quietly)
        return server.start

    def _freeze_server(self) -> Mend:
        part = self._server().part
        self._place.loop.freeze(part)
        return lambda: self._place.loop.thaw(part)

    def _cut(self) -> Mend:
        link = (self._node().name, self._server().name)
        self._place.network.cut(link)
        return lambda: self._place.network.heal(link)

    def _cut_node(self) -> Mend:
        name = self._node().name
        links = [(name, server.name) for server in self._place.servers]
        for link in links:
            self._place.network.cut(link)

        def mend() -> None:
            for link in links:
                self._place.network.heal(link)

        return mend

    def _reset(self) -> Mend:
        self._place.network.reset()
        return lambda: None

    def _slow_network(self) -> Mend:
        network = self._place.network
        network.slow = self._random.choice((10.0, 100.0, 1000.0))

        def mend() -> None:
            network.slow = 1.0

        return mend

    def _fail_commits(self) -> Mend:
        self._place.disk.fails = self._random.choice((0.2, 0.6, 1.0))

        def mend() -> None:
            self._place.disk.fails = 0.0

        return mend

    def _lose_answers(self) -> Mend:
        self._place.disk.loses_answers = self._random.choice((0.1, 0.5, 1.0))

        def mend() -> None:
            self._place.disk.loses_answers = 0.0

        return mend

    def _slow_database(self) -> Mend:
        disk = self._place.disk
        disk.slow = self._random.choice((10.0, 300.0))

        def mend() -> None:
            disk.slow = 1.0

        return mend

    def _database_away(self) -> Mend:
        self._place.disk.is_away = True

        def mend() -> None:
            self._place.disk.is_away = False

        return mend

    def _cut_database(self) -> Mend:
        name, cut_off = self._server().name, self._place.disk.cut_off
        cut_off.append(name)
        return lambda: cut_off.remove(name)

    def _slow_disk(self) -> Mend:
        node = self._node()
        node.slow_disk = self._random.choice((10.0, 500.0))

        def mend() -> None:
            node.slow_disk = 1.0

        return mend

    def _skew(self) -> Mend:
        """A wrong time of day stays wrong."""
        places = [node.machine for node in self._place.nodes]
        places += [server.machine for server in self._place.servers]
        machine = self._random.choice(places)
        machine.skew_ms += self._random.choice((-1, 1)) * self._random.choice(
            (50, 5_000, 3_600_000)
        )
        return lambda: None
