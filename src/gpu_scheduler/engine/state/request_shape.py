"""Requests that are alike are one shape: they share one answer per cycle.

A shape holds, for every kind of node, what a search needs to know, computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_scheduler.model.request import SHARE_STEP_MILLI, WHOLE_MILLI, Request, Topology

if TYPE_CHECKING:
    from gpu_scheduler.engine.state.node_class import NodeClass

Part = tuple[int, int, int]
"""A share of a device: its position, the share and the memory."""
CPU_LEVELS = 64
"""Free CPU is bucketed by sixty-fourths of the node."""


@dataclass(slots=True)
class Fit:
    """How one request fits nodes of one kind: allowed devices of one model, least CPU level.

    `part_mb` is what a share takes of a device's memory, by position, and `parts` what a request of
    one share holds of it; made once, because every search needs it.
    """

    node_class: NodeClass
    allowed: int
    level: int
    part_mb: tuple[int, ...] = ()
    parts: tuple[tuple[Part], ...] = ()
    picks: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class RequestShape:
    """One distinct request, with the kinds of nodes that could run it when empty.

    `nodes` are the nodes of these kinds at a `version` of the index; None for all.
    """

    id: int
    request: Request
    fits: list[Fit] = field(default_factory=list)
    by_node_class: dict[int, list[Fit]] = field(default_factory=dict)
    node_classes_seen: int = 0
    nodes: int | None = None
    version: int = -1
    count: int = 0
    share: int = 0
    extra: int = 0
    cpu: int = 0
    memory: int = 0
    part_mb: int = 0
    step: int = 0
    least: int = 0
    whole_only: bool = False
    one_part: bool = False
    labelled: bool = False
    _widths: list[tuple[int, NodeClass]] | None = None

    def __post_init__(self) -> None:
        """Copy what the hot path reads, so that it reads one attribute."""
        request = self.request
        self.count = request.gpu_count
        self.share = request.gpu_share_milli
        self.extra = request.gpu_extra_milli
        self.cpu = request.cpu_milli
        self.memory = request.memory_mb
        self.part_mb = request.gpu_memory_mb
        self.step = -(-self.share // SHARE_STEP_MILLI)
        self.whole_only = request.takes_whole_devices_only
        self.one_part = self.count == 1 and self.share < WHOLE_MILLI and not self.extra
        self.least = self.count if self.share == WHOLE_MILLI and not request.mig_profile else 0
        self.labelled = bool(request.node_labels)

    @property
    def hardness(self) -> tuple[int, ...]:
        """Smaller is harder to place: few kinds of nodes, many devices, large shares."""
        request = self.request
        picky = bool(request.device_ids or request.node_labels or request.contiguous)
        return (-picky, len(self.fits), -self.count, -self.extra, -self.share, -self.cpu)

    @property
    def uses_gpus(self) -> bool:
        """Tell GPU work from CPU-only work."""
        return self.count > 0 or self.extra > 0

    def learn(self, node_classes: list[NodeClass]) -> None:
        """Add the kinds that came up since the last search."""
        for node_class in node_classes[self.node_classes_seen :]:
            fits = _fits_of(self.request, node_class)
            if fits:
                self.fits.extend(fits)
                self.by_node_class[node_class.id] = fits
        # By what the nodes are, so that the order in which they came has no say.
        self.fits.sort(key=lambda fit: fit.node_class.name)
        self.node_classes_seen = len(node_classes)
        self._widths = None

    def widths(self, node_classes: list[NodeClass]) -> list[tuple[int, NodeClass]]:
        """Most first: how many devices of one model the request may use on nodes of every kind."""
        if self.node_classes_seen != len(node_classes):
            self.learn(node_classes)
        if self._widths is None:
            widths = [(_width(self.request, node_class), node_class) for node_class in node_classes]
            self._widths = sorted(widths, key=lambda width: (-width[0], width[1].id))
        return self._widths


def _width(request: Request, node_class: NodeClass) -> int:
    models = [m for m in node_class.models if not request.gpu_models or m in request.gpu_models]
    return max((node_class.allowed_mask(request, model).bit_count() for model in models), default=0)


def _fits_of(request: Request, node_class: NodeClass) -> list[Fit]:
    """One fit per model of the kind that could run the request on an empty node."""
    if request.cpu_milli > node_class.cpu_milli or request.memory_mb > node_class.memory_mb:
        return []
    level = request.cpu_milli * CPU_LEVELS // node_class.cpu_milli if node_class.cpu_milli else 0
    if not request.device_count:
        return [Fit(node_class, 0, level)]
    fits = []
    for model in node_class.models:
        if request.gpu_models and model not in request.gpu_models:
            continue
        allowed = node_class.allowed_mask(request, model)
        if not _could_ever_fit(request, node_class, allowed):
            continue
        part_mb = tuple(
            request.gpu_memory_mb or device.memory_mb * request.gpu_share_milli // WHOLE_MILLI
            for device in node_class.devices
        )
        parts = tuple(
            ((position, request.gpu_share_milli, memory_mb),)
            for position, memory_mb in enumerate(part_mb)
        )
        fits.append(Fit(node_class, allowed, level, part_mb, parts))
    return fits


def _could_ever_fit(request: Request, node_class: NodeClass, allowed: int) -> bool:
    """Judge against an empty, healthy node."""
    if request.mig_profile:
        return node_class.mig_count(request.mig_profile, allowed) >= request.gpu_count
    if request.topology is Topology.REQUIRE_ISLAND:
        return any(
            _has_room(request, node_class, allowed & island) for island in node_class.islands
        )
    return _has_room(request, node_class, allowed)


def _has_room(request: Request, node_class: NodeClass, allowed: int) -> bool:
    if allowed.bit_count() < request.device_count:
        return False
    if request.contiguous and request.gpu_count:
        return node_class.pick(allowed, request) != 0
    return True
