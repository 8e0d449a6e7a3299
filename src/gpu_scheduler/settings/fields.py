"""How settings are declared: fields with a description and range, tables, and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from datetime import date
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from gpu_scheduler.model.errors import CallerError, InvalidInput, InvalidRequest

T = TypeVar("T")

DAY_S = 86_400.0
LAST_PORT = 65_535


def setting(
    default: T,
    about: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    note: str = "",
    secret: bool = False,
) -> T:
    """A dataclass field with its description and range; `note` explains the default.

    The value of a `secret` is never shown.
    """
    return field(
        default=default,
        metadata={
            "about": about,
            "least": least,
            "most": most,
            "choices": choices,
            "note": note,
            "secret": secret,
        },
    )


def table(form: Any, about: str, *, note: str = "") -> dict[str, Any]:
    """A field with named entries, each of them read as `form` (msgspec)."""
    return field(default_factory=dict, metadata={"about": about, "form": form, "note": note})


Price = Annotated[float, Meta(ge=0, le=1_000_000)]


class PriceChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New prices from a given day on. A price that is not named stays the same."""

    since: Annotated[
        date, Meta(description="First day of the new prices, such as 2027-01-01 (UTC).")
    ] = msgspec.field(name="from")
    gpu_hour: Annotated[
        dict[str, Price],
        Meta(description="New prices by GPU model, where they change."),
    ] = {}
    other_gpu_hour: Annotated[Price | None, Meta(description="The new `costs.other_gpu_hour`.")] = (
        None
    )
    cpu_hour: Annotated[Price | None, Meta(description="The new `costs.cpu_hour`.")] = None
    memory_gb_hour: Annotated[Price | None, Meta(description="The new `costs.memory_gb_hour`.")] = (
        None
    )
    kwh: Annotated[Price | None, Meta(description="The new `costs.kwh`.")] = None


EventName = Literal[
    "start", "end", "fail", "preempted", "idle", "memory", "gpu_free", "budget", "trouble"
]


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver of notifications."""

    kind: Annotated[
        Literal["webhook", "email", "command"],
        Meta(
            description="How to deliver: a JSON document by HTTP (the format of Slack, Mattermost "
            "and others), an e-mail by SMTP, or a program that runs as the server's user."
        ),
    ]
    events: Annotated[
        tuple[EventName, ...],
        Meta(description="Events of all jobs and of the cluster that are sent to this target."),
    ] = ()
    tenants: Annotated[
        tuple[str, ...], Meta(description="Only jobs of these tenants; empty: all tenants.")
    ] = ()
    for_jobs: Annotated[
        bool,
        Meta(description="Jobs may name this target: `tgpu submit --notify end:NAME`."),
    ] = False
    url: Annotated[str, Meta(description="URL of a webhook, http or https.")] = ""
    url_file: Annotated[
        str,
        Meta(description="File with the URL of a webhook, where the URL itself is a secret."),
    ] = ""
    secret_file: Annotated[
        str, Meta(description="File with a key that signs the body of a webhook.")
    ] = ""
    to: Annotated[
        str,
        Meta(
            description="E-mail addresses, separated by commas; `{user}` and `{tenant}` are "
            "replaced."
        ),
    ] = ""
    command: Annotated[
        tuple[str, ...],
        Meta(
            description="Program and arguments; the program reads the JSON document from standard "
            "input and gets `TGPU_NOTICE_...` variables."
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Reject a target without the fields of its kind, or with fields of another kind."""
        needed = {"webhook": ("url", "url_file"), "email": ("to",), "command": ("command",)}
        own = needed[self.kind]
        if not any(getattr(self, name) for name in own):
            raise ValueError(f"a target of kind {self.kind} needs {' or '.join(own)}")
        extra = ("secret_file",) if self.kind == "webhook" else ()
        for name in ("url", "url_file", "secret_file", "to", "command"):
            if getattr(self, name) and name not in (*own, *extra):
                raise ValueError(f"a target of kind {self.kind} has no {name}")
        if self.url and self.url_file:
            raise ValueError("url and url_file are both given; leave out one")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url is '{self.url[:60]}'; it must begin with http:// or https://")
        if self.command and not self.command[0].startswith("/"):
            raise ValueError(f"command is '{self.command[0][:60]}'; give an absolute path")


class SettingErrors(InvalidRequest):
    """Several errors; `messages` has one sentence with its place for each."""

    def __init__(self, messages: tuple[str, ...]) -> None:
        lines = "".join(f"\n  {message}" for message in messages)
        super().__init__(f"{len(messages)} errors in the settings:{lines}")
        self.messages = messages


class ErrorCollector:
    """Collects errors so that all are reported at once, in the order they were found.

    `groups` are the groups in which some value could not be read.
    """

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self._found: list[tuple[str, CallerError]] = []

    def __bool__(self) -> bool:
        """Whether there is any error."""
        return bool(self._found)

    def add(self, error: CallerError, *, place: str = "") -> None:
        """Add an error; `place` is for errors that do not name their place."""
        self._found.append((place, error))

    @contextmanager
    def collect(self, *, place: str = "", group: str = "") -> Iterator[None]:
        """Add the error that the block raises, and continue after the block."""
        try:
            yield
        except (InvalidRequest, InvalidInput) as error:
            self.add(error, place=place)
            if group:
                self.groups.add(group)

    def raise_if_any(self) -> None:
        """Raise a single error as it is, several as one `SettingErrors`."""
        if len(self._found) == 1 and not isinstance(self._found[0][1], SettingErrors):
            raise self._found[0][1]
        if self._found:
            raise SettingErrors(
                tuple(
                    f"{place}: {message}" if place else message
                    for place, error in self._found
                    for message in messages_of(error)
                )
            )


def messages_of(error: CallerError) -> tuple[str, ...]:
    """The messages of an error, one for each problem."""
    return error.messages if isinstance(error, SettingErrors) else (str(error),)
