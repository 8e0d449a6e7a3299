"""Protobuf messages, fields, numbers and types, and the methods of the gRPC services."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor, FileDescriptor

from gpu_scheduler.wire import agent_pb2, nodes_pb2, scheduler_pb2
from tests.interface.stored import check_snapshot

FILES: tuple[FileDescriptor, ...] = (
    agent_pb2.DESCRIPTOR,
    nodes_pb2.DESCRIPTOR,
    scheduler_pb2.DESCRIPTOR,
)
TYPES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def test_protobuf_messages_and_services() -> None:
    lines: list[str] = []
    for file in sorted(FILES, key=lambda file: file.name.rpartition("/")[2]):
        lines += [f"== {file.name.rpartition('/')[2]} (package {file.package})"]
        for _, service in sorted(file.services_by_name.items()):
            lines += ["", f"service {service.full_name}", *methods(service)]
        for _, enum in sorted(file.enum_types_by_name.items()):
            lines += ["", *values(enum)]
        for _, message in sorted(file.message_types_by_name.items()):
            lines += ["", *fields(message)]
        lines.append("")
    check_snapshot("protobuf.txt", lines[:-1])


def methods(service: Any) -> Iterator[str]:
    for method in sorted(service.methods, key=lambda method: method.name):
        takes = ("stream " if method.client_streaming else "") + method.input_type.full_name
        gives = ("stream " if method.server_streaming else "") + method.output_type.full_name
        yield f"    {method.name}({takes}) -> {gives}"


def values(enum: Any) -> Iterator[str]:
    yield f"enum {enum.full_name}"
    for value in sorted(enum.values, key=lambda value: value.number):
        yield f"    {value.number} {value.name}"


def fields(message: Any) -> Iterator[str]:
    yield f"message {message.full_name}"
    for field in sorted(message.fields, key=lambda field: field.number):
        yield f"    {field.number} {field.name}: {field_type(field)}"
    for _, enum in sorted(message.enum_types_by_name.items()):
        yield from values(enum)
    for _, nested in sorted(message.nested_types_by_name.items()):
        yield from fields(nested)


def field_type(field: Any) -> str:
    about = TYPES[field.type]
    if field.message_type is not None:
        about = field.message_type.full_name
    elif field.enum_type is not None:
        about = field.enum_type.full_name
    if field.is_repeated:
        about = f"repeated {about}"
    group = field.containing_oneof
    if group is not None:
        about += " (optional)" if group.name == f"_{field.name}" else f" (one of {group.name})"
    return about
