"""Input that is nested thousands of levels deep gives an error that names the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.enrollment import IDENTITY_FILE, Identity
from gpu_scheduler.agent.launcher_protocol import decode_line
from gpu_scheduler.cli.submit.files import read_job_file
from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.client.jobs_file import llm_config
from gpu_scheduler.client.llm_sizing import read_header
from gpu_scheduler.client.requests import decoded
from gpu_scheduler.model.errors import InvalidInput, SchedulerError
from gpu_scheduler.settings.sources import load
from gpu_scheduler.simulator.traces.native_format import decode, sections

LEVELS = 5_000
LISTS = "[" * LEVELS + "]" * LEVELS
OBJECTS = '{"a":' * LEVELS + "1" + "}" * LEVELS
BOTH = pytest.mark.parametrize("text", [LISTS, OBJECTS], ids=["lists", "objects"])


@BOTH
@pytest.mark.parametrize(
    "read",
    [
        lambda file: load(str(file), environ={}),
        lambda file: read_job_file(str(file)),
        lambda file: llm_config(str(file)),
        AgentConfig.read,
    ],
    ids=["settings", "job file", "llm_config.json", "agent.json"],
)
def test_deep_file_is_rejected(tmp_path: Path, text: str, read: Callable[[Path], Any]) -> None:
    file = tmp_path / "file.json"
    file.write_text(f'{{"models": {text}}}', encoding="utf-8")
    with pytest.raises(SchedulerError, match=r"file\.json"):
        read(file)


@BOTH
def test_deep_identity_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / IDENTITY_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match="not the identity"):
        Identity.read(tmp_path)


@BOTH
def test_deep_header_of_tensors_is_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text.encode())
    with pytest.raises(InvalidInput, match=r"model\.safetensors"):
        read_header(file)


@BOTH
def test_deep_value_of_variable_is_rejected(text: str) -> None:
    with pytest.raises(SchedulerError, match="GPU_SCHEDULER_AGENT_LABELS"):
        load(environ={"GPU_SCHEDULER_AGENT_LABELS": text})


@BOTH
def test_deep_answer_and_message_are_rejected(text: str) -> None:
    with pytest.raises(Unreadable):
        decoded(200, text.encode())
    with pytest.raises(ValueError, match="too deep"):
        decode_line(text.encode())


@BOTH
def test_deep_trace_is_rejected(text: str) -> None:
    with pytest.raises(json.JSONDecodeError, match="too deeply"):
        decode(text)
    with pytest.raises(json.JSONDecodeError, match="too deeply"):
        list(sections(f'{{"jobs": [{text}]}}'))
