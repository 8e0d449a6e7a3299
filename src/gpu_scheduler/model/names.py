"""The rule for every name that users, admins and agents choose.

A name is 1 to 256 printable characters without `/`, `..` and spaces at its ends. So it fits into a
path, a URL, a line of a log and a label of a metric. Stored names from before the rule stay valid.
"""

from __future__ import annotations

from gpu_scheduler.model.errors import InvalidRequest

MAX_NAME = 256
MAX_NODE_NAME = 63
_SHOWN = 80


def check_name(name: str, what: str, *, longest: int = MAX_NAME, parts: bool = False) -> None:
    """Reject a bad name. `what` begins the message; with `parts`, slashes may separate parts."""
    problem = _problem(name, longest)
    if not problem:
        problem = next(filter(None, map(_part_problem, name.split("/") if parts else [name])), "")
    if problem:
        shown = f" '{clean_text(name)[:_SHOWN]}'" if name else ""
        raise InvalidRequest(f"{what}{shown} {problem}; choose another")


def clean_text(text: str) -> str:
    """Return a text that an agent reports, shortened and without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_NAME].strip())


def _problem(name: str, longest: int) -> str:
    if not name:
        return "is empty"
    if len(name) > longest:
        return f"has {len(name)} characters, and {longest} are allowed"
    if not name.isprintable():
        return "contains a control character"
    return ""


def _part_problem(part: str) -> str:
    if not part or "/" in part:
        return "contains a slash, which separates names in paths"
    if part == "." or ".." in part:
        return "contains '..' or is '.', which mean directories in paths"
    if part != part.strip():
        return "begins or ends with a space"
    return ""
