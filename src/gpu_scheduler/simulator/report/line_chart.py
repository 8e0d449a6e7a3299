"""Lines over time or over a logarithmic axis, with round ticks and data for the tips."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpu_scheduler.simulator.report.axes import Tick, number_label, number_steps
from gpu_scheduler.simulator.report.figure import Policy, svg
from gpu_scheduler.simulator.report.markup import Markup, tag

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
