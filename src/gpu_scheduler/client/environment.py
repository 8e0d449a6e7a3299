"""What a job takes over from where it was submitted: environment, directory, umask.

The caller's choice of GPUs is left behind: the scheduler chooses them.
"""

from __future__ import annotations

import os

from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LEFT_BEHIND = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
        *("GPU_DEVICE_ORDINAL", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
        *("GPU_SCHEDULER_TOKEN", "GPU_SCHEDULER_TOKEN_FILE"),
        *("_", "SHLVL", "OLDPWD", "TMUX", "TMUX_PANE", "STY", "WINDOW"),
    }
)
"""Devices of the caller, places in another gang, tokens, and what belongs to its own shell."""
_OWN = "TGPU_"
_SERVER = "TGPU_SERVER"
"""The one that goes along: a job may submit others."""


def capture(export: str | None = None, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The fields of a submission that describe the surroundings."""
    variables = os.environ if environ is None else environ
    carried, given = exported(export, variables)
    fields: dict[str, Any] = {
        "captured_environment": carried,
        "working_directory": directory(variables),
        "umask": umask(),
    }
    if given:
        fields["environment"] = given
    return fields


def exported(
    export: str | None, variables: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """What is carried over and what is set, for `ALL`, `NONE`, `A,B=c` or `ALL,B=c`."""
    words = [word for word in (export or "ALL").split(",") if word]
    carried: dict[str, str] = {}
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or (name.upper() in ("ALL", "NONE") and equals):
            raise InvalidRequest(f"--export has '{word}'; write ALL, NONE, NAME or NAME=value")
        if equals:
            given[name] = value
        elif name.upper() == "ALL":
            odd = unsendable(variables)
            carried |= {
                key: text for key, text in variables.items() if _goes_along(key) and key not in odd
            }
        elif name.upper() == "NONE":
            if len(words) > 1:
                raise InvalidRequest(f"--export is '{export}'; NONE stands alone")
        elif name in variables and _goes_along(name):
            carried[name] = variables[name]
    return carried, given


def unsendable(variables: Mapping[str, str]) -> frozenset[str]:
    """Variables that would go along, and hold bytes that are no text: no request can carry them."""
    return frozenset(
        name
        for name, value in variables.items()
        if _goes_along(name) and not (is_text(name) and is_text(value))
    )


def is_text(value: str) -> bool:
    """Whether it is UTF-8; other bytes of this machine come as characters that stand for them."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def directory(variables: Mapping[str, str]) -> str:
    """Where the caller is; by the name it uses if that is a link to the same place."""
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise InvalidRequest("the current directory does not exist any more; change it") from None
    named = variables.get("PWD", "")
    try:
        if named.startswith("/") and os.path.samefile(named, here):  # noqa: PTH121
            return named
    except OSError:
        pass
    return here


def umask() -> int:
    """The caller's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def described(variables: Mapping[str, str]) -> str:
    """The Python environment that a job will find, in words; empty when there is none."""
    if variables.get("VIRTUAL_ENV"):
        return f"virtual environment {variables['VIRTUAL_ENV']}"
    if variables.get("CONDA_PREFIX"):
        return f"conda environment {variables['CONDA_PREFIX']}"
    if variables.get("UV_PROJECT_ENVIRONMENT"):
        return f"uv environment {variables['UV_PROJECT_ENVIRONMENT']}"
    return ""


def _goes_along(name: str) -> bool:
    return name not in LEFT_BEHIND and (name == _SERVER or not name.startswith(_OWN))
