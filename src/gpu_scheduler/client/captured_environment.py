"""What a job inherits from its submitter: environment variables, working directory, umask.

The caller's selection of GPUs is not inherited, because the scheduler selects them.
"""

from __future__ import annotations

import os

from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NOT_CAPTURED = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
        *("GPU_DEVICE_ORDINAL", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
        *("GPU_SCHEDULER_TOKEN", "GPU_SCHEDULER_TOKEN_FILE"),
        *("_", "SHLVL", "OLDPWD", "TMUX", "TMUX_PANE", "STY", "WINDOW"),
    }
)
"""The caller's devices, its rank in a gang, tokens, and variables of its shell."""
_OWN = "TGPU_"
_SERVER = "TGPU_SERVER"
"""The only captured one of this prefix: a job may submit other jobs."""


def capture(export: str | None = None, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the fields of a submission for environment, directory and umask."""
    variables = os.environ if environ is None else environ
    captured, given = exported(export, variables)
    fields: dict[str, Any] = {
        "captured_environment": captured,
        "working_directory": directory(variables),
        "umask": umask(),
    }
    if given:
        fields["environment"] = given
    return fields


def exported(
    export: str | None, variables: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the captured and the set variables for `ALL`, `NONE`, `A,B=c` or `ALL,B=c`."""
    words = [word for word in (export or "ALL").split(",") if word]
    captured: dict[str, str] = {}
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or (name.upper() in ("ALL", "NONE") and equals):
            raise InvalidRequest(f"--export has '{word}'; write ALL, NONE, NAME or NAME=value")
        if equals:
            given[name] = value
        elif name.upper() == "ALL":
            excluded = non_utf8_variables(variables)
            captured |= {
                key: text
                for key, text in variables.items()
                if _is_captured(key) and key not in excluded
            }
        elif name.upper() == "NONE":
            if len(words) > 1:
                raise InvalidRequest(f"--export is '{export}'; NONE cannot be combined")
        elif name in variables and _is_captured(name):
            captured[name] = variables[name]
    return captured, given


def non_utf8_variables(variables: Mapping[str, str]) -> frozenset[str]:
    """Return the variables to capture that are not UTF-8, which a request cannot contain."""
    return frozenset(
        name
        for name, value in variables.items()
        if _is_captured(name) and not (is_text(name) and is_text(value))
    )


def is_text(value: str) -> bool:
    """Tell whether a string is UTF-8; Python decodes other bytes as surrogate characters."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def directory(variables: Mapping[str, str]) -> str:
    """Return the current directory, by the name in PWD if that is a link to it."""
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise InvalidRequest(
            "the current directory no longer exists; change to another one"
        ) from None
    named = variables.get("PWD", "")
    try:
        if named.startswith("/") and os.path.samefile(named, here):  # noqa: PTH121
            return named
    except OSError:
        pass
    return here


def umask() -> int:
    """Return the umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def described(variables: Mapping[str, str]) -> str:
    """Return the Python environment of a job in words; empty if there is none."""
    if variables.get("VIRTUAL_ENV"):
        return f"virtual environment {variables['VIRTUAL_ENV']}"
    if variables.get("CONDA_PREFIX"):
        return f"conda environment {variables['CONDA_PREFIX']}"
    if variables.get("UV_PROJECT_ENVIRONMENT"):
        return f"uv environment {variables['UV_PROJECT_ENVIRONMENT']}"
    return ""


def _is_captured(name: str) -> bool:
    return name not in NOT_CAPTURED and (name == _SERVER or not name.startswith(_OWN))
