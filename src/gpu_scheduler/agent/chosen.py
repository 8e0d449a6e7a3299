"""What the agent has chosen for work that is under way: ports and MIG slices.

Kept in a file until the work is forgotten. An agent that is started again must give the rest of a
gang the same port, and nobody a slice or a port that somebody holds; what a replica of a service
had is free as soon as that has ended, also if another agent gave it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpu_scheduler.agent.slices import Key, Slice

NAME = "chosen.json"


class Chosen:
    """Ports by allocation, which of them are of services, and slices by work and device."""

    def __init__(self, directory: Path) -> None:
        """Read what an agent before us has chosen."""
        self._file = directory / NAME
        self.ports: dict[str, int] = {}
        self.of_services: set[str] = set()
        self.slices: dict[Key, dict[int, Slice]] = {}
        self._read()

    def set_port(self, allocation_id: str, port: int, *, of_service: bool = False) -> None:
        """All members of an allocation meet there, or its one replica listens there."""
        self.ports[allocation_id] = port
        if of_service:
            self.of_services.add(allocation_id)
        self._write()

    def set_slices(self, key: Key, slices: dict[int, Slice]) -> None:
        """Nobody else gets these."""
        self.slices[key] = slices
        self._write()

    def forget(self, allocation_id: str, member: int) -> None:
        """The work is over for good."""
        port = self.ports.pop(allocation_id, None)
        self.of_services.discard(allocation_id)
        slices = self.slices.pop((allocation_id, member), None)
        if port is not None or slices is not None:
            self._write()

    def free_slices(self, allocation_id: str, member: int) -> bool:
        """Others may have its slices; tells whether it had any."""
        if self.slices.pop((allocation_id, member), None) is None:
            return False
        self._write()
        return True

    def free_port_of_service(self, allocation_id: str) -> None:
        """Others may have its port, if it is that of a replica; a gang's is forgotten with it."""
        if allocation_id in self.of_services:
            self.of_services.discard(allocation_id)
            self.ports.pop(allocation_id, None)
            self._write()

    def keep_only(self, held: Iterable[Key]) -> None:
        """Forget all that was chosen for other work than this."""
        keys = set(held)
        names = {allocation_id for allocation_id, _ in keys}
        before = len(self.ports) + len(self.slices)
        self.ports = {name: port for name, port in self.ports.items() if name in names}
        self.of_services &= names
        self.slices = {key: slices for key, slices in self.slices.items() if key in keys}
        if len(self.ports) + len(self.slices) != before:
            self._write()

    def _read(self) -> None:
        """A file that makes no sense is like none: jobs come first."""
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
            ports = {str(name): int(port) for name, port in known["ports"].items()}
            profiles = known.get("profiles", {})
            slices = {
                (str(name), int(member)): {
                    int(index): Slice(str(uuid), str(profiles.get(uuid, "")))
                    for index, uuid in uuids
                }
                for name, member, uuids in known["slices"]
            }
            of_services = {str(name) for name in known.get("services", ())}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return
        self.ports, self.of_services, self.slices = ports, of_services, slices

    def _write(self) -> None:
        """On a full disk it is only remembered, which is better than no job at all."""
        slices = [
            [*key, [(index, one.uuid) for index, one in held.items()]]
            for key, held in self.slices.items()
        ]
        profiles = {one.uuid: one.profile for held in self.slices.values() for one in held.values()}
        fresh = self._file.with_name(f"{NAME}.new")
        with suppress(OSError):
            services = sorted(self.of_services)
            text = json.dumps(
                {
                    "ports": self.ports,
                    "services": services,
                    "slices": slices,
                    "profiles": profiles,
                }
            )
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self._file)
