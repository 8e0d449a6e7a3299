"""The frame around a chart: title, a sentence on how to read it, legend, drawing, data for tips."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_scheduler.simulator.report.document import Markup, joined, tag

MINUTE, HOUR, DAY = 60, 3600, 86_400
COLOURS = 8
"""How many colours the style sheet knows; more policies begin again, dashed."""


class Policy(NamedTuple):
    """A policy of the report, and the number that gives it its colour everywhere."""

    number: int
    name: str

    @property
    def classes(self) -> str:
        """The classes that colour everything of this policy."""
        dashed = " dashed" if self.number >= COLOURS else ""
        return f"policy colour{self.number % COLOURS}{dashed}"


def figure(
    title: str,
    note: str,
    drawing: Markup,
    policies: Sequence[Policy],
    tips: dict[str, object] | None = None,
) -> Markup:
    """A card with a chart. The legend stays away where there is only one policy."""
    data = tag("script", _script_json(tips), type="application/json") if tips else Markup()
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", note)),
        legend(policies) if len(policies) > 1 else Markup(),
        drawing,
        data,
        class_="card",
    )


def legend(policies: Sequence[Policy]) -> Markup:
    """One button for each policy; the script lets it hide and show that policy."""
    buttons = (
        tag(
            "button",
            swatch(policy),
            policy.name,
            type="button",
            data_toggle=policy.number,
            aria_pressed="true",
        )
        for policy in policies
    )
    return tag("div", *buttons, class_="legend")


def swatch(policy: Policy) -> Markup:
    """A spot of the policy's colour."""
    return tag("i", class_=f"swatch {policy.classes.removeprefix('policy ')}")


def svg(width: float, height: float, label: str, *children: Markup) -> Markup:
    """A drawing that scales with its card."""
    return tag(
        "svg",
        joined(*children),
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=label,
    )


def _script_json(tips: dict[str, object]) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(tips, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


class Tick(NamedTuple):
    """A place on an axis (0 = beginning, 1 = end) and its label."""

    position: float
    label: str


_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(step * MINUTE for step in (1, 2, 5, 10, 15, 30)),
    *(step * HOUR for step in (1, 2, 3, 6, 12)),
    *(step * DAY for step in (1, 2, 7, 14, 28, 56, 91, 182, 365)),
)
_LOG_STEPS = (
    *(1, 10, MINUTE, 10 * MINUTE),
    *(HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY, 3650 * DAY),
)


def number_steps(top: float, most: int = 5) -> list[float]:
    """Round numbers from 0 up to `top`, in steps of 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0]
    step = 10 ** math.floor(math.log10(top / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if top / (step * factor) <= most)
    return [step * place for place in range(int(top / step + 1e-9) + 1)]


def number_label(number: float) -> str:
    """Short enough to stand beside an axis: `0.05`, `1,200`, `15k`, `1.5M`."""
    if number >= 1_000_000:
        return f"{number / 1_000_000:g}M"
    if number >= 10_000:
        return f"{number / 1000:g}k"
    return f"{number:,g}"


def time_ticks(span_s: float, most: int = 8) -> list[Tick]:
    """Whole seconds, minutes, hours, days or weeks since the beginning."""
    step = next((step for step in _TIME_STEPS if span_s / step < most), _TIME_STEPS[-1])
    while span_s / step >= most:
        step *= 2
    return [
        Tick(place * step / span_s, time_label(place * step))
        for place in range(int(span_s / step) + 1)
    ]


def log_time_ticks(low_s: float, high_s: float) -> list[Tick]:
    """The times that people know, from a second to years, on a logarithmic axis."""
    width = math.log(high_s / low_s)
    return [
        Tick(math.log(step / low_s) / width, time_label(step))
        for step in _LOG_STEPS
        if low_s <= step <= high_s
    ]


def log_steps(low: float, high: float, count: int) -> Sequence[float]:
    """Numbers that stand evenly on a logarithmic axis, both ends included."""
    factor = (high / low) ** (1 / (count - 1))
    return [*(low * factor**place for place in range(count - 1)), high]


def time_label(seconds: float) -> str:
    """The shortest exact name: `0`, `30s`, `5m`, `12h`, `1d 12h`, `3d`."""
    rest = round(seconds)
    parts = []
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (1, "s")):
        if rest >= unit:
            parts.append(f"{rest // unit}{name}")
            rest %= unit
    return " ".join(parts) or "0"


# Line charts over time or over a logarithmic axis.

WIDTH, HEIGHT = 560.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 16.0, 12.0, 30.0
HEADROOM = 1.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A level that matters, drawn as a dashed line with its name."""

    value: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """One line per policy over the same points.

    Points stand evenly: the first at `first`, the last at `1 - first` of the axis. `names` say
    what each point is (for the tips), `unit` what the values are.
    """

    label: str
    lines: Sequence[tuple[Policy, Sequence[float | None]]]
    names: Sequence[str]
    ticks: Sequence[Tick]
    first: float = 0.0
    unit: str = ""
    top: float | None = None
    limit: Limit | None = None
    tick_text: Callable[[float], str] = number_label

    def draw(self) -> Markup:
        """The chart as SVG."""
        return svg(
            WIDTH,
            HEIGHT,
            self.label,
            *self._y_axis(),
            *self._x_axis(),
            *(part for policy, values in self.lines for part in self._line(policy, values)),
            *self._limit(),
            tag("g", class_="cursor"),
        )

    def tips(self) -> dict[str, object]:
        """What the script needs to tell the values under the pointer."""
        return {
            "box": [LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM],
            "first": round(self.first, 6),
            "top": round(self._top, 3),
            "names": list(self.names),
            "unit": self.unit,
            "lines": [
                {
                    "policy": policy.number,
                    "name": policy.name,
                    "values": [None if value is None else round(value, 2) for value in values],
                }
                for policy, values in self.lines
            ],
        }

    @property
    def _top(self) -> float:
        if self.top is not None:
            return self.top
        highest = max((v for _, values in self.lines for v in values if v is not None), default=0)
        highest = max(highest, self.limit.value if self.limit else 0)
        return highest * HEADROOM or 1.0

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / self._top

    def _x(self, position: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * position

    def _y_axis(self) -> Iterator[Markup]:
        for step in number_steps(self._top):
            y = self._y(step)
            yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid")
            yield tag("text", self.tick_text(step), x=LEFT - 8, y=y + 4, class_="y")

    def _x_axis(self) -> Iterator[Markup]:
        bottom = HEIGHT - BOTTOM
        for position, label in self.ticks:
            x = self._x(position)
            yield tag("line", x1=x, x2=x, y1=TOP, y2=bottom, class_="grid")
            yield tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, class_="axis")
            yield tag("text", label, x=x, y=bottom + 20, class_="x")
        yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis")

    def _line(self, policy: Policy, values: Sequence[float | None]) -> Iterator[Markup]:
        width = (1 - 2 * self.first) / max(1, len(values) - 1)
        points = [
            (self._x(self.first + width * place), self._y(value))
            for place, value in enumerate(values)
            if value is not None
        ]
        if not points:
            return
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        if len(self.lines) == 1:  # Several areas would mix their colours.
            bottom = HEIGHT - BOTTOM
            area = f"{path}L{points[-1][0]:.1f} {bottom:g}L{points[0][0]:.1f} {bottom:g}Z"
            yield tag("path", d=area, class_=f"area {policy.classes}", data_policy=policy.number)
        yield tag("path", d=path, class_=f"line {policy.classes}", data_policy=policy.number)

    def _limit(self) -> Iterator[Markup]:
        if self.limit:
            y = self._y(self.limit.value)
            yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="limit")
            yield tag("text", self.limit.label, x=WIDTH - RIGHT, y=y - 5, class_="limit-name")


# Bar charts: horizontal for names (tenants, policies), vertical for classes.

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
    resources = (WIDTH - LEFT - RIGHT) / (len(edges) + 1)
    parts = list(_percent_axis(top))
    for place, (policy, values) in enumerate(series):
        width = (resources - 8) / len(series)
        for column, value in enumerate(values):
            height = (bottom - TOP) * value / top
            parts.append(
                tag(
                    "rect",
                    x=LEFT + resources * column + 4 + width * place,
                    y=bottom - height,
                    width=max(1.0, width - 1.5),
                    height=height,
                    class_=f"bar {policy.classes}",
                    data_policy=policy.number,
                    data_tip=f"{policy.name}: {_class_name(edges, column)}: {value:.1f}%",
                )
            )
    for place, edge in enumerate(edges, start=1):
        x = LEFT + resources * place
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
