"""Another server as an executor: it gets each run, signed, and answers at once or calls back."""

from postroom.executors.remote.client import check_installed
from postroom.executors.remote.executor import RemoteExecutor
from postroom.executors.remote.wire import CALLBACKS, LARGEST_BODY

__all__ = ["CALLBACKS", "LARGEST_BODY", "RemoteExecutor", "check_installed"]
