"""Agents that speak the Agent Client Protocol: a subprocess a run, told and asked by JSON-RPC."""

from postroom.executors.acp.executor import AcpExecutor

__all__ = ["AcpExecutor"]
