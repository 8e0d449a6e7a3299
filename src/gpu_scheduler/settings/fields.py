"""One setting: a field of a dataclass with its meaning and range beside it."""

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
    """A field with its meaning; `note` says which of several wishes the default follows.

    The value of a `secret` is shown to nobody.
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
    """A field with entries of the reader's own naming, each of them read as `form` (msgspec)."""
    return field(default_factory=dict, metadata={"about": about, "form": form, "note": note})


# --- What the entries of tables look like. Values come in from a file; what is wrong is said.

Price = Annotated[float, Meta(ge=0, le=1_000_000)]


class PriceChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New prices from some day on. What is not named costs what it did before."""

    since: Annotated[
        date, Meta(description="The first day of the new prices, as 2027-01-01; days are of UTC.")
    ] = msgspec.field(name="from")
    gpu_hour: Annotated[
        dict[str, Price], Meta(description="Models whose price changes, with their new prices.")
    ] = {}
    other_gpu_hour: Annotated[Price | None, Meta(description="The new `costs.other_gpu_hour`.")] = (
        None
    )
    cpu_hour: Annotated[Price | None, Meta(description="The new `costs.cpu_hour`.")] = None
    memory_gb_hour: Annotated[Price | None, Meta(description="The new `costs.memory_gb_hour`.")] = (
        None
    )
    kwh: Annotated[Price | None, Meta(description="The new `costs.kwh`.")] = None


Told = Literal[
    "start", "end", "fail", "preempted", "idle", "memory", "gpu_free", "budget", "trouble"
]


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody who can be told."""

    kind: Annotated[
        Literal["webhook", "email", "command"],
        Meta(
            description="A JSON document by HTTP (as Slack, Mattermost and others take it), a mail "
            "by SMTP, or a program that the server's user runs."
        ),
    ]
    events: Annotated[
        tuple[Told, ...],
        Meta(description="What is told about every job, and about the machine."),
    ] = ()
    tenants: Annotated[
        tuple[str, ...], Meta(description="Only for jobs of these tenants; empty: of all.")
    ] = ()
    for_jobs: Annotated[
        bool, Meta(description="Jobs may name this target: `tgpu submit --notify end:NAME`.")
    ] = False
    url: Annotated[str, Meta(description="Of a webhook: its address, http or https.")] = ""
    url_file: Annotated[
        str,
        Meta(description="A file with the address, as it is a secret of its own with some."),
    ] = ""
    secret_file: Annotated[
        str, Meta(description="A file with a key; the body of a webhook is then signed.")
    ] = ""
    to: Annotated[
        str,
        Meta(
            description="Of an e-mail: addresses, separated by commas; `{user}` and `{tenant}` are "
            "filled in."
        ),
    ] = ""
    command: Annotated[
        tuple[str, ...],
        Meta(
            description="Program and arguments; it gets the document on its standard input and "
            "`TGPU_NOTICE_...` variables."
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Refuse a target that lacks what its kind needs, or has what another kind has."""
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
            raise ValueError(f"command is '{self.command[0][:60]}'; give the whole path")


# --- What is wrong with settings, gathered so that all of it is told at once.
#
# One mistake is raised as it is. Several become one error with a line for each, in the order in
# which
# they were found.


class SeveralMistakes(InvalidRequest):
    """More than one thing is wrong; `mistakes` are the sentences, each with its place."""

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        """Say how many, then each on a line of its own."""
        lines = "".join(f"\n  {mistake}" for mistake in mistakes)
        super().__init__(f"{len(mistakes)} mistakes in the settings:{lines}")
        self.mistakes = mistakes


class Mistakes:
    """What was found so far. `groups` are those of which some value could not be read."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.groups: set[str] = set()
        self._found: list[tuple[str, CallerError]] = []

    def __bool__(self) -> bool:
        """Tell whether anything is wrong."""
        return bool(self._found)

    def add(self, error: CallerError, *, place: str = "") -> None:
        """Note a mistake; `place` is for those that do not say where they are."""
        self._found.append((place, error))

    @contextmanager
    def gathered(self, *, place: str = "", group: str = "") -> Iterator[None]:
        """Note what is refused in the block, and go on behind it."""
        try:
            yield
        except (InvalidRequest, InvalidInput) as error:
            self.add(error, place=place)
            if group:
                self.groups.add(group)

    def check(self) -> None:
        """Raise what was found, if anything was."""
        if len(self._found) == 1 and not isinstance(self._found[0][1], SeveralMistakes):
            raise self._found[0][1]
        if self._found:
            raise SeveralMistakes(
                tuple(
                    f"{place}: {told}" if place else told
                    for place, error in self._found
                    for told in told_by(error)
                )
            )


def told_by(error: CallerError) -> tuple[str, ...]:
    """The sentences of an error, one for each mistake."""
    return error.mistakes if isinstance(error, SeveralMistakes) else (str(error),)
