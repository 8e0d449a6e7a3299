"""Settings for who starts a server, or asks whether one would start: all mistakes at once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.settings.mistakes import Mistakes, told_by
from gpu_scheduler.settings.sources import Loaded, read_all

_KEY = re.compile(r"[a-z]+\.[a-z_]+")
_SAID_SO = ("simulated GPUs", "gpu.simulate")
"""One setting is called by what it means, as it is a word of the command line, too."""


def checked_settings(
    config: str | None,
    *,
    flags: Mapping[str, object] | None = None,
    has_nodes: bool,
    hands_over: bool = False,
) -> tuple[Loaded, tuple[str, ...]]:
    """Read all sources and go by the rules of a start; warnings come with the settings.

    What is wrong by itself is told together with the rules that the rest breaks. Who `hands_over`
    to another process leaves the rules to that one, as long as nothing is wrong: they take a second
    to load.
    """
    loaded, mistakes = read_all(config, flags=flags)
    if hands_over and not mistakes and _declares_well(loaded.settings.gpu.simulate):
        return loaded, ()
    from gpu_scheduler.server.start_rules import check_settings

    warnings: tuple[str, ...] = ()
    try:
        warnings = check_settings(
            loaded.settings, has_nodes=has_nodes, is_onlooker=True, unread=mistakes.groups
        )
    except (InvalidInput, InvalidRequest) as error:
        _add(mistakes, error, loaded.origins)
    mistakes.check()
    return loaded, warnings


def _declares_well(gpus: str) -> bool:
    """Tell whether GPUs can be declared so: a word of the command line is answered at once."""
    if not gpus:
        return True
    from gpu_scheduler.agent.devices.declared import parse_declared

    try:
        parse_declared(gpus)
    except InvalidRequest:
        return False
    return True


def _add(
    mistakes: Mistakes, error: InvalidInput | InvalidRequest, origins: Mapping[str, str]
) -> None:
    """Note the rules that are broken, with the place of a setting that each one names."""
    sentences = told_by(error)
    if len(sentences) == 1 and not mistakes:
        mistakes.add(error)
        return
    for told in sentences:
        keys = _KEY.findall(told.replace(*_SAID_SO))
        places = (origins.get(key, "default") for key in keys)
        place = next((place for place in places if place != "default"), "")
        mistakes.add(InvalidRequest(told), place="command line" if place == "flag" else place)
