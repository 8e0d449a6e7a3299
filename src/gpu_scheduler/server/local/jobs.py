"""A watched jobs.txt that comes from a provider of files, and not from the disk itself."""

from __future__ import annotations

import os
from typing import Any

from gpu_scheduler.client.jobs_file import models_in
from gpu_scheduler.model.caller import Caller
from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.server.jobs_file import JobsFile
from gpu_scheduler.server.local.engine import LocalEngine
from gpu_scheduler.server.local.parts import FileSystemProvider
from gpu_scheduler.settings.keeping import FileSettings


class ProvidedJobsFile(JobsFile):
    """Its jobs are those of whoever runs the program."""

    def __init__(
        self, engine: LocalEngine, settings: FileSettings, files: FileSystemProvider
    ) -> None:
        """Nothing is read yet."""
        super().__init__(engine.loop, settings, environment=os.environ)
        self._caller = engine.caller
        self._files = files
        self._settings = settings

    def _open(self) -> tuple[list[str], Caller] | None:
        path = self._settings.jobs_file
        if not self._files.exists(path):
            return None
        try:
            return self._files.read_text(path).splitlines(), self._caller
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"cannot be read: {error}", file=path) from error

    def _gpus_by_model(self) -> dict[str, Any]:
        path = self._settings.llm_config_file
        return models_in(self._files.read_text(path), path) if self._files.exists(path) else {}
