"""`python -m gpu_scheduler.agent FILE` runs the agent with the configuration in FILE."""

from __future__ import annotations

import sys
from pathlib import Path

import structlog
import uvloop

from gpu_scheduler.agent.config import AGENT_LOG, AgentConfig
from gpu_scheduler.agent.main import AgentAlreadyRuns, exclusive_lock, run_agent
from gpu_scheduler.logging_setup.structured import LogConfig, configure
from gpu_scheduler.model.errors import SchedulerError

EXIT_ALREADY_RUNNING = 3
log = structlog.get_logger("agent")


def main(arguments: list[str]) -> int:
    """Run until SIGTERM or SIGINT. Running jobs continue."""
    config = AgentConfig.read(Path(arguments[0]))
    try:
        with exclusive_lock(config):
            # Only the process that holds the lock may rotate the log.
            configure(
                LogConfig(
                    file=str(Path(config.dir) / AGENT_LOG),
                    level=config.log_level,
                    max_bytes=config.own_log_bytes,
                    backups=config.own_log_backups,
                    take_stderr=True,
                )
            )
            uvloop.run(run_agent(config))
    except AgentAlreadyRuns:
        return EXIT_ALREADY_RUNNING
    except SchedulerError as error:
        log.error("the agent cannot start", error=str(error))  # noqa: TRY400 - for people
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
