"""Encryption of the secrets in a store: rows with plain secrets in, rows with sealed ones out.

Sealed are the variables of captured environments, of launches and of services, and the private key
of the node authority. The key is outside the database. AES-SIV needs no nonce, so that equal
launches stay equal and are stored once. Rows from before are read as they are; `reseal` replaces
them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from gpu_scheduler.model.errors import InvalidRequest, StoreDamaged, StoreUnavailable
from gpu_scheduler.model.identity import Authority
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.service import Service
from gpu_scheduler.store.rows import EnvironmentRow, LaunchRow, NewJobs, Write

KEY_BYTES = 64
MARK = "tgpu-sealed-1-"
"""A sealed text is this mark, the id of the key, and the ciphertext in base64."""
SEALED_NAME = ""
"""The name of the only variable of sealed variables; real variables have a name."""
Pairs = tuple[tuple[str, str], ...]


def new_key() -> str:
    """Return a new random key as text."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


class Cipher:
    """Seals with the first key, and opens what any of the keys has sealed."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Take keys as text, the newest first; without any, nothing is sealed."""
        decoded = [_key_bytes(text) for text in keys]
        self._by_id = {_key_id(key): AESSIV(key) for key in decoded}
        self.key_ids = frozenset(self._by_id)
        self.key_id = _key_id(decoded[0]) if decoded else ""
        """The id of the key that seals; empty if nothing is sealed."""

    def seal(self, text: str) -> str:
        """Return the sealed form of a text, unless it is sealed with the newest key already."""
        if not self.key_id or not text:
            return text
        mark = f"{MARK}{self.key_id}-"
        if text.startswith(mark):
            return text
        data = self._by_id[self.key_id].encrypt(self.open(text).encode(), None)
        return mark + base64.b64encode(data).decode()

    def open(self, text: str) -> str:
        """Return the text that was sealed; a text that is not sealed is returned as it is."""
        if not text.startswith(MARK):
            return text
        key_id, _, data = text.removeprefix(MARK).partition("-")
        key = self._by_id.get(key_id)
        if key is None:
            known = ", ".join(self._by_id) or "none"
            raise StoreUnavailable(
                f"secrets in the database are encrypted with key {key_id[:8]}, and the key file "
                f"has {known}; restore the key file that belongs to this database "
                "(database.key_file)"
            )
        try:
            return key.decrypt(base64.b64decode(data), None).decode()
        except (InvalidTag, ValueError):
            raise StoreDamaged(
                "a secret in the database was changed and cannot be decrypted; restore a backup"
            ) from None

    def seal_pairs(self, pairs: Pairs) -> Pairs:
        """Return the sealed form of variables: one variable without a name."""
        if not self.key_id or not pairs:
            return pairs
        text = pairs[0][1] if _is_sealed(pairs) else json.dumps(pairs)
        return ((SEALED_NAME, self.seal(text)),)

    def open_pairs(self, pairs: Pairs) -> Pairs:
        """Return the variables that were sealed."""
        if not _is_sealed(pairs):
            return pairs
        return tuple((name, value) for name, value in json.loads(self.open(pairs[0][1])))

    # Rows

    def seal_writes(self, writes: list[Write]) -> list[Write]:
        """Return rows with their secrets sealed."""
        if not self.key_id:
            return writes
        return [self._seal_write(write) if type(write) in _SECRET else write for write in writes]

    def _seal_write(self, write: Any) -> Any:
        match write:
            case EnvironmentRow():
                return replace(write, variables=self.seal_pairs(write.variables))
            case LaunchRow(job_id, launch):
                return LaunchRow(job_id, self.seal_launch(launch))
            case NewJobs():
                return replace(write, launch=self.seal_launch(write.launch))
            case Service():
                return replace(write, launch=self.seal_launch(write.launch))
            case Authority():
                return replace(write, key=self.seal(write.key))
            case _:
                return write

    def seal_launch(self, launch: Launch) -> Launch:
        """Return a launch with its variables sealed."""
        if not launch.environment:
            return launch
        return replace(launch, environment=self.seal_pairs(launch.environment))

    def open_launch(self, launch: Launch) -> Launch:
        """Return a launch with its variables."""
        if not _is_sealed(launch.environment):
            return launch
        return replace(launch, environment=self.open_pairs(launch.environment))


_SECRET = frozenset({EnvironmentRow, LaunchRow, NewJobs, Service, Authority})
NO_CIPHER = Cipher(())
"""Seals nothing."""


def _is_sealed(pairs: Pairs) -> bool:
    return len(pairs) == 1 and pairs[0][0] == SEALED_NAME and pairs[0][1].startswith(MARK)


def _key_bytes(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidRequest(
            f"a key of the database must be {KEY_BYTES} random bytes in base64; make one with "
            f"'head -c {KEY_BYTES} /dev/urandom | base64 -w0'"
        )
    return key


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"tgpu key id" + key).hexdigest()[:8]


# Sealing rows that are stored already

Query = Callable[[str], Iterable[tuple[Any, ...]]]
Update = Callable[[str, tuple[Any, ...]], object]
_COLUMNS = (
    ("environments", "variables", ("name",)),
    ("launches", "launch", ("id",)),
    ("services", "service", ("id",)),
    ("identities", "identity", ("kind", "id")),
)
"""Each table with secrets: its column, and its key."""
_KEY_ID = slice(len(MARK), len(MARK) + 8)


def reseal(cipher: Cipher, query: Query, update: Update, placeholder: str) -> int:
    """Seal all secrets of a database with the newest key; returns how many rows changed.

    `query` and `update` run statements in one transaction of the caller; `placeholder` is that of
    the database.
    """
    changed = 0
    for table, column, key in _COLUMNS:
        names = ", ".join(f'"{name}"' for name in (*key, column))
        mark = f"{MARK}{cipher.key_id}-"
        # Both databases have `replace`; LIKE would need an escaped % in one of them.
        found = f"SELECT {names} FROM {table} WHERE replace({column}, '{mark}', '') = {column}"  # noqa: S608
        if table == "launches":
            found += f""" AND replace({column}, '"environment":', '') <> {column}"""
        where = " AND ".join(f'"{name}" = {placeholder}' for name in key)
        statement = f"UPDATE {table} SET {column} = {placeholder} WHERE {where}"  # noqa: S608
        for *keys, text in list(query(found)):
            sealed = _resealed(cipher, table, text)
            if sealed != text:
                update(statement, (sealed, *keys))
                changed += 1
    return changed


def sealed_key_ids(query: Query) -> set[str]:
    """Return the ids of keys that sealed secrets of a database, from one row of each table."""
    found = set()
    for table, column, _ in _COLUMNS:
        sealed = f"replace({column}, '{MARK}', '') <> {column}"
        statement = f"SELECT {column} FROM {table} WHERE {sealed} LIMIT 1"  # noqa: S608
        for (text,) in query(statement):
            found.add(text[text.index(MARK) :][_KEY_ID])
    return found


def _resealed(cipher: Cipher, table: str, text: str) -> str:
    document = json.loads(text)
    if table == "environments":
        document = cipher.seal_pairs(_pairs(document))
    elif table == "launches":
        _reseal_variables(cipher, document)
    elif table == "services":
        _reseal_variables(cipher, document.get("launch", {}))
    elif "certificate" in document and "key" in document:
        document["key"] = cipher.seal(document["key"])
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _reseal_variables(cipher: Cipher, launch: dict[str, Any]) -> None:
    if launch.get("environment"):
        launch["environment"] = cipher.seal_pairs(_pairs(launch["environment"]))


def _pairs(found: list[list[str]]) -> Pairs:
    return tuple((name, value) for name, value in found)
