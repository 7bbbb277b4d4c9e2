"""Executes command-line agents; each run is a subprocess, watched until its last child process ends."""

from postroom.executors.command.executor import CommandExecutor
from postroom.executors.processes.output import CommandLimits

__all__ = ["CommandExecutor", "CommandLimits"]
