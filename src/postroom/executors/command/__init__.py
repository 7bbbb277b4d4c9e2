"""Executes command-line agents: one subprocess for each run, supervised until its last child ends."""

from postroom.executors.command.executor import CommandExecutor
from postroom.executors.processes.output import CommandLimits

__all__ = ["CommandExecutor", "CommandLimits"]
