"""Executes runs on another server, which gets a signed request, and answers at once or later."""

from postroom.executors.remote.executor import CALLBACKS, LARGEST_BODY, RemoteExecutor, check_installed

__all__ = ["CALLBACKS", "LARGEST_BODY", "RemoteExecutor", "check_installed"]
