"""What the entries of tables look like. Values come in from a file; what is wrong is said."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

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
