"""Recorded messages of a release are understood by every later one."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import devices_of, readings_of
from tests.wire_record import FOLDER, forms, kind_named, methods

RELEASES = sorted(FOLDER.iterdir())
EXAMPLES = [file for release in RELEASES for file in sorted(release.glob("*.bin"))]
UNKNOWN_FIELD = b"\xfa\xff\x03\x03new"  # field 8191, a text


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_no_field_changes_number_name_or_type(release: Path) -> None:
    now = forms()
    for name, fields in json.loads((release / "forms.json").read_text())["messages"].items():
        assert name in now, f"message {name} is gone"
        for number, form in fields.items():
            assert now[name].get(number) == form, f"field {number} of {name} was {form}"


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_no_method_is_removed_or_changed(release: Path) -> None:
    recorded = json.loads((release / "forms.json").read_text())["methods"]
    assert recorded.items() <= methods().items()


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_recorded_messages_are_read_as_intended(file: Path) -> None:
    kind = GetMessageClass(kind_named(file.stem.partition(".")[0]))
    message = kind.FromString(file.read_bytes())
    meant = json_format.Parse(file.with_suffix(".json").read_text("utf-8"), kind())
    assert message == meant
    assert not list(_unknown(message)), "a field is not known any more"
    assert message.SerializeToString(deterministic=True) == file.read_bytes()


def test_fields_of_later_version_are_ignored() -> None:
    file = FOLDER / "v1" / "AgentMessage.hello.bin"
    later = pb.AgentMessage.FromString(file.read_bytes() + UNKNOWN_FIELD)
    assert later.hello == pb.AgentMessage.FromString(file.read_bytes()).hello


def test_recorded_hello_still_gives_node_with_devices() -> None:
    hello = pb.AgentMessage.FromString((FOLDER / "v1" / "AgentMessage.hello.bin").read_bytes())
    devices = devices_of(hello.hello.inventory)
    assert [(device.index, device.model) for device in devices] == [(101, "model ü")]


def test_recorded_telemetry_still_gives_readings() -> None:
    file = FOLDER / "v1" / "AgentMessage.telemetry.bin"
    readings = readings_of(pb.AgentMessage.FromString(file.read_bytes()).telemetry)
    assert readings.readings[0].temperature_c == 104
    assert readings.readings[0].processes[0].user == "user ü"


def _unknown(message: Any) -> Any:
    from google.protobuf.unknown_fields import UnknownFieldSet

    yield from UnknownFieldSet(message)
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for inner in value if field.is_repeated else [value]:
            yield from _unknown(inner)
