"""Starts the programs that run agents, watches them, and ends them together with their child processes."""
