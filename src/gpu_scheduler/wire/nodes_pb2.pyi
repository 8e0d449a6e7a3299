from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("token", "node", "request", "version", "protocol", "least_protocol")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEAST_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    token: str
    node: str
    request: bytes
    version: str
    protocol: int
    least_protocol: int
    def __init__(self, token: _Optional[str] = ..., node: _Optional[str] = ..., request: _Optional[bytes] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., least_protocol: _Optional[int] = ...) -> None: ...

class JoinAnswer(_message.Message):
    __slots__ = ("node", "certificate", "authority", "expires_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    node: str
    certificate: bytes
    authority: bytes
    expires_ms: int
    def __init__(self, node: _Optional[str] = ..., certificate: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("certificate", "request", "at_ms", "signature")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    request: bytes
    at_ms: int
    signature: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., request: _Optional[bytes] = ..., at_ms: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...
