"""Command-line agents as an executor: a subprocess for each run, contained until its last child ends."""

from postroom.executors.command.executor import CommandExecutor
from postroom.executors.processes.output import CommandLimits

__all__ = ["CommandExecutor", "CommandLimits"]
