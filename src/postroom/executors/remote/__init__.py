"""Executes runs on another server, which gets each run signed, and answers at once or calls back."""

from postroom.executors.remote.executor import CALLBACKS, LARGEST_BODY, RemoteExecutor, check_installed

__all__ = ["CALLBACKS", "LARGEST_BODY", "RemoteExecutor", "check_installed"]
