"""Any command-line agent as an executor: a subprocess a run, contained and ended to its last child."""

from postroom.executors.command.executor import CommandExecutor
from postroom.executors.processes.limits import CommandLimits

__all__ = ["CommandExecutor", "CommandLimits"]
