"""Runs agents that speak the Agent Client Protocol: one subprocess for each run, with JSON-RPC messages."""

from postroom.executors.acp.executor import AcpExecutor

__all__ = ["AcpExecutor"]
