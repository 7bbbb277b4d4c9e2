"""Runs agents that use the Agent Client Protocol; each run is a subprocess that speaks JSON-RPC."""

from postroom.executors.acp.executor import AcpExecutor

__all__ = ["AcpExecutor"]
