"""Bars: grouped and lying for names (tenants, policies), grouped and standing for classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_scheduler.simulator.report.axes import number_steps
from gpu_scheduler.simulator.report.figure import Policy, svg
from gpu_scheduler.simulator.report.line_chart import (
    BOTTOM,
    HEADROOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
)
from gpu_scheduler.simulator.report.markup import Markup, tag

NAME_WIDTH = 118.0
VALUE_WIDTH = 74.0
BAR = 13.0
BAR_GAP = 3.0
GROUP_GAP = 14.0
LONGEST_NAME = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One value of one policy, with the text to print beside it."""

    policy: Policy
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarGroup:
    """Bars under one name; `mark` is a value to compare them with."""

    name: str
    bars: Sequence[Bar]
    mark: float | None = None
    mark_text: str = ""


def lying_bars(label: str, groups: Sequence[BarGroup]) -> Markup:
    """Groups of bars from left to right, one group under the other."""
    top = max((bar.value for group in groups for bar in group.bars), default=0.0)
    top = max([top, *(group.mark for group in groups if group.mark is not None)]) or 1.0
    scale = (WIDTH - NAME_WIDTH - VALUE_WIDTH) / top
    parts: list[Markup] = []
    y = GROUP_GAP / 2
    for group in groups:
        height = len(group.bars) * (BAR + BAR_GAP) - BAR_GAP
        parts.append(_group_name(group.name, y + height / 2))
        tops = [y + place * (BAR + BAR_GAP) for place in range(len(group.bars))]
        for bar, bar_y in zip(group.bars, tops, strict=True):
            parts.append(_lying_bar(bar, group.name, bar_y, scale))
        if group.mark is not None:
            x = NAME_WIDTH + group.mark * scale
            tip = f"{group.name}: {group.mark_text}"
            ends = {"x1": x, "x2": x, "y1": y - 3, "y2": y + height + 3}
            parts.append(tag("line", **ends, class_="mark", data_tip=tip))
        # Values come last: they may stand on a mark, and must stay legible.
        for bar, bar_y in zip(group.bars, tops, strict=True):
            parts.append(_bar_value(bar, bar_y, scale))
        y += height + GROUP_GAP
    foot = y - GROUP_GAP / 2
    parts.append(tag("line", x1=NAME_WIDTH, x2=NAME_WIDTH, y1=0.0, y2=foot, class_="axis"))
    return svg(WIDTH, foot, label, *parts)


def standing_bars(
    label: str,
    edges: Sequence[str],
    series: Sequence[tuple[Policy, Sequence[float]]],
    ends: tuple[str, str],
) -> Markup:
    """Classes side by side with their edges named between them; `ends` name both directions.

    Values are percentages; there is one more class than there are edges.
    """
    top = max((value for _, values in series for value in values), default=0.0) * HEADROOM or 1.0
    bottom = HEIGHT - BOTTOM
    slot = (WIDTH - LEFT - RIGHT) / (len(edges) + 1)
    parts = list(_percent_axis(top))
    for place, (policy, values) in enumerate(series):
        width = (slot - 8) / len(series)
        for column, value in enumerate(values):
            height = (bottom - TOP) * value / top
            parts.append(
                tag(
                    "rect",
                    x=LEFT + slot * column + 4 + width * place,
                    y=bottom - height,
                    width=max(1.0, width - 1.5),
                    height=height,
                    class_=f"bar {policy.classes}",
                    data_policy=policy.number,
                    data_tip=f"{policy.name}: {_class_name(edges, column)}: {value:.1f}%",
                )
            )
    for place, edge in enumerate(edges, start=1):
        x = LEFT + slot * place
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, class_="axis"))
        parts.append(tag("text", edge, x=x, y=bottom + 20, class_="x"))
    parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis"))
    parts.append(tag("text", ends[0], x=LEFT + 4, y=TOP + 8, class_="end"))
    parts.append(tag("text", ends[1], x=WIDTH - RIGHT, y=TOP + 8, class_="end last"))
    return svg(WIDTH, HEIGHT, label, *parts)


def _group_name(name: str, y: float) -> Markup:
    short = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
    return tag("text", short, x=NAME_WIDTH - 8, y=y + 4, class_="y name", data_tip=name)


def _lying_bar(bar: Bar, group: str, y: float, scale: float) -> Markup:
    tip = bar.text if bar.policy.name == group else f"{group}: {bar.text}"
    return tag(
        "rect",
        x=NAME_WIDTH,
        y=y,
        width=_length(bar, scale),
        height=BAR,
        rx=2,
        class_=f"bar {bar.policy.classes}",
        data_policy=bar.policy.number,
        data_tip=f"{bar.policy.name}: {tip}",
    )


def _bar_value(bar: Bar, y: float, scale: float) -> Markup:
    x = NAME_WIDTH + _length(bar, scale) + 6
    return tag(
        "text", bar.text, x=x, y=y + BAR - 2.5, class_="value", data_policy=bar.policy.number
    )


def _length(bar: Bar, scale: float) -> float:
    """At least a pixel, so that nothing still shows its colour."""
    return max(1.0, bar.value * scale)


def _percent_axis(top: float) -> Iterator[Markup]:
    for step in number_steps(top):
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * step / top
        yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid")
        yield tag("text", f"{step:g}%", x=LEFT - 8, y=y + 4, class_="y")


def _class_name(edges: Sequence[str], column: int) -> str:
    if column == 0:
        return f"below {edges[0]}"
    if column == len(edges):
        return f"above {edges[-1]}"
    return f"{edges[column - 1]} to {edges[column]}"
