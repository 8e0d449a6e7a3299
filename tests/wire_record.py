"""Wire messages of a release, kept for compatibility tests: message definitions and full examples.

`python -m tests.wire_record v1` writes them; that is done once for a release. Later versions may
add to the forms, and must understand the examples.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpu_scheduler.wire import agent_pb2, nodes_pb2, scheduler_pb2

FOLDER = Path(__file__).parent / "fixtures" / "wire"
FILES: tuple[FileDescriptor, ...] = (
    agent_pb2.DESCRIPTOR,
    nodes_pb2.DESCRIPTOR,
    scheduler_pb2.DESCRIPTOR,
)
EXAMPLES = (
    *("AgentMessage", "ServerMessage", "Order", "Fact"),
    *("JoinRequest", "JoinAnswer", "RenewRequest"),
    *("SubmitJobRequest", "SubmitJobsRequest", "SubmitJobAnswer", "SubmitJobsAnswer"),
    *("CancelJobRequest", "CancelJobAnswer", "GetJobStatusRequest", "Job"),
    *("ListJobsRequest", "ListJobsAnswer", "WatchEventsRequest", "Event"),
    *("UpdateTenantQuotaRequest", "Tenant", "GetMetricsRequest", "GetMetricsAnswer"),
    *("GetClusterStatusRequest", "ClusterStatus", "ErrorStatus"),
)
Form = dict[str, Any]


def forms() -> dict[str, Form]:
    """Every message by name: its fields by number, with all that determines their bytes."""
    return {kind.full_name: _form(kind) for file in FILES for kind in _messages(file)}


def methods() -> dict[str, list[str]]:
    """Every method by name: request, response, and which of them are streams."""
    return {
        f"{service.full_name}/{method.name}": [
            ("stream " if method.client_streaming else "") + method.input_type.full_name,
            ("stream " if method.server_streaming else "") + method.output_type.full_name,
        ]
        for file in FILES
        for service in file.services_by_name.values()
        for method in service.methods
    }


def examples(name: str) -> Iterator[tuple[str, Message]]:
    """A message with all fields set; one for each oneof choice."""
    kind = kind_named(name)
    choices = [field for oneof in kind.oneofs for field in oneof.fields if len(oneof.fields) > 1]
    for choice in choices or [None]:
        message = GetMessageClass(kind)()
        _fill(message, choice, depth=0)
        yield (f"{name}.{choice.name}" if choice is not None else name), message


def kind_named(name: str) -> Descriptor:
    return next(
        file.message_types_by_name[name] for file in FILES if name in file.message_types_by_name
    )


def _messages(file: FileDescriptor) -> Iterator[Descriptor]:
    waiting = list(file.message_types_by_name.values())
    while waiting:
        kind = waiting.pop()
        waiting += kind.nested_types
        yield kind


def _form(kind: Descriptor) -> Form:
    return {
        str(field.number): [
            field.name,
            int(field.type),
            field.is_repeated,
            field.message_type.full_name if field.message_type else "",
            field.containing_oneof.name if field.containing_oneof else "",
        ]
        for field in sorted(kind.fields, key=lambda field: field.number)
    }


def _fill(message: Message, choice: FieldDescriptor | None, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        is_choice = oneof is not None and len(oneof.fields) > 1
        if is_choice and choice is not None and choice.containing_oneof is oneof:
            if choice is not field:
                continue
        elif is_choice and oneof is not None and oneof.fields[0] is not field:
            continue
        _set(message, field, depth)


def _set(message: Message, field: FieldDescriptor, depth: int) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        value = kind.fields_by_name["value"]
        getattr(message, field.name)["key"] = _plain(value)
    elif kind is not None:
        if depth < 4:
            inner = getattr(message, field.name)
            inner = inner.add() if field.is_repeated else inner
            if kind.file.package == "google.protobuf":
                _well_known(inner)
            else:
                inner.SetInParent()
                _fill(inner, None, depth + 1)
    elif field.is_repeated:
        getattr(message, field.name).append(_plain(field))
    else:
        setattr(message, field.name, _plain(field))


def _well_known(message: Message) -> None:
    if message.DESCRIPTOR.name == "Any":
        example = scheduler_pb2.ErrorInfo(reason="quota_exceeded", domain="gpu-scheduler")
        message.Pack(example)  # type: ignore[attr-defined]
    else:
        message.seconds = 1_700_000_000  # type: ignore[attr-defined]


def _plain(field: FieldDescriptor) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            return b"\x00\xff bytes" if is_bytes else f"{field.name} ü"
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return field.number + 0.5
    return field.number + 100


def record(release: str) -> None:
    """Write everything for a release."""
    folder = FOLDER / release
    folder.mkdir(parents=True, exist_ok=True)
    text = {"messages": forms(), "methods": methods()}
    (folder / "forms.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    for name in EXAMPLES:
        for title, message in examples(name):
            (folder / f"{title}.bin").write_bytes(message.SerializeToString(deterministic=True))
            told = json_format.MessageToJson(message, preserving_proto_field_name=True)
            (folder / f"{title}.json").write_text(told + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1])
