"""The settings with which this server runs, for admins. Secrets are hidden."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.http.openapi import Router
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.settings.catalogue import HIDDEN, ITEMS, plain_values
from gpu_scheduler.settings.schema import Settings


class SettingForm(Struct):
    """One setting. `value` and `default` are JSON; a secret is shown as "(hidden)"."""

    key: str
    value: str
    default: str
    changed: bool
    about: str


class SettingList(Struct):
    """All settings, by group."""

    settings: list[SettingForm]


router = Router("cluster")
_DEFAULTS = plain_values(Settings())


@router.operation("GET", "/settings", response=SettingList, errors=(403,))
async def list_settings(context: Context, request: Request) -> Response:
    """The settings of the running server (admins); those of the file may be newer."""
    context.parse_query(request)
    expect_admin(request.caller, "see the settings")
    forms = []
    for key, value in plain_values(context.settings.running).items():
        item, default = ITEMS[key], _DEFAULTS[key]
        forms.append(
            SettingForm(
                key=key,
                value=_json(HIDDEN if value and item.secret else _shown(value)),
                default=_json(default),
                changed=value != default,
                about=item.about,
            )
        )
    return json_response(SettingList(forms))


def _shown(value: object) -> object:
    """Hide addresses in tables: the address of a webhook is often its secret."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if name == "url" and part else _shown(part) for name, part in value.items()
        }
    return [_shown(part) for part in value] if isinstance(value, list | tuple) else value


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
