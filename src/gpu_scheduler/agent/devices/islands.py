"""NVLink: which devices are joined, and how fast."""

from __future__ import annotations

from collections.abc import Sequence


def join_islands(names: Sequence[str], remotes: Sequence[Sequence[str]]) -> list[int]:
    """The island of each device, numbered in the order of first members.

    Names are those of the devices, remotes what their links lead to: other devices, or switches.
    Devices that reach the same end are on one island; one without links is alone.
    """
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for name, ends in zip(names, remotes, strict=True):
        for end in ends:
            leader[find(end)] = find(name)
    numbers: dict[str, int] = {}
    return [numbers.setdefault(find(name), len(numbers)) for name in names]


def link_gbps(speed_mbps: int | None) -> int:
    """The nominal speed of a link in GB/s and one direction; drivers add the coding overhead.

    25,781 MB/s (A100) and 26,562 (H100) are 25, 53,125 (B200) is 50.
    """
    if not speed_mbps:
        return 25
    return max(1, speed_mbps // 1000 // 5 * 5)
