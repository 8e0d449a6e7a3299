"""The frame around a chart: title, a sentence on how to read it, legend, drawing, data for tips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from gpu_scheduler.simulator.report.markup import Markup, joined, tag

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
