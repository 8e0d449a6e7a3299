"""Server-side apply, as far as a scheduler uses it: who owns which field of an object.

A field is a path of keys. Lists are one field, except `conditions`, whose entries are told apart by
their type.
"""

import copy
from typing import Any

Path = tuple[str, ...]
NOT_OWNED = {"apiVersion", "kind"}
META_NOT_OWNED = {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation"}


class ApplyConflict(Exception):
    """Other managers own these fields with other values."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__(", ".join(f"{path} (owned by {who})" for path, who in fields))
        self.fields = fields


class FieldManagers:
    """The owners of the fields of all objects, by uid."""

    def __init__(self) -> None:
        self._owned: dict[str, dict[str, set[Path]]] = {}

    def forget(self, uid: str) -> None:
        self._owned.pop(uid, None)

    def record_update(self, uid: str, manager: str, old: Any, new: Any) -> None:
        """An ordinary write owns what it changed."""
        before, after = leaves(old), leaves(new)
        changed = {p for p in before | after if before.get(p) != after.get(p)}
        owners = self._owned.setdefault(uid, {})
        for paths in owners.values():
            paths.difference_update(changed)
        owners.setdefault(manager, set()).update(changed & after.keys())

    def apply(
        self, uid: str, manager: str, old: Any, wanted: Any, *, force: bool
    ) -> tuple[Any, bool]:
        """The object with the applied fields, and whether anything has another owner now.

        Raises `ApplyConflict` unless forced.
        """
        owners = self._owned.setdefault(uid, {})
        before = copy.deepcopy(owners)
        applied, present = leaves(wanted), leaves(old)
        conflicts = [
            (path, other)
            for path, value in applied.items()
            for other, paths in sorted(owners.items())
            if other != manager and path in paths and present.get(path) != value
        ]
        if conflicts and not force:
            raise ApplyConflict([("." + ".".join(path), other) for path, other in conflicts])
        for path, other in conflicts:
            owners[other].discard(path)
        dropped = owners.get(manager, set()) - applied.keys()
        owners[manager] = set(applied)
        new = copy.deepcopy(old)
        # The type of a condition goes last: the others are found by it.
        for path in sorted(dropped, key=lambda one: (one[-1] == "type", one)):
            if not any(path in paths for paths in owners.values()):
                _remove(new, path)
        for path, value in applied.items():
            _set(new, path, value)
        return new, owners != before


def leaves(one: Any, path: Path = ()) -> dict[Path, Any]:
    """Every field that can be owned, with its value."""
    if isinstance(one, dict) and (one or not path):
        found: dict[Path, Any] = {}
        for name, value in one.items():
            if (not path and name in NOT_OWNED) or (
                path == ("metadata",) and name in META_NOT_OWNED
            ):
                continue
            found |= leaves(value, (*path, name))
        return found
    if path and path[-1] == "conditions" and isinstance(one, list):
        found = {}
        for entry in one:
            found |= leaves(entry, (*path, f"type={entry['type']}"))
        return found
    return {path: one}


def _entry(container: Any, part: str) -> Any:
    """What a part of a path names in a dictionary, or in a list of conditions."""
    if isinstance(container, list):
        kind = part.removeprefix("type=")
        return next((one for one in container if one["type"] == kind), None)
    return container.get(part)


def _set(one: Any, path: Path, value: Any) -> None:
    for part in path[:-1]:
        following = _entry(one, part)
        if following is None:
            if isinstance(one, list):
                following = {"type": part.removeprefix("type=")}
                one.append(following)
            else:
                following = one[part] = [] if part == "conditions" else {}
        one = following
    if value == {}:
        one.setdefault(path[-1], {})
    else:
        one[path[-1]] = copy.deepcopy(value)


def _remove(one: Any, path: Path) -> None:
    holders = [one]
    for part in path[:-1]:
        holders.append(_entry(holders[-1], part))
        if holders[-1] is None:
            return
    holders[-1].pop(path[-1], None)
    for place in range(len(path) - 1, 0, -1):
        emptied, holder = holders[place], holders[place - 1]
        if emptied:
            return
        if isinstance(holder, list):
            holder[:] = [one for one in holder if one is not emptied]
        else:
            del holder[path[place - 1]]
