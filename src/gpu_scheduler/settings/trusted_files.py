"""Reads files that other users must not be able to change: settings, keys and tokens.

A path comes in; bytes go out, or an error that says who else may write (or read) the file and what
to do. The checks apply to the opened file, after links, and to its directory.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from gpu_scheduler.model.errors import InvalidInput

_GROUP_WRITES, _GROUP_READS = 0o020, 0o040
_OTHERS_WRITE, _OTHERS_READ = 0o002, 0o004
ROOT = 0


def read_trusted(
    file: str, most_bytes: int, *, secret: bool = False, group_may_read: bool = False
) -> bytes:
    """The contents of a file that only root or the current user can have written.

    A `secret` must not be readable by others; with `group_may_read` its group may read it, for keys
    that several services share.
    """
    try:
        # Without O_NONBLOCK opening a pipe of that name would block.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            _check(file, os.fstat(descriptor), secret=secret, group_may_read=group_may_read)
            _check_directory(file)
            raw = stream.read(most_bytes + 1)
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", file=file) from error
    if len(raw) > most_bytes:
        raise InvalidInput(f"is larger than {most_bytes:,} bytes", file=file)
    return raw


def _check(file: str, status: os.stat_result, *, secret: bool, group_may_read: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput("is not a file", file=file)
    if status.st_uid not in (ROOT, os.geteuid()):
        raise InvalidInput(
            f"belongs to uid {status.st_uid}; it must belong to root or to you", file=file
        )
    if status.st_mode & _OTHERS_WRITE:
        raise InvalidInput(
            f"all users may write this file, so it is not trusted; use 'chmod o-w {file}'",
            file=file,
        )
    if status.st_mode & _GROUP_WRITES and not _is_own_group(status):
        raise InvalidInput(
            f"group {_group_name(status.st_gid)} may write this file, so it is not trusted; "
            f"use 'chmod g-w {file}'",
            file=file,
        )
    if secret and status.st_mode & _OTHERS_READ:
        raise InvalidInput(
            f"all users may read this file, which holds a secret; use 'chmod 600 {file}' and "
            "make a new secret, because others may know this one",
            file=file,
        )
    if secret and not group_may_read and status.st_mode & _GROUP_READS:
        raise InvalidInput(
            f"group {_group_name(status.st_gid)} may read this file, which holds a secret; "
            f"use 'chmod 600 {file}'",
            file=file,
        )


def directory_problem(path: str) -> str:
    """Why other users could replace what is at this path, and what to do; empty if they cannot.

    The owner of a directory, and who may write it, can rename what is in it, unless it is sticky
    like /tmp. Parts that do not exist yet are created by this process.
    """
    named = Path(os.path.abspath(path))  # noqa: PTH100 - links stay
    for place in dict.fromkeys((*named.parents, *Path(os.path.realpath(path)).parents)):
        try:
            entry, directory = place.lstat(), place.stat()
        except OSError:
            continue
        for status in (entry, directory):
            if status.st_uid not in (ROOT, os.geteuid()) and not _is_unmapped(status.st_uid):
                return (
                    f"{place} belongs to uid {status.st_uid}, who could replace what is in it; "
                    f"choose another directory, or use 'chown {os.geteuid()} {place}'"
                )
        if directory.st_mode & stat.S_ISVTX:
            continue
        if directory.st_mode & _OTHERS_WRITE:
            return f"all users may write {place}; use 'chmod o-w {place}' or another directory"
        if directory.st_mode & _GROUP_WRITES and not _is_own_group(directory):
            group = _group_name(directory.st_gid)
            return f"group {group} may write {place}; use 'chmod g-w {place}' or another directory"
    return ""


def _is_unmapped(uid: int) -> bool:
    """Whether the owner is outside of this user namespace, as in some containers."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
        mapping = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False
    return uid == overflow and mapping[:2] != ["0", "0"]


def _check_directory(file: str) -> None:
    """Reject a directory in which other users could replace the file."""
    directory = Path(os.path.realpath(file)).parent
    mode = directory.stat().st_mode
    if mode & _OTHERS_WRITE and not mode & stat.S_ISVTX:
        raise InvalidInput(
            f"all users may replace this file, because {directory} is writable for all; "
            f"use 'chmod o-w {directory}'",
            file=file,
        )


def _is_own_group(status: os.stat_result) -> bool:
    """Whether the group of the file has no members besides its owner and root."""
    if status.st_gid == ROOT:
        return True
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}


def _group_name(gid: int) -> str:
    try:
        return f"'{grp.getgrgid(gid).gr_name}'"
    except KeyError:
        return str(gid)
